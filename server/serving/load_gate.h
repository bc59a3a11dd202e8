#pragma once

#include <cstdint>
#include <span>

#include "storage/block_store.h"

namespace reprise::server {

// Decides how much of a hit is worth loading: blocks on SSD are skipped, and computed again, where
// reading them would take longer. By what reading and computing took lately. One thread.
class LoadGate {
 public:
  using Residency = storage::BlockStore::Residency;

  // What was measured: blocks that were read from SSD for one request, all at once; rows of prompts
  // that were computed.
  void RecordLoad(uint64_t bytes, double seconds);
  void RecordRows(uint32_t rows, double seconds);

  // Of the leading `blocks` that are there, how many to use for a prompt of `tokens` tokens; as
  // many as make (load + compute) least. `replay_tokens` are run again when any is used.
  uint32_t BlocksToUse(std::span<const Residency> blocks, uint64_t tokens, uint32_t record_bytes,
                       uint32_t replay_tokens) const;

  double seconds_per_row() const { return seconds_per_row_; }
  double load_bytes_per_second() const { return bytes_per_second_; }

 private:
  double seconds_per_row_ = 0;     // 0: not measured yet; everything is loaded until then.
  double bytes_per_second_ = 1e9;  // An SSD's, before it is measured.
};

}  // namespace reprise::server
