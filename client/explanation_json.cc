#include "client/explanation_json.h"

#include <nlohmann/json.hpp>

namespace reprise {

std::string ExplanationJson(const Client::Explanation& e, const Hash256& name_space) {
  using Json = nlohmann::ordered_json;
  const Json json = {{"namespace", ToHex(name_space)},
                     {"tokens", e.tokens},
                     {"asked_blocks", e.asked_blocks},
                     {"hit_blocks", e.hit_blocks},
                     {"hit_tokens", uint64_t{e.hit_blocks} * kBlockTokens},
                     {"tiers", e.tiers},
                     {"reason", e.reason},
                     {"detail", e.detail},
                     {"block", e.block},
                     {"block_index", e.block_index},
                     {"window", e.window},
                     {"differing_fields", e.differing_fields}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace reprise
