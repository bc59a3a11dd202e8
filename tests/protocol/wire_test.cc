#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "protocol/base/prng.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/messages.h"
#include "tests/protocol/golden.h"

namespace reprise::wire {
namespace {

constexpr uint64_t kStoreId = 0x0807060504030201;

BlockKey KeyNamed(const char* name) {
  return LoadLe<BlockKey>(test::ReadGolden("block_hash.hex").at(name).data());
}

std::string Frame(FrameHeader header, Opcode opcode, const std::string& body) {
  header.opcode = static_cast<uint8_t>(opcode);
  header.store_id = kStoreId;
  SealFrame(&header, AsBytes(body));
  return std::string(AsText(AsBytes(header))) + body;
}

template <typename Fixed, typename... Items>
std::string Body(const Fixed& fixed, const Items&... items) {
  std::string body;
  Append(&body, fixed);
  (Append(&body, items), ...);
  return body;
}

struct GoldenFrame {
  const char* name;
  std::string frame;
};

std::vector<GoldenFrame> GoldenFrames() {
  const BlockKey a = KeyNamed("chain_0");
  const BlockKey b = KeyNamed("chain_1");
  const WindowKey window{KeyNamed("exact_300"), 300};
  const FrameHeader reply{.flags = kReply};
  const auto request = [](uint64_t id, uint32_t deadline_ms = 1000) {
    return FrameHeader{.request_id = id, .deadline_ms = deadline_ms};
  };
  const auto answer = [&](uint64_t id, Outcome outcome = Outcome::kOk) {
    FrameHeader header = reply;
    header.request_id = id;
    header.outcome = static_cast<uint8_t>(outcome);
    return header;
  };
  FrameHeader get = answer(44);
  get.data_bytes = 2 * 28'672;
  get.flags = kReply | kMore;
  FrameHeader window_put = request(46);
  window_put.data_bytes = 1000;
  return {
      {"lookup_request",
       Frame(request(42, 4687), Opcode::kLookup, Body(LookupRequest{1, 2, 1, 0}, a, b, window))},
      {"lookup_reply",
       Frame(answer(42), Opcode::kLookup,
             Body(LookupReply{300, 2, 1000, 0, StopReason::kNone, WindowState::kExact, 0},
                  Tier::kDram, Tier::kSsd))},
      {"acquire_request", Frame(request(43), Opcode::kAcquire, Body(KeysRequest{1, 2}, a, b))},
      {"acquire_reply", Frame(answer(43, Outcome::kNotFound), Opcode::kAcquire,
                              Body(AcquireReply{9, 1, 1}, SlotRef{17, 5}))},
      {"get_reply", Frame(get, Opcode::kGet, Body(GetReply{0, 2, 1, 0}))},
      {"release",
       Frame({}, Opcode::kRelease, Body(ReleaseRequest{2, 0}, uint64_t{9}, uint64_t{10}))},
      {"put_request", Frame(request(45), Opcode::kPut,
                            Body(PutRequest{1, 2, Durability::kDurable, 0, 0, 0}, 3u, 0u))},
      {"put_reply",
       Frame(answer(45), Opcode::kPut, Body(PutReply{2, 0}, Outcome::kOk, Outcome::kExists))},
      {"window_put_request", Frame(window_put, Opcode::kWindowPut,
                                   Body(WindowPutRequest{1, 1000, 0x12345678, 1, {}, 77, window}))},
      {"window_request", Frame(request(47), Opcode::kWindowGet, Body(WindowRequest{1, 0, window}))},
      {"window_reply", Frame(answer(48), Opcode::kWindowAcquire,
                             Body(WindowReply{11, 1000, 0x12345678, 1, 0}, SlotRef{20, 6}))},
      {"slot_acquire_request",
       Frame(request(49), Opcode::kSlotAcquire, Body(SlotAcquireRequest{1, 2, 1, {}}, a, b))},
      {"slot_acquire_reply", Frame(answer(49, Outcome::kBusy), Opcode::kSlotAcquire,
                                   Body(SlotAcquireReply{12, 1, 0, 1, 0}, HbmSlot{21, 7, 1, 0}))}};
}

TEST(FrameTest, Golden) {
  const auto golden = test::ReadGolden("frame.hex");
  EXPECT_EQ(golden.size(), GoldenFrames().size());
  for (const GoldenFrame& frame : GoldenFrames()) {
    EXPECT_EQ(ToHex(AsBytes(frame.frame)), ToHex(golden.at(frame.name))) << frame.name;
    FrameHeader header;
    const ConstBytes bytes = golden.at(frame.name);
    EXPECT_EQ(ParseFrameHeader(bytes.first(kFrameHeaderBytes), &header), Outcome::kOk);
    EXPECT_TRUE(BodyMatches(header, bytes.subspan(kFrameHeaderBytes))) << frame.name;
  }
}

// "0010  2a 00 ...  *.......": as PROTOCOL.md shows them.
std::string HexDump(ConstBytes bytes) {
  std::string dump;
  for (size_t row = 0; row < bytes.size(); row += 16) {
    char text[24];
    std::snprintf(text, sizeof(text), "%04zx ", row);
    std::string codes = text;
    std::string letters;
    for (const std::byte b : bytes.subspan(row, std::min<size_t>(16, bytes.size() - row))) {
      codes += " " + ToHex(ConstBytes(&b, 1));
      const char c = static_cast<char>(b);
      letters += c >= 32 && c < 127 ? c : '.';
    }
    codes.resize(53, ' ');
    dump += codes + "  " + letters + "\n";
  }
  return dump;
}

TEST(FrameTest, TheWorkedExampleOfTheProtocolPageIsTheGoldenOne) {
  std::ifstream in(RP_SOURCE_DIR "/protocol/PROTOCOL.md");
  std::stringstream page;
  page << in.rdbuf();
  const auto golden = test::ReadGolden("frame.hex");
  EXPECT_THAT(page.str(), testing::HasSubstr(HexDump(golden.at("lookup_request"))));
  EXPECT_THAT(page.str(), testing::HasSubstr(HexDump(golden.at("lookup_reply"))));
}

TEST(FrameTest, EveryFlippedByteIsSeen) {
  const std::string frame = GoldenFrames()[0].frame;
  for (size_t i = 0; i < frame.size(); ++i) {
    for (const char mask : {'\x01', '\x80', '\xff'}) {
      std::string bad = frame;
      bad[i] = static_cast<char>(bad[i] ^ mask);
      FrameHeader header;
      const Outcome outcome = ParseFrameHeader(AsBytes(bad).first(kFrameHeaderBytes), &header);
      const bool accepted =
          outcome == Outcome::kOk && BodyMatches(header, AsBytes(bad).subspan(kFrameHeaderBytes));
      EXPECT_FALSE(accepted) << "byte " << i;
    }
  }
}

TEST(FrameTest, WellSealedLies) {
  struct Lie {
    const char* name;
    void (*tell)(FrameHeader*);
    Outcome outcome;
  };
  const Lie lies[] = {
      {"none", [](FrameHeader*) {}, Outcome::kOk},
      {"magic", [](FrameHeader* h) { h->magic = 0; }, Outcome::kInvalid},
      {"version", [](FrameHeader* h) { h->version = 2; }, Outcome::kUnsupported},
      {"opcode 0", [](FrameHeader* h) { h->opcode = 0; }, Outcome::kInvalid},
      {"opcode 15", [](FrameHeader* h) { h->opcode = kOpcodeMax + 1; }, Outcome::kInvalid},
      {"outcome", [](FrameHeader* h) { h->outcome = kOutcomeCount; }, Outcome::kInvalid},
      {"most data", [](FrameHeader* h) { h->data_bytes = kDataBytesMax; }, Outcome::kOk},
      {"more data", [](FrameHeader* h) { h->data_bytes = kDataBytesMax + 1; }, Outcome::kInvalid},
      {"all data", [](FrameHeader* h) { h->data_bytes = UINT64_MAX; }, Outcome::kInvalid},
      {"reserved", [](FrameHeader* h) { h->reserved[13] = std::byte{1}; }, Outcome::kInvalid}};
  for (const Lie& lie : lies) {
    FrameHeader header{.opcode = 3};
    lie.tell(&header);
    SealFrame(&header, AsBytes("body"));
    FrameHeader parsed;
    EXPECT_EQ(ParseFrameHeader(AsBytes(header), &parsed), lie.outcome) << lie.name;
  }
}

TEST(FrameTest, BodiesOfTheWrongLengthDoNotMatch) {
  FrameHeader header{.opcode = 3};
  SealFrame(&header, {});
  EXPECT_EQ(header.body_crc, 0u);
  EXPECT_TRUE(BodyMatches(header, {}));
  EXPECT_FALSE(BodyMatches(header, AsBytes("x")));
  SealFrame(&header, AsBytes("ab"));
  EXPECT_FALSE(BodyMatches(header, AsBytes("a")));
  EXPECT_FALSE(BodyMatches(header, AsBytes("abc")));
}

// ---- Messages ----

template <typename View>
bool Decodes(std::string_view body) {
  View view;
  return Decode(AsBytes(body), &view);
}

using Decoder = bool (*)(std::string_view);
struct DecoderCase {
  const char* name;
  Decoder decode;
  std::string body;
};

std::vector<DecoderCase> Cases() {
  const BlockKey key{1, 2};
  const WindowKey window{key, 300};
  return {
      {"lookup", &Decodes<LookupView>, Body(LookupRequest{1, 2, 1, 0}, key, key, window)},
      {"keys", &Decodes<KeysView>, Body(KeysRequest{1, 3}, key, key, key)},
      {"release", &Decodes<ReleaseView>, Body(ReleaseRequest{1, 0}, uint64_t{5})},
      {"put staged", &Decodes<PutView>,
       Body(PutRequest{.namespace_id = 1, .record_count = 2}, 0u, 1u)},
      {"put inline", &Decodes<PutView>,
       Body(PutRequest{.namespace_id = 1, .record_count = 2, .inline_data = 1})},
      {"window put staged", &Decodes<WindowPutView>,
       Body(WindowPutRequest{.snapshot_bytes = 9, .window = window}, 4u)},
      {"window put inline", &Decodes<WindowPutView>,
       Body(WindowPutRequest{.snapshot_bytes = 9, .inline_data = 1, .window = window})},
      {"window", &Decodes<WindowRequest>, Body(WindowRequest{1, 0, window})},
      {"lookup reply", &Decodes<LookupReplyView>,
       Body(LookupReply{.hit_blocks = 2}, Tier::kDram, Tier::kSsd)},
      {"acquire reply", &Decodes<AcquireReplyView>, Body(AcquireReply{1, 1, 0}, SlotRef{1, 2})},
      {"get reply", &Decodes<GetReply>, Body(GetReply{0, 1, 0, 0})},
      {"put reply", &Decodes<PutReplyView>, Body(PutReply{1, 0}, Outcome::kExists)},
      {"window reply", &Decodes<WindowReplyView>, Body(WindowReply{1, 9, 0, 1, 0}, SlotRef{1, 2})},
      {"slot acquire", &Decodes<SlotAcquireView>, Body(SlotAcquireRequest{1, 2, 1, {}}, key, key)},
      {"slot acquire reply", &Decodes<SlotAcquireReplyView>,
       Body(SlotAcquireReply{1, 1, 0, 0, 0}, HbmSlot{1, 2, 1, 0})}};
}

TEST(MessagesTest, ExactBodiesOnly) {
  for (const DecoderCase& c : Cases()) {
    EXPECT_TRUE(c.decode(c.body)) << c.name;
    for (size_t bytes = 0; bytes < c.body.size(); ++bytes) {
      EXPECT_FALSE(c.decode(std::string_view(c.body).substr(0, bytes))) << c.name << " " << bytes;
    }
    EXPECT_FALSE(c.decode(c.body + 'x')) << c.name;
  }
}

// Where each message keeps a count, and lies about it.
TEST(MessagesTest, LyingCounts) {
  const std::pair<const char*, size_t> counts[] = {{"lookup", 4},
                                                   {"lookup", 8},
                                                   {"keys", 4},
                                                   {"release", 0},
                                                   {"put staged", 4},
                                                   {"lookup reply", 8},
                                                   {"put reply", 0},
                                                   {"acquire reply", 8},
                                                   {"window reply", 16},
                                                   {"slot acquire", 4},
                                                   {"slot acquire reply", 8}};
  for (const auto& [name, offset] : counts) {
    for (const DecoderCase& c : Cases()) {
      if (std::string_view(c.name) != name) continue;
      const auto truth = LoadLe<uint32_t>(c.body.data() + offset);
      for (const uint32_t lie : {truth - 1, truth + 1, 0x10000000u, 0x7fffffffu, 0xffffffffu}) {
        std::string body = c.body;
        StoreLe(body.data() + offset, lie);
        EXPECT_FALSE(c.decode(body)) << name << " says " << lie;
      }
    }
  }
}

TEST(MessagesTest, LimitsHoldEvenWhenTheBytesAreThere) {
  std::string body = Body(KeysRequest{1, kKeysMax});
  body.resize(body.size() + kKeysMax * sizeof(BlockKey));
  EXPECT_TRUE(Decodes<KeysView>(body));
  EXPECT_LE(body.size(), kBodyBytesMax) << "the largest request fits a frame";
  body = Body(KeysRequest{1, kKeysMax + 1});
  body.resize(body.size() + (kKeysMax + 1) * sizeof(BlockKey));
  EXPECT_FALSE(Decodes<KeysView>(body));
  for (const uint32_t count : {kWindowCandidatesMax, kWindowCandidatesMax + 1}) {
    body = Body(LookupRequest{1, 0, count, 0});
    body.resize(body.size() + count * sizeof(WindowKey));
    EXPECT_EQ(Decodes<LookupView>(body), count == kWindowCandidatesMax);
  }
  for (const uint32_t count : {kPutRecordsMax, kPutRecordsMax + 1}) {
    body = Body(PutRequest{.record_count = count});
    body.resize(body.size() + count * sizeof(uint32_t));
    EXPECT_EQ(Decodes<PutView>(body), count == kPutRecordsMax);
    EXPECT_EQ(Decodes<PutView>(Body(PutRequest{.record_count = count, .inline_data = 1})),
              count == kPutRecordsMax);
  }
}

TEST(MessagesTest, ValuesOutOfRange) {
  EXPECT_FALSE(Decodes<PutView>(Body(PutRequest{.durability = static_cast<Durability>(2)})));
  EXPECT_FALSE(Decodes<PutView>(Body(PutRequest{.inline_data = 2})));
  EXPECT_FALSE(Decodes<SlotAcquireView>(Body(SlotAcquireRequest{.held_only = 2})));
  EXPECT_FALSE(
      Decodes<SlotAcquireView>(Body(SlotAcquireRequest{.reserved = {0, 0, 0, 0, 0, 0, 1}})));
  EXPECT_FALSE(Decodes<PutReplyView>(Body(PutReply{1, 0}, static_cast<Outcome>(kOutcomeCount))));
  const auto window_put = [](uint32_t bytes) {
    return Body(WindowPutRequest{.snapshot_bytes = bytes, .inline_data = 1});
  };
  EXPECT_FALSE(Decodes<WindowPutView>(window_put(0)));
  EXPECT_TRUE(Decodes<WindowPutView>(window_put(kDataBytesMax)));
  EXPECT_FALSE(Decodes<WindowPutView>(window_put(kDataBytesMax + 1)));
  EXPECT_FALSE(Decodes<WindowPutView>(Body(WindowPutRequest{.snapshot_bytes = 9})))
      << "staged, in no slot";
}

TEST(MessagesTest, ViewsPointAtTheArrays) {
  const BlockKey a{1, 2};
  const BlockKey b{3, 4};
  const std::string body = "?" + Body(LookupRequest{7, 2, 1, 0}, a, b, WindowKey{b, 300});
  LookupView view;
  ASSERT_TRUE(Decode(AsBytes(body).subspan(1), &view)) << "at an odd address";
  EXPECT_EQ(view.fixed.namespace_id, 7u);
  EXPECT_EQ(At<BlockKey>(view.keys, 0), a);
  EXPECT_EQ(At<BlockKey>(view.keys, 1), b);
  EXPECT_EQ(At<WindowKey>(view.windows, 0), (WindowKey{b, 300}));
}

TEST(MessagesTest, RandomBytesNeverCrash) {
  constexpr uint64_t kSeed = 11;
  Prng prng(kSeed);
  const auto cases = Cases();
  for (int i = 0; i < 50'000; ++i) {
    const DecoderCase& c = cases[prng.Below(cases.size())];
    std::string body = c.body.substr(0, prng.Below(c.body.size() + 1));
    body.resize(body.size() + prng.Below(20), static_cast<char>(prng.Next()));
    if (!body.empty()) body[prng.Below(body.size())] = static_cast<char>(prng.Next());
    (void)c.decode(body);
  }
}

TEST(BodyReaderTest, FailsOnceAndForAll) {
  BodyReader reader(AsBytes("abcd"));
  EXPECT_EQ(reader.Take<uint8_t>(), 'a');
  EXPECT_FALSE(reader.Done());
  EXPECT_EQ(reader.Take<uint32_t>(), 0u);
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(reader.Take<uint8_t>(), 0) << "what is left is not given any more";
  EXPECT_FALSE(reader.Done());
  BodyReader huge(AsBytes("abcd"));
  EXPECT_TRUE(huge.TakeBytes(UINT64_MAX).empty());
  EXPECT_TRUE(huge.failed());
}

}  // namespace
}  // namespace reprise::wire
