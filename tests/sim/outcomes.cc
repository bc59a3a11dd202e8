#include "tests/sim/outcomes.h"

#include <charconv>

namespace reprise::sim {

std::vector<std::string_view> Outcomes::Required() {
  return {
      // What clients see.
      "get_from_dram",
      "get_from_ssd",
      "get_not_found",
      "get_busy",
      "get_timeout",
      "get_io",
      "get_corrupt",
      "put_ok",
      "put_ok_durable",
      "put_exists",
      "put_busy",
      "put_timeout",
      "put_rejected",
      "put_io",
      "put_corrupt",
      "put_hash_mismatch",
      "put_wrong_namespace",
      "put_unsupported",
      "lookup_full",
      "lookup_partial",
      "lookup_miss",
      "lookup_pending",
      "lookup_window_boundary",
      "lookup_window_exact",
      "window_put_ok",
      "window_put_exists",
      "window_put_rejected",
      "window_put_corrupt",
      "window_found",
      "window_absent",
      "evicted_by_admin",
      "verified",
      "verify_failed",
      "explain_hit",
      "explain_evicted",
      "explain_never_stored",
      "explain_other_namespace",
      // What the store does.
      "dram_evictions",
      "ssd_evictions",
      "reclaimed_regions",
      "reinserted_blocks",
      "replaced_blocks",
      "admissions_refused",
      "failed_checks",
      "load_errors",
      "append_errors",
      "windows_expired",
      "windows_evicted",
      "windows_superseded",
      // What goes wrong.
      "power_cut",
      "kill",
      "write_kept_old",
      "write_kept_new",
      "write_torn",
      "bit_flipped",
      "meta_lost",
      "meta_stale",
      "regions_from_index",
      "regions_from_trailer",
      "regions_scanned",
      "records_torn",
      "durable_found_again",
      "removed_stayed_away",
      "client_reset",
      "client_silent",
      "client_slow",
      "client_hostile",
      "refused_at_limit",
      "closed_by_server",
      "clock_jump",
      "rdma_connected",
      "rdma_declined",
      "rdma_fetched",
      "rdma_key_ended",
      "rdma_fault",
  };
}

std::string Outcomes::ToText() const {
  std::string text;
  for (const auto& [name, count] : counts_) text += name + " " + std::to_string(count) + "\n";
  return text;
}

Outcomes Outcomes::FromText(std::string_view text) {
  Outcomes outcomes;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const size_t space = line.find(' ');
    uint64_t count = 0;
    if (space == std::string_view::npos) continue;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), count);
    outcomes.Count(line.substr(0, space), count);
  }
  return outcomes;
}

}  // namespace reprise::sim
