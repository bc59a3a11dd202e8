// Shards, explanations, quotas and windows of a running daemon.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

class ServiceTest : public DaemonTest {
 protected:
  static Client::Explanation Explain(Client* client, const Chain& chain) {
    const auto why = client->Explain(*client->OpenNamespace(chain.manifest()), chain.tokens());
    EXPECT_TRUE(why.ok()) << Message(why.status());
    return why.ok() ? *why : Client::Explanation{};
  }
};

Manifest WithSalt(const std::string& salt) {
  Manifest manifest = NanoManifest();
  manifest.tenant_salt = salt;
  return manifest;
}

// ---- Shards -----------------------------------------------------------------------------------

TEST_F(ServiceTest, TwoShardsServeOneChainOverBothTransports) {
  const DaemonConfig config{.shards = 2, .tcp = true};
  ASSERT_TRUE(Start(config));
  const Chain chain(NanoManifest(), 1, 500);
  std::array<uint32_t, 2> owned{};
  for (const BlockKey& key : chain.keys()) ++owned[ShardOf(key, 2)];
  ASSERT_GT(owned[0], 100u);
  ASSERT_GT(owned[1], 100u);
  // Connections are dealt to the shards in turn: two of each kind meet both.
  for (const std::string& address :
       {this->address(), this->address(), tcp_address(), tcp_address()}) {
    const auto client = ConnectTo(address);
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(PutChain(client.get(), chain, wire::Durability::kDurable));
    EXPECT_EQ(GetRun(client.get(), chain), 500u);
    const uint32_t id = *client->OpenNamespace(chain.manifest());
    const auto verdict = client->Lookup(id, chain.keys());
    ASSERT_TRUE(verdict.ok()) << Message(verdict.status());
    EXPECT_EQ(verdict->hit_blocks, 500u);
    EXPECT_EQ(verdict->hit_tokens, 500u * kBlockTokens);
    EXPECT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] == 0; },
                           kPatience / 4))
        << address << Status().dump(2);
  }
  // Evicting the middle ends the run there, whichever shard owns it.
  const auto client = Connect();
  const uint32_t id = *client->OpenNamespace(chain.manifest());
  EXPECT_EQ(*client->Evict(id, {&chain.keys()[123], 1}), 1u);
  EXPECT_EQ(GetRun(client.get(), chain), 123u);
  EXPECT_EQ(Explain(client.get(), chain).block_index, 123u);
  {
    const auto lease = client->Acquire(id, chain.keys());
    ASSERT_TRUE(lease.ok());
    const Json status = Status();
    EXPECT_EQ(status["tiers"]["dram"]["pinned_blocks"], 123) << "what lies beyond was given back";
    EXPECT_EQ(status["clients"]["leases"], 1);
  }
  // A client's releases travel with its next request.
  EXPECT_TRUE(client->Lookup(id, chain.keys()).ok());
  EXPECT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] == 0; }));
  Kill();
  ASSERT_TRUE(Start(config));
  EXPECT_EQ(CountHeld(Connect().get(), chain), 499u) << "the evicted block stays away";
}

TEST_F(ServiceTest, DriveOverTwoShards) {
  ASSERT_TRUE(Start({.shards = 2, .tcp = true}));
  for (const std::string& address : {this->address(), tcp_address()}) {
    const ProgramResult result =
        RunReprise({"--json", "drive", "--model", "nano", "--connections", "2", "--salt", address,
                    "generated:sessions=4,turns=4,seed=1,system=2000,append=500,input_max=20000"},
                   address);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json figures = Json::parse(result.out);
    EXPECT_GT(figures["hit_tokens"], 0);
    EXPECT_GT(figures["exact_hits"], 0);
    EXPECT_EQ(figures.value("wrong_bytes", 0), 0);
  }
  EXPECT_TRUE(Eventually([this] { return Status()["tiers"]["dram"]["pinned_blocks"] == 0; }));
}

// ---- Explain ----------------------------------------------------------------------------------

TEST_F(ServiceTest, ExplainSaysWhyARunEnds) {
  ASSERT_TRUE(Start({}));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 1, 10);
  EXPECT_EQ(Explain(client.get(), chain).reason, "never_stored");
  EXPECT_EQ(Explain(client.get(), Chain(NanoManifest(), 1, 0)).reason, "too_short");
  ASSERT_TRUE(PutChain(client.get(), chain));
  Client::Explanation hit = Explain(client.get(), chain);
  EXPECT_EQ(hit.reason, "hit");
  EXPECT_EQ(hit.hit_blocks, 10u);
  EXPECT_EQ(hit.tiers, std::vector<std::string>{"dram*10"});
  EXPECT_EQ(hit.window, "none");
  const uint32_t id = *client->OpenNamespace(chain.manifest());
  ASSERT_EQ(*client->Evict(id, {&chain.keys()[4], 1}), 1u);
  const Client::Explanation evicted = Explain(client.get(), chain);
  EXPECT_EQ(evicted.reason, "evicted");
  EXPECT_THAT(evicted.detail, HasSubstr("administrator"));
  EXPECT_EQ(evicted.block, ToHex(chain.keys()[4]));
  EXPECT_EQ(evicted.hit_blocks, 4u);

  Manifest other = NanoManifest();
  other.adapter = "lora-7";
  other.weights_digest = "sha-of-other-weights";
  const Client::Explanation elsewhere = Explain(client.get(), Chain(other, 1, 10));
  EXPECT_EQ(elsewhere.reason, "other_namespace");
  EXPECT_EQ(elsewhere.differing_fields, (std::vector<std::string>{"weights_digest", "adapter"}));
  EXPECT_THAT(elsewhere.detail, HasSubstr(ToHex(NamespaceOf(chain.manifest()))));
}

TEST_F(ServiceTest, ExplainSaysWhichTierWasTooSmall) {
  ASSERT_TRUE(Start({.dram_bytes = "2MiB", .ssd_bytes = "6MiB"}));
  const auto client = Connect();
  const Chain chain(NanoManifest(), 1, 20);
  ASSERT_TRUE(PutChain(client.get(), chain, wire::Durability::kDurable));
  ASSERT_TRUE(PutChain(client.get(), Chain(NanoManifest(), 2, 900), wire::Durability::kDurable));
  const Client::Explanation gone = Explain(client.get(), chain);
  EXPECT_EQ(gone.reason, "evicted");
  EXPECT_THAT(gone.detail, HasSubstr("ssd.bytes"));
}

// ---- Windows ----------------------------------------------------------------------------------

TEST_F(ServiceTest, WindowsExpireByTimerAndExplainSaysSo) {
  ASSERT_TRUE(Start({.window_ttl = "1s"}));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 1, 4);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t id = *client->OpenNamespace(chain.manifest());
  const wire::WindowKey key{.prefix = chain.keys()[3], .position = 512};
  const std::vector<std::byte> snapshot = Chain(NanoManifest(), 9, 1).Record(0);
  ASSERT_EQ(client->PutWindow(id, key, 1, snapshot).value(), Outcome::kOk);
  EXPECT_EQ(Explain(client.get(), chain).window, "found");
  EXPECT_EQ(client->Lookup(id, chain.keys())->window, wire::WindowState::kBoundary);
  // Nobody looks: status and explain do not renew, and no lookup is made.
  EXPECT_TRUE(Eventually([this] {
    const Json pool = Status()["window_pool"];
    return pool["expired"] == 1 && pool["snapshots"] == 0 && pool["used_bytes"] == 0;
  })) << Status()["window_pool"];
  EXPECT_EQ(Explain(client.get(), chain).window, "expired");
  EXPECT_EQ(Explain(client.get(), chain).reason, "hit") << "a missing window is no miss";
  EXPECT_EQ(client->GetWindow(id, key).status().code(), absl::StatusCode::kNotFound);
  const auto verdict = client->Lookup(id, chain.keys());
  EXPECT_EQ(verdict->window, wire::WindowState::kNone);
  EXPECT_EQ(verdict->hit_blocks, 4u);
}

// ---- Quotas -----------------------------------------------------------------------------------

TEST_F(ServiceTest, ATenantBeyondItsQuotaIsRejectedAndOthersAreNot) {
  // 280 KiB are ten records of 28 KiB. Which ones of a request are stored is not promised.
  ASSERT_TRUE(Start({.quota = {{"small", "280KiB"}}}));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const Chain small(WithSalt("small"), 1, 25), large(WithSalt("large"), 1, 25);
  const auto outcomes = PutBlocks(client.get(), small, 0, 25, wire::Durability::kDurable);
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kOk), 10);
  EXPECT_EQ(std::count(outcomes.begin(), outcomes.end(), Outcome::kRejected), 15);
  EXPECT_TRUE(PutChain(client.get(), large));
  EXPECT_EQ(CountHeld(client.get(), small), 10u);
  EXPECT_EQ(GetRun(client.get(), large), 25u);
  EXPECT_EQ(Status()["traffic"]["puts_rejected"], 15);
  // What is evicted makes room, and the quota outlives a restart.
  const uint32_t id = *client->OpenNamespace(small.manifest());
  uint32_t evicted = 0;
  for (uint32_t i = 0; i < small.size() && evicted < 4; ++i) {
    if (outcomes[i] == Outcome::kOk) evicted += *client->Evict(id, {&small.keys()[i], 1});
  }
  EXPECT_EQ(evicted, 4u);
  Stop();
  ASSERT_TRUE(Start({.quota = {{"small", "280KiB"}}}));
  const Chain more(small.manifest(), 2, 15);
  const auto again = PutBlocks(Connect().get(), more, 0, 15, wire::Durability::kDurable);
  EXPECT_EQ(std::count(again.begin(), again.end(), Outcome::kOk), 4);
  EXPECT_EQ(std::count(again.begin(), again.end(), Outcome::kRejected), 11);
}

}  // namespace
}  // namespace reprise::test
