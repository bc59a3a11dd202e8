#include <algorithm>

#include "client/bench/bench_chain.h"
#include "client/bench/daemon_bench.h"

namespace reprise::bench {
namespace {

// One connection whose records come through its socket.
class WireRoute {
 public:
  absl::Status Open(const DaemonBenchOptions& options, const std::string& address,
                    const Clock& clock) {
    ClientOptions client_options;
    client_options.address = address;
    client_options.name = "reprise bench wire";
    client_options.deadline_ns = options.deadline_ns;
    client_options.local_memory = false;
    RP_ASSIGN(client_, Client::Connect(client_options));
    RP_ASSIGN(name_space_, OpenBenchNamespace(client_.get()));
    chain_ = std::make_unique<BenchChain>(client_->name_space(name_space_.id),
                                          name_space_.payload_bytes, options.seed, options.records);
    return StoreChain(client_.get(), name_space_, *chain_, wire::Durability::kRelaxed, clock)
        .status();
  }

  absl::StatusOr<Measured> Repeat(uint32_t batch, Nanos duration_ns, const Clock& clock) {
    Measured measured;
    const Instant begin = clock.Now();
    Instant now = begin;
    const auto size = static_cast<uint32_t>(chain_->keys().size());
    while (now < begin + duration_ns) {
      const uint32_t count = std::min(batch, size - next_);
      RP_ASSIGN(const Lease lease,
                client_->Acquire(name_space_.id, chain_->keys().subspan(next_, count)));
      if (lease.size() != count) {
        return ResourceExhausted("only a part of the working set arrived (" +
                                 std::string(OutcomeName(lease.stopped_by())) +
                                 "); make the daemon's DRAM tier larger, or ask for fewer "
                                 "--records");
      }
      const Instant after = clock.Now();
      measured.latency.Add(after - now);
      measured.records += count;
      now = after;
      next_ = next_ + count == size ? 0 : next_ + count;
    }
    measured.bytes = measured.records * client_->record_bytes();
    measured.elapsed_ns = now - begin;
    return measured;
  }

  uint32_t record_bytes() const { return client_->record_bytes(); }

 private:
  std::unique_ptr<Client> client_;
  BenchNamespace name_space_;
  std::unique_ptr<BenchChain> chain_;
  uint32_t next_ = 0;
};

}  // namespace

absl::StatusOr<WireBenchFigures> RunWireBench(const DaemonBenchOptions& options,
                                              const Clock& clock) {
  WireRoute tcp, unix_socket;
  WireBenchFigures figures;
  std::vector<WireRoute*> routes;
  const auto add = [&](const char* name, WireRoute* route) {
    for (const uint32_t batch : {options.batch, 1u}) {
      figures.routes.push_back({.name = name, .batch = batch});
      routes.push_back(route);
    }
  };
  if (!options.tcp_address.empty()) {
    RP_TRY(tcp.Open(options, options.tcp_address, clock));
    add("tcp", &tcp);
  }
  if (!options.address.empty()) {
    RP_TRY(unix_socket.Open(options, options.address, clock));
    add("unix", &unix_socket);
  }
  if (routes.empty()) return InvalidArgument("no address to measure: give --tcp or --start");
  figures.record_bytes = routes[0]->record_bytes();
  const Nanos round_ns = options.duration_ns / options.rounds;
  for (size_t i = 0; i < routes.size(); ++i) {  // Buffers and congestion windows grow here.
    RP_TRY(routes[i]->Repeat(figures.routes[i].batch, round_ns / 4, clock).status());
  }
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < routes.size(); ++i) {
      WireBenchFigures::Route& route = figures.routes[i];
      RP_ASSIGN(const Measured measured, routes[i]->Repeat(route.batch, round_ns, clock));
      route.measured.Merge(measured);
      route.rate.Add(measured.bytes_per_second());
    }
  }
  return figures;
}

}  // namespace reprise::bench
