#include "protocol/base/check.h"
#include "protocol/identity/manifest.h"
#include "tests/fuzz/fuzz_input.h"

// The encoding is canonical: what is accepted is exactly what would be written.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const reprise::fuzz::Input input(data, size);
  const auto manifest = reprise::DecodeManifest(input.text());
  if (!manifest.ok()) {
    RP_CHECK(!reprise::Message(manifest.status()).empty());
    return 0;
  }
  RP_CHECK(reprise::EncodeManifest(*manifest) == input.text());
  RP_CHECK(reprise::DifferingFields(*manifest, *manifest).empty());
  return 0;
}
