#include <algorithm>
#include <cstring>

#include "client/bench/bench_chain.h"
#include "client/bench/daemon_bench.h"
#include "client/bench/huge_buffer.h"

namespace reprise::bench {
namespace {

class DramBench {
 public:
  DramBench(const DaemonBenchOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  absl::Status Open() {
    ClientOptions client_options;
    client_options.address = options_.address;
    client_options.name = "reprise bench dram";
    client_options.deadline_ns = options_.deadline_ns;
    RP_ASSIGN(client_, Client::Connect(client_options));
    if (!client_->local()) {
      return FailedPrecondition(options_.address +
                                " does not share its memory; give the daemon's Unix socket");
    }
    RP_ASSIGN(name_space_, OpenBenchNamespace(client_.get()));
    record_bytes_ = client_->record_bytes();
    chain_ =
        std::make_unique<BenchChain>(client_->name_space(name_space_.id), name_space_.payload_bytes,
                                     options_.seed, options_.records);
    RP_TRY(StoreChain(client_.get(), name_space_, *chain_, wire::Durability::kRelaxed, clock_)
               .status());
    RP_TRY(source_.Allocate(uint64_t{options_.records} * record_bytes_));
    RP_TRY(target_.Allocate(uint64_t{options_.batch} * record_bytes_));
    return WarmUp();
  }

  absl::StatusOr<DramBenchFigures> Run() {
    figures_.record_bytes = record_bytes_;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      RP_ASSIGN(const Measured lease, Repeat(&DramBench::LeaseBatch));
      RP_ASSIGN(const Measured copy, Repeat(&DramBench::CopyBatch));
      RP_ASSIGN(const Measured memory_copy, Repeat(&DramBench::MemoryCopyBatch));
      figures_.lease.Merge(lease);
      figures_.copy.Merge(copy);
      figures_.memory_copy.Merge(memory_copy);
      figures_.lease_rate.Add(lease.records_per_second());
      figures_.copy_rate.Add(copy.bytes_per_second());
      figures_.memory_copy_rate.Add(memory_copy.bytes_per_second());
      figures_.copy_ratio.Add(copy.bytes_per_second() / memory_copy.bytes_per_second());
    }
    return std::move(figures_);
  }

 private:
  using Batch = absl::Status (DramBench::*)(uint32_t first, uint32_t count);

  // Every record once: checked byte by byte, its pages mapped here, and copied for the memcpy.
  absl::Status WarmUp() {
    for (uint32_t first = 0; first < options_.records; first += options_.batch) {
      const uint32_t count = std::min(options_.batch, options_.records - first);
      RP_ASSIGN(const Lease lease, AcquireAll(first, count));
      for (uint32_t i = 0; i < count; ++i) {
        if (chain_->CountErrors(first + i, lease.record(i)) != 0) ++figures_.wrong_records;
        std::memcpy(Source(first + i).data(), lease.record(i).data(), record_bytes_);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Measured> Repeat(Batch batch) {
    Measured measured;
    const Instant begin = clock_.Now();
    const Instant end = begin + options_.duration_ns / options_.rounds;
    uint32_t first = 0;
    Instant now = begin;
    while (now < end) {
      const uint32_t count = std::min(options_.batch, options_.records - first);
      RP_TRY((this->*batch)(first, count));
      const Instant after = clock_.Now();
      measured.latency.Add(after - now);
      measured.records += count;
      now = after;
      first = first + count == options_.records ? 0 : first + count;
    }
    measured.bytes = measured.records * record_bytes_;
    measured.elapsed_ns = now - begin;
    return measured;
  }

  absl::StatusOr<Lease> AcquireAll(uint32_t first, uint32_t count) {
    RP_ASSIGN(Lease lease, client_->Acquire(name_space_.id, chain_->keys().subspan(first, count)));
    if (lease.size() != count) {
      return ResourceExhausted("the daemon holds only a part of the working set (" +
                               std::string(OutcomeName(lease.stopped_by())) +
                               "); make its DRAM tier larger, or ask for fewer --records");
    }
    return lease;
  }

  absl::Status LeaseBatch(uint32_t first, uint32_t count) {
    return AcquireAll(first, count).status();  // Released here.
  }

  absl::Status CopyBatch(uint32_t first, uint32_t count) {
    RP_ASSIGN(const Lease lease, AcquireAll(first, count));
    for (uint32_t i = 0; i < count; ++i) {
      if (lease.CopyTo(i, Target(i)) != Outcome::kOk) return DataLoss("a lease was lost");
    }
    return absl::OkStatus();
  }

  absl::Status MemoryCopyBatch(uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      std::memcpy(Target(i).data(), Source(first + i).data(), record_bytes_);
    }
    return absl::OkStatus();
  }

  Bytes Source(uint32_t i) const {
    return source_.bytes().subspan(uint64_t{i} * record_bytes_, record_bytes_);
  }
  Bytes Target(uint32_t i) const {
    return target_.bytes().subspan(uint64_t{i} * record_bytes_, record_bytes_);
  }

  const DaemonBenchOptions& options_;
  const Clock& clock_;
  std::unique_ptr<Client> client_;
  BenchNamespace name_space_;
  uint32_t record_bytes_ = 0;
  std::unique_ptr<BenchChain> chain_;
  HugeBuffer source_, target_;
  DramBenchFigures figures_;
};

}  // namespace

absl::StatusOr<DramBenchFigures> RunDramBench(const DaemonBenchOptions& options,
                                              const Clock& clock) {
  DramBench bench(options, clock);
  RP_TRY(bench.Open());
  return bench.Run();
}

}  // namespace reprise::bench
