#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "protocol/base/status.h"
#include "storage/format.h"

namespace reprise::storage {

// The directory that one daemon owns: LOCK, superblock, shard-<n>.data, meta/ (storage/FORMAT.md).
// While this object lives, a second owner is refused. Blocking; used at start, on one thread.
class DataDirectory {
 public:
  struct Options {
    std::string path;
    uint32_t shard_count = 0;
    uint32_t record_bytes = 0;
    uint64_t region_bytes = 0;
    int64_t created_ms = 0;  // Wall clock; written down when the directory is formatted.
  };

  // Opens the directory, or formats it when it is missing (its parent must exist) or holds no data.
  // What was found must agree with `options`; an error says both and what to do.
  static absl::StatusOr<std::unique_ptr<DataDirectory>> Open(const Options& options);
  ~DataDirectory();
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& path() const { return options_.path; }
  const Superblock& superblock() const { return superblock_; }
  std::array<std::byte, 16> uuid() const;
  std::string uuid_text() const;
  RegionGeometry geometry() const {
    return CutRegion(options_.record_bytes, options_.region_bytes);
  }
  std::string shard_path(uint32_t shard) const;
  std::string meta_path() const { return options_.path + "/meta"; }

  // This call wrote a new superblock: nothing was stored here before.
  bool formatted() const { return formatted_; }
  // One copy of the superblock was damaged and has been written again from the other. Worth a
  // warning.
  bool repaired() const { return repaired_; }

 private:
  explicit DataDirectory(const Options& options) : options_(options) {}

  absl::Status MakeDirectory();
  absl::Status Lock();
  absl::Status LoadSuperblock();
  absl::Status CheckSuperblock() const;
  absl::Status Format();
  absl::Status WriteSuperblock(int fd);
  bool HasShardFile() const;
  std::string superblock_path() const { return options_.path + "/superblock"; }

  Options options_;
  Superblock superblock_;
  int lock_fd_ = -1;
  bool formatted_ = false;
  bool repaired_ = false;
};

}  // namespace reprise::storage
