#include <algorithm>
#include <deque>

#include "client/bench/bench_chain.h"
#include "client/bench/daemon_bench.h"

namespace reprise::bench {
namespace {

// One connection, and the records that go back and forth on it.
class WireRoute {
 public:
  absl::Status Open(const DaemonBenchOptions& options, const ClientOptions& client_options,
                    const Clock& clock) {
    RP_ASSIGN(client_, Client::Connect(client_options));
    RP_ASSIGN(name_space_, OpenBenchNamespace(client_.get()));
    chain_ = std::make_unique<BenchChain>(client_->name_space(name_space_.id),
                                          name_space_.payload_bytes, options.seed, options.records);
    return StoreChain(client_.get(), name_space_, *chain_, wire::Durability::kRelaxed, clock)
        .status();
  }

  absl::StatusOr<Measured> Repeat(bool put, uint32_t batch, Nanos duration_ns, const Clock& clock) {
    if (put) RP_TRY(BuildRecords(batch));
    Measured measured;
    const auto size = static_cast<uint32_t>(chain_->keys().size());
    while (measured.elapsed_ns < duration_ns) {
      const uint32_t count = std::min(batch, size - next_);
      if (put) {  // What is stored already would not be taken.
        RP_TRY(client_->Evict(name_space_.id, chain_->keys().subspan(0, count)).status());
      }
      const Instant before = clock.Now();
      RP_TRY(put ? Put(count) : Get(count));
      const Nanos took_ns = clock.Now() - before;
      measured.latency.Add(took_ns);
      measured.elapsed_ns += took_ns;
      measured.records += count;
      next_ = next_ + count == size ? 0 : next_ + count;
    }
    measured.bytes = measured.records * client_->record_bytes();
    return measured;
  }

  uint32_t record_bytes() const { return client_->record_bytes(); }

 private:
  bool has_staging() const { return client_->staging_slots() > 0; }
  absl::Status Get(uint32_t count) {
    RP_ASSIGN(const Lease lease,
              client_->Acquire(name_space_.id, chain_->keys().subspan(next_, count)));
    if (lease.size() == count) return absl::OkStatus();
    return ResourceExhausted("only a part of the working set arrived (" +
                             std::string(OutcomeName(lease.stopped_by())) +
                             "); make the daemon's DRAM tier larger, or ask for fewer --records");
  }

  // The first blocks of the chain, where a writer would have them: in staging slots if there are
  // any.
  absl::Status BuildRecords(uint32_t batch) {
    const auto count = std::min<uint32_t>(batch, static_cast<uint32_t>(chain_->keys().size()));
    records_.clear();
    own_.resize(has_staging() ? 0 : uint64_t{count} * record_bytes());
    for (uint32_t i = 0; i < count; ++i) {
      if (has_staging() && i >= client_->staging_slots()) break;
      const Bytes record = has_staging()
                               ? client_->staging(i)
                               : Bytes(own_).subspan(uint64_t{i} * record_bytes(), record_bytes());
      chain_->Build(i, 0, record);
      records_.push_back(record);
    }
    if (records_.size() == count) return absl::OkStatus();
    return InvalidArgument("a batch of puts has as many records as there are staging slots: " +
                           std::to_string(client_->staging_slots()));
  }

  absl::Status Put(uint32_t count) {
    std::vector<Outcome> outcomes(count);
    RP_TRY(client_->Put(name_space_.id, std::span(records_).first(count),
                        wire::Durability::kRelaxed, outcomes));
    for (const Outcome outcome : outcomes) {
      if (outcome == Outcome::kOk) continue;
      return Internal("a record was not stored: " + std::string(OutcomeName(outcome)));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Client> client_;
  BenchNamespace name_space_;
  std::unique_ptr<BenchChain> chain_;
  std::vector<std::byte> own_;
  std::vector<ConstBytes> records_;
  uint32_t next_ = 0;
};

struct Candidate {
  const char* name;
  const std::string* address;
  Transport transport;
  bool local_memory;
  bool optional;  // Left out where it cannot be had.
};

}  // namespace

absl::StatusOr<WireBenchFigures> RunWireBench(const DaemonBenchOptions& options,
                                              const Clock& clock) {
  const std::array candidates = {
      Candidate{"tcp", &options.tcp_address, Transport::kTcp, false, false},
      Candidate{"rdma", &options.tcp_address, Transport::kRdma, false, true},
      Candidate{"unix", &options.address, Transport::kAuto, false, false},
      Candidate{"shm", &options.address, Transport::kShared, true, false},
  };
  WireBenchFigures figures;
  std::deque<WireRoute> opened;
  std::vector<WireRoute*> routes;
  for (const Candidate& candidate : candidates) {
    const bool all = options.transport == Transport::kAuto;
    if (candidate.address->empty() || (!all && candidate.transport != options.transport)) continue;
    ClientOptions client_options;
    client_options.address = *candidate.address;
    client_options.name = "reprise bench wire";
    client_options.deadline_ns = options.deadline_ns;
    client_options.transport = candidate.transport;
    client_options.rdma_device = options.rdma_device;
    client_options.local_memory = candidate.local_memory;
    WireRoute& route = opened.emplace_back();
    if (const absl::Status status = route.Open(options, client_options, clock); !status.ok()) {
      if (!all || !candidate.optional) return status;
      continue;
    }
    for (const bool put : {false, true}) {
      if (!options.verb.empty() && put != (options.verb == "put")) continue;
      for (const uint32_t batch : {options.batch, 1u}) {
        figures.routes.push_back({.name = candidate.name, .put = put, .batch = batch});
        routes.push_back(&route);
      }
    }
  }
  if (routes.empty()) {
    return InvalidArgument(
        "no address to measure: give --tcp or --start, or an --address that fits "
        "--transport");
  }
  figures.record_bytes = routes[0]->record_bytes();
  const Nanos round_ns = options.duration_ns / options.rounds;
  const auto measure = [&](size_t i, Nanos duration_ns) {
    const WireBenchFigures::Route& route = figures.routes[i];
    return routes[i]->Repeat(route.put, route.batch, duration_ns, clock);
  };
  for (size_t i = 0; i < routes.size(); ++i) {  // Buffers and congestion windows grow here.
    RP_TRY(measure(i, round_ns / 4).status());
  }
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < routes.size(); ++i) {
      RP_ASSIGN(const Measured measured, measure(i, round_ns));
      figures.routes[i].measured.Merge(measured);
      figures.routes[i].rate.Add(measured.bytes_per_second());
    }
  }
  return figures;
}

}  // namespace reprise::bench
