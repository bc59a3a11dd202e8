#include "protocol/base/check.h"
#include "protocol/base/units.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const reprise::fuzz::Input input(data, size);
  if (const auto bytes = reprise::ParseBytes(input.text()); bytes.ok()) {
    RP_CHECK(!reprise::FormatBytes(*bytes).empty());
  } else {
    RP_CHECK(!reprise::Message(bytes.status()).empty());
  }
  if (const auto duration = reprise::ParseDuration(input.text()); duration.ok()) {
    RP_CHECK(*duration >= 0 && !reprise::FormatDuration(*duration).empty());
  } else {
    RP_CHECK(!reprise::Message(duration.status()).empty());
  }
  return 0;
}
