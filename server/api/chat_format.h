#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/tokenizer/tokenizer.h"
#include "protocol/base/status.h"

namespace reprise::server {

// A function that the model may call.
struct ChatTool {
  std::string name;
  std::string schema;                  // The whole declaration, as one line of JSON.
  std::vector<std::string> arguments;  // Names, in the schema's order.
};

struct ToolCall {
  std::string id;
  std::string name;
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();

  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct ChatMessage {
  std::string role;  // system, user, assistant or tool.
  std::string content;
  std::string reasoning;        // assistant
  std::vector<ToolCall> calls;  // assistant
  std::string call_id;          // tool
  // An answer of the model as the ids that it gave, after the header that asked for it. They are
  // used as they are: text that is tokenised again may give others. Empty: not known.
  std::vector<TokenId> ids;
  bool thought = false;  // The header asked for reasoning first.
};

struct ChatOptions {
  bool thinking = false;
  uint32_t effort = 75;  // 1 to 100, where the format has a place for it.
  std::vector<ChatTool> tools;
};

struct ChatPrompt {
  std::vector<TokenId> tokens;
  // What the next turn's prompt will begin with, when it is less than all of it: where the format
  // drops the reasoning of earlier turns. Else 0.
  uint32_t stable_tokens = 0;
  uint32_t history_tokens = 0;  // Without the header that asks for the answer.
};

// How messages become a prompt (model-facts section 12), and what marks the parts of an answer:
// read from data, so that another model needs another file and no code. Keys are listed in
// chat_format.cc. Text of messages never becomes a special token. Immutable; any thread.
class ChatFormat {
 public:
  // <folder>/chat_format.json; without it, the one built in for the tokenizer's special tokens.
  static absl::StatusOr<ChatFormat> Load(const std::string& folder,
                                         const engine::Tokenizer* tokenizer);
  static absl::StatusOr<ChatFormat> Parse(const std::string& json, const std::string& name,
                                          const engine::Tokenizer* tokenizer);

  // InvalidArgument, in words for the caller of the API, for a conversation that cannot be encoded.
  absl::StatusOr<ChatPrompt> Encode(const std::vector<ChatMessage>& messages,
                                    const ChatOptions& options) const;

  // The text of a call, as the model writes it, taken apart; calls without their ids.
  // `block` is what stood between calls_open and calls_close.
  absl::StatusOr<std::vector<ToolCall>> ParseCalls(const std::string& block,
                                                   const std::vector<ChatTool>& tools) const;

  const std::string& think_open() const { return think_open_; }
  const std::string& think_close() const { return think_close_; }
  const std::string& calls_open() const { return calls_open_; }
  const std::string& calls_close() const { return calls_close_; }
  const std::vector<TokenId>& stop_tokens() const { return stop_tokens_; }
  const engine::Tokenizer& tokenizer() const { return *tokenizer_; }
  // SHA-256 of the data: part of the manifest, with the tokenizer's.
  Hash256 Digest() const { return digest_; }

 private:
  enum class CallStyle { kNone, kWords, kElements };
  enum class KeepReasoning { kAlways, kWithTools, kNever };

  class Encoder;

  // Markers, which may be special tokens, and what stands between them, which may not.
  struct Piece {
    std::string text;
    bool marker = false;
  };
  std::vector<Piece> CallPieces(const ToolCall& call) const;

  const engine::Tokenizer* tokenizer_ = nullptr;
  Hash256 digest_;
  std::string begin_, system_, system_default_, user_, assistant_, end_;
  std::string think_open_, think_close_, effort_;
  KeepReasoning keep_reasoning_ = KeepReasoning::kAlways;
  bool system_when_thinking_ = false;
  std::string tools_open_, tools_close_;
  CallStyle call_style_ = CallStyle::kNone;
  std::string calls_open_, calls_close_;
  std::string invoke_open_, invoke_close_, argument_open_, argument_close_;
  std::string result_open_, result_close_;
  std::vector<TokenId> stop_tokens_;
};

}  // namespace reprise::server
