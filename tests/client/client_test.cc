#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/identity/block_hash.h"
#include "tests/client/fake_server.h"
#include "tests/client/records.h"

namespace reprise {
namespace {

using test::FakeServer;
using test::KeysOf;
using test::MakeRecord;
using test::MakeTokens;
using test::NanoManifest;

// How a client reaches its daemon: shared memory, the same socket without it, TCP.
enum class Way { kLocal, kUnixCopy, kTcp };

class ClientTest : public testing::TestWithParam<Way> {
 protected:
  ClientTest() : server_({.tcp = GetParam() == Way::kTcp}) {
    ClientOptions options;
    options.address = server_.address();
    options.local_memory = GetParam() != Way::kUnixCopy;
    options.staging_slots = 4;
    auto client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    id_ = client_->OpenNamespace(manifest_).value();
    tokens_ = MakeTokens(1, 10 * kBlockTokens);
    keys_ = KeysOf(client_->name_space(id_), tokens_);
    for (uint32_t i = 0; i < 10; ++i) records_.push_back(MakeRecord(manifest_, tokens_, i));
  }

  std::vector<Outcome> Put(uint32_t first, uint32_t count,
                           wire::Durability durability = wire::Durability::kRelaxed) {
    std::vector<ConstBytes> views(records_.begin() + first, records_.begin() + first + count);
    std::vector<Outcome> outcomes(count);
    EXPECT_EQ(client_->Put(id_, views, durability, outcomes), absl::OkStatus());
    return outcomes;
  }

  FakeServer server_;
  Manifest manifest_ = NanoManifest();
  std::unique_ptr<Client> client_;
  uint32_t id_ = 0;
  std::vector<TokenId> tokens_;
  std::vector<BlockKey> keys_;
  std::vector<std::vector<std::byte>> records_;
};

std::string WayName(const testing::TestParamInfo<Way>& way) {
  switch (way.param) {
    case Way::kLocal:
      return "Local";
    case Way::kUnixCopy:
      return "UnixCopy";
    case Way::kTcp:
      return "Tcp";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Ways, ClientTest, testing::Values(Way::kLocal, Way::kUnixCopy, Way::kTcp),
                         WayName);

TEST_P(ClientTest, HelloTellsTheFacts) {
  EXPECT_EQ(client_->record_bytes(), 28'672u);
  EXPECT_EQ(client_->payload_bytes_max(), 28'672u - 768u);
  EXPECT_EQ(client_->model(), "nano");
  EXPECT_EQ(client_->server_version(), "0.0-fake");
  EXPECT_EQ(client_->local(), GetParam() == Way::kLocal);
  EXPECT_EQ(client_->staging_slots(), GetParam() == Way::kLocal ? 4u : 0u);
}

TEST_P(ClientTest, NamespacesAreSmallNumbersAndOpenedOnce) {
  EXPECT_EQ(id_, 0u);
  const uint32_t before = server_.requests;
  EXPECT_EQ(client_->OpenNamespace(manifest_).value(), 0u);
  EXPECT_EQ(server_.requests, before);
  Manifest other = manifest_;
  other.tenant_salt = "other";
  EXPECT_EQ(client_->OpenNamespace(other).value(), 1u);
  EXPECT_EQ(client_->name_space(1), NamespaceOf(other));
  Manifest refused = manifest_;
  refused.payload_bytes = 113'920;
  const auto status = client_->OpenNamespace(refused).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), testing::HasSubstr("start a daemon for this model"));
  EXPECT_EQ(client_->Lookup(9, keys_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ClientTest, PutLookupAcquire) {
  EXPECT_THAT(Put(0, 10), testing::Each(Outcome::kOk));
  EXPECT_THAT(Put(3, 2), testing::Each(Outcome::kExists));
  EXPECT_EQ(server_.stored(), 10u);
  const auto verdict = client_->Lookup(id_, keys_).value();
  EXPECT_EQ(verdict.hit_blocks, 10u);
  EXPECT_EQ(verdict.hit_tokens, 1280u);
  EXPECT_THAT(verdict.tiers, testing::ElementsAreArray(std::vector<Tier>(10, Tier::kDram)));
  EXPECT_EQ(verdict.stop_reason, wire::StopReason::kNone);

  Lease lease = client_->Acquire(id_, keys_).value();
  ASSERT_EQ(lease.size(), 10u);
  EXPECT_EQ(lease.stopped_by(), Outcome::kOk);
  EXPECT_EQ(lease.from_ssd(), GetParam() == Way::kLocal ? 1u : 10u);
  std::vector<std::byte> copy(client_->record_bytes());
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(std::ranges::equal(lease.record(i), records_[i])) << i;
    EXPECT_TRUE(Client::TokensMatch(lease.record(i), std::span(tokens_).subspan(i * 128, 128)));
    EXPECT_FALSE(Client::TokensMatch(lease.record(i), std::span(tokens_).subspan(i * 128, 127)));
    EXPECT_EQ(lease.CopyTo(i, copy), Outcome::kOk);
    EXPECT_EQ(copy, records_[i]);
  }
  EXPECT_FALSE(Client::TokensMatch(lease.record(0), std::span(tokens_).subspan(128, 128)));
  EXPECT_EQ(lease.CopyTo(10, copy), Outcome::kInvalid);
  EXPECT_EQ(lease.CopyTo(0, {}), Outcome::kInvalid);
  std::fill(copy.begin(), copy.end(), std::byte{0});
  EXPECT_EQ(lease.CopyTo(0, Bytes(copy).first(4096)), Outcome::kOk);
  EXPECT_TRUE(std::equal(copy.begin(), copy.begin() + 4096, records_[0].begin()));
  EXPECT_EQ(copy[4096], std::byte{0});
}

TEST_P(ClientTest, AMissIsAShorterLease) {
  Put(0, 4);
  Put(5, 2);
  const auto verdict = client_->Lookup(id_, keys_).value();
  EXPECT_EQ(verdict.hit_blocks, 4u);
  EXPECT_EQ(verdict.stop_reason, wire::StopReason::kNotStored);
  const Lease lease = client_->Acquire(id_, keys_).value();
  EXPECT_EQ(lease.size(), 4u);
  EXPECT_EQ(lease.stopped_by(), Outcome::kNotFound);
  const Lease nothing = client_->Acquire(id_, std::span(keys_).subspan(4, 1)).value();
  EXPECT_EQ(nothing.size(), 0u);
  EXPECT_EQ(nothing.stopped_by(), Outcome::kNotFound);
  EXPECT_EQ(client_->Acquire(id_, {}).value().size(), 0u);
}

TEST_P(ClientTest, LimitsAreNamed) {
  const std::vector<BlockKey> keys(wire::kKeysMax + 1);
  EXPECT_THAT(Message(client_->Lookup(id_, keys).status()), testing::HasSubstr("65000"));
  EXPECT_THAT(Message(client_->Acquire(id_, keys).status()), testing::HasSubstr("65000"));
  const std::vector<wire::WindowKey> windows(wire::kWindowCandidatesMax + 1);
  EXPECT_THAT(Message(client_->Lookup(id_, keys_, windows).status()), testing::HasSubstr("16"));
  EXPECT_EQ(client_->Lookup(id_, std::span(keys).first(wire::kKeysMax)).value().hit_blocks, 0u);
}

TEST_P(ClientTest, DamagedAndMisfitRecordsAreNotStored) {
  records_[1][100] ^= std::byte{1};
  EXPECT_THAT(Put(0, 3), testing::ElementsAre(Outcome::kOk, Outcome::kCorrupt, Outcome::kOk));
  std::vector<Outcome> outcomes(1);
  const ConstBytes small = ConstBytes(records_[0]).first(4096);
  EXPECT_EQ(client_->Put(id_, {&small, 1}, wire::Durability::kRelaxed, outcomes).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Put(id_, {&small, 1}, wire::Durability::kRelaxed, {}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Put(4, 1, wire::Durability::kDurable), testing::ElementsAre(Outcome::kOk));
  EXPECT_EQ(server_.durable_puts, 1u);
}

TEST_P(ClientTest, WindowsOfEverySize) {
  Put(0, 2);
  uint32_t position = 2 * kBlockTokens;
  for (const size_t bytes : {1u, 4'095u, 28'671u, 28'672u, 28'673u, 4 * 28'672u, 5 * 28'672u + 7}) {
    position += 2;
    const auto snapshot = MakeTokens(bytes, (bytes + 3) / 4);
    const ConstBytes view = std::as_bytes(std::span(snapshot)).first(bytes);
    const wire::WindowKey key{.prefix = {.low = bytes, .high = 2}, .position = position};
    EXPECT_EQ(client_->GetWindow(id_, key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(client_->PutWindow(id_, key, 77, view).value(), Outcome::kOk);
    EXPECT_TRUE(std::ranges::equal(client_->GetWindow(id_, key).value().bytes, view)) << bytes;
    const auto verdict = client_->Lookup(id_, keys_, {&key, 1}).value();
    EXPECT_EQ(verdict.window, wire::WindowState::kExact);
    EXPECT_EQ(verdict.window_key, key);
    EXPECT_EQ(verdict.hit_tokens, position);
    EXPECT_EQ(verdict.window_bytes, bytes);
  }
  EXPECT_EQ(client_->PutWindow(id_, {}, 0, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(ClientTest, Administration) {
  Put(0, 10);
  EXPECT_THAT(client_->StatusJson().value(), testing::HasSubstr("\"blocks\":10"));
  const auto explanation = client_->Explain(id_, tokens_).value();
  EXPECT_EQ(explanation.tokens, 1280u);
  EXPECT_EQ(explanation.asked_blocks, 10u);
  EXPECT_EQ(explanation.reason, "never_stored");
  EXPECT_EQ(client_->Explain(id_, std::vector<TokenId>(6'400'001)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Explain(id_, std::vector<TokenId>(1'048'576)).value().tokens, 1'048'576u);
  EXPECT_EQ(client_->Verify(id_, {}).value().checked, 10u);
  EXPECT_EQ(client_->Evict(id_, std::span(keys_).subspan(8)).value(), 2u);
  EXPECT_EQ(client_->EvictNamespace(id_).value(), 8u);
  EXPECT_EQ(client_->Evict(id_, std::vector<BlockKey>(50'001)).value(), 0u);
}

TEST_P(ClientTest, SlotsOfHbmNeedAUnixSocketAndADaemonThatLendsThem) {
  const auto pool = client_->HbmPool();
  if (GetParam() == Way::kTcp) {
    EXPECT_TRUE(absl::IsFailedPrecondition(pool.status()));
    EXPECT_THAT(Message(pool.status()), testing::HasSubstr("unix:"));
    EXPECT_FALSE(client_->AcquireSlots(id_, keys_).ok());
    return;
  }
  EXPECT_TRUE(pool.ok()) << pool.status();
  const FakeServer lends_none({.hbm_slots = 0});
  const auto client = Client::Connect({.address = lends_none.address()});
  const absl::Status refused = (*client)->HbmPool().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_EQ(Message(refused), "the fake lends no slots");
}

TEST_P(ClientTest, TheDaemonGetsADeadlineInsideOurs) {
  client_->set_deadline(1600 * kMillisecond);
  ASSERT_TRUE(client_->Lookup(id_, keys_).ok());
  EXPECT_LE(server_.last_deadline_ms, 1500u);
  EXPECT_GE(server_.last_deadline_ms, 1000u);
  client_->set_deadline(0);
  EXPECT_EQ(client_->Lookup(id_, keys_).status().code(), absl::StatusCode::kDeadlineExceeded);
  client_->set_deadline(kSecond);
  EXPECT_TRUE(client_->Lookup(id_, keys_).ok()) << "nothing was sent: the connection is good";
}

// ---- Local connections only ----

class LocalClientTest : public ClientTest {};
INSTANTIATE_TEST_SUITE_P(Local, LocalClientTest, testing::Values(Way::kLocal), WayName);

TEST_P(LocalClientTest, ReleasesTravelWithTheNextRequest) {
  Put(0, 10);
  { const Lease lease = client_->Acquire(id_, keys_).value(); }
  Lease moved;
  {
    Lease lease = client_->Acquire(id_, keys_).value();
    moved = std::move(lease);
  }
  ASSERT_TRUE(client_->StatusJson().ok());
  EXPECT_EQ(server_.release_frames, 1u);
  EXPECT_EQ(server_.released_leases, 1u);
  moved.Release();
  moved.Release();
  EXPECT_EQ(server_.release_frames, 1u) << "waits for company";
  for (int i = 0; i < 255; ++i) client_->Acquire(id_, std::span(keys_).first(1)).value().Release();
  ASSERT_TRUE(client_->StatusJson().ok());
  EXPECT_EQ(server_.released_leases, 257u);
}

TEST_P(LocalClientTest, SlotsOfHbmAreLeasedAndReleasedAtOnce) {
  Put(0, 4);
  const auto pool = client_->HbmPool();
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->kind, SlotPool::HandleKind::kCudaIpc);
  EXPECT_EQ((*pool)->slots, 64u);
  EXPECT_EQ((*pool)->slot_bytes, 27'136u);
  EXPECT_EQ((*pool)->stride_bytes, 27'392u);
  EXPECT_EQ((*pool)->leased_slots_max, 32u);
  ASSERT_EQ((*pool)->devices.size(), 1u);
  EXPECT_EQ((*pool)->devices[0].uuid[15], std::byte{'u'});
  EXPECT_EQ((*pool)->devices[0].pci_bus_id, "0000:1b:00.0");
  EXPECT_EQ((*pool)->devices[0].handle, std::string(64, 'h'));
  const uint32_t requests = server_.requests;
  EXPECT_EQ(*client_->HbmPool(), *pool);  // Asked for once.
  EXPECT_EQ(server_.requests, requests);

  auto lease = client_->AcquireSlots(id_, std::span(keys_).first(6));
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->size(), 4u);
  EXPECT_EQ(lease->stopped_by(), Outcome::kNotFound);
  EXPECT_EQ(lease->from_dram(), 2u);
  EXPECT_EQ(lease->slot(1).generation, 5u);
  EXPECT_EQ(lease->slot(1).flags, uint32_t{kReplayDerived});
  SlotLease moved = *std::move(lease);
  const uint32_t released = server_.released_leases;
  moved.Release();
  EXPECT_EQ(moved.size(), 0u);
  EXPECT_TRUE(client_->StatusJson().ok());  // One frame behind the release.
  EXPECT_EQ(server_.released_leases, released + 1);
  const auto held = client_->AcquireSlots(id_, keys_, SlotsFrom::kHbmOnly);
  EXPECT_EQ(held->size(), 1u);
}

TEST_P(LocalClientTest, SlotsThatMakeNoSenseEndTheConnection) {
  Put(0, 2);
  Manifest other = manifest_;
  other.payload_bytes = manifest_.payload_bytes - 256;
  const auto misfit = client_->OpenNamespace(other);
  if (misfit.ok()) {
    EXPECT_THAT(Message(client_->AcquireSlots(*misfit, keys_).status()),
                testing::HasSubstr("another model"));
  }
  server_.faults().slot_outside = true;
  EXPECT_TRUE(absl::IsDataLoss(client_->AcquireSlots(id_, keys_).status()));
  EXPECT_TRUE(absl::IsUnavailable(client_->AcquireSlots(id_, keys_).status()));
}

TEST_P(LocalClientTest, ManyReleasesDoNotWait) {
  Put(0, 1);
  std::vector<Lease> leases;
  for (int i = 0; i < 256; ++i) leases.push_back(client_->Acquire(id_, {keys_.data(), 1}).value());
  leases.clear();  // The 256th sends them all.
  for (int i = 0; i < 1000 && server_.release_frames == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(server_.release_frames, 1u);
  EXPECT_EQ(server_.released_leases, 256u);
  leases.push_back(client_->Acquire(id_, {keys_.data(), 1}).value());
  leases.clear();
  client_.reset();  // So does the end of the client.
  for (int i = 0; i < 1000 && server_.released_leases < 257; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(server_.released_leases, 257u);
}

TEST_P(LocalClientTest, RecordsAreTheDaemonsMemory) {
  Put(0, 2);
  const Lease a = client_->Acquire(id_, keys_).value();
  const Lease b = client_->Acquire(id_, keys_).value();
  EXPECT_EQ(a.record(1).data(), b.record(1).data());
  server_.BumpGeneration(keys_[1]);
  std::vector<std::byte> copy(client_->record_bytes());
  EXPECT_EQ(a.CopyTo(0, copy), Outcome::kOk);
  EXPECT_EQ(a.CopyTo(1, copy), Outcome::kClosed) << "the slot got another tenant";
}

TEST_P(LocalClientTest, StagedRecordsAreSentByNumber) {
  for (uint32_t i = 0; i < 4; ++i) {
    std::memcpy(client_->staging(i).data(), records_[i].data(), records_[i].size());
  }
  const std::vector<ConstBytes> views = {client_->staging(2), client_->staging(0)};
  std::vector<Outcome> outcomes(2);
  ASSERT_TRUE(client_->Put(id_, views, wire::Durability::kRelaxed, outcomes).ok());
  EXPECT_THAT(outcomes, testing::Each(Outcome::kOk));
  EXPECT_EQ(client_->Lookup(id_, keys_).value().hit_blocks, 1u);
  EXPECT_EQ(server_.staged_records, 2u);
  EXPECT_EQ(server_.put_frames, 1u);
}

TEST_P(LocalClientTest, StagedAndOtherRecordsMix) {
  // All four slots are named by the caller, one twice; the other records need a slot in between.
  for (uint32_t i = 0; i < 4; ++i) {
    std::memcpy(client_->staging(i).data(), records_[i].data(), records_[i].size());
  }
  const std::vector<ConstBytes> views = {
      records_[4], client_->staging(0), records_[5], client_->staging(1), client_->staging(2),
      records_[6], client_->staging(3), records_[7], records_[8],         client_->staging(0)};
  std::vector<Outcome> outcomes(views.size());
  const absl::Status status = client_->Put(id_, views, wire::Durability::kRelaxed, outcomes);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(std::span(outcomes).first(9), testing::Each(Outcome::kOk));
  EXPECT_EQ(outcomes[9], Outcome::kExists);
  EXPECT_EQ(client_->Lookup(id_, keys_).value().hit_blocks, 9u);
}

// Several messages are under way when the first is refused: all are answered before the next call.
TEST_P(LocalClientTest, ARefusedPutLeavesTheConnectionInStep) {
  const std::vector<ConstBytes> views(records_.begin(), records_.begin() + 10);
  std::vector<Outcome> outcomes(views.size());
  server_.faults().opcode = static_cast<uint8_t>(wire::Opcode::kPut);
  server_.faults().outcome = static_cast<uint8_t>(Outcome::kInvalid);
  EXPECT_EQ(client_->Put(id_, views, wire::Durability::kRelaxed, outcomes).code(),
            absl::StatusCode::kInvalidArgument);
  server_.faults().outcome = 0;
  EXPECT_EQ(client_->Lookup(id_, keys_).value().hit_blocks, 0u);
  ASSERT_TRUE(client_->Put(id_, views, wire::Durability::kRelaxed, outcomes).ok());
  EXPECT_THAT(outcomes, testing::Each(Outcome::kOk));
}

TEST_P(LocalClientTest, SnapshotsInStagingAreNotCopied) {
  const Bytes first = client_->staging(1);
  std::fill_n(first.data(), 40'000, std::byte{5});
  EXPECT_EQ(client_->PutWindow(id_, {{1, 2}, 300}, 0, {first.data(), 40'000}).value(),
            Outcome::kOk);
  EXPECT_EQ(client_->GetWindow(id_, {{1, 2}, 300}).value().bytes,
            std::vector<std::byte>(40'000, std::byte{5}));
}

}  // namespace
}  // namespace reprise
