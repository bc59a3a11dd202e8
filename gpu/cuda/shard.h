#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "protocol/base/status.h"

// What one of several GPUs that run a model together has of it.
namespace reprise::engine::cuda {

struct Shard {
  uint32_t rank = 0, ranks = 1;

  bool alone() const { return ranks == 1; }
  // This rank's part of so many in a row, in whole units; the last unit may be short. The parts
  // follow one another by rank, and differ by a unit at most.
  struct Part {
    uint64_t first = 0, count = 0;
  };
  Part PartOf(uint64_t total, uint64_t unit = 1) const {
    const uint64_t units = (total + unit - 1) / unit;
    const auto begin = [&](uint64_t of) { return std::min(total, units * of / ranks * unit); };
    return {begin(rank), begin(rank + 1) - begin(rank)};
  }
  // No rank's part is larger.
  uint64_t LargestPart(uint64_t total, uint64_t unit = 1) const {
    const uint64_t units = (total + unit - 1) / unit;
    return (units + ranks - 1) / ranks * unit;
  }
};

// Where the ranks' threads wait for one another before a step is queued: none of them allocates
// device memory, nor makes a graph, while another's collective already waits on its device.
class StepGate {
 public:
  explicit StepGate(uint32_t ranks) : ranks_(ranks) {}
  // Blocks until every rank has come. `own`: how this one's preparations went. OK when all went
  // well; else the own error, or ABORTED for those who could have gone on.
  absl::Status Meet(const absl::Status& own);

 private:
  const uint32_t ranks_;
  std::mutex mutex_;
  std::condition_variable all_came_;
  uint32_t came_ = 0;
  uint64_t turn_ = 0;
  bool failed_ = false, turn_failed_ = false;  // Of those that come; of the turn before.
};

class Communicator;

// A rank's place among the others, which outlive its engine. Null for an engine that is alone.
struct RankPlace {
  Shard shard;
  Communicator* communicator = nullptr;
  StepGate* gate = nullptr;
};

}  // namespace reprise::engine::cuda
