#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/types.h"
#include "protocol/identity/manifest.h"

// A stopped daemon's files, read and damaged from outside. storage/FORMAT.md says where things are.
namespace reprise::test {

std::vector<std::byte> BytesFromHex(const std::string& hex);

// Of an exported session's file, whole as it is.
nlohmann::json HeaderOfSessionFile(const std::string& file);
Manifest ManifestOfSessionFile(const std::string& file);

class ShardFile {
 public:
  ShardFile(std::string path, uint32_t record_bytes, uint64_t region_bytes);

  struct Place {
    uint64_t region = 0;
    uint64_t slot = 0;
    uint64_t offset = 0;  // Of the record in the file.
  };
  // The last whole-looking record with that key; nothing when there is none.
  std::optional<Place> Find(const BlockKey& key) const;
  // Where the region's trailer entries and state page begin.
  uint64_t TrailerOffset(uint64_t region) const;
  uint64_t StatePageOffset(uint64_t region) const;
  bool IsSealed(uint64_t region) const;

  void FlipBit(uint64_t offset) const;
  void Zero(uint64_t offset, uint64_t bytes) const;
  void Truncate(uint64_t bytes) const;

 private:
  std::string path_;
  uint32_t record_bytes_;
  uint64_t region_bytes_;
  std::string content_;
};

}  // namespace reprise::test
