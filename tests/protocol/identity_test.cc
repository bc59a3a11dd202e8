#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/identity/manifest.h"
#include "tests/protocol/golden.h"

namespace reprise {
namespace {

Manifest Nano() { return Manifest::For(KvGeometry::Nano()).value(); }

Manifest Full() {
  Manifest manifest = Manifest::For(KvGeometry::V41Flash()).value();
  manifest.weights_digest.clear();
  manifest.tokenizer_digest.clear();
  for (int i = 0; i < 32; ++i) {
    manifest.weights_digest += "aa";
    manifest.tokenizer_digest += "bb";
  }
  manifest.tenant_salt = "tenant-7";
  manifest.adapter = "lora:x@1";
  return manifest;
}

Manifest Opaque() {
  Manifest manifest;
  manifest.kind = "opaque";
  manifest.record_layout = "1";
  manifest.payload_bytes = 4096;
  manifest.engine = "vllm-0.9 paged/16";
  return manifest;
}

TEST(ManifestTest, Golden) {
  const auto golden = test::ReadGolden("manifest.hex");
  const std::pair<const char*, Manifest> cases[] = {
      {"nano", Nano()}, {"full", Full()}, {"opaque", Opaque()}};
  for (const auto& [name, manifest] : cases) {
    EXPECT_EQ(ToHex(AsBytes(EncodeManifest(manifest))), ToHex(golden.at(name))) << name;
    EXPECT_EQ(ToHex(NamespaceOf(manifest)), ToHex(golden.at(std::string(name) + "_namespace")));
    const auto decoded = DecodeManifest(AsText(golden.at(name)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, manifest);
  }
}

TEST(ManifestTest, FieldsOfAGeometry) {
  const Manifest manifest = Manifest::For(KvGeometry::V41Flash()).value();
  EXPECT_EQ(manifest.kv_sources, "2/2 8/2 14/2 20/1");
  EXPECT_EQ(manifest.kv_formats, "main 512xe2m1+e4m3/16 indexer 128xe2m1+ue8m0/32");
  EXPECT_EQ(manifest.payload_bytes, 113'920u);
}

TEST(ManifestTest, EveryFieldMakesAnotherNamespace) {
  const Manifest base = Full();
  std::vector<Manifest> others(11, base);
  others[0].kind = "opaque";
  others[1].model_config += "x";
  others[2].weights_digest += "x";
  others[3].tokenizer_digest += "x";
  others[4].record_layout = "2";
  others[5].kv_formats += "x";
  others[6].kv_sources += "x";
  others[7].payload_bytes += 1;
  others[8].tenant_salt += "x";
  others[9].adapter += "x";
  others[10].engine += "x";
  const char* names[] = {"kind",          "model_config", "weights_digest", "tokenizer_digest",
                         "record_layout", "kv_formats",   "kv_sources",     "payload_bytes",
                         "tenant_salt",   "adapter",      "engine"};
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_NE(NamespaceOf(others[i]), NamespaceOf(base)) << names[i];
    EXPECT_THAT(DifferingFields(base, others[i]), testing::ElementsAre(names[i]));
    EXPECT_EQ(DecodeManifest(EncodeManifest(others[i])).value(), others[i]);
  }
  EXPECT_THAT(DifferingFields(base, base), testing::IsEmpty());
  EXPECT_THAT(DifferingFields(Nano(), Opaque()),
              testing::ElementsAre("kind", "model_config", "kv_formats", "kv_sources",
                                   "payload_bytes", "engine"));
}

TEST(ManifestTest, NoFieldCanImitateAnother) {
  Manifest a = Nano();
  Manifest b = Nano();
  a.tenant_salt = "x";
  b.adapter = "x";
  EXPECT_NE(EncodeManifest(a), EncodeManifest(b));
  a.tenant_salt = std::string("x\0\x0a\0\0\0\0\0", 8);
  b = Nano();
  b.tenant_salt = "x";
  EXPECT_NE(EncodeManifest(a), EncodeManifest(b));
  EXPECT_EQ(DecodeManifest(EncodeManifest(a)).value(), a) << "bytes of any value";
}

TEST(ManifestTest, RefusesEveryTruncationAndAddition) {
  const std::string encoded = EncodeManifest(Full());
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    EXPECT_FALSE(DecodeManifest(encoded.substr(0, bytes)).ok()) << bytes;
  }
  EXPECT_THAT(Message(DecodeManifest(encoded + 'x').status()),
              testing::HasSubstr("after the last"));
}

TEST(ManifestTest, HostileBytesAreNamedNotBelieved) {
  const std::string good = EncodeManifest(Nano());
  const size_t first_field = 18 + 2;
  std::string bad = good;
  bad[0] = 'R';
  EXPECT_THAT(Message(DecodeManifest(bad).status()), testing::HasSubstr("reprise-manifest-1"));
  bad = good;
  bad[18] = 12;
  EXPECT_THAT(Message(DecodeManifest(bad).status()), testing::HasSubstr("11 fields"));
  bad = good;
  bad[first_field] = 2;
  EXPECT_THAT(Message(DecodeManifest(bad).status()), testing::HasSubstr("kind is missing"));
  for (const uint32_t length : {7u, 65'537u, 0x7fffffffu, 0xffffffffu}) {
    bad = good;
    StoreLe(bad.data() + first_field + 2, length);
    EXPECT_FALSE(DecodeManifest(bad).ok()) << length;
  }
  Manifest manifest = Nano();
  manifest.kind = "other";
  EXPECT_THAT(Message(DecodeManifest(EncodeManifest(manifest)).status()),
              testing::HasSubstr("\"tokens\" or \"opaque\""));
  manifest = Nano();
  manifest.payload_bytes = 0;
  EXPECT_THAT(Message(DecodeManifest(EncodeManifest(manifest)).status()),
              testing::HasSubstr("payload_bytes is 0"));
  manifest = Nano();
  manifest.tenant_salt = std::string(64 * 1024, 's');
  EXPECT_TRUE(DecodeManifest(EncodeManifest(manifest)).ok());
  manifest.tenant_salt += 's';
  EXPECT_FALSE(DecodeManifest(EncodeManifest(manifest)).ok());
}

TEST(ManifestTest, DecodingIsTheInverseOrAnError) {
  Prng prng(7);
  const std::string good = EncodeManifest(Full());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (uint64_t flips = 1 + prng.Below(3); flips > 0; --flips) {
      bytes[prng.Below(bytes.size())] ^= static_cast<char>(1 + prng.Below(255));
    }
    const auto decoded = DecodeManifest(bytes);
    if (decoded.ok()) {
      EXPECT_EQ(EncodeManifest(*decoded), bytes) << "seed 7, round " << i;
    }
  }
}

TEST(BlockHashTest, Golden) {
  const auto golden = test::ReadGolden("block_hash.hex");
  std::vector<TokenId> tokens(300);
  for (int i = 0; i < 300; ++i) tokens[static_cast<size_t>(i)] = (i * 7919 + 13) % 65536;
  const Hash256 name_space = NamespaceOf(Nano());
  const auto chain = PrefixChain(name_space, tokens);
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(ToHex(chain[0]), ToHex(golden.at("chain_0")));
  EXPECT_EQ(ToHex(chain[1]), ToHex(golden.at("chain_1")));
  const std::pair<uint32_t, const char*> exact[] = {
      {1, "exact_1"}, {128, "chain_0"}, {130, "exact_130"}, {256, "chain_1"}, {300, "exact_300"}};
  for (const auto& [position, name] : exact) {
    EXPECT_EQ(ToHex(ExactPrefixHash(name_space, chain, tokens, position)), ToHex(golden.at(name)));
  }
  EXPECT_EQ(ToHex(OpaqueHash(NamespaceOf(Opaque()), AsBytes("engine-block-42"))),
            ToHex(golden.at("opaque")));
}

TEST(BlockHashTest, ChainsCoverWholeBlocksOnly) {
  const Hash256 name_space = NamespaceOf(Nano());
  const std::vector<TokenId> tokens(400, 5);
  for (const size_t count : {0u, 1u, 127u, 128u, 129u, 255u, 256u, 400u}) {
    const auto chain = PrefixChain(name_space, std::span(tokens).first(count));
    EXPECT_EQ(chain.size(), count / 128);
    if (chain.size() > 1) {
      EXPECT_NE(chain[0], chain[1]) << "equal tokens, other parent";
    }
  }
}

TEST(BlockHashTest, OneTokenChangesAllThatFollows) {
  const Hash256 name_space = NamespaceOf(Nano());
  std::vector<TokenId> tokens(512, 5);
  const auto before = PrefixChain(name_space, tokens);
  tokens[200] = 6;
  const auto after = PrefixChain(name_space, tokens);
  EXPECT_EQ(before[0], after[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_NE(before[i], after[i]);
  EXPECT_NE(PrefixChain(NamespaceOf(Full()), tokens)[0], after[0]);
}

}  // namespace
}  // namespace reprise
