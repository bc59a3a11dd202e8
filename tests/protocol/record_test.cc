#include "protocol/record/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "protocol/identity/block_hash.h"
#include "protocol/identity/manifest.h"
#include "tests/protocol/golden.h"

namespace reprise {
namespace {

TEST(RecordLayoutTest, V41Flash) {
  const RecordLayout layout = RecordLayout::For(KvGeometry::V41Flash()).value();
  EXPECT_EQ(layout.payload_bytes, 113'920u);
  EXPECT_EQ(layout.payload_bytes, kV41PayloadBytes);
  EXPECT_EQ(layout.bytes_per_token(), 890u);
  EXPECT_EQ(layout.record_bytes, 114'688u);
  EXPECT_EQ(layout.record_bytes, 28 * kPageBytes);
  EXPECT_EQ(layout.header_offset(), 113'920u) << "no padding: the header follows the payload";
  ASSERT_EQ(layout.sources.size(), 4u);
  const uint32_t starts[] = {0, 22'784, 45'568, 68'352};
  const uint32_t layers[] = {2, 8, 14, 20};
  for (size_t i = 0; i < 4; ++i) {
    const SourcePlanes& planes = layout.sources[i];
    const uint32_t rows = i < 3 ? 64 : 128;
    EXPECT_EQ(planes.layer, layers[i]);
    EXPECT_EQ(planes.rows, rows);
    EXPECT_EQ(planes.main_codes, starts[i]);
    EXPECT_EQ(planes.main_scales, starts[i] + rows * 256);
    EXPECT_EQ(planes.indexer_codes, starts[i] + rows * (256 + 32));
    EXPECT_EQ(planes.indexer_scales, starts[i] + rows * (256 + 32 + 64));
    EXPECT_EQ(planes.end, starts[i] + rows * 356);
    for (const uint32_t offset : {planes.main_codes, planes.main_scales, planes.indexer_codes,
                                  planes.indexer_scales, planes.end}) {
      EXPECT_EQ(offset % 256, 0u) << offset;
    }
  }
}

TEST(RecordLayoutTest, Nano) {
  const RecordLayout layout = RecordLayout::For(KvGeometry::Nano()).value();
  EXPECT_EQ(layout.payload_bytes, 27'136u);
  EXPECT_EQ(layout.bytes_per_token(), 212u);
  EXPECT_EQ(layout.record_bytes, 28'672u);
  EXPECT_EQ(layout.record_bytes, 7 * kPageBytes);
}

TEST(RecordLayoutTest, RecordSizesAroundAPage) {
  EXPECT_EQ(RecordBytesFor(1), 4096u);
  EXPECT_EQ(RecordBytesFor(4096 - 768), 4096u);
  EXPECT_EQ(RecordBytesFor(4096 - 767), 8192u);
}

TEST(RecordLayoutTest, Bf16AndFp8) {
  KvGeometry geometry = KvGeometry::V41Flash();
  geometry.main = {.codes = "bf16", .scales = "none", .values = 512, .group = 0};
  EXPECT_EQ(RecordLayout::For(geometry).value().payload_bytes, 320u * (1024 + 68));
  geometry.main = {.codes = "e4m3", .scales = "ue8m0", .values = 512, .group = 128};
  EXPECT_EQ(RecordLayout::For(geometry).value().payload_bytes, 320u * (512 + 4 + 68));
}

TEST(RecordLayoutTest, RefusesWhatCannotBe) {
  const KvGeometry good = KvGeometry::V41Flash();
  std::vector<std::pair<KvGeometry, const char*>> cases;
  const auto add = [&](const char* words, auto change) {
    cases.emplace_back(good, words);
    change(&cases.back().first);
  };
  add("ratio 3", [](KvGeometry* g) { g->sources[1].ratio = 3; });
  add("ratio 0", [](KvGeometry* g) { g->sources[1].ratio = 0; });
  add("no source", [](KvGeometry* g) { g->sources.clear(); });
  add("main KV", [](KvGeometry* g) { g->main.codes = "int8"; });
  add("main KV", [](KvGeometry* g) { g->main.scales = "fp32"; });
  add("main KV", [](KvGeometry* g) { g->main.group = 0; });
  add("main KV", [](KvGeometry* g) { g->main.group = 7; });
  add("main KV", [](KvGeometry* g) { g->main.values = 0; });
  add("main KV", [](KvGeometry* g) { g->main.values = 1u << 31; });
  add("indexer K", [](KvGeometry* g) { g->indexer.scales = "none"; });
  add("64 MiB", [](KvGeometry* g) {
    g->main = {.codes = "bf16", .scales = "none", .values = 65536, .group = 0};
    g->sources.resize(64, {40, 1});
  });
  for (const auto& [geometry, words] : cases) {
    const auto status = RecordLayout::For(geometry).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << words;
    EXPECT_THAT(Message(status), testing::HasSubstr(words));
  }
  EXPECT_THAT(Message(KvGeometry::Preset("v3").status()),
              testing::HasSubstr("v4.1-flash and nano"));
  EXPECT_EQ(KvGeometry::Preset("nano").value(), KvGeometry::Nano());
}

std::vector<TokenId> GoldenTokens() {
  std::vector<TokenId> tokens(300);
  for (int i = 0; i < 300; ++i) tokens[static_cast<size_t>(i)] = (i * 7919 + 13) % 65536;
  return tokens;
}

std::vector<std::byte> Sealed(RecordHeader header, ConstBytes token_area) {
  std::vector<std::byte> record(header.record_bytes);
  for (uint32_t k = 0; k < header.payload_bytes; ++k) {
    record[k] = static_cast<std::byte>(k * 31 + 7);
  }
  std::memcpy(record.data() + record.size() - kRecordTokenBytes, token_area.data(),
              token_area.size());
  SealRecord(record, header);
  return record;
}

std::vector<std::byte> TokenRecord() {
  const auto tokens = GoldenTokens();
  const Hash256 name_space = NamespaceOf(Manifest::For(KvGeometry::Nano()).value());
  const auto chain = PrefixChain(name_space, tokens);
  const RecordHeader header{.flags = kReplayDerived,
                            .name_space = name_space,
                            .block_hash = chain[1],
                            .parent_hash = chain[0],
                            .block_index = 1,
                            .payload_bytes = 27'136,
                            .record_bytes = 28'672,
                            .token_count = kBlockTokens,
                            .created_ms = 1'700'000'000'123};
  return Sealed(header, std::as_bytes(std::span(tokens).subspan(128, 128)));
}

std::vector<std::byte> OpaqueRecord(std::string_view key = "engine-block-42") {
  Manifest manifest;
  manifest.kind = "opaque";
  manifest.record_layout = "1";
  manifest.payload_bytes = 4096;
  manifest.engine = "vllm-0.9 paged/16";
  const Hash256 name_space = NamespaceOf(manifest);
  const RecordHeader header{.flags = kOpaqueKey,
                            .name_space = name_space,
                            .block_hash = OpaqueHash(name_space, AsBytes(key)),
                            .parent_hash = name_space,
                            .payload_bytes = 4000,
                            .record_bytes = 8192,
                            .token_count = static_cast<uint32_t>(key.size()),
                            .created_ms = 1'700'000'000'123};
  return Sealed(header, AsBytes(key));
}

BlockKey KeyIn(ConstBytes record) { return KeyOf(LoadRecordHeader(record).block_hash); }

TEST(RecordTest, GoldenTails) {
  const auto golden = test::ReadGolden("record.hex");
  const auto token = TokenRecord();
  const auto opaque = OpaqueRecord();
  EXPECT_EQ(ToHex(ConstBytes(token).last(768)), ToHex(golden.at("token_tail")));
  EXPECT_EQ(ToHex(ConstBytes(opaque).last(768)), ToHex(golden.at("opaque_tail")));
}

TEST(RecordTest, SealedRecordsVerify) {
  for (const auto& record : {TokenRecord(), OpaqueRecord(), OpaqueRecord(std::string(512, 'k'))}) {
    EXPECT_EQ(VerifyHeader(ConstBytes(record).last(kRecordTailBytes),
                           static_cast<uint32_t>(record.size())),
              Outcome::kOk);
    EXPECT_EQ(VerifyPayload(record), Outcome::kOk);
    EXPECT_EQ(VerifyRecord(record, KeyIn(record)), Outcome::kOk);
    EXPECT_EQ(VerifyRecord(record, {1, 2}), Outcome::kCorrupt) << "another block was asked for";
  }
}

TEST(RecordTest, EveryFlippedByteOfTheTailIsSeen) {
  for (auto record : {TokenRecord(), OpaqueRecord()}) {
    const BlockKey key = KeyIn(record);
    for (size_t i = record.size() - kRecordTailBytes; i < record.size(); ++i) {
      for (const std::byte mask : {std::byte{0x01}, std::byte{0x80}, std::byte{0xff}}) {
        record[i] ^= mask;
        EXPECT_NE(VerifyRecord(record, key), Outcome::kOk) << "byte " << i;
        EXPECT_NE(VerifyHeader(ConstBytes(record).last(kRecordTailBytes),
                               static_cast<uint32_t>(record.size())),
                  Outcome::kOk)
            << "byte " << i;
        record[i] ^= mask;
      }
    }
    EXPECT_EQ(VerifyRecord(record, key), Outcome::kOk);
  }
}

TEST(RecordTest, DamagedPayloadAndPaddingAreSeen) {
  auto record = TokenRecord();
  const BlockKey key = KeyIn(record);
  for (const size_t i : {0u, 1u, 13'000u, 27'135u, 27'136u, 27'903u}) {
    record[i] ^= std::byte{4};
    EXPECT_EQ(VerifyPayload(record), Outcome::kCorrupt) << i;
    EXPECT_EQ(VerifyRecord(record, key), Outcome::kCorrupt) << i;
    record[i] ^= std::byte{4};
  }
}

// A liar seals what is wrong: the checksums are right, the contents are not.
TEST(RecordTest, WellSealedLies) {
  struct Lie {
    const char* name;
    void (*tell)(RecordHeader*);
    Outcome outcome;
  };
  const Lie lies[] = {
      {"magic", [](RecordHeader* h) { h->magic ^= 1; }, Outcome::kCorrupt},
      {"version", [](RecordHeader* h) { h->layout_version = 2; }, Outcome::kCorrupt},
      {"flags", [](RecordHeader* h) { h->flags |= 1u << 7; }, Outcome::kCorrupt},
      {"no payload", [](RecordHeader* h) { h->payload_bytes = 0; }, Outcome::kCorrupt},
      {"payload over the tail", [](RecordHeader* h) { h->payload_bytes = 28'672 - 767; },
       Outcome::kCorrupt},
      {"huge payload", [](RecordHeader* h) { h->payload_bytes = UINT32_MAX; }, Outcome::kCorrupt},
      {"127 tokens", [](RecordHeader* h) { h->token_count = 127; }, Outcome::kCorrupt},
      {"opaque of 513", [](RecordHeader* h) { h->flags = kOpaqueKey, h->token_count = 513; },
       Outcome::kCorrupt},
      {"opaque of 0", [](RecordHeader* h) { h->flags = kOpaqueKey, h->token_count = 0; },
       Outcome::kCorrupt},
      {"reserved", [](RecordHeader* h) { h->reserved[111] = std::byte{1}; }, Outcome::kCorrupt},
      {"another hash", [](RecordHeader* h) { h->block_hash.bytes[31] ^= std::byte{1}; },
       Outcome::kHashMismatch},
      {"another parent", [](RecordHeader* h) { h->parent_hash.bytes[0] ^= std::byte{1}; },
       Outcome::kHashMismatch},
      {"block 0 with a parent", [](RecordHeader* h) { h->block_index = 0; },
       Outcome::kHashMismatch}};
  for (const Lie& lie : lies) {
    auto record = TokenRecord();
    RecordHeader header = LoadRecordHeader(record);
    lie.tell(&header);
    SealRecord(record, header);
    EXPECT_EQ(VerifyHeader(ConstBytes(record).last(kRecordTailBytes), 28'672), lie.outcome)
        << lie.name;
  }
  const auto record = TokenRecord();
  EXPECT_EQ(VerifyHeader(ConstBytes(record).last(kRecordTailBytes), 32'768), Outcome::kCorrupt)
      << "the slot is of another size";
}

}  // namespace
}  // namespace reprise
