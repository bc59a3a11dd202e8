#include "gpu/model/model_description.h"
#include "gpu/model/model_geometry.h"
#include "protocol/base/check.h"
#include "tests/fuzz/fuzz_input.h"

// What Parse accepts is written back to an equal configuration, and has a geometry that can be
// described, or an error that says why not.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using reprise::engine::ModelConfig;
  using reprise::engine::ModelGeometry;
  const reprise::fuzz::Input input(data, size);
  const auto config = ModelConfig::Parse(input.text());
  if (!config.ok()) {
    RP_CHECK(!reprise::Message(config.status()).empty());
    return 0;
  }
  const auto again = ModelConfig::Parse(config->ToJson());
  RP_CHECK(again.ok() && *again == *config);
  const auto geometry = ModelGeometry::For(*config);
  if (!geometry.ok()) {
    RP_CHECK(!reprise::Message(geometry.status()).empty());
    return 0;
  }
  RP_CHECK(geometry->layers.size() == geometry->all_layers());
  RP_CHECK(geometry->parameters.total >= geometry->parameters.routed_experts);
  RP_CHECK(!DescribeModelText(*geometry).empty() && !DescribeModelJson(*geometry).empty());
  return 0;
}
