#include <string>
#include <unordered_map>
#include <utility>

#include "gpu/tokenizer/bpe_tokenizer.h"
#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/json_field.h"
#include "gpu/tokenizer/json_steps.h"
#include "gpu/tokenizer/read_file.h"
#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine {
namespace {

using Json = nlohmann::json;
using Ids = std::unordered_map<std::string_view, TokenId>;  // Into the parsed file.

constexpr uint64_t kFileBytesMax = 64_MiB;  // The largest vocabularies have half of that.
constexpr uint32_t kDepthMax = 64;
constexpr uint32_t kIdMax = (1u << 20) - 1;
constexpr size_t kMergesMax = size_t{1} << 21;

// How deep lists and objects are nested, before anything is built of them.
uint32_t DepthOf(std::string_view json) {
  uint32_t depth = 0;
  uint32_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

// ---- Model -------------------------------------------------------------------------------------

// Settings that would change ids in ways that are not supported: each may only say nothing.
absl::Status CheckSettings(const JsonField& model) {
  if (model.Has("type")) {
    RP_ASSIGN(const std::string type, model.Text("type"));
    if (type != "BPE") return model.Refuse("has the type \"" + type + "\"; only BPE is supported");
  }
  for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.Has(key)) continue;
    RP_ASSIGN(const JsonField field, model.Get(key));
    if (field.value() != "") return field.Refuse("is not supported; it must be null");
  }
  if (model.Has("dropout")) {
    RP_ASSIGN(const JsonField field, model.Get("dropout"));
    if (!field.value().is_number() || field.value() != 0) {
      return field.Refuse("is not supported; it must be null");
    }
  }
  // A byte-level vocabulary has a token for every byte, so there is nothing to fall back from.
  RP_TRY(model.Flag("byte_fallback", false).status());
  return model.Flag("fuse_unk", false).status();
}

absl::StatusOr<Ids> ReadVocabulary(const JsonField& model, BpeDescription* description) {
  RP_ASSIGN(const JsonField field, model.Get("vocab"));
  if (!field.value().is_object()) return field.Refuse("must be an object of tokens and ids");
  Ids ids;
  ids.reserve(field.value().size());
  std::vector<BpeDescription::Token>& vocabulary = description->vocabulary;
  for (const auto& [text, value] : field.value().items()) {
    const auto* number = value.get_ptr<const uint64_t*>();
    if (number == nullptr || *number > kIdMax) {
      return field.Refuse("gives \"" + text + "\" an id that is not a whole number from 0 to " +
                          std::to_string(kIdMax));
    }
    const auto id = static_cast<size_t>(*number);
    if (id >= vocabulary.size()) vocabulary.resize(id + 1);
    if (vocabulary[id].present) {
      return field.Refuse("gives \"" + text + "\" the id " + std::to_string(id) +
                          ", which another token has; give each its own");
    }
    std::optional<std::string> bytes = FromByteLevel(text);
    const bool is_text = bytes.has_value();
    vocabulary[id] = {is_text ? *std::move(bytes) : text, true, is_text};
    ids.emplace(text, static_cast<TokenId>(id));
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const std::string text = ToByteLevel(std::string(1, static_cast<char>(byte)));
    const auto found = ids.find(text);
    if (found == ids.end()) {
      return field.Refuse("has no token \"" + text + "\" for the byte " + std::to_string(byte) +
                          "; a byte-level vocabulary has one for each of the 256");
    }
    description->byte_tokens[byte] = found->second;
  }
  return ids;
}

// The two sides of "left right" or ["left", "right"]; the first is empty when it is neither.
std::pair<std::string_view, std::string_view> SidesOf(const Json& merge) {
  if (const auto* text = merge.get_ptr<const std::string*>()) {
    const size_t space = text->find(' ');
    if (space == std::string::npos || text->find(' ', space + 1) != std::string::npos) return {};
    return {std::string_view(*text).substr(0, space), std::string_view(*text).substr(space + 1)};
  }
  if (!merge.is_array() || merge.size() != 2) return {};
  const auto* left = merge[0].get_ptr<const std::string*>();
  const auto* right = merge[1].get_ptr<const std::string*>();
  if (left == nullptr || right == nullptr) return {};
  return {*left, *right};
}

absl::Status ReadMerges(const JsonField& model, const Ids& ids, std::vector<Merge>* merges) {
  RP_ASSIGN(const JsonField field, model.Get("merges"));
  if (!field.value().is_array()) return field.Refuse("must be a list");
  if (field.value().size() > kMergesMax) return field.Refuse("has more than 2097152 merges");
  merges->reserve(field.value().size());
  for (size_t i = 0; i < field.value().size(); ++i) {
    const Json& item = field.value()[i];
    const auto [left, right] = SidesOf(item);
    if (left.empty() || right.empty()) {
      // Files that were made from a merges.txt may still have its first line.
      const auto* text = item.get_ptr<const std::string*>();
      if (text != nullptr && text->starts_with("#version")) continue;
      return field.Refuse("has at " + std::to_string(i) +
                          " no merge; a merge is \"left right\" or [\"left\", \"right\"]");
    }
    const std::string both = std::string(left) + std::string(right);
    for (const std::string_view token : {left, right, std::string_view(both)}) {
      if (ids.contains(token)) continue;
      return field.Refuse("needs at " + std::to_string(i) + " the token \"" + std::string(token) +
                          "\", which model.vocab does not have");
    }
    merges->push_back({ids.at(left), ids.at(right), ids.at(both)});
  }
  return absl::OkStatus();
}

// ---- Added tokens ------------------------------------------------------------------------------

absl::StatusOr<AddedToken> ReadAddedToken(const JsonField& field) {
  AddedToken token;
  RP_ASSIGN(token.text, field.Text("content"));
  if (token.text.empty()) return field.Refuse("has an empty content");
  RP_ASSIGN(const uint32_t id, field.Number("id", kIdMax));
  token.id = static_cast<TokenId>(id);
  RP_ASSIGN(token.special, field.Flag("special"));
  RP_ASSIGN(token.single_word, field.Flag("single_word"));
  RP_ASSIGN(token.left_strip, field.Flag("lstrip"));
  RP_ASSIGN(token.right_strip, field.Flag("rstrip"));
  RP_ASSIGN(token.normalized, field.Flag("normalized"));
  return token;
}

// The model and the list may both name a token, with one id; an id has one name.
absl::Status ReadAddedTokens(const JsonField& file, const Ids& ids, BpeDescription* description) {
  if (!file.Has("added_tokens")) return absl::OkStatus();
  RP_ASSIGN(const std::vector<JsonField> fields, file.List("added_tokens", kIdMax));
  std::unordered_map<std::string, TokenId> by_text;
  std::unordered_map<TokenId, std::string> by_id;
  for (const JsonField& field : fields) {
    RP_ASSIGN(AddedToken token, ReadAddedToken(field));
    const auto in_model = ids.find(token.text);
    const auto id = static_cast<size_t>(token.id);
    const bool taken = id < description->vocabulary.size() && description->vocabulary[id].present;
    if (in_model != ids.end() ? in_model->second != token.id : taken) {
      return field.Refuse("has the id " + std::to_string(id) +
                          ", but model.vocab has that token or that id otherwise");
    }
    if (!by_text.emplace(token.text, token.id).second ||
        !by_id.emplace(token.id, token.text).second) {
      return field.Refuse("has a content or an id that another added token has");
    }
    description->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// ---- File --------------------------------------------------------------------------------------

absl::Status CheckFile(const JsonField& file) {
  if (!file.value().is_object()) return InvalidArgument("the file must be an object");
  if (file.Has("version")) {
    RP_ASSIGN(const std::string version, file.Text("version"));
    if (version != "1.0") return InvalidArgument("version must be \"1.0\"");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (file.Has(key)) return InvalidArgument(std::string(key) + " must be null");
  }
  RP_ASSIGN(const JsonField decoder, file.Get("decoder"));
  RP_ASSIGN(const std::string type, decoder.Text("type"));
  if (type == "ByteLevel") return absl::OkStatus();
  return decoder.Refuse("has the type \"" + type + "\"; only ByteLevel is supported");
}

absl::StatusOr<BpeDescription> ReadDescription(const JsonField& file) {
  BpeDescription description;
  RP_TRY(CheckFile(file));
  RP_ASSIGN(description.normalizer, ReadNormalizer(file));
  RP_ASSIGN(description.pre_tokenizer, ReadPreTokenizer(file));
  RP_ASSIGN(const JsonField model, file.Get("model"));
  RP_TRY(CheckSettings(model));
  RP_ASSIGN(description.ignore_merges, model.Flag("ignore_merges", false));
  RP_ASSIGN(const Ids ids, ReadVocabulary(model, &description));
  RP_TRY(ReadMerges(model, ids, &description.merges));
  RP_TRY(ReadAddedTokens(file, ids, &description));
  return description;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view json) {
  if (json.size() > kFileBytesMax) return InvalidArgument("tokenizer.json: larger than 64 MiB");
  if (DepthOf(json) > kDepthMax) {
    return InvalidArgument("tokenizer.json: lists and objects are nested deeper than " +
                           std::to_string(kDepthMax));
  }
  const Json file = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) {
    return InvalidArgument("tokenizer.json: not JSON in UTF-8; get the file again");
  }
  absl::StatusOr<BpeDescription> description = ReadDescription(JsonField(file, ""));
  absl::Status status = description.status();
  if (description.ok()) {
    auto tokenizer = BpeTokenizer::Make(*std::move(description));
    if (tokenizer.ok()) return tokenizer;
    status = tokenizer.status();
  }
  return absl::Status(status.code(), "tokenizer.json: " + Message(status));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path) {
  RP_ASSIGN(const std::string json, ReadFile(path, kFileBytesMax));
  auto tokenizer = ParseTokenizerJson(json);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(tokenizer.status().code(), path + ": " + Message(tokenizer.status()));
}

}  // namespace reprise::engine
