#include "tests/integration/data_files.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "protocol/record/record.h"
#include "storage/format.h"
#include "tests/integration/program.h"

namespace reprise::test {

std::vector<std::byte> BytesFromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

nlohmann::json HeaderOfSessionFile(const std::string& file) {
  const auto bytes = LoadLe<uint64_t>(reinterpret_cast<const std::byte*>(file.data()) + 8);
  return nlohmann::json::parse(file.substr(16, bytes));
}

Manifest ManifestOfSessionFile(const std::string& file) {
  const std::vector<std::byte> encoded = BytesFromHex(HeaderOfSessionFile(file)["manifest"]);
  return *DecodeManifest({reinterpret_cast<const char*>(encoded.data()), encoded.size()});
}

ShardFile::ShardFile(std::string path, uint32_t record_bytes, uint64_t region_bytes)
    : path_(std::move(path)),
      record_bytes_(record_bytes),
      region_bytes_(region_bytes),
      content_(ReadText(path_)) {}

std::optional<ShardFile::Place> ShardFile::Find(const BlockKey& key) const {
  const uint64_t slots = storage::CutRegion(record_bytes_, region_bytes_).slots;
  std::optional<Place> found;
  for (uint64_t region = 0; (region + 1) * region_bytes_ <= content_.size(); ++region) {
    for (uint64_t slot = 0; slot < slots; ++slot) {
      const uint64_t offset = region * region_bytes_ + slot * record_bytes_;
      const RecordHeader header =
          LoadRecordHeader(AsBytes(std::string_view(content_).substr(offset, record_bytes_)));
      if (header.magic == kRecordMagic && KeyOf(header.block_hash) == key) {
        found = Place{.region = region, .slot = slot, .offset = offset};
      }
    }
  }
  return found;
}

uint64_t ShardFile::TrailerOffset(uint64_t region) const {
  return region * region_bytes_ + storage::CutRegion(record_bytes_, region_bytes_).entries_offset;
}

uint64_t ShardFile::StatePageOffset(uint64_t region) const {
  return (region + 1) * region_bytes_ - kPageBytes;
}

bool ShardFile::IsSealed(uint64_t region) const {
  const auto page = LoadLe<storage::RegionStatePage>(content_.data() + StatePageOffset(region));
  return page.magic == storage::kRegionMagic && page.state == storage::RegionState::kSealed;
}

void ShardFile::FlipBit(uint64_t offset) const {
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(content_[offset] ^ 8));
}

void ShardFile::Zero(uint64_t offset, uint64_t bytes) const {
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file << std::string(bytes, '\0');
}

void ShardFile::Truncate(uint64_t bytes) const { std::filesystem::resize_file(path_, bytes); }

}  // namespace reprise::test
