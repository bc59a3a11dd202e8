#include "client/economics/ledger_worth.h"

#include <algorithm>

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

double NumberAt(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number()) return 0;
  return object[key].get<double>();
}

double BudgetOf(const Json& status, const char* tier) {
  if (!status.contains("tiers") || !status["tiers"].contains(tier)) return 0;
  return NumberAt(status["tiers"][tier], "budget_bytes");
}

}  // namespace

Json LedgerWorth(const Json& status, const Costs& costs) {
  const CostProfile& profile = costs.profile();
  const Json ledger = status.value("ledger", Json::object());
  // Requests for text and lookups of other engines: each counted by its own.
  const double hit = NumberAt(ledger, "hit_tokens") + NumberAt(ledger, "prompt_hit_tokens");
  const double asked = NumberAt(ledger, "lookup_tokens") + NumberAt(ledger, "prompt_tokens");
  const double replays = NumberAt(ledger, "replayed_hits") + NumberAt(ledger, "windows_replayed");
  const double saved = hit * costs.usd_per_token();
  const double replay = replays * costs.model().replay_tokens() * costs.usd_per_token();
  const double seconds = NumberAt(status, "uptime_seconds");
  const double window =
      status.contains("window_pool") ? NumberAt(status["window_pool"], "budget_bytes") : 0;
  const double dram = BudgetOf(status, "dram") * seconds * profile.dram_usd_per_byte_second();
  const double pool = window * seconds * profile.dram_usd_per_byte_second();
  const double ssd = BudgetOf(status, "ssd") * seconds * profile.ssd_usd_per_byte_second();
  const double wear = NumberAt(ledger, "ssd_bytes_written") * profile.ssd_usd_per_byte_written();
  const double spent = replay + dram + pool + ssd + wear;
  return {{"currency", "USD"},
          {"model", costs.model().name()},
          {"asked_tokens", asked},
          {"hit_tokens", hit},
          {"hit_rate", asked == 0 ? 0 : hit / asked},
          {"gpu_seconds_saved", std::max(0.0, hit - replays * costs.model().replay_tokens()) /
                                    profile.gpu.prefill_tokens_per_second},
          {"saved", saved},
          {"spent", spent},
          {"net", saved - spent},
          {"spent_on",
           {{"replay", replay},
            {"dram_since_start", dram},
            {"window_pool_since_start", pool},
            {"ssd_since_start", ssd},
            {"ssd_wear", wear}}},
          {"customers_save_at_list_price",
           hit / 1e6 * (profile.price.miss_usd_per_million - profile.price.hit_usd_per_million)}};
}

}  // namespace reprise
