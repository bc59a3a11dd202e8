#include "client/trace/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "client/trace/generated_trace.h"
#include "client/trace/line_reader.h"
#include "protocol/base/bytes.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Row {
  Nanos time_ns;
  int64_t session;
  uint32_t input_tokens, output_tokens, block_tokens;
  std::vector<uint64_t> ids;
  std::vector<TokenId> tokens;
};

absl::StatusOr<std::vector<Row>> ReadAll(const std::string& spec, const TraceOptions& options = {},
                                         uint64_t* skipped = nullptr) {
  RP_ASSIGN(auto reader, OpenTrace(spec, options));
  std::vector<Row> rows;
  TraceRequest request;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&request));
    if (!found) break;
    rows.push_back({request.time_ns,
                    request.session,
                    request.input_tokens,
                    request.output_tokens,
                    request.block_tokens,
                    {request.hash_ids.begin(), request.hash_ids.end()},
                    {request.tokens.begin(), request.tokens.end()}});
  }
  if (skipped != nullptr) *skipped = reader->skipped_lines();
  return rows;
}

class TraceTest : public ::testing::Test {
 protected:
  TraceTest() : folder_(::testing::TempDir() + "/trace_test." + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~TraceTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, std::string_view content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary).write(content.data(), std::ssize(content));
    return path;
  }
  std::string ErrorOf(std::string_view content, const TraceOptions& options = {}) {
    const auto rows = ReadAll(Write("broken", content), options);
    return rows.ok() ? "no error" : Message(rows.status());
  }

  std::string folder_;
};

std::string Gzip(std::string_view text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  EXPECT_FALSE(ZSTD_isError(size));
  out.resize(size);
  return out;
}

constexpr std::string_view kMooncake =
    "{\"timestamp\":0,\"input_length\":1024,\"output_length\":5,\"hash_ids\":[1,2]}\n"
    "{\"timestamp\": 1500.5, \"input_length\": 1100, \"output_length\": 0, \"hash_ids\": [1, 2, "
    "3], "
    "\"session\": 7, \"extra\": {\"a\": [1, {\"b\": null}], \"input_length\": 3}}\r\n"
    "\n"
    "{\"timestamp\":3000,\"input_length\":500,\"output_length\":5,\"hash_ids\":[]}";

void ExpectMooncake(const absl::StatusOr<std::vector<Row>>& rows) {
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].session, kNoSession);
  EXPECT_THAT((*rows)[0].ids, ElementsAre(1, 2));
  EXPECT_EQ((*rows)[0].block_tokens, 512u);
  EXPECT_EQ((*rows)[1].time_ns, 1'500'500'000);
  EXPECT_EQ((*rows)[1].session, 7);
  EXPECT_EQ((*rows)[1].input_tokens, 1100u);
  EXPECT_THAT((*rows)[1].ids, ElementsAre(1, 2, 3));
  EXPECT_EQ((*rows)[2].output_tokens, 5u);
  EXPECT_THAT((*rows)[2].ids, ElementsAre());
}

TEST_F(TraceTest, MooncakePlainAndCompressed) {
  ExpectMooncake(ReadAll(Write("plain", kMooncake)));
  ExpectMooncake(ReadAll(Write("a.gz", Gzip(kMooncake))));
  ExpectMooncake(ReadAll(Write("a.zst", Zstd(kMooncake))));
  // Told apart by content, not by name; several members or frames are one text.
  const size_t middle = kMooncake.size() / 2;
  ExpectMooncake(ReadAll(
      Write("wrong.zst", Gzip(kMooncake.substr(0, middle)) + Gzip(kMooncake.substr(middle)))));
  ExpectMooncake(
      ReadAll(Write("b", Zstd(kMooncake.substr(0, middle)) + Zstd(kMooncake.substr(middle)))));
}

TEST_F(TraceTest, DamagedCompression) {
  const std::string gzip = Gzip(kMooncake), zstd = Zstd(kMooncake);
  EXPECT_THAT(ErrorOf(gzip.substr(0, gzip.size() - 9)), HasSubstr("ends inside a gzip member"));
  EXPECT_THAT(ErrorOf(zstd.substr(0, zstd.size() - 3)), HasSubstr("ends inside a zstd frame"));
  std::string bent = gzip;
  bent[gzip.size() / 2] = static_cast<char>(bent[gzip.size() / 2] ^ 0x55);
  EXPECT_THAT(ErrorOf(bent), HasSubstr("not valid gzip data"));
  bent = zstd;
  bent[5] = static_cast<char>(bent[5] ^ 0x7f);
  EXPECT_THAT(ErrorOf(bent), HasSubstr("zstd"));
}

TEST_F(TraceTest, LinesAcrossBufferBorders) {
  // Lines around the buffer's size, so that each kind of border is crossed.
  std::string text;
  std::vector<size_t> lengths = {1, 262'143, 262'144, 262'145, 10, 700'000, 3, 524'288};
  for (const size_t length : lengths) text += std::string(length, 'x') + "\n";
  const std::string path = Write("lines", text);
  auto reader = LineReader::Open(path);
  ASSERT_TRUE(reader.ok());
  std::string_view line;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto found = (*reader)->Next(&line);
    ASSERT_TRUE(found.ok() && *found) << i;
    EXPECT_EQ(line.size(), lengths[i]);
    EXPECT_EQ((*reader)->line_number(), i + 1);
  }
  EXPECT_FALSE(*(*reader)->Next(&line));
}

TEST_F(TraceTest, ToyBlockOfFour) {
  const std::string toy =
      R"({"timestamp":0,"input_length":12,"output_length":1,"hash_ids":[1,2,3]})"
      "\n"
      R"({"timestamp":10,"input_length":18,"output_length":1,"hash_ids":[1,2,3,4]})";
  EXPECT_THAT(ErrorOf(toy), AllOf(HasSubstr("broken:1: "), HasSubstr("3 hash ids"),
                                  HasSubstr("--trace-block 4 would fit")));
  const auto rows = ReadAll(Write("toy", toy), {.block_tokens = 4});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[1].block_tokens, 4u);
}

TEST_F(TraceTest, QwenSessionsFollowParents) {
  const auto rows = ReadAll(Write(
      "qwen",
      R"({"chat_id":10,"parent_chat_id":-1,"timestamp":0.25,"input_length":33,"output_length":2,"type":"text","turn":1,"hash_ids":[5,6,7]}
{"chat_id":11,"parent_chat_id":10,"timestamp":1.114,"input_length":48,"output_length":2,"type":"text","turn":2,"hash_ids":[5,6,8]}
{"chat_id":12,"parent_chat_id":11,"timestamp":2,"input_length":17,"output_length":2,"type":"file","turn":3,"hash_ids":[5]}
{"chat_id":13,"parent_chat_id":99,"timestamp":2,"input_length":16,"output_length":2,"type":"text","turn":3,"hash_ids":[9]})"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 4u);
  EXPECT_EQ((*rows)[0].block_tokens, 16u);
  EXPECT_EQ((*rows)[0].time_ns, 250'000'000);
  EXPECT_EQ((*rows)[1].time_ns, 1'114'000'000);
  EXPECT_EQ((*rows)[0].session, 10);
  EXPECT_EQ((*rows)[1].session, 10);
  EXPECT_EQ((*rows)[2].session, 10);
  EXPECT_EQ((*rows)[3].session, 99);
}

constexpr std::string_view kDelta =
    "{\"kvtrace\":1,\"block\":64,\"sessions\":[{\"id\":\"a\",\"tool_tokens\":3}]}\n"
    "{\"t\":0,\"s\":0,\"in\":200,\"out\":1,\"p\":0,\"r\":[1,3],\"k\":\"m\"}\n"
    "{\"t\":5,\"s\":3,\"in\":128,\"out\":1,\"p\":0,\"r\":[1,1,9,1],\"k\":\"m\"}\n"
    "{\"t\":7,\"s\":0,\"in\":320,\"out\":1,\"p\":2,\"r\":[7,2,20,1],\"k\":\"a\"}\n"
    "{\"t\":9,\"s\":0,\"in\":64,\"out\":1,\"p\":1,\"r\":[],\"k\":\"m\"}\n";

TEST_F(TraceTest, DeltaIdsBecomeGlobal) {
  const auto rows = ReadAll(Write("delta", kDelta));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 4u);
  const uint64_t third = uint64_t{3} << 40;
  EXPECT_THAT((*rows)[0].ids, ElementsAre(1, 2, 3));
  EXPECT_THAT((*rows)[1].ids, ElementsAre(third | 1, third | 9));
  EXPECT_THAT((*rows)[2].ids, ElementsAre(1, 2, 7, 8, 20));
  EXPECT_THAT((*rows)[3].ids, ElementsAre(1));
  EXPECT_EQ((*rows)[2].time_ns, 7 * kMillisecond);
  EXPECT_EQ((*rows)[1].session, 3);
}

TEST_F(TraceTest, DeltaErrors) {
  const std::string header = "{\"kvtrace\":1,\"block\":64}\n";
  const struct {
    std::string line, want;
  } cases[] = {
      {R"({"t":0,"s":0,"in":64,"out":1,"p":1,"r":[],"k":"m"})", "keeps 1 ids, but the previous"},
      {R"({"t":0,"s":0,"in":64,"out":1,"p":0,"r":[1],"k":"m"})", "pairs of first and count"},
      {R"({"t":0,"s":0,"in":64,"out":1,"p":0,"r":[1,2],"k":"m"})", "more than the 1 ids"},
      {R"({"t":0,"s":0,"in":64,"out":1,"p":0,"r":[1,18446744073709551615],"k":"m"})",
       "more than the 1 ids"},
      {R"({"t":0,"s":0,"in":64,"out":1,"p":0,"r":[1099511627776,1],"k":"m"})", "below 2^40"},
      {R"({"t":0,"s":0,"in":200,"out":1,"p":0,"r":[1,1],"k":"m"})", "lists 1 hash ids"},
      {R"({"t":0,"s":-1,"in":64,"out":1,"p":0,"r":[1,1],"k":"m"})", "\"s\" is -1"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ErrorOf(header + c.line), AllOf(HasSubstr("broken:2: "), HasSubstr(c.want)));
  }
  EXPECT_THAT(ErrorOf(header + cases[0].line, {.block_tokens = 32}), HasSubstr("blocks of 64"));
}

TEST_F(TraceTest, AzureLengthsOnly) {
  const auto rows = ReadAll(Write("azure",
                                  "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 23:59:59.9799600,4808,10\n"
                                  "2023-11-17 00:00:00.0319600,3180,0\n"
                                  "2023-11-17 00:00:01+00:00,1,8\n"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].time_ns, 0);
  EXPECT_EQ((*rows)[1].time_ns, 52 * kMillisecond);
  EXPECT_EQ((*rows)[2].time_ns, 1'020'040'000);
  EXPECT_EQ((*rows)[0].input_tokens, 4808u);
  EXPECT_TRUE((*rows)[0].ids.empty());
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  for (const std::string line : {"2023-13-16 18:17:03,1,1", "2023-11-16T18:17:03,1,1",
                                 "2023-11-16 18:17:03.,1,1", "x,1,1"}) {
    EXPECT_THAT(ErrorOf(header + line), HasSubstr("broken:2: TIMESTAMP is")) << line;
  }
  EXPECT_THAT(ErrorOf(header + "2023-11-16 18:17:03,-4,1"), HasSubstr("ContextTokens is \"-4\""));
  EXPECT_THAT(ErrorOf(header + "2023-11-16 18:17:03,4,1x"), HasSubstr("GeneratedTokens is \"1x\""));
  EXPECT_THAT(ErrorOf(header + "2023-11-16 18:17:03"), HasSubstr("3 columns"));
}

TEST_F(TraceTest, Tokens) {
  const auto rows = ReadAll(
      Write("tokens", R"({"timestamp":3,"tokens":[5,0,129279],"output_length":4,"session":2})"));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT((*rows)[0].tokens, ElementsAre(5, 0, 129279));
  EXPECT_EQ((*rows)[0].input_tokens, 3u);
  EXPECT_EQ((*rows)[0].session, 2);
  EXPECT_THAT(ErrorOf(R"({"timestamp":3,"tokens":[],"output_length":4})"), HasSubstr("has 0 ids"));
  EXPECT_THAT(ErrorOf(R"({"timestamp":3,"tokens":[4294967296],"output_length":4})"),
              HasSubstr("at most 2147483647"));
}

TEST_F(TraceTest, BrokenLinesNameFileLineAndReason) {
  const std::string good =
      "{\"timestamp\":9,\"input_length\":512,\"output_length\":5,\"hash_ids\":[1]}\n";
  const struct {
    std::string line, want;
  } cases[] = {
      {R"({"timestamp":8,"input_length":512,"output_length":5,"hash_ids":[1]})",
       "time goes back by 1000 us"},
      {R"({"timestamp":-1,"input_length":512,"output_length":5,"hash_ids":[1]})",
       "\"timestamp\" is -1"},
      {R"({"timestamp":9,"input_length":-512,"output_length":5,"hash_ids":[1]})",
       "\"input_length\" is -512: want 1 to"},
      {R"({"timestamp":9,"input_length":0,"output_length":5,"hash_ids":[]})",
       "\"input_length\" is 0"},
      {R"({"timestamp":9,"input_length":99999999999,"output_length":5,"hash_ids":[1]})",
       "\"input_length\" is 99999999999"},
      {R"({"timestamp":9,"input_length":18446744073709551615,"output_length":5,"hash_ids":[1]})",
       "\"input_length\" is 1.84467440737096e+19: want a whole number"},
      {R"({"timestamp":9,"input_length":1.5,"output_length":5,"hash_ids":[1]})",
       "want a whole number"},
      {R"({"timestamp":9,"input_length":"512","output_length":5,"hash_ids":[1]})",
       "\"input_length\" is not a number"},
      {R"({"timestamp":9,"input_length":512,"hash_ids":[1]})", "\"output_length\" is missing"},
      {R"({"timestamp":9,"input_length":512,"output_length":5})", "\"hash_ids\" is missing"},
      {R"({"timestamp":9,"input_length":512,"output_length":5,"hash_ids":4})", "is not an array"},
      {R"({"timestamp":9,"input_length":512,"output_length":5,"hash_ids":[-1]})",
       "\"hash_ids\"[0] is -1"},
      {R"({"timestamp":9,"input_length":1024,"output_length":5,"hash_ids":[1,[2]]})",
       "\"hash_ids\"[1] is an array"},
      {R"({"timestamp":9,"input_length":512,"output_length":5,"hash_ids":[1,2,3]})",
       "lists 3 hash ids, but 512 tokens in blocks of 512 have 1"},
      {R"({"timestamp":9,"timestamp":9})", "names \"timestamp\" twice"},
      {R"({"timestamp":9,)", "not valid JSON at column"},
      {"{}{}", "not valid JSON at column"},
      {"[1]", "is a JSON array"},
      {"7", "not a JSON object"},
      {"null", "not a JSON object"},
      {"\"\xff\"", "not valid JSON"},
  };
  for (const auto& c : cases) {
    const std::string content = good + "\n" + c.line + "\n" + good;
    EXPECT_THAT(ErrorOf(content), AllOf(HasSubstr("broken:3: "), HasSubstr(c.want))) << c.line;
    uint64_t skipped = 0;
    const auto rows = ReadAll(Write("lenient", content), {.lenient = true}, &skipped);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->size(), 2u) << c.line;
    EXPECT_EQ(skipped, 1u) << c.line;
  }
}

TEST_F(TraceTest, LenientDeltaForgetsWhatItCannotKnow) {
  std::string text(kDelta);
  text.insert(text.find("{\"t\":7"), "broken\n");
  uint64_t skipped = 0;
  const auto rows = ReadAll(Write("delta", text), {.lenient = true}, &skipped);
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 2u);  // The two later lines build on ids that may have changed.
  EXPECT_EQ(skipped, 3u);
}

TEST_F(TraceTest, EmptyAndUnknown) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf("\n \n"), HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf("TIMESTAMP,ContextTokens,GeneratedTokens\n"), HasSubstr("holds no request"));
  EXPECT_THAT(ErrorOf("nonsense\n", {.format = "mooncake", .lenient = true}),
              AllOf(HasSubstr("holds no request"), HasSubstr("broken:1: ")));
  EXPECT_THAT(ErrorOf("hello\n"), AllOf(HasSubstr("broken:1: "), HasSubstr("--format")));
  EXPECT_THAT(ErrorOf(kMooncake, {.format = "csv"}), HasSubstr("unknown trace format \"csv\""));
  EXPECT_THAT(ErrorOf(R"({"timestamp":3,"tokens":[1],"output_length":4})", {.block_tokens = 16}),
              HasSubstr("leave --trace-block out"));
  EXPECT_EQ(OpenTrace(folder_ + "/absent", {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ReadAll(folder_).ok());  // A directory.
}

TEST_F(TraceTest, GeneratedIsDeterministicAndPrefixChained) {
  const std::string spec = "generated:sessions=20,turns=8,seed=7,fork_per_mille=200";
  const auto rows = ReadAll(spec);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto again = ReadAll(spec), other = ReadAll("generated:sessions=20,turns=8,seed=8");
  ASSERT_EQ(rows->size(), again->size());
  EXPECT_GT(rows->size(), 60u);
  std::map<uint64_t, uint64_t> parents;
  std::set<int64_t> sessions;
  uint64_t shared = 0, blocks = 0;
  Nanos last_ns = 0;
  for (size_t i = 0; i < rows->size(); ++i) {
    const Row& row = (*rows)[i];
    EXPECT_EQ(row.ids, (*again)[i].ids);
    EXPECT_EQ(row.time_ns, (*again)[i].time_ns);
    EXPECT_GE(row.time_ns, last_ns);
    EXPECT_EQ(row.ids.size(), row.input_tokens / 64);
    last_ns = row.time_ns;
    sessions.insert(row.session);
    uint64_t parent = UINT64_MAX;
    for (const uint64_t id : row.ids) {
      const auto [at, fresh] = parents.emplace(id, parent);
      EXPECT_EQ(at->second, parent) << "id " << id << " has two parents";
      shared += fresh ? 0 : 1;
      ++blocks;
      parent = id;
    }
  }
  EXPECT_GT(sessions.size(), 20u) << "no session forked";
  EXPECT_GT(shared * 2, blocks) << "agents reuse most of their prompts";
  EXPECT_NE((*rows)[0].input_tokens, (*other)[0].input_tokens);
}

TEST_F(TraceTest, GeneratedWrittenAsMooncakeReadsBack) {
  auto reader = OpenTrace("generated:sessions=5,turns=4,block=512", {});
  ASSERT_TRUE(reader.ok());
  std::string text;
  TraceRequest request;
  while (*(*reader)->Next(&request)) text += MooncakeRow(request) + "\n";
  const auto rows = ReadAll(Write("generated.jsonl", text));
  const auto direct = ReadAll("generated:sessions=5,turns=4,block=512");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), direct->size());
  for (size_t i = 0; i < rows->size(); ++i) {
    EXPECT_EQ((*rows)[i].ids, (*direct)[i].ids);
    EXPECT_EQ((*rows)[i].session, (*direct)[i].session);
    EXPECT_EQ((*rows)[i].input_tokens, (*direct)[i].input_tokens);
    EXPECT_EQ((*rows)[i].time_ns, (*direct)[i].time_ns / kMillisecond * kMillisecond);
  }
}

TEST_F(TraceTest, GeneratorOptionErrors) {
  EXPECT_TRUE(ParseGeneratorOptions("generated").ok());
  const struct {
    std::string spec, want;
  } cases[] = {
      {"generated:sessions=0", "want 1 to"},
      {"generated:turns", "turns is \"\""},
      {"generated:sesions=3", "is not one of seed, sessions"},
      {"generated:seed=x", "\"seed=x\""},
  };
  for (const auto& c : cases) {
    const auto options = ParseGeneratorOptions(c.spec);
    ASSERT_FALSE(options.ok()) << c.spec;
    EXPECT_THAT(Message(options.status()), HasSubstr(c.want));
  }
  EXPECT_FALSE(OpenTrace("generated", {.format = "qwen"}).ok());
}

// The kept traces lie beside the project, and are not part of it.
class SharedTraceTest : public ::testing::Test {
 protected:
  static std::string Path(const std::string& name) {
    return std::string(RP_SOURCE_DIR) + "/../shared/traces/" + name;
  }
};

struct Totals {
  uint64_t requests = 0, input_tokens = 0, complete_hit_tokens = 0;
};

// Hit tokens with a cache of no limit, complete blocks only: the definition of the reference
// values.
absl::StatusOr<Totals> InfiniteCache(const std::string& path, const TraceOptions& options) {
  RP_ASSIGN(auto reader, OpenTrace(path, options));
  Totals totals;
  std::set<uint64_t> seen;
  TraceRequest request;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&request));
    if (!found) return totals;
    ++totals.requests;
    totals.input_tokens += request.input_tokens;
    if (request.hash_ids.empty()) continue;
    const auto usable = request.hash_ids.first(request.input_tokens / request.block_tokens);
    size_t hits = 0;
    while (hits < usable.size() && seen.contains(usable[hits])) ++hits;
    totals.complete_hit_tokens += hits * uint64_t{request.block_tokens};
    seen.insert(usable.begin() + static_cast<ptrdiff_t>(hits), usable.end());
  }
}

TEST_F(SharedTraceTest, FiguresOfTheReference) {
  const struct {
    std::string name;
    TraceOptions options;
    Totals want;
  } cases[] = {
      {"toy.jsonl", {.block_tokens = 4}, {6, 74, 40}},
      {"mooncake_conversation.jsonl.zst", {}, {12'031, 144'793'823, 54'063'104}},
      {"cc48.jsonl.zst", {.block_tokens = 64}, {1'401, 161'247'524, 150'861'056}},
      {"azure_llm_2023_code.csv.zst", {}, {8'819, 18'059'974, 0}},
      {"azure_llm_2023_conv.csv.zst", {}, {19'366, 22'361'870, 0}},
  };
  for (const auto& c : cases) {
    if (!std::filesystem::exists(Path(c.name))) GTEST_SKIP() << Path(c.name) << " is not there";
    const Instant start = SystemClock().Now();
    const auto totals = InfiniteCache(Path(c.name), c.options);
    ASSERT_TRUE(totals.ok()) << totals.status();
    EXPECT_EQ(totals->requests, c.want.requests) << c.name;
    EXPECT_EQ(totals->input_tokens, c.want.input_tokens) << c.name;
    EXPECT_EQ(totals->complete_hit_tokens, c.want.complete_hit_tokens) << c.name;
    const Nanos took_ns = SystemClock().Now() - start;
    std::printf("%s: %.2f s\n", c.name.c_str(), static_cast<double>(took_ns) / kSecond);
  }
}

TEST_F(SharedTraceTest, DeltaIsReadWhole) {
  const std::string path = Path("cc710.delta.jsonl.zst");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  auto reader = OpenTrace(path, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->format(), TraceFormat::kDelta);
  Totals totals;
  TraceRequest request;
  for (;;) {
    const auto found = (*reader)->Next(&request);
    ASSERT_TRUE(found.ok()) << found.status();
    if (!*found) break;
    ++totals.requests;
    totals.input_tokens += request.input_tokens;
  }
  EXPECT_EQ(totals.requests, 49'334u);
  EXPECT_EQ(totals.input_tokens, 6'037'445'403u);
}

}  // namespace
}  // namespace reprise
