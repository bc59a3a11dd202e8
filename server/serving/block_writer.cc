#include "server/serving/block_writer.h"

#include <cstring>
#include <utility>

#include "server/log.h"
#include "server/serving/serving_context.h"

namespace reprise::server {
namespace {

constexpr uint32_t kStoringOutMax = 64;  // Records of blocks that leave the HBM tier.

}  // namespace

struct BlockWriter::Job {
  StorePort::Namespace name_space;
  std::vector<Block> blocks;
  std::vector<std::byte*> records;  // Buffers; or where the blocks lie.
  std::function<void(const Written&)> done;
};

void BlockWriter::Write(const StorePort::Namespace& name_space, std::vector<Block> blocks,
                        std::function<void(const Written&)> done) {
  const auto job = std::make_shared<Job>();
  job->name_space = name_space;
  job->done = std::move(done);
  const uint32_t record_bytes = context_.store.record_bytes();
  std::vector<HbmTier::Copy> copies;
  for (const Block& block : blocks) {
    std::byte* record = context_.tier == nullptr ? block.data : context_.buffers.Take();
    job->records.push_back(record);
    copies.push_back({.data = block.data, .host = record});
    std::memcpy(record + record_bytes - kRecordTokenBytes, block.tokens.data(), kRecordTokenBytes);
  }
  job->blocks = std::move(blocks);
  if (context_.tier == nullptr) return Put(job);
  context_.tier->Store(copies, [this, job](const absl::Status& status) {
    if (status.ok()) return Put(job);
    LogError("hbm_store_failed", {{"error", status}, {"action", "the blocks are not stored"}});
    OnPut(job.get(), {});
  });
}

void BlockWriter::Seal(const Job& job) {
  const uint32_t record_bytes = context_.store.record_bytes();
  for (size_t i = 0; i < job.blocks.size(); ++i) {
    SealRecord(Bytes(job.records[i], record_bytes), job.blocks[i].header);
  }
}

void BlockWriter::Put(const std::shared_ptr<Job>& job) {
  Seal(*job);
  std::vector<ConstBytes> records;
  for (const std::byte* record : job->records) {
    records.emplace_back(record, context_.store.record_bytes());
  }
  context_.store.Put(job->name_space, std::move(records),
                     context_.durable ? wire::Durability::kDurable : wire::Durability::kRelaxed,
                     context_.load_limit_ns, [this, job](const std::vector<Outcome>& outcomes) {
                       OnPut(job.get(), outcomes);
                     });
}

// `outcomes` is empty when there are no records.
void BlockWriter::OnPut(Job* job, const std::vector<Outcome>& outcomes) {
  Written written;
  const uint32_t record_bytes = context_.store.record_bytes();
  for (size_t i = 0; i < job->blocks.size(); ++i) {
    const Outcome outcome = outcomes.empty() ? Outcome::kCorrupt : outcomes[i];
    const bool stored = outcome == Outcome::kOk || outcome == Outcome::kExists;
    if (outcome == Outcome::kOk) written.stored_bytes += record_bytes;
    if (!stored) ++written.failed;
    if (context_.tier == nullptr) continue;
    const Block& block = job->blocks[i];
    const bool derived = (block.header.flags & kReplayDerived) != 0;
    // The store may have an exact one instead, which a hit should find.
    const bool other = outcome == Outcome::kExists && derived;
    if (stored && !other) {
      context_.tier->Name(block.data, KeyOf(block.header.block_hash), derived);
    } else if (!stored && !outcomes.empty()) {
      const std::byte* end = job->records[i] + record_bytes;
      context_.tier->Name(block.data, KeyOf(block.header.block_hash), derived,
                          HbmTier::Unstored{job->name_space, {end - kRecordTailBytes, end}});
    }
    context_.buffers.Return(job->records[i]);
  }
  job->done(written);
}

void BlockWriter::StoreOut(const std::byte* data, const StorePort::Namespace& name_space,
                           ConstBytes tail) {
  if (storing_out_ == kStoringOutMax) return;
  const auto record = std::make_shared<std::vector<std::byte>>(context_.store.record_bytes());
  const engine::MemoryCopy copy{record->data(), data, context_.tier->slot_bytes()};
  if (const absl::Status status = context_.engine.memory().Copy({&copy, 1}); !status.ok()) {
    LogError("hbm_store_failed", {{"error", status}, {"action", "the block is not stored"}});
    return;
  }
  std::memcpy(record->data() + record->size() - tail.size(), tail.data(), tail.size());
  ++storing_out_;
  context_.store.Put(name_space, {ConstBytes(*record)}, wire::Durability::kRelaxed,
                     context_.load_limit_ns, [this, record](const std::vector<Outcome>& outcomes) {
                       --storing_out_;
                       const bool stored =
                           outcomes[0] == Outcome::kOk || outcomes[0] == Outcome::kExists;
                       if (!stored) ++context_.counters.publish_failures;
                     });
}

}  // namespace reprise::server
