#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "protocol/record/record.h"
#include "server/serving/store_port.h"

namespace reprise::server {

struct ServingContext;

// Finished blocks on their way to the store: sealed where they lie, or, from an engine's memory,
// copied out first beside its steps; put; and given their keys in the HBM tier. The engine's
// thread.
class BlockWriter {
 public:
  struct Block {
    std::byte* data = nullptr;        // Payload, in what the engine was lent: quiet until `done`.
    RecordHeader header;              // Without its checksums.
    std::span<const TokenId> tokens;  // kBlockTokens; read before Write returns.
  };
  // Bytes that the store has now, and blocks that it did not take.
  struct Written {
    uint64_t stored_bytes = 0;
    uint32_t failed = 0;
  };

  explicit BlockWriter(ServingContext* context) : context_(*context) {}

  // REQUIRES: a buffer of the context's is reserved for each. `done` is called exactly once.
  void Write(const StorePort::Namespace& name_space, std::vector<Block> blocks,
             std::function<void(const Written&)> done);
  // Puts a record of which the HBM tier had the only copy.
  void StoreOut(const std::byte* data, const StorePort::Namespace& name_space, ConstBytes tail);

 private:
  struct Job;

  void Seal(const Job& job);
  void Put(const std::shared_ptr<Job>& job);
  void OnPut(Job* job, const std::vector<Outcome>& outcomes);

  ServingContext& context_;
  uint32_t storing_out_ = 0;
};

}  // namespace reprise::server
