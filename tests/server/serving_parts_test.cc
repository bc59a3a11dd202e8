// The small parts of serving: memory of sequences, the load gate, snapshots, session files,
// requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "server/api/openai_request.h"
#include "server/api/session_book.h"
#include "server/api/session_file.h"
#include "server/serving/block_buffers.h"
#include "server/serving/load_gate.h"
#include "server/serving/serving_context.h"
#include "server/serving/session_snapshot.h"
#include "storage/memory_meta_store.h"

namespace reprise::server {
namespace {

using testing::HasSubstr;
using Residency = LoadGate::Residency;

// ---- BlockBuffers ------------------------------------------------------------------------------

TEST(BlockBuffers, BudgetIsHardAndBuffersAreClean) {
  BlockBuffers buffers(8192, 3);
  EXPECT_TRUE(buffers.Reserve(2));
  EXPECT_FALSE(buffers.Reserve(2));
  EXPECT_TRUE(buffers.Reserve(1));
  std::byte* first = buffers.Take();
  std::memset(first, 7, 8192);
  buffers.Return(first);
  std::byte* again = buffers.Take();
  EXPECT_EQ(again, first);
  EXPECT_EQ(again[8191], std::byte{0});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(again) % 4096, 0u);
  buffers.Unreserve(3);
  EXPECT_EQ(buffers.reserved(), 0u);
}

// ---- LoadGate ----------------------------------------------------------------------------------

TEST(LoadGate, LoadsEverythingUntilItKnows) {
  const LoadGate gate;
  EXPECT_EQ(gate.BlocksToUse(std::vector<Residency>(9, Residency::kSsd), 2000, 114688, 128), 9u);
}

TEST(LoadGate, SkipsATierThatIsSlowerThanComputing) {
  std::vector<Residency> blocks(10, Residency::kDram);
  std::fill(blocks.begin() + 4, blocks.end(), Residency::kSsd);
  LoadGate slow_disk;
  slow_disk.RecordRows(1000, 0.001);                                  // 1 us a row,
  for (int i = 0; i < 50; ++i) slow_disk.RecordLoad(1'000'000, 1.0);  // and 1 MB/s.
  EXPECT_EQ(slow_disk.BlocksToUse(blocks, 2000, 114688, 128), 4u);
  LoadGate fast_disk;
  fast_disk.RecordRows(1000, 1.0);
  EXPECT_EQ(fast_disk.BlocksToUse(blocks, 2000, 114688, 128), 10u);
  EXPECT_EQ(fast_disk.BlocksToUse({}, 2000, 114688, 128), 0u);
}

TEST(LoadGate, AHitThatIsReplayedWholeIsNotWorthIt) {
  LoadGate gate;
  gate.RecordRows(1000, 1.0);
  const std::vector<Residency> one = {Residency::kDram};
  EXPECT_EQ(gate.BlocksToUse(one, 200, 114688, 128), 0u);
  EXPECT_EQ(gate.BlocksToUse(one, 200, 114688, 0), 1u);
}

TEST(ForkDetector, RemembersPlacesOfReplays) {
  ForkDetector forks;
  EXPECT_FALSE(forks.SeenBefore({1, 2}));
  EXPECT_FALSE(forks.SeenBefore({1, 3}));
  EXPECT_TRUE(forks.SeenBefore({1, 2}));
  for (uint64_t i = 0; i < 5000; ++i) forks.SeenBefore({7, i});
  EXPECT_FALSE(forks.SeenBefore({1, 2}));  // Forgotten.
}

// ---- SessionSnapshot ---------------------------------------------------------------------------

TEST(SessionSnapshot, ComesBackAsItWas) {
  const std::vector<TokenId> ids = {5, 6, 7};
  const std::vector<std::byte> payload(100, std::byte{3}), windows(50, std::byte{4});
  const auto bytes = EncodeSessionSnapshot({.partial_tokens = ids,
                                            .partial_payload = payload,
                                            .windows = windows,
                                            .session_id = 99,
                                            .replay_derived = true});
  const auto decoded = DecodeSessionSnapshot(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->partial_tokens, ids);
  EXPECT_TRUE(std::equal(payload.begin(), payload.end(), decoded->partial_payload.begin()));
  EXPECT_EQ(decoded->windows.size(), 50u);
  EXPECT_EQ(decoded->session_id, 99u);
  EXPECT_TRUE(decoded->replay_derived);
  for (const size_t cut : {size_t{0}, size_t{31}, size_t{40}, size_t{100}}) {
    EXPECT_FALSE(DecodeSessionSnapshot(ConstBytes(bytes).first(cut)).ok()) << cut;
  }
  std::vector<std::byte> bad = bytes;
  bad[0] = std::byte{0};
  EXPECT_FALSE(DecodeSessionSnapshot(bad).ok());
  bad = bytes;
  bad[9] = std::byte{1};  // More than a block's tokens.
  EXPECT_FALSE(DecodeSessionSnapshot(bad).ok());
}

// ---- Session files -----------------------------------------------------------------------------

constexpr uint32_t kRecordBytes = 8192;

class SessionFileTest : public testing::Test {
 protected:
  SessionFileTest() {
    header_.manifest.weights_digest = "abc";
    header_.manifest.payload_bytes = 1000;
    header_.session = {.name = "s", .tenant = "t", .id = 5, .turns = 2};
    header_.session.messages = {{.role = "user", .content = "hi"},
                                {.role = "assistant", .content = "ho", .ids = {1, 2}}};
    for (TokenId id = 0; id < 300; ++id) header_.tokens.push_back(id % 250);
    header_.record_bytes = kRecordBytes;
    header_.blocks = 2;
  }

  std::string File() const {
    std::string file(16, '\0');
    const std::string json = EncodeSessionFileHeader(header_);
    const uint64_t start[2] = {kSessionFileMagic, json.size()};
    std::memcpy(file.data(), start, sizeof(start));
    Hash256 digest = SessionFileDigest({}, AsBytes(std::string_view(file)));
    const auto add = [&](ConstBytes part) {
      digest = SessionFileDigest(digest, part);
      file += AsText(part);
    };
    add(AsBytes(std::string_view(json)));
    Hash256 parent = NamespaceOf(header_.manifest);
    for (uint32_t block = 0; block < 2; ++block) {
      const auto tokens = std::span(header_.tokens).subspan(block * kBlockTokens, kBlockTokens);
      std::vector<std::byte> record(kRecordBytes, std::byte(block + 1));
      std::memcpy(record.data() + kRecordBytes - kRecordTokenBytes, tokens.data(),
                  kRecordTokenBytes);
      const Hash256 hash = BlockHash(parent, tokens);
      SealRecord(record, {.name_space = NamespaceOf(header_.manifest),
                          .block_hash = hash,
                          .parent_hash = parent,
                          .block_index = block,
                          .payload_bytes = 1000,
                          .record_bytes = kRecordBytes,
                          .token_count = kBlockTokens});
      parent = hash;
      add(record);
    }
    return file + std::string(AsText(AsBytes(digest)));
  }

  absl::Status Read(const std::string& file, size_t piece) {
    records_ = 0;
    SessionFileReader reader({.header =
                                  [this](const SessionFileHeader& header) {
                                    read_ = header;
                                    return absl::OkStatus();
                                  },
                              .record =
                                  [this](uint32_t, Bytes) {
                                    ++records_;
                                    return absl::OkStatus();
                                  }});
    for (size_t at = 0; at < file.size(); at += piece) {
      RP_TRY(reader.Add(AsBytes(std::string_view(file).substr(at, piece))));
    }
    return reader.Finish();
  }

  SessionFileHeader header_, read_;
  uint32_t records_ = 0;
};

TEST_F(SessionFileTest, ComesBackInPiecesOfAnySize) {
  const std::string file = File();
  for (const size_t piece : {size_t{1}, size_t{1000}, file.size()}) {
    const absl::Status status = Read(file, piece);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(records_, 2u);
    EXPECT_EQ(read_.tokens, header_.tokens);
    EXPECT_EQ(read_.manifest, header_.manifest);
    EXPECT_EQ(read_.session.messages[1].ids, header_.session.messages[1].ids);
  }
}

TEST_F(SessionFileTest, CutOrAlteredFilesAreRefused) {
  const std::string file = File();
  for (const size_t cut : {size_t{0}, size_t{15}, size_t{100}, file.size() - kRecordBytes,
                           file.size() - 33, file.size() - 1}) {
    EXPECT_THAT(Message(Read(file.substr(0, cut), 4096)), HasSubstr("cut short")) << cut;
  }
  for (const size_t at :
       {size_t{20}, size_t{2000}, file.size() - kRecordBytes, file.size() - 40, file.size() - 1}) {
    std::string altered = file;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    EXPECT_FALSE(Read(altered, 4096).ok()) << at;
  }
  EXPECT_THAT(Message(Read("x" + file, 4096)), HasSubstr("does not begin with RPSESS01"));
  EXPECT_THAT(Message(Read(file + "x", file.size() + 1)), HasSubstr("goes on"));
}

// ---- SessionBook -------------------------------------------------------------------------------

TEST(SessionBook, KeepsSessionsAndTellsTenantsApart) {
  storage::MemoryMetaStore meta;
  const ManualClock clock;
  SessionBook book(&meta, &clock, 1);
  ASSERT_TRUE(book.Create("a", "one", {{.role = "system", .content = "x"}}, {}, {}).ok());
  EXPECT_EQ(book.Create("a", "one", {}, {}, {}).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(book.Create("b", "one", {}, {}, {}).ok());
  EXPECT_FALSE(book.Find("c", "one").ok());
  for (const char* bad : {"a b", "import", "ä", "../x"}) {
    EXPECT_EQ(book.Create("a", bad, {}, {}, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  // One turn at a time.
  auto session = book.Begin("a", "one");
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(book.Begin("a", "one").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(book.Remove("a", "one").ok());
  session->messages.push_back({.role = "assistant", .content = "y", .ids = {7}});
  session->turns = 1;
  book.End(*session);
  ASSERT_TRUE(book.Fork("a", "one", "two").ok());
  // Another process finds them.
  SessionBook next(&meta, &clock, 2);
  EXPECT_EQ(next.size(), 3u);
  EXPECT_EQ(next.Find("a", "two")->messages[1].ids, std::vector<TokenId>{7});
  EXPECT_NE(next.Find("a", "two")->id, next.Find("a", "one")->id);
  ASSERT_TRUE(next.Remove("a", "one").ok());
  EXPECT_EQ(next.List("a").size(), 1u);
  EXPECT_EQ(SessionBook(&meta, &clock, 3).size(), 2u);
}

TEST(SessionBook, ADamagedRowIsLeftOut) {
  storage::MemoryMetaStore meta;
  const ManualClock clock;
  meta.PutRow("session//bad", "{");
  meta.PutRow("session//worse", R"({"name": "worse", "tenant": "", "messages": [5]})");
  EXPECT_EQ(SessionBook(&meta, &clock, 1).size(), 0u);
}

// ---- Requests ----------------------------------------------------------------------------------

std::string ProblemOf(const std::string& body, bool chat) {
  nlohmann::ordered_json json;
  if (const auto problem = ParseJson(body, &json)) return problem->message;
  CompletionRequest completion;
  ChatRequest chat_request;
  const auto problem = chat ? ParseChat(json, &chat_request) : ParseCompletion(json, &completion);
  return problem ? problem->message : "";
}

TEST(OpenAiRequest, WhatIsWrongIsNamed) {
  struct Case {
    const char* body;
    const char* word;
  };
  const Case completions[] = {
      {"", "not JSON"},
      {"[1]", "must be a JSON object"},
      {"{\"prompt\": \"\xff\"}", "not JSON in UTF-8"},
      {R"({"prompt": "x"})", "model is missing"},
      {R"({"model": 5, "prompt": "x"})", "model must be a string"},
      {R"({"model": "m"})", "prompt is missing"},
      {R"({"model": "m", "prompt": 5})", "prompt must be"},
      {R"({"model": "m", "prompt": ["a", "b"]})", "several requests"},
      {R"({"model": "m", "prompt": [1, -2]})", "token ids"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 0})", "max_tokens must be"},
      {R"({"model": "m", "prompt": "x", "max_tokens": -1})", "max_tokens must be"},
      {R"({"model": "m", "prompt": "x", "max_tokens": 1.5})", "max_tokens must be"},
      {R"({"model": "m", "prompt": "x", "temperature": 3})", "temperature must be"},
      {R"({"model": "m", "prompt": "x", "temperature": "hot"})", "temperature must be"},
      {R"({"model": "m", "prompt": "x", "top_p": -1})", "top_p must be"},
      {R"({"model": "m", "prompt": "x", "n": 0})", "n must be"},
      {R"({"model": "m", "prompt": "x", "n": 1000})", "n must be"},
      {R"({"model": "m", "prompt": "x", "stop": ""})", "stop must be"},
      {R"({"model": "m", "prompt": "x", "stop": [5]})", "stop must be"},
      {R"({"model": "m", "prompt": "x", "stream": 1})", "stream must be"},
      {R"({"model": "m", "prompt": "x", "logprobs": 21})", "logprobs must be"},
      {R"({"model": "m", "prompt": "x", "logit_bias": {"5": 1}})", "not supported"},
      {R"({"model": "m", "prompt": "x", "presence_penalty": 1})", "not supported"},
      {R"({"model": "m", "prompt": "x", "seed": "x"})", "seed must be"},
      {R"({"model": "m", "prompt": "x", "reprise": {"exactly": true}})",
       "reprise.exactly is unknown"},
      {R"({"model": "m", "prompt": "x", "reprise": {"exact": 1}})", "reprise.exact must be"},
  };
  for (const Case& c : completions)
    EXPECT_THAT(ProblemOf(c.body, false), HasSubstr(c.word)) << c.body;
  const Case chats[] = {
      {R"({"model": "m"})", "messages is missing"},
      {R"({"model": "m", "messages": []})", "at least one message"},
      {R"({"model": "m", "messages": [5]})", "messages[0] must be an object"},
      {R"({"model": "m", "messages": [{"content": "x"}]})", "messages[0].role is missing"},
      {R"({"model": "m", "messages": [{"role": "robot"}]})", "messages[0].role must be"},
      {R"({"model": "m", "messages": [{"role": "user", "content": 5}]})",
       "messages[0].content must"},
      {R"({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "parts of type text alone"},
      {R"({"model": "m", "messages": [{"role": "user"}], "tools": 5})", "tools must be an array"},
      {R"({"model": "m", "messages": [{"role": "user"}], "tools": [{"function": {}}]})",
       "tools[0]"},
      {R"({"model": "m", "messages": [{"role": "user"}], "tool_choice": "required"})",
       "tool_choice"},
      {R"({"model": "m", "messages": [{"role": "user"}], "top_logprobs": 3})", "needs logprobs"},
      {R"({"model": "m", "messages": [{"role": "user"}], "reasoning_effort": "much"})",
       "reasoning_effort"},
      {R"({"model": "m", "messages": [{"role": "user"}], "response_format": {"type": "json_object"}})",
       "response_format"},
  };
  for (const Case& c : chats) EXPECT_THAT(ProblemOf(c.body, true), HasSubstr(c.word)) << c.body;
}

TEST(OpenAiRequest, MessagesComeBackAsTheyWere) {
  ToolCall call{.id = "c1", .name = "f"};
  call.arguments["a"] = 1;
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "x"},
                                             {.role = "assistant",
                                              .content = "",
                                              .reasoning = "r",
                                              .calls = {call},
                                              .ids = {1, 2},
                                              .thought = true},
                                             {.role = "tool", .content = "y", .call_id = "c1"}};
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) json.push_back(MessageJson(message));
  std::vector<ChatMessage> back;
  ASSERT_FALSE(ParseMessages(json, &back).has_value());
  ASSERT_EQ(back.size(), 3u);
  EXPECT_EQ(back[1].calls, messages[1].calls);
  EXPECT_EQ(back[1].ids, messages[1].ids);
  EXPECT_EQ(back[1].reasoning, "r");
  EXPECT_TRUE(back[1].thought);
  EXPECT_EQ(back[2].call_id, "c1");
}

}  // namespace
}  // namespace reprise::server
