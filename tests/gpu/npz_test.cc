#include "tests/gpu/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "protocol/base/status.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kGolden = std::string(RP_SOURCE_DIR) + "/gpu/nano/golden/";

// ---- Archives made here ------------------------------------------------------------------------

template <typename T>
void Put(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Npy(std::string_view descr, std::string_view shape, std::string_view data,
                int version = 1, std::string_view order = "False") {
  std::string header = "{'descr': '" + std::string(descr) +
                       "', 'fortran_order': " + std::string(order) +
                       ", 'shape': " + std::string(shape) + ", }\n";
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  if (version == 1) {
    Put(&out, static_cast<uint16_t>(header.size()));
  } else {
    Put(&out, static_cast<uint32_t>(header.size()));
  }
  return out + header + std::string(data);
}

std::string Deflate(std::string_view text) {
  std::string out(compressBound(text.size()), '\0');
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct File {
  std::string name;
  std::string content;
  bool deflated = false;
  uint16_t method = 0;  // Not 0: what the directory says instead of the truth.
};

std::string Zip(const std::vector<File>& files, std::string_view comment = "") {
  std::string out, central;
  for (const File& file : files) {
    const std::string packed = file.deflated ? Deflate(file.content) : file.content;
    const auto method =
        file.method != 0 ? file.method : static_cast<uint16_t>(file.deflated ? 8 : 0);
    const auto sum =
        static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(file.content.data()),
                                    static_cast<uInt>(file.content.size())));
    const auto offset = static_cast<uint32_t>(out.size());
    std::string common;
    Put<uint16_t>(&common, 20);
    Put<uint16_t>(&common, 0);
    Put(&common, method);
    Put<uint32_t>(&common, 0);
    Put(&common, sum);
    Put(&common, static_cast<uint32_t>(packed.size()));
    Put(&common, static_cast<uint32_t>(file.content.size()));
    Put(&common, static_cast<uint16_t>(file.name.size()));
    Put<uint32_t>(&out, 0x04034b50);
    out += common;
    Put<uint16_t>(&out, 4);  // NumPy's members have an extra field in the local header alone.
    out += file.name + "\1\2\3\4" + packed;
    Put<uint32_t>(&central, 0x02014b50);
    Put<uint16_t>(&central, 20);
    central += common;
    central.append(12, '\0');
    Put(&central, offset);
    central += file.name;
  }
  const auto begin = static_cast<uint32_t>(out.size());
  out += central;
  Put<uint32_t>(&out, 0x06054b50);
  Put<uint32_t>(&out, 0);
  Put(&out, static_cast<uint16_t>(files.size()));
  Put(&out, static_cast<uint16_t>(files.size()));
  Put(&out, static_cast<uint32_t>(central.size()));
  Put(&out, begin);
  Put(&out, static_cast<uint16_t>(comment.size()));
  return out + std::string(comment);
}

std::string ErrorOf(const std::string& archive) {
  const auto npz = Npz::Parse(AsBytes(archive), "x.npz");
  return npz.ok() ? "ok" : Message(npz.status());
}

const std::string kFloats = std::string("\0\0\x80\x3f\0\0\0\x40", 8);  // 1 and 2.

TEST(NpzTest, StoredAndDeflatedAndEmpty) {
  const std::string many(100'000, 'a');
  const std::string archive =
      Zip({{"a.npy", Npy("<f4", "(2,)", kFloats)},
           {"b.npy", Npy("<f4", "(1, 2)", kFloats, 2), true},
           {"c.npy", Npy("|u1", "(100000,)", many), true},
           {"none.npy", Npy("<i2", "(0, 34)", ""), true},
           {"scalar.npy", Npy("<i8", "()", std::string("\5\0\0\0\0\0\0\0", 8))},
           {"flags.npy", Npy("|b1", "(3,)", std::string("\1\0\1", 3))}},
          "a comment");
  const auto npz = Npz::Parse(AsBytes(archive), "x.npz");
  ASSERT_TRUE(npz.ok()) << Message(npz.status());
  EXPECT_EQ(npz->arrays().size(), 6u);
  EXPECT_THAT(npz->Find("a")->As<float>(), ElementsAre(1, 2));
  EXPECT_THAT(npz->Find("b")->shape, ElementsAre(1, 2));
  EXPECT_THAT(npz->Find("b")->As<float>(), ElementsAre(1, 2));
  EXPECT_EQ(AsText(npz->Find("c")->bytes), many);
  EXPECT_THAT(npz->Find("none")->shape, ElementsAre(0, 34));
  EXPECT_EQ(npz->Find("none")->size(), 0u);
  EXPECT_TRUE(npz->Find("none")->As<int16_t>().empty());
  EXPECT_TRUE(npz->Find("scalar")->shape.empty());
  EXPECT_THAT(npz->Find("scalar")->As<int64_t>(), ElementsAre(5));
  EXPECT_THAT(npz->Find("flags")->As<bool>(), ElementsAre(true, false, true));
  EXPECT_EQ(npz->Find("d"), nullptr);
}

TEST(NpzTest, AnEmptyArchiveHasNoArrays) {
  const auto npz = Npz::Parse(AsBytes(Zip({})), "x.npz");
  ASSERT_TRUE(npz.ok()) << Message(npz.status());
  EXPECT_TRUE(npz->arrays().empty());
}

TEST(NpzTest, ErrorsSayWhatIsWrong) {
  const std::string ok = Npy("<f4", "(2,)", kFloats);
  const struct {
    std::string archive, error;
  } cases[] = {
      {"", "x.npz is not a zip archive"},
      {std::string(1000, 'z'), "no central directory"},
      {Zip({{"a.npy", "neither this nor that"}}), "x.npz, array a.npy: it is not an .npy array"},
      {Zip({{"a.npy", Npy(">f4", "(2,)", kFloats)}}), "its dtype '>f4' is not read"},
      {Zip({{"a.npy", Npy("<f2", "(4,)", kFloats)}}), "its dtype '<f2' is not read"},
      {Zip({{"a.npy", Npy("|O", "(1,)", kFloats)}}), "its dtype '|O' is not read"},
      {Zip({{"a.npy", Npy("", "(1,)", kFloats)}}), "names no plain 'descr'"},
      {Zip({{"a.npy", Npy("<f4", "(2,)", kFloats, 1, "True")}}), "Fortran order"},
      {Zip({{"a.npy", Npy("<f4", "(2,)", kFloats, 3)}}), "its format is 3.x"},
      {Zip({{"a.npy", Npy("<f4", "(3,)", kFloats)}}), "does not fit its 8 bytes"},
      {Zip({{"a.npy", Npy("<f4", "(4294967296, 4294967296)", kFloats)}}), "does not fit"},
      {Zip({{"a.npy", Npy("<f4", "(two,)", kFloats)}}), "not a number of elements"},
      {Zip({{"a.npy", ok, false, 12}}), "method 12 is not read"},
      {Zip({{"a.npy", ok, false, 8}}), "deflated data are damaged"},
      {Zip({{"a.npy", ok}, {"a.npy", ok}}), "two arrays called a"},
  };
  for (const auto& [archive, error] : cases) EXPECT_THAT(ErrorOf(archive), HasSubstr(error));
}

TEST(NpzTest, EveryCutAndEveryFlippedByteIsAnErrorOrHarmless) {
  const std::string archive =
      Zip({{"a.npy", Npy("<f4", "(2,)", kFloats), true}, {"b.npy", Npy("|u1", "(8,)", kFloats)}});
  for (size_t bytes = 0; bytes < archive.size(); ++bytes) {
    EXPECT_NE(ErrorOf(archive.substr(0, bytes)), "ok") << bytes;
  }
  for (size_t at = 0; at < archive.size(); ++at) {
    std::string damaged = archive;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    const auto npz = Npz::Parse(AsBytes(damaged), "x.npz");
    if (!npz.ok()) continue;
    for (const auto& [name, array] : npz->arrays()) {
      EXPECT_EQ(AsText(array.bytes), kFloats) << "byte " << at << " of array " << name;
    }
  }
}

TEST(NpzTest, AMissingFileIsNamed) {
  const auto npz = Npz::Load(kGolden + "nothing.npz");
  EXPECT_TRUE(absl::IsNotFound(npz.status()));
  EXPECT_THAT(Message(npz.status()), HasSubstr("golden/nothing.npz"));
}

// ---- The golden vectors ------------------------------------------------------------------------

TEST(NpzTest, GoldenTables) {
  const auto npz = Npz::Load(kGolden + "tables.npz");
  ASSERT_TRUE(npz.ok()) << Message(npz.status());
  const struct {
    std::string name, dtype;
    std::vector<uint64_t> shape;
  } expected[] = {{"x_bf16", "u2", {96, 128}},         {"record_a", "u1", {96, 132}},
                  {"record_b", "u1", {96, 72}},        {"record_c", "u1", {96, 68}},
                  {"value_a_bf16", "u2", {96, 128}},   {"value_b_bf16", "u2", {96, 128}},
                  {"value_c_bf16", "u2", {96, 128}},   {"rope_plain", "f4", {16}},
                  {"rope_yarn", "f4", {16}},           {"compressed_map", "i4", {288}},
                  {"engram_ids", "i8", {40}},          {"engram_1_multipliers", "i8", {4}},
                  {"engram_1_primes", "i8", {3, 4}},   {"engram_1_rows", "i8", {40, 12}},
                  {"engram_4_multipliers", "i8", {4}}, {"engram_4_primes", "i8", {3, 4}},
                  {"engram_4_rows", "i8", {40, 12}}};
  EXPECT_EQ(npz->arrays().size(), std::size(expected));
  for (const auto& [name, dtype, shape] : expected) {
    const NpyArray* array = npz->Find(name);
    ASSERT_NE(array, nullptr) << name;
    EXPECT_EQ(array->dtype, dtype) << name;
    EXPECT_EQ(array->shape, shape) << name;
  }
  // Rotation frequency k is base^(-2k/32), divided by 4 where YaRN interpolates fully.
  const auto plain = npz->Find("rope_plain")->As<float>();
  const auto yarn = npz->Find("rope_yarn")->As<float>();
  EXPECT_EQ(plain[0], 1);
  EXPECT_FLOAT_EQ(plain[15], static_cast<float>(std::pow(10'000, -30.0 / 32)));
  EXPECT_FLOAT_EQ(yarn[15], static_cast<float>(std::pow(160'000, -30.0 / 32) / 4));
  // The primes of both layers come after 4,000 and their sums are the tables' rows.
  const auto primes_1 = npz->Find("engram_1_primes")->As<int64_t>();
  const auto primes_4 = npz->Find("engram_4_primes")->As<int64_t>();
  EXPECT_EQ(primes_1[0], 4001);
  EXPECT_EQ(std::accumulate(primes_1.begin(), primes_1.end(), int64_t{0}), 48'400);
  EXPECT_EQ(std::accumulate(primes_4.begin(), primes_4.end(), int64_t{0}), 49'568);
  const auto map = npz->Find("compressed_map")->As<int32_t>();
  EXPECT_EQ(map['a'], map['A']);
  EXPECT_EQ(map[' '], map['\n']);
  EXPECT_NE(map['a'], map['b']);
}

TEST(NpzTest, GoldenPrompt) {
  const auto npz = Npz::Load(kGolden + "p0129.npz");
  ASSERT_TRUE(npz.ok()) << Message(npz.status());
  const auto ids = npz->Find("ids")->As<int16_t>();
  ASSERT_EQ(ids.size(), 129u);
  EXPECT_EQ(ids[0], 256) << "bos";
  EXPECT_EQ(ids[1], 259) << "system";
  EXPECT_EQ(ids[2], 'Y');
  EXPECT_THAT(npz->Find("exact.layers.11.stream_bf16")->shape, ElementsAre(4, 4, 384));
  EXPECT_THAT(npz->Find("exact.layers.6.attn.main_record")->shape, ElementsAre(129, 72));
  EXPECT_THAT(npz->Find("exact.layers.2.attn.main_record")->shape, ElementsAre(64, 72));
  EXPECT_THAT(npz->Find("exact.layers.0.attn.swa_record")->shape, ElementsAre(128, 132));
  EXPECT_THAT(npz->Find("draft.emitted")->shape, ElementsAre(3, 6));
  // The logits' best token is the argmax and the first greedy token.
  const auto logits = npz->Find("exact.logits")->As<float>();
  const auto last = logits.subspan(3 * 288, 288);
  const auto best = std::max_element(last.begin(), last.end()) - last.begin();
  EXPECT_EQ(best, npz->Find("exact.argmax")->As<int16_t>()[128]);
  EXPECT_EQ(best, npz->Find("exact.greedy")->As<int16_t>()[0]);
  // Position 128 is in slot 0 of the ring, every other in its own.
  const auto ring = npz->Find("exact.ring_pos")->As<int32_t>();
  EXPECT_EQ(ring[0], 128);
  for (int32_t slot = 1; slot < 128; ++slot) EXPECT_EQ(ring[slot], slot);
}

}  // namespace
}  // namespace reprise
