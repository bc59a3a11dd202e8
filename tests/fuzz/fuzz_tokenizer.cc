#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/tokenizer.h"
#include "protocol/base/check.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using Json = nlohmann::json;
using reprise::engine::ParseTokenizerJson;
using reprise::engine::Tokenizer;

constexpr size_t kTextBytesMax = 1024;
constexpr std::ptrdiff_t kNestingMax = 200;

// A file that is accepted, with a token for each byte; too much for an input to hold.
const Json& PlainFile() {
  static const Json file = [] {
    Json vocabulary = Json::object();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text(1, static_cast<char>(byte));
      vocabulary[reprise::engine::ToByteLevel(text)] = byte;
    }
    return Json{{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                {"decoder", {{"type", "ByteLevel"}}},
                {"model", {{"vocab", vocabulary}, {"merges", Json::array()}}}};
  }();
  return file;
}

void Exercise(const Tokenizer& tokenizer, std::string_view text, bool gives_text_back) {
  for (const bool parse_special : {false, true}) {
    const auto tokens = tokenizer.Encode(text, parse_special);
    RP_CHECK(tokens == tokenizer.Encode(text, parse_special));
    for (const reprise::TokenId token : tokens) {
      RP_CHECK(token >= 0 && static_cast<uint32_t>(token) < tokenizer.vocab_size());
    }
    const std::string decoded = tokenizer.Decode(tokens, true);
    if (gives_text_back && !parse_special) RP_CHECK(decoded == text);
  }
}

// Null when the file is refused.
std::unique_ptr<Tokenizer> Parse(std::string_view json) {
  auto tokenizer = ParseTokenizerJson(json);
  if (tokenizer.ok()) return *std::move(tokenizer);
  RP_CHECK(!reprise::Message(tokenizer.status()).empty());
  return nullptr;
}

}  // namespace

// Two bytes say how long a file is; then come the file and a text. The file is read as it is, and
// as a patch of a file that is accepted.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::fuzz::Input input(data, size);
  const auto json_bytes = input.Take<uint16_t>();
  const std::string_view json = reprise::AsText(input.TakeBytes(json_bytes));
  const std::string_view text = input.text().substr(0, kTextBytesMax);
  if (const auto tokenizer = Parse(json)) Exercise(*tokenizer, text, false);

  const auto opens = [](char c) { return c == '[' || c == '{'; };
  if (std::count_if(json.begin(), json.end(), opens) > kNestingMax) return 0;
  const Json patch = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!patch.is_object()) return 0;
  Json file = PlainFile();
  file.merge_patch(patch);
  // Whatever the tokens and merges are, only these two may lose something of a text.
  const bool gives_text_back = !patch.contains("normalizer") && !patch.contains("pre_tokenizer");
  if (const auto tokenizer = Parse(file.dump())) Exercise(*tokenizer, text, gives_text_back);
  return 0;
}
