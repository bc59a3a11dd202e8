// The CPU engine against the golden vectors of gpu/nano: each layer alone from the same input, and
// whole runs by their next tokens (gpu/nano/README.md, "How to compare").
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "gpu/engine/sampler.h"
#include "gpu/engine/sequence.h"
#include "gpu/formats/number_formats.h"
#include "gpu/tokenizer/tokenizer.h"
#include "tests/gpu/nano.h"
#include "tests/gpu/npz.h"

namespace reprise::engine::test {
namespace {

class Golden {
 public:
  explicit Golden(const std::string& name) : npz_(*Npz::Load(NanoPath("golden/" + name + ".npz"))) {
    for (const int16_t id : At("ids").As<int16_t>()) tokens_.push_back(id);
  }
  const NpyArray& At(const std::string& name) const {
    const NpyArray* array = npz_.Find(name);
    if (array == nullptr) ADD_FAILURE() << "no golden array " << name;
    return *array;
  }
  bool Has(const std::string& name) const { return npz_.Find(name) != nullptr; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  uint32_t length() const { return static_cast<uint32_t>(tokens_.size()); }

  // The last `rows` rows of a bf16 array.
  std::vector<float> Bf16Rows(const std::string& name, uint32_t rows) const {
    const NpyArray& array = At(name);
    const size_t row = array.bytes.size() / 2 / array.shape[0];
    std::vector<float> values(rows * row);
    const std::byte* from = array.bytes.data() + (array.shape[0] - rows) * row * 2;
    for (size_t i = 0; i < values.size(); ++i) values[i] = FromBf16(LoadLe<uint16_t>(from + 2 * i));
    return values;
  }
  std::vector<float> FloatRows(const std::string& name, uint32_t rows) const {
    const NpyArray& array = At(name);
    const size_t row = array.bytes.size() / 4 / array.shape[0];
    std::vector<float> values(rows * row);
    std::memcpy(values.data(), array.bytes.data() + (array.shape[0] - rows) * row * 4,
                values.size() * 4);
    return values;
  }

 private:
  Npz npz_;
  std::vector<TokenId> tokens_;
};

// Codes that agree, and the others' distance: E4M3 and E2M1 codes are ordered by magnitude.
struct CodeCount {
  uint64_t equal = 0, all = 0, far = 0;
  void Add(const CodeCount& other) {
    equal += other.equal;
    all += other.all;
    far += other.far;
  }
  double share() const { return all == 0 ? 1.0 : static_cast<double>(equal) / all; }
};

int Ordered(int code, int sign_bit) {
  const int magnitude = code & (sign_bit - 1);
  return (code & sign_bit) != 0 ? -magnitude : magnitude;
}

CodeCount CompareBytes(const uint8_t* got, const uint8_t* want, size_t count) {
  CodeCount result;
  for (size_t i = 0; i < count; ++i, ++result.all) {
    if (got[i] == want[i]) {
      ++result.equal;
    } else if (std::abs(Ordered(got[i], 128) - Ordered(want[i], 128)) > 1) {
      ++result.far;
    }
  }
  return result;
}
// A window row, whose rotated part subtracts values that may be nearly equal: so beside a step of
// its own code, a value may be off by a bf16 step of the largest of its group.
CodeCount CompareWindowRow(const uint8_t* got, const uint8_t* got_scales, const uint8_t* want,
                           const uint8_t* want_scales, size_t count) {
  CodeCount result;
  for (size_t i = 0; i < count; i += 32) {
    const uint8_t a = got_scales[i / 32], b = want_scales[i / 32];
    result.Add(CompareBytes(&a, &b, 1));
    float x[32], y[32], largest = 0;
    for (size_t k = 0; k < 32; ++k) {
      x[k] = FromE4m3(got[i + k]) * FromUe8m0(a);
      y[k] = FromE4m3(want[i + k]) * FromUe8m0(b);
      largest = std::max(largest, std::fabs(y[k]));
    }
    for (size_t k = 0; k < 32; ++k, ++result.all) {
      const float own_step =
          std::max(std::fabs(x[k]), std::fabs(y[k])) / 8 + 0x1p-9f * FromUe8m0(std::max(a, b));
      result.equal += a == b && got[i + k] == want[i + k] ? 1 : 0;
      result.far += std::fabs(x[k] - y[k]) > std::max(own_step, largest * 0x1p-7f) ? 1 : 0;
    }
  }
  return result;
}
CodeCount CompareNibbles(const uint8_t* got, const uint8_t* want, size_t bytes) {
  CodeCount result;
  for (size_t i = 0; i < 2 * bytes; ++i, ++result.all) {
    const int a = got[i / 2] >> (i % 2 * 4) & 15, b = want[i / 2] >> (i % 2 * 4) & 15;
    if (a == b) {
      ++result.equal;
    } else if (std::abs(Ordered(a, 8) - Ordered(b, 8)) > 1) {
      ++result.far;
    }
  }
  return result;
}

class GoldenLayers : public testing::TestWithParam<const char*> {
 protected:
  GoldenLayers() : engine_(NanoEngine()), golden_(GetParam()), sequence_(*engine_) {
    const ModelGeometry& g = engine_->geometry();
    for (uint32_t source = 0; source < g.record.sources.size(); ++source) PutRecords(source);
    const LiveWindowLayout& layout = engine_->window_layout();
    for (uint32_t layer = 0; layer < g.config.layer_count; ++layer) {
      const NpyArray& rows = golden_.At(Name(layer, "attn.swa_record"));
      for (uint32_t i = 0; i < rows.shape[0]; ++i) {
        const uint8_t* record = Row(rows, i);
        const uint32_t position = golden_.length() - static_cast<uint32_t>(rows.shape[0]) + i;
        std::memcpy(layout.codes(sequence_.window(), layer, position), record, layout.code_bytes);
        std::memcpy(layout.scales(sequence_.window(), layer, position), record + layout.code_bytes,
                    layout.scale_bytes);
      }
    }
  }

  static std::string Name(uint32_t layer, const std::string& what) {
    return "exact.layers." + std::to_string(layer) + "." + what;
  }
  static const uint8_t* Row(const NpyArray& array, size_t row) {
    return reinterpret_cast<const uint8_t*>(array.bytes.data()) + row * array.shape[1];
  }

  void PutRecords(uint32_t source) {
    const ModelGeometry& g = engine_->geometry();
    const uint32_t layer = g.record.sources[source].layer;
    const NpyArray& main = golden_.At(Name(layer, "attn.main_record"));
    const NpyArray& index = golden_.At(Name(layer, "attn.index_record"));
    const cpu::EntryMap map(g, g.record.sources[source]);
    for (uint32_t entry = 0; entry < main.shape[0]; ++entry) {
      const cpu::EntryPlace place = map.Of(sequence_.memory(), entry);
      std::memcpy(place.main_codes, Row(main, entry), g.kv.main.code_bytes());
      std::memcpy(place.main_scales, Row(main, entry) + g.kv.main.code_bytes(),
                  g.kv.main.scale_bytes());
      std::memcpy(place.index_codes, Row(index, entry), g.kv.indexer.code_bytes());
      std::memcpy(place.index_scales, Row(index, entry) + g.kv.indexer.code_bytes(),
                  g.kv.indexer.scale_bytes());
    }
  }

  void Input(uint32_t layer, uint32_t rows, std::vector<float>* stream, std::vector<float>* pre) {
    const ModelConfig& c = engine_->geometry().config;
    if (layer > 0) {
      *stream = golden_.Bf16Rows(Name(layer - 1, "stream_bf16"), rows);
      *pre = golden_.FloatRows(Name(layer - 1, "pre"), rows);
      return;
    }
    const Tensor embed = *NanoCheckpoint().Find("embed.weight");
    stream->clear();
    pre->clear();
    for (uint32_t row = 0; row < rows; ++row) {
      const auto token = static_cast<size_t>(golden_.tokens()[golden_.length() - rows + row]);
      for (uint32_t copy = 0; copy < c.hc_mult; ++copy) {
        for (size_t i = 0; i < c.hidden_size; ++i) {
          stream->push_back(
              FromBf16(LoadLe<uint16_t>(embed.bytes.data() + 2 * (token * c.hidden_size + i))));
        }
        pre->push_back(copy == 0 ? 1.0f : 0.0f);
      }
    }
  }

  Segment Rows(uint32_t rows, uint32_t write_from) {
    const uint32_t length = golden_.length(), first = length - rows;
    const uint32_t from = length - std::min(length, engine_->geometry().config.window);
    return {.memory = sequence_.memory(),
            .tokens = golden_.tokens(),
            .first = first,
            .write_from = write_from,
            .encoder_from = std::min(from, first),
            .decoder_first = first,
            .decoder_from = std::min(from, first),
            .logits_from = length};
  }

  std::unique_ptr<cpu::CpuEngine> engine_;
  Golden golden_;
  TestSequence sequence_;
};

TEST_P(GoldenLayers, LastRowOfEachLayerAlone) {
  double worst = 0;
  for (uint32_t layer = 0; layer < engine_->geometry().config.layer_count; ++layer) {
    std::vector<float> stream, pre;
    Input(layer, 1, &stream, &pre);
    ASSERT_TRUE(engine_->RunLayer(layer, Rows(1, golden_.length()), &stream, &pre).ok());
    const std::vector<float> want = golden_.Bf16Rows(Name(layer, "stream_bf16"), 1);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(double{stream[i]} - want[i], 2);
      norm += std::pow(double{want[i]}, 2);
    }
    const double error = std::sqrt(difference / norm);
    worst = std::max(worst, error);
    EXPECT_LE(error, 2e-3) << "layer " << layer;
    const std::vector<float> want_pre = golden_.FloatRows(Name(layer, "pre"), 1);
    for (size_t i = 0; i < want_pre.size(); ++i) EXPECT_NEAR(pre[i], want_pre[i], 2e-3);
    if (engine_->geometry().layers[layer].ratio == 0) continue;
    const std::string name = Name(engine_->geometry().layers[layer].index_source, "selected");
    const NpyArray& selected = golden_.At(name);
    const auto all = selected.As<int16_t>();
    const auto last = all.subspan(all.size() - selected.shape[1]);
    uint32_t same = 0;
    for (size_t i = 0; i < last.size(); ++i) same += engine_->selections()[i] == last[i] ? 1 : 0;
    EXPECT_EQ(same, last.size()) << "selection of layer " << layer;
  }
  RecordProperty("worst_relative_rms", std::to_string(worst));
  std::printf("%s: worst relative RMS error of a stream %.1e\n", GetParam(), worst);
}

TEST_P(GoldenLayers, StoredCodesOfTheLastRows) {
  const ModelGeometry& g = engine_->geometry();
  const uint32_t length = golden_.length(), rows = 4;
  const uint32_t write_from = length - rows + (length - rows) % 2;
  CodeCount windows, records;
  for (uint32_t layer = 0; layer < g.config.layer_count; ++layer) {
    std::vector<float> stream, pre;
    Input(layer, rows, &stream, &pre);
    ASSERT_TRUE(engine_->RunLayer(layer, Rows(rows, write_from), &stream, &pre).ok());
    const LiveWindowLayout& layout = engine_->window_layout();
    const NpyArray& swa = golden_.At(Name(layer, "attn.swa_record"));
    for (uint32_t position = length - rows; position < length; ++position) {
      const uint8_t* want = Row(swa, swa.shape[0] - (length - position));
      windows.Add(CompareWindowRow(layout.codes(sequence_.window(), layer, position),
                                   layout.scales(sequence_.window(), layer, position), want,
                                   want + layout.code_bytes, layout.code_bytes));
    }
    if (g.layers[layer].mode != LayerMode::kFull) continue;
    uint32_t source = 0;
    while (g.record.sources[source].layer != layer) ++source;
    const uint32_t ratio = g.layers[layer].ratio;
    const NpyArray& main = golden_.At(Name(layer, "attn.main_record"));
    const NpyArray& index = golden_.At(Name(layer, "attn.index_record"));
    const cpu::EntryMap map(g, g.record.sources[source]);
    for (uint32_t entry = write_from / ratio; entry < length / ratio; ++entry) {
      const cpu::EntryPlace place = map.Of(sequence_.memory(), entry);
      const uint32_t main_codes = g.kv.main.code_bytes(), index_codes = g.kv.indexer.code_bytes();
      records.Add(CompareNibbles(place.main_codes, Row(main, entry), main_codes));
      records.Add(
          CompareBytes(place.main_scales, Row(main, entry) + main_codes, g.kv.main.scale_bytes()));
      records.Add(CompareNibbles(place.index_codes, Row(index, entry), index_codes));
      records.Add(CompareBytes(place.index_scales, Row(index, entry) + index_codes,
                               g.kv.indexer.scale_bytes()));
    }
  }
  std::printf(
      "%s: window codes equal %.5f of %lu, record codes %.5f of %lu; further than a step: %lu\n",
      GetParam(), windows.share(), windows.all, records.share(), records.all,
      windows.far + records.far);
  EXPECT_GE(windows.share(), 0.995);
  EXPECT_GE(records.share(), 0.995);
  EXPECT_EQ(windows.far + records.far, 0u);
}

INSTANTIATE_TEST_SUITE_P(Prompts, GoldenLayers, testing::Values("p0129", "p0300", "p1025"));

// ---- Whole runs --------------------------------------------------------------------------------

TEST(GoldenRuns, NextTokensOfExactRuns) {
  const auto engine = NanoEngine({.rows_max = 2048});
  const size_t vocab = engine->geometry().config.vocab_size;
  uint64_t equal = 0, all = 0;
  for (const char* name : {"p0001", "p0127", "p0129", "p0300", "p1025"}) {
    const Golden golden(name);
    TestSequence sequence(*engine);
    const std::vector<float> logits = sequence.RunExact(*engine, golden.tokens(), 0, 2048);
    const auto want = golden.At("exact.argmax").As<int16_t>();
    uint64_t same = 0;
    for (size_t row = 0; row < want.size(); ++row) {
      same += LikeliestToken(std::span(logits).subspan(row * vocab, vocab)) == want[row] ? 1 : 0;
    }
    std::printf("%s: next token equal in %lu of %zu rows\n", name, same, want.size());
    equal += same;
    all += want.size();
  }
  std::printf("exact runs: %.4f of %lu rows (the reference's own float32 run: 0.98 to 0.997)\n",
              static_cast<double>(equal) / all, all);
  EXPECT_GE(static_cast<double>(equal) / all, 0.98);
}

// Rows of golden text that the engine continues alike, fed with the golden tokens.
struct Agreement {
  uint64_t equal = 0, all = 0;
  void Add(TokenId got, TokenId want) {
    equal += got == want ? 1 : 0;
    ++all;
  }
  double share() const { return static_cast<double>(equal) / static_cast<double>(all); }
};

void Follow(Sequence* sequence, std::vector<float> logits, std::span<const int16_t> golden,
            Agreement* agreement) {
  for (const int16_t token : golden) {
    agreement->Add(LikeliestToken(logits), token);
    const TokenId id = token;
    ASSERT_TRUE(sequence->Extend({&id, 1}, logits).ok());
  }
}

// Prefill with a decoder replay, and a hit on global KV alone: both replays.
TEST(GoldenRuns, NextTokensAfterReplays) {
  const auto engine = NanoEngine({.rows_max = 2048});
  Agreement prefill, resume;
  for (const char* name : {"p0127", "p0129", "p0300", "p1025"}) {
    const Golden golden(name);
    const std::vector<TokenId>& tokens = golden.tokens();
    TestSequence memory(*engine);
    Sequence sequence(engine.get(), memory.memory());
    std::vector<float> logits(engine->geometry().config.vocab_size);
    ASSERT_TRUE(sequence.Prefill(tokens, PrefillMode::kBounded, logits).ok());
    Follow(&sequence, logits, golden.At("prefill.greedy").As<int16_t>(), &prefill);
    if (!golden.Has("resume.at")) continue;
    const auto at = static_cast<uint32_t>(golden.At("resume.at").As<int64_t>()[0]);
    TestSequence again(*engine);
    again.RunExact(*engine, {tokens.begin(), tokens.begin() + at}, 0, 2048);
    Sequence resumed(engine.get(), again.memory());
    resumed.Resume({tokens.begin(), tokens.begin() + at}, {.hit = at});
    ASSERT_TRUE(resumed.Prefill(std::span(tokens).subspan(at), PrefillMode::kBounded, logits).ok());
    Follow(&resumed, logits, golden.At("resume.greedy").As<int16_t>(), &resume);
  }
  std::printf("after a prefill with decoder replay %.3f of %lu, after a hit %.3f of %lu\n",
              prefill.share(), prefill.all, resume.share(), resume.all);
  EXPECT_GE(prefill.share(), 0.98);
  EXPECT_GE(resume.share(), 0.98);
}

TEST(GoldenRuns, Drafts) {
  const auto engine = NanoEngine({.rows_max = 2048});
  Agreement proposals;
  double confidence_error = 0;
  for (const char* name : {"p0129", "p0300", "p1025"}) {
    const Golden golden(name);
    TestSequence memory(*engine);
    Sequence sequence(engine.get(), memory.memory());
    std::vector<float> logits(engine->geometry().config.vocab_size);
    ASSERT_TRUE(sequence.Prefill(golden.tokens(), PrefillMode::kBounded, logits).ok());
    const auto token = golden.At("draft.token").As<int16_t>();
    const auto proposal = golden.At("draft.proposal").As<int16_t>();
    const auto confidence = golden.At("draft.confidence").As<float>();
    const auto emitted = golden.At("draft.emitted").As<int16_t>();
    for (size_t step = 0; step < token.size(); ++step) {
      DraftRequest request = sequence.DraftAfter(token[step]);
      DraftResult result;
      ASSERT_TRUE(engine->Draft({&request, 1}, {&result, 1}).ok());
      for (size_t k = 0; k < 5; ++k) {
        proposals.Add(result.tokens[k], proposal[step * 5 + k]);
        confidence_error = std::max(
            confidence_error, std::fabs(double{result.confidences[k]} - confidence[step * 5 + k]));
      }
      // What was emitted, but for its last token, follows the step's token.
      std::vector<TokenId> rows = {token[step]};
      for (size_t k = 0; k + 1 < 6 && emitted[step * 6 + k + 1] >= 0; ++k) {
        rows.push_back(emitted[step * 6 + k]);
      }
      std::vector<float> out(rows.size() * logits.size());
      ASSERT_TRUE(sequence.Extend(rows, out).ok());
    }
  }
  std::printf("drafts: %.3f of %lu proposals equal, confidences within %.3f\n", proposals.share(),
              proposals.all, confidence_error);
  EXPECT_GE(proposals.share(), 0.9);
  EXPECT_LE(confidence_error, 0.1);
}

TEST(NanoEngramMapTest, TheShippedMapIsTheTokenizers) {
  const ModelConfig& config = NanoGeometry().config;
  const auto shipped =
      LoadEngramMap(NanoPath("engram_map.bin"), config.vocab_size, config.engram_compressed_vocab);
  ASSERT_TRUE(shipped.ok()) << Message(shipped.status());
  EXPECT_EQ(*shipped, NanoEngramMap());
}

}  // namespace
}  // namespace reprise::engine::test
