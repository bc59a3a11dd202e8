#include "protocol/base/check.h"
#include "server/config.h"
#include "tests/fuzz/fuzz_input.h"

// What Parse accepts is written back to an equal configuration, and Validate has an opinion on it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using reprise::server::Config;
  const reprise::fuzz::Input input(data, size);
  auto config = Config::Parse(std::string(input.text()), "input.toml");
  if (!config.ok()) {
    RP_CHECK(!reprise::Message(config.status()).empty());
    return 0;
  }
  const auto again = Config::Parse(config->ToToml(), "again.toml");
  RP_CHECK(again.ok() && *again == *config);
  const absl::Status valid =
      config->Validate({.memory_bytes = uint64_t{64} << 30, .disk_free_bytes = uint64_t{1} << 40});
  RP_CHECK(valid.ok() || !reprise::Message(valid).empty());
  if (valid.ok()) RP_CHECK(config->record_bytes() % reprise::kPageBytes == 0);
  return 0;
}
