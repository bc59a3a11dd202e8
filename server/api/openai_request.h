#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpu/engine/generation.h"
#include "server/api/api_error.h"
#include "server/api/chat_format.h"

namespace reprise::server {

// What /v1/completions, /v1/chat/completions and /v1/sessions/NAME/send ask for alike.
struct AnswerOptions {
  std::optional<uint32_t> tokens_max;
  engine::SamplingOptions sampling;
  bool seeded = false;  // Else every answer is drawn anew.
  std::vector<std::string> stops;
  uint32_t choices = 1;
  bool stream = false;
  bool stream_usage = false;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  // The extension object "reprise" of a request.
  bool exact = false;  // Missing windows are rebuilt exactly.
  bool read_cache = true;
  bool write_cache = true;
  bool draft = true;  // Speculative decoding, which changes no text.
};

struct CompletionRequest {
  std::string model;
  AnswerOptions options;
  std::string prompt;           // Text, or
  std::vector<TokenId> tokens;  // ids.
  bool echo = false;
};

struct ChatRequest {
  std::string model;
  AnswerOptions options;
  std::vector<ChatMessage> messages;
  ChatOptions chat;
};

// Of a session's turn: the new messages alone. "content": text of a user, or "messages".
struct SendRequest {
  AnswerOptions options;
  std::vector<ChatMessage> messages;
  ChatOptions chat;
  bool chat_given =
      false;  // thinking, effort or tools are in the request: they stay the session's.
};

// The parsers name the parameter that is wrong. What the API knows and the engine does not do (such
// as logit_bias) is refused rather than ignored; what the API does not know is ignored.
std::optional<ApiError> ParseJson(const std::string& body, nlohmann::ordered_json* json);
std::optional<ApiError> ParseCompletion(const nlohmann::ordered_json& json, CompletionRequest* out);
std::optional<ApiError> ParseChat(const nlohmann::ordered_json& json, ChatRequest* out);
std::optional<ApiError> ParseSend(const nlohmann::ordered_json& json, SendRequest* out);

// Messages as the API writes them, and back: what a session keeps.
nlohmann::ordered_json MessageJson(const ChatMessage& message);
std::optional<ApiError> ParseMessages(const nlohmann::ordered_json& json,
                                      std::vector<ChatMessage>* out);
std::optional<ApiError> ParseTools(const nlohmann::ordered_json& json, std::vector<ChatTool>* out);

}  // namespace reprise::server
