#pragma once

#include <functional>
#include <memory>

#include "server/api/api_call.h"
#include "server/api/openai_request.h"
#include "server/api/openai_response.h"

namespace reprise::server {

void HandleCompletion(ApiCall* call);
void HandleChat(ApiCall* call);

// What an answer is made of, beside its options.
struct AnswerJob {
  OpenAiResponse::Kind kind = OpenAiResponse::Kind::kChat;
  std::vector<TokenId> prompt;
  uint32_t stable_tokens = 0;
  AnswerOptions options;
  ChatOptions chat;
  uint64_t session_id = 0;
  std::string echo;
  // Once, on the HTTP request's thread, when the answer is whole or was given up; before the last
  // of it is sent. `choice` may be empty; the status says how it ended.
  std::function<void(const OpenAiResponse::Choice& choice, const RequestReport& report,
                     const absl::Status& status)>
      finished;
};

// Submits the job and answers with what comes of it, whole or as a stream. A client that goes away
// cancels it. False: it was refused, and `finished` will not be called.
bool RunAnswer(ApiCall* call, AnswerJob job);

}  // namespace reprise::server
