#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "protocol/base/check.h"
#include "storage/data_directory.h"
#include "storage/format_check.h"
#include "tests/fuzz/fuzz_input.h"

// A data directory whose superblock file is the input. The first byte says which of the two copies
// get a right checksum, and how long the file is.
namespace {

using reprise::storage::DataDirectory;
using reprise::storage::Superblock;

std::string* Folder() {
  static auto* const folder = new std::string([] {
    std::string name = (std::filesystem::temp_directory_path() / "fuzz_superblock_XXXXXX").string();
    RP_CHECK(mkdtemp(name.data()) != nullptr);
    return name;
  }());
  static const bool registered = [] {
    return std::atexit([] {
             std::error_code ignored;
             std::filesystem::remove_all(*Folder(), ignored);
           }) == 0;
  }();
  RP_CHECK(registered);
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::fuzz::Input input(data, size);
  const auto choice = input.Take<uint8_t>();
  std::string file(2 * reprise::kPageBytes, '\0');
  for (int copy = 0; copy < 2; ++copy) {
    auto block = input.Take<Superblock>();
    if ((choice >> copy & 1) != 0) block.crc = CrcOf(block);
    reprise::StoreLe(file.data() + copy * reprise::kPageBytes, block);
  }
  if ((choice & 4) != 0) file.resize(input.Take<uint16_t>() % (file.size() + 1));

  const std::string path = *Folder() + "/superblock";
  std::filesystem::remove(path);
  const int fd = open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  RP_CHECK(fd >= 0 && write(fd, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  close(fd);
  const auto directory = DataDirectory::Open({.path = *Folder(),
                                              .shard_count = 2,
                                              .record_bytes = 8'192,
                                              .region_bytes = 65'536,
                                              .created_ms = 1});
  if (!directory.ok()) {
    RP_CHECK(!reprise::Message(directory.status()).empty());
    return 0;
  }
  const Superblock& block = (*directory)->superblock();
  RP_CHECK(block.shard_count == 2 && block.record_bytes == 8'192 && block.region_bytes == 65'536);
  return 0;
}
