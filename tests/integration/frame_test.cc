// Frames that no client of ours would send: one clear answer or a close, and a daemon that serves
// on.
#include <gmock/gmock.h>

#include "protocol/wire/control.pb.h"
#include "protocol/wire/messages.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/raw_connection.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;
using wire::FrameHeader;
using wire::Opcode;

class FrameTest : public DaemonTest {
 protected:
  // Every hostile connection is gone, and others are served.
  void ExpectServing() {
    EXPECT_TRUE(Eventually([this] { return Status()["clients"]["connections"] == 1; }));
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    EXPECT_TRUE(PutChain(client.get(), Chain(NanoManifest(), 77, 2)));
    EXPECT_EQ(GetRun(client.get(), Chain(NanoManifest(), 77, 2)), 2u);
  }
};

template <typename T, typename... Parts>
std::string BodyOf(const T& fixed, const Parts&... parts) {
  std::string body;
  wire::Append(&body, fixed);
  (wire::Append(&body, parts), ...);
  return body;
}

struct HostileFrame {
  const char* name;
  bool greeted;  // Sent after a good hello.
  Opcode opcode;
  std::function<void(FrameHeader*)> change;
  Outcome outcome;
  const char* says;
};

TEST_F(FrameTest, DamagedHeadersAreRefusedInOneFrame) {
  ASSERT_TRUE(Start({.tcp = true}));
  const auto resealed = [](auto change) {
    return [change](FrameHeader* header) {
      change(header);
      RawConnection::Reseal(header);
    };
  };
  const auto same = [](FrameHeader*) {};
  const HostileFrame cases[] = {
      {"magic", false, Opcode::kHello, [](FrameHeader* h) { h->magic ^= 1; }, Outcome::kInvalid,
       "open a new one"},
      {"version", false, Opcode::kHello, resealed([](FrameHeader* h) { h->version = 2; }),
       Outcome::kUnsupported, "protocol version 1"},
      {"header checksum", false, Opcode::kHello, [](FrameHeader* h) { h->header_crc ^= 1; },
       Outcome::kInvalid, "open a new one"},
      {"length without checksum", false, Opcode::kHello, [](FrameHeader* h) { h->body_bytes += 1; },
       Outcome::kInvalid, "open a new one"},
      {"body checksum", false, Opcode::kHello, resealed([](FrameHeader* h) { h->body_crc ^= 1; }),
       Outcome::kInvalid, "body is damaged"},
      {"body too long", true, Opcode::kLookup,
       resealed([](FrameHeader* h) { h->body_bytes = wire::kBodyBytesMax + 1; }), Outcome::kInvalid,
       "open a new one"},
      {"body of 4 GiB", true, Opcode::kLookup,
       resealed([](FrameHeader* h) { h->body_bytes = UINT32_MAX; }), Outcome::kInvalid,
       "open a new one"},
      {"data too long", true, Opcode::kPut,
       resealed([](FrameHeader* h) { h->data_bytes = wire::kDataBytesMax + 1; }), Outcome::kInvalid,
       "open a new one"},
      {"opcode 0", true, Opcode::kLookup, resealed([](FrameHeader* h) { h->opcode = 0; }),
       Outcome::kInvalid, "open a new one"},
      {"no opcode yet", true, Opcode::kLookup,
       resealed([](FrameHeader* h) { h->opcode = wire::kOpcodeMax + 1; }), Outcome::kInvalid,
       "open a new one"},
      {"outcome", true, Opcode::kLookup, resealed([](FrameHeader* h) { h->outcome = 200; }),
       Outcome::kInvalid, "open a new one"},
      {"reserved", true, Opcode::kLookup,
       resealed([](FrameHeader* h) { h->reserved[13] = std::byte{1}; }), Outcome::kInvalid,
       "open a new one"},
      {"store", true, Opcode::kLookup, resealed([](FrameHeader* h) { h->store_id ^= 1; }),
       Outcome::kInvalid, "another store"},
      {"before hello", false, Opcode::kLookup, same, Outcome::kInvalid, "exactly one hello"},
      {"second hello", true, Opcode::kHello, same, Outcome::kInvalid, "exactly one hello"},
  };
  for (const std::string& address : {this->address(), tcp_address()}) {
    for (const HostileFrame& hostile : cases) {
      SCOPED_TRACE(hostile.name);
      RawConnection connection(address);
      if (hostile.greeted) {
        ASSERT_TRUE(connection.Hello());
      }
      ASSERT_TRUE(
          connection.Send(connection.MakeFrame(hostile.opcode, HelloBody(), 0, hostile.change)));
      const auto reply = connection.Receive(kPatience);
      ASSERT_TRUE(reply.has_value());
      EXPECT_EQ(reply->outcome(), hostile.outcome) << OutcomeName(reply->outcome());
      wire::HelloReply refusal;
      ASSERT_TRUE(refusal.ParseFromString(reply->body));
      EXPECT_THAT(refusal.error(), HasSubstr(hostile.says));
      EXPECT_TRUE(connection.ClosedWithin(kPatience));
    }
  }
  ExpectServing();
}

TEST_F(FrameTest, AHelloThatMakesNoSenseIsRefused) {
  ASSERT_TRUE(Start({}));
  const std::pair<std::string, Outcome> bodies[] = {{"\xff\xff\xff\xff", Outcome::kInvalid},
                                                    {HelloBody(9), Outcome::kUnsupported},
                                                    {"", Outcome::kUnsupported}};
  for (const auto& [body, outcome] : bodies) {
    RawConnection connection(address());
    const auto reply = connection.Call(Opcode::kHello, body);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->outcome(), outcome) << OutcomeName(reply->outcome());
    EXPECT_TRUE(connection.ClosedWithin(kPatience));
  }
  ExpectServing();
}

// Bodies that pass their checksum and lie about what is in them: the request fails, the connection
// lives.
TEST_F(FrameTest, CountsThatDoNotMatchFailTheRequestOnly) {
  ASSERT_TRUE(Start({.tcp = true}));
  for (const std::string& address : {this->address(), tcp_address()}) {
    RawConnection connection(address);
    ASSERT_TRUE(connection.Hello());
    const uint32_t id = connection.OpenNamespace(EncodeManifest(NanoManifest()));
    ASSERT_NE(id, 0u);
    const BlockKey key{1, 2};
    const wire::WindowPutRequest window{.namespace_id = id, .snapshot_bytes = 100};
    const std::tuple<Opcode, std::string, Outcome> cases[] = {
        {Opcode::kLookup, "", Outcome::kInvalid},
        {Opcode::kLookup, BodyOf(wire::LookupRequest{.namespace_id = id, .key_count = 2}, key),
         Outcome::kInvalid},
        {Opcode::kLookup,
         BodyOf(wire::LookupRequest{.namespace_id = id, .key_count = UINT32_MAX}, key),
         Outcome::kInvalid},
        {Opcode::kLookup,
         BodyOf(wire::LookupRequest{.namespace_id = id, .key_count = 1, .window_count = 17}, key),
         Outcome::kInvalid},
        {Opcode::kLookup, BodyOf(wire::LookupRequest{.namespace_id = 99, .key_count = 1}, key),
         Outcome::kWrongNamespace},
        {Opcode::kAcquire, BodyOf(wire::KeysRequest{id, 3}, key), Outcome::kInvalid},
        {Opcode::kGet, BodyOf(wire::KeysRequest{id, 0x10000000}, key), Outcome::kInvalid},
        {Opcode::kGet, BodyOf(wire::KeysRequest{id, 1}, key, key), Outcome::kInvalid},
        {Opcode::kSlotAcquire,
         BodyOf(wire::SlotAcquireRequest{.namespace_id = id, .key_count = 2}, key),
         Outcome::kInvalid},
        {Opcode::kSlotAcquire,
         BodyOf(wire::SlotAcquireRequest{.namespace_id = id, .key_count = 1}, key),
         Outcome::kUnsupported},  // A daemon without an engine.
        {Opcode::kPut, BodyOf(wire::PutRequest{.namespace_id = id, .record_count = 1}),
         Outcome::kInvalid},
        {Opcode::kPut, BodyOf(wire::PutRequest{.namespace_id = id, .record_count = 1}, uint32_t{0}),
         Outcome::kInvalid},  // No staging area on this connection.
        {Opcode::kPut,
         BodyOf(wire::PutRequest{.namespace_id = id, .record_count = 1, .inline_data = 1}),
         Outcome::kInvalid},  // And no data.
        {Opcode::kPut,
         BodyOf(wire::PutRequest{.namespace_id = id, .durability = wire::Durability{9}}),
         Outcome::kInvalid},
        {Opcode::kWindowPut, BodyOf(window, uint32_t{5}), Outcome::kInvalid},
        {Opcode::kWindowPut, BodyOf(window), Outcome::kInvalid},
        {Opcode::kWindowGet, "x", Outcome::kInvalid},
        {Opcode::kControl, "\xff\xff", Outcome::kInvalid},
        {Opcode::kControl, "", Outcome::kInvalid},
        {Opcode::kOpenNamespace, "\xff\xff", Outcome::kInvalid},
    };
    int i = 0;
    for (const auto& [opcode, body, outcome] : cases) {
      const auto reply = connection.Call(opcode, body);
      ASSERT_TRUE(reply.has_value()) << "case " << i;
      EXPECT_EQ(reply->outcome(), outcome) << "case " << i << ": " << OutcomeName(reply->outcome());
      ++i;
    }
    const auto good = connection.Call(
        Opcode::kLookup, BodyOf(wire::LookupRequest{.namespace_id = id, .key_count = 1}, key));
    ASSERT_TRUE(good.has_value());
    EXPECT_EQ(good->outcome(), Outcome::kOk);
  }
  ExpectServing();
}

// Release has no reply, so its nonsense closes the connection.
TEST_F(FrameTest, AReleaseThatLiesClosesTheConnection) {
  ASSERT_TRUE(Start({}));
  RawConnection connection(address());
  ASSERT_TRUE(connection.Hello());
  ASSERT_TRUE(connection.Send(connection.MakeFrame(
      Opcode::kRelease, BodyOf(wire::ReleaseRequest{.lease_count = 7}, uint64_t{1}))));
  EXPECT_TRUE(connection.ClosedWithin(kPatience));
  ExpectServing();
}

// The data part of a refused put is read over, not taken for frames.
TEST_F(FrameTest, TheDataOfARefusedPutIsSkipped) {
  ASSERT_TRUE(Start({.tcp = true}));
  RawConnection connection(tcp_address());
  ASSERT_TRUE(connection.Hello());
  const uint32_t id = connection.OpenNamespace(EncodeManifest(NanoManifest()));
  const std::string body =
      BodyOf(wire::PutRequest{.namespace_id = id, .record_count = 3, .inline_data = 1});
  const std::string data(100'000, 'R');  // Not three records.
  ASSERT_TRUE(connection.Send(connection.MakeFrame(Opcode::kPut, body, data.size()) + data));
  const auto refused = connection.Receive(kPatience);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->outcome(), Outcome::kInvalid);
  const auto good = connection.Call(
      Opcode::kLookup, BodyOf(wire::LookupRequest{.namespace_id = id, .key_count = 0}));
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->outcome(), Outcome::kOk);
}

TEST_F(FrameTest, SilenceInsideAFrameClosesTheConnection) {
  ASSERT_TRUE(Start({.tcp = true, .idle_frame_timeout = "1s"}));
  const Chain chain(NanoManifest(), 9, 1);
  const std::string record(AsText(chain.Record(0)));
  for (const std::string& address : {this->address(), tcp_address()}) {
    std::vector<RawConnection> silent;
    for (int i = 0; i < 5; ++i) silent.emplace_back(address);
    // 0: says nothing at all. 1: half a header. 2: half a hello's body.
    const std::string hello = silent[1].MakeFrame(Opcode::kHello, HelloBody());
    ASSERT_TRUE(silent[1].Send(std::string_view(hello).substr(0, 30)));
    ASSERT_TRUE(silent[2].Send(std::string_view(hello).substr(0, 66)));
    // 3: a header that promises a body. 4: half the record of a put.
    ASSERT_TRUE(silent[3].Hello());
    ASSERT_TRUE(silent[3].Send(
        silent[3].MakeFrame(Opcode::kLookup, std::string(100'000, 'x')).substr(0, 50'000)));
    ASSERT_TRUE(silent[4].Hello());
    const uint32_t id = silent[4].OpenNamespace(EncodeManifest(NanoManifest()));
    const std::string put = silent[4].MakeFrame(
        Opcode::kPut,
        BodyOf(wire::PutRequest{.namespace_id = id, .record_count = 1, .inline_data = 1}),
        record.size());
    ASSERT_TRUE(silent[4].Send(put + record.substr(0, record.size() / 2)));
    RawConnection idle(address);
    ASSERT_TRUE(idle.Hello());
    const Instant began = SystemClock().Now();
    for (size_t i = 0; i < silent.size(); ++i) {
      EXPECT_TRUE(silent[i].ClosedWithin(kPatience)) << i;
    }
    EXPECT_GE(SystemClock().Now() - began, 500 * kMillisecond) << "closed before the timeout";
    EXPECT_NE(idle.OpenNamespace(EncodeManifest(NanoManifest())), 0u)
        << "silence between frames is no fault";
  }
  EXPECT_EQ(GetBlock(Connect().get(), chain, 0), Outcome::kNotFound);
  ExpectServing();
}

}  // namespace
}  // namespace reprise::test
