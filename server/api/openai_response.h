#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api/answer_stream.h"
#include "server/serving/request.h"

namespace reprise::server {

// Builds what /v1/completions and /v1/chat/completions answer, whole or in chunks. One request.
class OpenAiResponse {
 public:
  enum class Kind { kCompletion, kChat };

  OpenAiResponse(Kind kind, std::string id, int64_t created_s, std::string model,
                 const AnswerOptions& options);

  // ---- A stream: chunks as the data of server-sent events
  std::vector<nlohmann::ordered_json> FirstChunks() const;  // Of chat: the role of each choice.
  // None when the event has nothing to show.
  std::vector<nlohmann::ordered_json> Chunks(const AnswerEvent& event);
  // After the last of them, when it was asked for.
  nlohmann::ordered_json UsageChunk(const RequestReport& report) const;

  // ---- All at once
  void Add(const AnswerEvent& event);
  nlohmann::ordered_json Whole(const RequestReport& report) const;
  // Text to put before every completion ("echo").
  void SetEcho(std::string text) { echo_ = std::move(text); }

  // A choice as it is so far.
  struct Choice {
    std::string content, reasoning, finish_reason;
    std::vector<ToolCall> calls;
    std::vector<TokenId> tokens;
    std::vector<TokenLogprobs> logprobs;
  };
  const std::vector<Choice>& choices() const { return choices_; }

 private:
  nlohmann::ordered_json Head(const char* object) const;
  nlohmann::ordered_json Logprobs(const std::vector<TokenLogprobs>& logprobs,
                                  size_t text_offset) const;
  nlohmann::ordered_json CallJson(const ToolCall& call, size_t index, bool with_index) const;

  Kind kind_;
  std::string id_;
  int64_t created_s_;
  std::string model_;
  AnswerOptions options_;
  std::string echo_;
  std::vector<Choice> choices_;
};

nlohmann::ordered_json UsageJson(const RequestReport& report);
// The extension object "reprise": what hit, how windows came about, and what it cost.
nlohmann::ordered_json ReportJson(const RequestReport& report);

}  // namespace reprise::server
