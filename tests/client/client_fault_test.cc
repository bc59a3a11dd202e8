#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/client.h"
#include "tests/client/fake_server.h"
#include "tests/client/records.h"

namespace reprise {
namespace {

using test::FakeServer;
using wire::Opcode;

struct Rig {
  explicit Rig(bool tcp, bool verify_local = false) : server({.tcp = tcp}) {
    ClientOptions options;
    options.address = server.address();
    options.verify_local = verify_local;
    options.deadline_ns = 10 * kSecond;
    client = Client::Connect(options).value();
    id = client->OpenNamespace(manifest).value();
    tokens = test::MakeTokens(3, 8 * kBlockTokens);
    keys = test::KeysOf(client->name_space(id), tokens);
    for (uint32_t i = 0; i < 8; ++i) records.push_back(test::MakeRecord(manifest, tokens, i));
    const std::vector<ConstBytes> views(records.begin(), records.end());
    std::vector<Outcome> outcomes(8);
    EXPECT_TRUE(client->Put(id, views, wire::Durability::kRelaxed, outcomes).ok());
    EXPECT_THAT(outcomes, testing::Each(Outcome::kOk));
  }
  FakeServer server;
  Manifest manifest = test::NanoManifest();
  std::unique_ptr<Client> client;
  uint32_t id = 0;
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
  std::vector<std::vector<std::byte>> records;
};

struct FrameFault {
  const char* name;
  std::atomic<bool> test::Faults::*fault;
  absl::StatusCode code;
  const char* words;
};

class FrameFaultTest : public testing::TestWithParam<FrameFault> {};

INSTANTIATE_TEST_SUITE_P(
    All, FrameFaultTest,
    testing::Values(
        FrameFault{"BadMagic", &test::Faults::bad_magic, absl::StatusCode::kDataLoss, "damaged"},
        FrameFault{"BadHeaderCrc", &test::Faults::bad_header_crc, absl::StatusCode::kDataLoss,
                   "damaged"},
        FrameFault{"BadBody", &test::Faults::bad_body, absl::StatusCode::kDataLoss, "checksum"},
        FrameFault{"CutBody", &test::Faults::cut_body, absl::StatusCode::kDataLoss, "no sense"},
        FrameFault{"Version", &test::Faults::other_version, absl::StatusCode::kFailedPrecondition,
                   "protocol version 2"},
        FrameFault{"RequestId", &test::Faults::other_request_id, absl::StatusCode::kInternal,
                   "another request"},
        FrameFault{"StoreId", &test::Faults::other_store_id, absl::StatusCode::kUnavailable,
                   "store behind this address changed"},
        FrameFault{"Trailing", &test::Faults::trailing_bytes, absl::StatusCode::kDataLoss,
                   "belong to no frame"},
        FrameFault{"Refused", &test::Faults::refuse, absl::StatusCode::kFailedPrecondition,
                   "the fake is told to refuse"},
        FrameFault{"Closed", &test::Faults::close_midway, absl::StatusCode::kUnavailable,
                   "closed the connection"}),
    [](const auto& fault) { return std::string(fault.param.name); });

TEST_P(FrameFaultTest, ClosesTheConnectionAndSaysWhy) {
  const FrameFault& fault = GetParam();
  for (const Opcode opcode : {Opcode::kLookup, Opcode::kGet, Opcode::kAcquire}) {
    Rig rig(opcode == Opcode::kGet);
    const std::vector<BlockKey> keys = {rig.keys[0], rig.keys[1], {1, 1}, {2, 2}, {3, 3}};
    (rig.server.faults().*fault.fault) = true;
    rig.server.faults().opcode = static_cast<uint8_t>(opcode);
    const auto status = opcode == Opcode::kLookup ? rig.client->Lookup(rig.id, keys).status()
                                                  : rig.client->Acquire(rig.id, keys).status();
    // After a Get's frame comes its data: stray bytes are caught as a damaged record instead.
    if (opcode == Opcode::kGet && fault.fault == &test::Faults::trailing_bytes) continue;
    EXPECT_EQ(status.code(), fault.code) << status;
    // The body is cut short, and the data's first byte may have come with it or not.
    const bool either = opcode == Opcode::kGet && fault.fault == &test::Faults::cut_body;
    const char* words = either ? "; connect again" : fault.words;
    EXPECT_THAT(Message(status), testing::HasSubstr(words));
    rig.server.faults().opcode = 0;
    const auto later = rig.client->Lookup(rig.id, rig.keys).status();
    EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Message(later), testing::HasSubstr(words)) << "the first reason is kept";
  }
}

TEST(ClientFaultTest, ADamagedRecordEndsTheRun) {
  for (const int damaged : {0, 2, 3, 7}) {
    Rig rig(true);
    rig.server.faults().damage_record = damaged;
    const Lease lease = rig.client->Acquire(rig.id, rig.keys).value();
    EXPECT_EQ(lease.size(), static_cast<uint32_t>(damaged));
    EXPECT_EQ(lease.stopped_by(), Outcome::kCorrupt);
    rig.server.faults().damage_record = -1;
    EXPECT_EQ(rig.client->Acquire(rig.id, rig.keys).value().size(), 8u) << "in step";
  }
}

TEST(ClientFaultTest, AnotherBlocksRecordEndsTheRun) {
  for (const bool tcp : {false, true}) {
    Rig rig(tcp);
    rig.server.faults().swap_record = 4;
    const Lease lease = rig.client->Acquire(rig.id, rig.keys).value();
    EXPECT_EQ(lease.size(), 4u) << tcp;
    EXPECT_EQ(lease.stopped_by(), Outcome::kCorrupt);
  }
}

TEST(ClientFaultTest, AStaleGenerationEndsTheRun) {
  Rig rig(false, true);
  EXPECT_EQ(rig.client->Acquire(rig.id, rig.keys).value().size(), 8u);
  rig.server.faults().stale_generation = true;
  const Lease lease = rig.client->Acquire(rig.id, rig.keys).value();
  EXPECT_EQ(lease.size(), 7u);
  EXPECT_EQ(lease.stopped_by(), Outcome::kCorrupt);
}

TEST(ClientFaultTest, SnapshotsAreChecked) {
  for (const bool tcp : {false, true}) {
    Rig rig(tcp);
    const wire::WindowKey key{{1, 1}, 300};
    ASSERT_EQ(rig.client->PutWindow(rig.id, key, 0, rig.records[0]).value(), Outcome::kOk);
    rig.server.faults().damage_snapshot = true;
    EXPECT_EQ(rig.client->GetWindow(rig.id, key).status().code(), absl::StatusCode::kDataLoss);
    rig.server.faults().damage_snapshot = false;
    EXPECT_TRUE(rig.client->GetWindow(rig.id, key).ok());
    if (tcp) continue;
    rig.server.faults().stale_generation = true;
    EXPECT_THAT(Message(rig.client->GetWindow(rig.id, key).status()), testing::HasSubstr("replay"));
    rig.server.faults().stale_generation = false;
    ASSERT_TRUE(rig.client->StatusJson().ok());
    EXPECT_EQ(rig.server.released_leases, 3u) << "no lease is left behind";
  }
}

TEST(ClientFaultTest, AnExpiredCallEndsInTimeAndClosesTheConnection) {
  for (const bool tcp : {false, true}) {
    Rig rig(tcp);
    rig.server.faults().no_reply = true;
    rig.server.faults().opcode = static_cast<uint8_t>(tcp ? Opcode::kGet : Opcode::kAcquire);
    rig.client->set_deadline(50 * kMillisecond);
    const Instant start = SystemClock().Now();
    EXPECT_EQ(rig.client->Acquire(rig.id, rig.keys).status().code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_LT(SystemClock().Now() - start, 5 * kSecond);
    EXPECT_EQ(rig.client->StatusJson().status().code(), absl::StatusCode::kUnavailable);
  }
}

struct OutcomeCase {
  Outcome outcome;
  absl::StatusCode lookup;
  bool acquire_is_a_lease;
};

TEST(ClientFaultTest, OutcomesOfTheDaemon) {
  const OutcomeCase cases[] = {
      {Outcome::kBusy, absl::StatusCode::kResourceExhausted, true},
      {Outcome::kTimeout, absl::StatusCode::kDeadlineExceeded, true},
      {Outcome::kIo, absl::StatusCode::kDataLoss, true},
      {Outcome::kPending, absl::StatusCode::kResourceExhausted, true},
      {Outcome::kInvalid, absl::StatusCode::kInvalidArgument, false},
      {Outcome::kClosed, absl::StatusCode::kUnavailable, false},
      {Outcome::kUnsupported, absl::StatusCode::kFailedPrecondition, false}};
  for (const bool tcp : {false, true}) {
    Rig rig(tcp);
    for (const OutcomeCase& c : cases) {
      rig.server.faults().outcome = static_cast<uint8_t>(c.outcome);
      rig.server.faults().opcode = static_cast<uint8_t>(Opcode::kLookup);
      EXPECT_EQ(rig.client->Lookup(rig.id, rig.keys).status().code(), c.lookup);
      rig.server.faults().opcode = static_cast<uint8_t>(tcp ? Opcode::kGet : Opcode::kAcquire);
      const auto lease = rig.client->Acquire(rig.id, rig.keys);
      EXPECT_EQ(lease.ok(), c.acquire_is_a_lease) << OutcomeName(c.outcome);
      if (lease.ok()) {
        EXPECT_EQ(lease->size(), 0u);
        EXPECT_EQ(lease->stopped_by(), c.outcome);
      }
    }
    rig.server.faults().opcode = static_cast<uint8_t>(Opcode::kPut);
    rig.server.faults().outcome = static_cast<uint8_t>(Outcome::kBusy);
    const std::vector<ConstBytes> views(rig.records.begin(), rig.records.end());
    std::vector<Outcome> outcomes(8);
    EXPECT_TRUE(rig.client->Put(rig.id, views, wire::Durability::kRelaxed, outcomes).ok());
    EXPECT_THAT(outcomes, testing::Each(Outcome::kBusy)) << "shed with a clear code";
  }
}

TEST(ClientFaultTest, ARefusedHelloSaysWhy) {
  FakeServer server;
  server.faults().refuse = true;
  server.faults().opcode = static_cast<uint8_t>(Opcode::kHello);
  const auto status = Client::Connect({.address = server.address()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(status), testing::HasSubstr("the fake is told to refuse"));
}

TEST(ClientFaultTest, AHelloThatLiesAboutTheArenaIsRefused) {
  FakeServer server({.arena_too_small = true});
  const auto status = Client::Connect({.address = server.address()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), testing::HasSubstr("the arena has"));
}

}  // namespace
}  // namespace reprise
