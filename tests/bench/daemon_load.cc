// Load on a running daemon that `reprise bench` has no verb for: fills it with chains, puts durable
// records for a while, gets chains that are only on SSD. Prints one JSON object.
#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "client/bench/bench_chain.h"
#include "client/bench/measured.h"
#include "client/drive/pattern.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"

namespace reprise::bench {
namespace {

struct Options {
  std::string action;  // fill, put, get
  std::string address;
  uint32_t connections = 1;
  uint32_t chains = 1;
  uint32_t first_chain = 0;
  uint32_t chain_blocks = 1'024;
  uint32_t batch = 64;
  double seconds = 2;
  uint64_t seed = 1;
};

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const Options& options) {
  ClientOptions client_options;
  client_options.address = options.address;
  client_options.name = "daemon_load " + options.action;
  client_options.deadline_ns = 120 * kSecond;
  client_options.staging_slots = options.batch;
  return Client::Connect(client_options);
}

BenchChain ChainOf(const Client& client, const BenchNamespace& name_space, const Options& options,
                   uint32_t chain) {
  return BenchChain(client.name_space(name_space.id), name_space.payload_bytes,
                    options.seed * 1'000'003 + chain, options.chain_blocks);
}

// ---- fill: chains [first_chain, first_chain + chains), durable, shared out among the connections

absl::Status FillFrom(const Options& options, std::atomic<uint32_t>* next,
                      std::atomic<uint64_t>* stored) {
  RP_ASSIGN(const auto client, ConnectTo(options));
  RP_ASSIGN(const BenchNamespace name_space, OpenBenchNamespace(client.get()));
  const SystemClock clock;
  for (;;) {
    const uint32_t chain = next->fetch_add(1);
    if (chain >= options.chains) return absl::OkStatus();
    RP_ASSIGN(const uint32_t put,
              StoreChain(client.get(), name_space,
                         ChainOf(*client, name_space, options, options.first_chain + chain),
                         wire::Durability::kDurable, clock));
    *stored += put;
  }
}

absl::Status Fill(const Options& options) {
  std::atomic<uint32_t> next = 0;
  std::atomic<uint64_t> stored = 0;
  std::vector<absl::Status> status(options.connections);
  std::vector<std::thread> threads;
  for (absl::Status& result : status) {
    threads.emplace_back([&] { result = FillFrom(options, &next, &stored); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : status) RP_TRY(result);
  std::printf("{\"stored_records\": %llu}\n", static_cast<unsigned long long>(stored.load()));
  return absl::OkStatus();
}

// ---- put: new records for some seconds, durable, one batch at a time on each connection

class Putter {
 public:
  absl::Status Open(const Options& options, uint64_t seed) {
    batch_ = options.batch;
    prng_ = Prng(seed);
    RP_ASSIGN(client_, ConnectTo(options));
    RP_ASSIGN(name_space_, OpenBenchNamespace(client_.get()));
    if (client_->staging_slots() < batch_) {
      return FailedPrecondition(
          "the daemon gave fewer staging slots than the batch needs; set "
          "limits.staging_slots_per_connection");
    }
    for (uint32_t i = 0; i < batch_; ++i) {
      FillPattern(prng_.Next(), client_->staging(i).first(name_space_.payload_bytes));
    }
    return absl::OkStatus();
  }

  // New tokens make new records; making them is part of the time.
  absl::Status PutBatch() {
    std::vector<ConstBytes> records;
    for (uint32_t i = 0; i < batch_; ++i) {
      const Bytes record = client_->staging(i).first(client_->record_bytes());
      Renew(record);
      records.push_back(record);
    }
    std::vector<Outcome> outcomes(batch_);
    RP_TRY(client_->Put(name_space_.id, records, wire::Durability::kDurable, outcomes));
    for (const Outcome outcome : outcomes) {
      if (outcome != Outcome::kOk) {
        return Internal("a durable put ended with " + std::string(OutcomeName(outcome)));
      }
    }
    return absl::OkStatus();
  }

  uint64_t batch_bytes() const { return uint64_t{batch_} * client_->record_bytes(); }

 private:
  void Renew(Bytes record) {
    std::vector<TokenId> tokens(kBlockTokens);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng_.Next());
    std::memcpy(record.last(kRecordTokenBytes).data(), tokens.data(), kRecordTokenBytes);
    const Hash256& name_space = client_->name_space(name_space_.id);
    SealRecord(record, {.name_space = name_space,
                        .block_hash = BlockHash(name_space, tokens),
                        .parent_hash = name_space,
                        .payload_bytes = name_space_.payload_bytes,
                        .record_bytes = static_cast<uint32_t>(record.size()),
                        .token_count = kBlockTokens,
                        .created_ms = SystemClock().WallMillis()});
  }

  uint32_t batch_ = 0;
  Prng prng_{0};
  std::unique_ptr<Client> client_;
  BenchNamespace name_space_;
};

absl::Status PutFor(const Options& options, Putter* putter, std::atomic<uint64_t>* bytes) {
  const SystemClock clock;
  const Instant end = clock.Now() + static_cast<Nanos>(options.seconds * 1e9);
  while (clock.Now() < end) {
    RP_TRY(putter->PutBatch());
    *bytes += putter->batch_bytes();
  }
  return absl::OkStatus();
}

absl::Status Put(const Options& options) {
  std::vector<Putter> putters(options.connections);
  for (size_t i = 0; i < putters.size(); ++i) {
    RP_TRY(putters[i].Open(options, options.seed * 64 + i));
    RP_TRY(putters[i].PutBatch());  // Warms up.
  }
  const SystemClock clock;
  const Instant begin = clock.Now();
  std::atomic<uint64_t> bytes = 0;
  std::vector<absl::Status> status(options.connections);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < putters.size(); ++i) {
    threads.emplace_back([&, i] { status[i] = PutFor(options, &putters[i], &bytes); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : status) RP_TRY(result);
  const double seconds = static_cast<double>(clock.Now() - begin) * 1e-9;
  std::printf("{\"bytes_per_second\": %.0f, \"seconds\": %.4f}\n",
              static_cast<double>(bytes.load()) / seconds, seconds);
  return absl::OkStatus();
}

// ---- get: whole chains that are not in DRAM, one request each

absl::Status Get(const Options& options) {
  RP_ASSIGN(const auto client, ConnectTo(options));
  RP_ASSIGN(const BenchNamespace name_space, OpenBenchNamespace(client.get()));
  const SystemClock clock;
  Series seconds;
  uint64_t wrong = 0;
  for (uint32_t i = 0; i < options.chains; ++i) {
    const BenchChain chain = ChainOf(*client, name_space, options, options.first_chain + i);
    const Instant begin = clock.Now();
    RP_ASSIGN(const Lease lease, client->Acquire(name_space.id, chain.keys()));
    const Nanos elapsed_ns = clock.Now() - begin;
    if (lease.from_ssd() != options.chain_blocks) {
      return FailedPrecondition("chain " + std::to_string(options.first_chain + i) + ": " +
                                std::to_string(lease.size()) + " blocks, " +
                                std::to_string(lease.from_ssd()) + " of them from SSD, ended by " +
                                std::string(OutcomeName(lease.stopped_by())) +
                                "; take chains that are on SSD and not in DRAM");
    }
    seconds.Add(static_cast<double>(elapsed_ns) * 1e-9);
    for (uint32_t block = 0; block < lease.size(); block += 97) {
      if (chain.CountErrors(block, lease.record(block)) != 0) ++wrong;
    }
  }
  std::printf(
      "{\"seconds\": {\"median\": %.6f, \"min\": %.6f, \"max\": %.6f}, \"bytes\": %llu, "
      "\"wrong_records\": %llu}\n",
      seconds.median(), seconds.min(), seconds.max(),
      static_cast<unsigned long long>(uint64_t{options.chain_blocks} * client->record_bytes()),
      static_cast<unsigned long long>(wrong));
  return wrong == 0 ? absl::OkStatus() : DataLoss("wrong bytes were served");
}

absl::Status Run(const Options& options) {
  if (options.action == "fill") return Fill(options);
  if (options.action == "put") return Put(options);
  return Get(options);
}

}  // namespace
}  // namespace reprise::bench

int main(int argc, char** argv) {
  using reprise::bench::Options;
  CLI::App app("Load on a running daemon, for tests/bench/compare");
  Options options;
  app.add_option("action", options.action)
      ->required()
      ->check(CLI::IsMember({"fill", "put", "get"}));
  app.add_option("--address", options.address)->required();
  app.add_option("--connections", options.connections)->check(CLI::Range(1, 64));
  app.add_option("--chains", options.chains);
  app.add_option("--first-chain", options.first_chain);
  app.add_option("--chain-blocks", options.chain_blocks)->check(CLI::Range(1, 65'000));
  app.add_option("--batch", options.batch)->check(CLI::Range(1, 256));
  app.add_option("--seconds", options.seconds);
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = reprise::bench::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "daemon_load: %s\n", reprise::Message(status).c_str());
  return 1;
}
