#include "server/api/chat_format.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

// DeepSeek-V4.1's encoding, as data. The tag names of calls begin with a blank.
constexpr const char* kDeepSeekFormat = R"json({
  "begin": "<｜begin▁of▁sentence｜>",
  "system": "<｜System｜>",
  "system_when_thinking": true,
  "user": "<｜User｜>",
  "assistant": "<｜Assistant｜>",
  "end": "<｜end▁of▁sentence｜>",
  "think_open": "<think>",
  "think_close": "</think>",
  "effort": "Reasoning Effort: {effort} (range 1-100)\n\n",
  "keep_reasoning": "with_tools",
  "tools_open": "\n\n## Tools\n\nYou may call these functions:\n",
  "tools_close": "",
  "call_style": "elements",
  "calls_open": "\n\n<｜DSML｜ calls>",
  "calls_close": "</｜DSML｜ calls>",
  "invoke_open": "<｜DSML｜ invoke name=\"{name}\">",
  "invoke_close": "</｜DSML｜ invoke>",
  "argument_open": "<｜DSML｜ parameter name=\"{name}\" string=\"{string}\">",
  "argument_close": "</｜DSML｜ parameter>",
  "result_open": "<tool_result>",
  "result_close": "</tool_result>"
})json";

std::string Replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// The value of name="..." within a tag.
std::string Attribute(const std::string& tag, const std::string& name) {
  const std::string begins = " " + name + "=\"";
  const size_t at = tag.find(begins);
  if (at == std::string::npos) return "";
  const size_t from = at + begins.size();
  return tag.substr(from, tag.find('"', from) - from);
}

}  // namespace

// ---- Reading the data --------------------------------------------------------------------------

absl::StatusOr<ChatFormat> ChatFormat::Load(const std::string& folder,
                                            const engine::Tokenizer* tokenizer) {
  const std::string path = folder + "/chat_format.json";
  if (std::filesystem::exists(path)) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return NotFound("cannot read " + path);
    return Parse(text.str(), path, tokenizer);
  }
  if (tokenizer->Special("<｜Assistant｜>") >= 0) {
    return Parse(kDeepSeekFormat, "the built-in chat format", tokenizer);
  }
  return NotFound("there is no chat_format.json in " + folder +
                  ", and the tokenizer is not DeepSeek's; write one (gpu/nano/chat_format.json is "
                  "an example)");
}

absl::StatusOr<ChatFormat> ChatFormat::Parse(const std::string& json, const std::string& name,
                                             const engine::Tokenizer* tokenizer) {
  const Json data = Json::parse(json, nullptr, false);
  if (!data.is_object()) return InvalidArgument(name + ": not a JSON object");
  ChatFormat format;
  format.tokenizer_ = tokenizer;
  format.digest_ = Sha256({AsBytes(std::string_view(json))});
  std::string keep = "always", style = "none";
  const std::map<std::string, std::string*> texts = {
      {"begin", &format.begin_},                    // Before everything.
      {"system", &format.system_},                  // Before the system text.
      {"system_default", &format.system_default_},  // The system text when none is given.
      {"user", &format.user_},                      // Before a user's text.
      {"assistant", &format.assistant_},            // Before an answer.
      {"end", &format.end_},                        // After an answer; the model ends with it.
      {"think_open", &format.think_open_},
      {"think_close", &format.think_close_},
      {"effort", &format.effort_},            // After `system` when thinking; {effort}.
      {"keep_reasoning", &keep},              // Of earlier turns: always, with_tools or never.
      {"tools_open", &format.tools_open_},    // Around the tools' schemas, one a line, which follow
      {"tools_close", &format.tools_close_},  // the system text.
      {"call_style", &style},  // none; words: NAME ARGUMENT; elements: a tag for every argument.
      {"calls_open", &format.calls_open_},
      {"calls_close", &format.calls_close_},
      {"invoke_open", &format.invoke_open_},  // {name}
      {"invoke_close", &format.invoke_close_},
      {"argument_open", &format.argument_open_},  // {name}, {string}: whether it is JSON or text.
      {"argument_close", &format.argument_close_},
      {"result_open", &format.result_open_},  // Around a tool's result, within a user's turn.
      {"result_close", &format.result_close_},
  };
  for (const auto& [key, value] : data.items()) {
    if (key == "system_when_thinking" && value.is_boolean()) {
      format.system_when_thinking_ = value.get<bool>();
      continue;
    }
    const auto known = texts.find(key);
    if (known == texts.end()) return InvalidArgument(name + ": unknown key " + key);
    if (!value.is_string()) return InvalidArgument(name + ": " + key + " must be a string");
    *known->second = value.get<std::string>();
  }
  const std::map<std::string, KeepReasoning> keeps = {{"always", KeepReasoning::kAlways},
                                                      {"with_tools", KeepReasoning::kWithTools},
                                                      {"never", KeepReasoning::kNever}};
  const std::map<std::string, CallStyle> styles = {
      {"none", CallStyle::kNone}, {"words", CallStyle::kWords}, {"elements", CallStyle::kElements}};
  if (keeps.count(keep) == 0) {
    return InvalidArgument(name + ": keep_reasoning must be always, with_tools or never");
  }
  if (styles.count(style) == 0) {
    return InvalidArgument(name + ": call_style must be none, words or elements");
  }
  format.keep_reasoning_ = keeps.at(keep);
  format.call_style_ = styles.at(style);
  for (const auto* required : {&format.user_, &format.assistant_, &format.end_}) {
    if (required->empty()) return InvalidArgument(name + ": user, assistant and end are needed");
  }
  const TokenId end = tokenizer->Special(format.end_);
  if (end < 0) {
    return InvalidArgument(name + ": end = " + format.end_ + " is no special token");
  }
  format.stop_tokens_ = {end};
  return format;
}

// ---- Messages to a prompt ----------------------------------------------------------------------

class ChatFormat::Encoder {
 public:
  Encoder(const ChatFormat& format, const ChatOptions& options)
      : format_(format), options_(options) {}

  absl::StatusOr<ChatPrompt> Run(const std::vector<ChatMessage>& messages) {
    Special(format_.begin_);
    System(messages);
    const size_t last_user = LastUser(messages);
    bool in_user_turn = false;
    for (size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "system") {
        if (i == 0) continue;
        Special(format_.system_);
        Plain(message.content);
        in_user_turn = false;
      } else if (message.role == "user") {
        if (!in_user_turn) Special(format_.user_);
        Plain(message.content);
        in_user_turn = true;
      } else if (message.role == "tool") {
        if (!in_user_turn) Special(format_.user_);
        Special(format_.result_open_);
        Plain(message.content);
        Special(format_.result_close_);
        in_user_turn = true;
      } else if (message.role == "assistant") {
        Answer(message, Keeps(i > last_user));
        in_user_turn = false;
      } else {
        return InvalidArgument("role \"" + message.role +
                               "\" is not system, user, assistant or tool");
      }
    }
    prompt_.history_tokens = static_cast<uint32_t>(prompt_.tokens.size());
    Special(format_.assistant_);
    const auto before_thinking = static_cast<uint32_t>(prompt_.tokens.size());
    Special(options_.thinking ? format_.think_open_ : format_.think_close_);
    if (options_.thinking && !Keeps(false)) prompt_.stable_tokens = before_thinking;
    return std::move(prompt_);
  }

 private:
  void Add(const std::vector<TokenId>& tokens) {
    prompt_.tokens.insert(prompt_.tokens.end(), tokens.begin(), tokens.end());
  }
  void Special(const std::string& text) { Add(format_.tokenizer_->Encode(text, true)); }
  void Plain(const std::string& text) { Add(format_.tokenizer_->Encode(text, false)); }

  static size_t LastUser(const std::vector<ChatMessage>& messages) {
    size_t last = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == "user" || messages[i].role == "system") last = i;
    }
    return last;
  }

  // Whether an answer's reasoning stays: `current` are those after the last user's message.
  bool Keeps(bool current) const {
    if (current || format_.keep_reasoning_ == KeepReasoning::kAlways) return true;
    return format_.keep_reasoning_ == KeepReasoning::kWithTools && !options_.tools.empty();
  }

  void System(const std::vector<ChatMessage>& messages) {
    std::string text = format_.system_default_;
    if (!messages.empty() && messages[0].role == "system") text = messages[0].content;
    const bool effort = options_.thinking && format_.system_when_thinking_;
    const bool tools = !options_.tools.empty() && !format_.tools_open_.empty();
    if (text.empty() && !effort && !tools) return;
    Special(format_.system_);
    if (effort) {
      Plain(Replaced(format_.effort_, "{effort}", std::to_string(options_.effort)));
    }
    Plain(text);
    if (!tools) return;
    std::string list = format_.tools_open_;
    for (const ChatTool& tool : options_.tools) list += tool.schema + "\n";
    Plain(list + format_.tools_close_);
  }

  void Answer(const ChatMessage& message, bool keep_reasoning) {
    Special(format_.assistant_);
    if (!message.ids.empty()) {
      GivenAnswer(message, keep_reasoning);
    } else {
      if (keep_reasoning && !message.reasoning.empty()) {
        Special(format_.think_open_);
        Plain(message.reasoning);
      }
      Special(format_.think_close_);
      Plain(message.content);
      for (const ToolCall& call : message.calls) {
        for (const Piece& piece : format_.CallPieces(call)) {
          piece.marker ? Special(piece.text) : Plain(piece.text);
        }
      }
      Special(format_.end_);
    }
  }

  void GivenAnswer(const ChatMessage& message, bool keep_reasoning) {
    const TokenId close = format_.tokenizer_->Special(format_.think_close_);
    auto from = message.ids.begin();
    if (message.thought && keep_reasoning) {
      Special(format_.think_open_);
    } else {
      if (message.thought) {
        const auto found = std::find(message.ids.begin(), message.ids.end(), close);
        from = found == message.ids.end() ? found : found + 1;
      }
      Special(format_.think_close_);
    }
    prompt_.tokens.insert(prompt_.tokens.end(), from, message.ids.end());
    if (message.ids.back() != format_.stop_tokens_.front()) Special(format_.end_);
  }

  const ChatFormat& format_;
  const ChatOptions& options_;
  ChatPrompt prompt_;
};

absl::StatusOr<ChatPrompt> ChatFormat::Encode(const std::vector<ChatMessage>& messages,
                                              const ChatOptions& options) const {
  if (!options.tools.empty() && call_style_ == CallStyle::kNone) {
    return InvalidArgument("this model's chat format has no tools");
  }
  return Encoder(*this, options).Run(messages);
}

// ---- Calls -------------------------------------------------------------------------------------

std::vector<ChatFormat::Piece> ChatFormat::CallPieces(const ToolCall& call) const {
  const auto text_of = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  std::vector<Piece> pieces = {{calls_open_, true}};
  if (call_style_ == CallStyle::kWords) {
    std::string words = call.name;
    for (const auto& [name, value] : call.arguments.items()) words += " " + text_of(value);
    pieces.push_back({words, false});
    pieces.push_back({calls_close_, true});
    return pieces;
  }
  pieces.push_back({"\n" + Replaced(invoke_open_, "{name}", call.name) + "\n", true});
  for (const auto& [name, value] : call.arguments.items()) {
    const std::string is_text = value.is_string() ? "true" : "false";
    pieces.push_back(
        {Replaced(Replaced(argument_open_, "{name}", name), "{string}", is_text), true});
    pieces.push_back({text_of(value), false});
    pieces.push_back({argument_close_ + "\n", true});
  }
  pieces.push_back({invoke_close_ + "\n" + calls_close_, true});
  return pieces;
}

absl::StatusOr<std::vector<ToolCall>> ChatFormat::ParseCalls(
    const std::string& block, const std::vector<ChatTool>& tools) const {
  std::vector<ToolCall> calls;
  if (call_style_ == CallStyle::kWords) {
    const std::string text = Trimmed(block);
    const size_t space = text.find(' ');
    ToolCall call{.id = {}, .name = text.substr(0, space)};
    std::string argument = "input";
    for (const ChatTool& tool : tools) {
      if (tool.name == call.name && !tool.arguments.empty()) argument = tool.arguments.front();
    }
    if (space != std::string::npos) call.arguments[argument] = text.substr(space + 1);
    if (call.name.empty()) return DataLoss("a call without a name");
    return std::vector<ToolCall>{call};
  }
  // <open name="f"> <argument name="a" string="true">text</argument> ... </close>
  const std::string invoke = invoke_open_.substr(0, invoke_open_.find(" name="));
  const std::string argument = argument_open_.substr(0, argument_open_.find(" name="));
  for (size_t at = block.find(invoke); at != std::string::npos; at = block.find(invoke, at)) {
    const size_t tag_end = block.find('>', at);
    const size_t end = block.find(invoke_close_, at);
    if (tag_end == std::string::npos || end == std::string::npos) {
      return DataLoss("a call that does not end");
    }
    ToolCall call{.id = {}, .name = Attribute(block.substr(at, tag_end - at), "name")};
    for (size_t inner = block.find(argument, tag_end); inner < end;
         inner = block.find(argument, inner)) {
      const size_t open_end = block.find('>', inner);
      const size_t close = block.find(argument_close_, inner);
      if (open_end > end || close > end) return DataLoss("an argument that does not end");
      const std::string tag = block.substr(inner, open_end - inner);
      const std::string value = block.substr(open_end + 1, close - open_end - 1);
      const Json parsed = Json::parse(value, nullptr, false);
      const bool is_text = Attribute(tag, "string") != "false" || parsed.is_discarded();
      call.arguments[Attribute(tag, "name")] = is_text ? Json(value) : parsed;
      inner = close;
    }
    if (call.name.empty()) return DataLoss("a call without a name");
    calls.push_back(std::move(call));
    at = end;
  }
  if (calls.empty()) return DataLoss("a block of calls with none in it");
  return calls;
}

}  // namespace reprise::server
