#include "gpu/checkpoint/safetensors.h"
#include "gpu/checkpoint/safetensors_index.h"
#include "protocol/base/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using reprise::engine::SafetensorsEntry;

// Accepted entries cover the data once, in order, and no name comes twice.
void CheckHeader(std::string_view json, uint64_t data_bytes) {
  const auto entries = reprise::engine::ParseSafetensorsHeader(json, data_bytes);
  if (!entries.ok()) {
    RP_CHECK(!reprise::Message(entries.status()).empty());
    return;
  }
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : *entries) {
    RP_CHECK(entry.begin == end && !entry.name.empty());
    uint64_t bytes = DTypeBytes(entry.dtype);
    for (const uint64_t side : entry.shape) bytes *= side;
    end = entry.end;
    RP_CHECK(end - entry.begin == bytes);
  }
  RP_CHECK(end == data_bytes);
}

void CheckIndex(std::string_view json) {
  const auto index = reprise::engine::ParseSafetensorsIndex(json);
  if (!index.ok()) {
    RP_CHECK(!reprise::Message(index.status()).empty());
    return;
  }
  for (const auto& [tensor, file] : index->files) {
    RP_CHECK(file.ends_with(".safetensors") && file.find('/') == file.npos);
  }
}

}  // namespace

// Four bytes of data length and a header; 0xFFFFFFFF and an index.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::fuzz::Input input(data, size);
  const auto data_bytes = input.Take<uint32_t>();
  if (data_bytes == UINT32_MAX) {
    CheckIndex(input.text());
  } else {
    CheckHeader(input.text(), data_bytes);
  }
  return 0;
}
