#include "server/api/openai_response.h"

#include <cmath>
#include <utility>

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

// Bytes of a token as JSON text: what is not UTF-8 on its own becomes U+FFFD.
std::string Shown(const std::string& bytes) {
  Utf8Stream stream;
  std::string text = stream.Add(bytes);
  return text + stream.Finish();
}

Json ByteList(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

Json ChanceJson(const TokenChance& chance) {
  return {{"token", Shown(chance.bytes)},
          {"logprob", chance.logprob},
          {"bytes", ByteList(chance.bytes)}};
}

double Milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

}  // namespace

Json UsageJson(const RequestReport& report) {
  return {{"prompt_tokens", report.prompt_tokens},
          {"completion_tokens", report.output_tokens},
          {"total_tokens", report.prompt_tokens + report.output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", report.hit_tokens}}}};
}

Json ReportJson(const RequestReport& report) {
  return {{"hit_tokens", report.hit_tokens},
          {"hit_blocks_by_tier",
           {{"hbm", report.hbm_blocks}, {"dram", report.dram_blocks}, {"ssd", report.ssd_blocks}}},
          {"window", WindowSourceName(report.window)},
          {"exactness", report.exact ? "exact" : "replayed"},
          {"replayed_tokens", report.replayed_tokens},
          {"computed_tokens", report.computed_tokens},
          {"drafted_tokens", report.drafted},
          {"accepted_tokens", report.accepted},
          {"loaded_bytes", report.loaded_bytes},
          {"stored_bytes", report.stored_bytes},
          {"queue_ms", Milliseconds(report.queue_seconds)},
          {"load_ms", Milliseconds(report.load_seconds)},
          {"prefill_ms", Milliseconds(report.prefill_seconds)},
          {"total_ms", Milliseconds(report.total_seconds)},
          {"saved_ms", Milliseconds(report.saved_seconds)}};
}

OpenAiResponse::OpenAiResponse(Kind kind, std::string id, int64_t created_s, std::string model,
                               const AnswerOptions& options)
    : kind_(kind),
      id_(std::move(id)),
      created_s_(created_s),
      model_(std::move(model)),
      options_(options),
      choices_(options.choices) {}

Json OpenAiResponse::Head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_s_}, {"model", model_}};
}

Json OpenAiResponse::Logprobs(const std::vector<TokenLogprobs>& logprobs,
                              size_t text_offset) const {
  if (!options_.logprobs) return nullptr;
  if (kind_ == Kind::kChat) {
    Json content = Json::array();
    for (const TokenLogprobs& token : logprobs) {
      Json entry = ChanceJson(token.chosen);
      entry["top_logprobs"] = Json::array();
      for (const TokenChance& top : token.top) entry["top_logprobs"].push_back(ChanceJson(top));
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}};
  }
  Json out = {{"tokens", Json::array()},
              {"token_logprobs", Json::array()},
              {"top_logprobs", Json::array()},
              {"text_offset", Json::array()}};
  for (const TokenLogprobs& token : logprobs) {
    const std::string text = Shown(token.chosen.bytes);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(token.chosen.logprob);
    Json top = Json::object();
    for (const TokenChance& chance : token.top) top[Shown(chance.bytes)] = chance.logprob;
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(text_offset);
    text_offset += text.size();
  }
  return out;
}

Json OpenAiResponse::CallJson(const ToolCall& call, size_t index, bool with_index) const {
  Json json = Json::object();
  if (with_index) json["index"] = index;
  json["id"] = id_ + "-" + call.id;
  json["type"] = "function";
  json["function"] = {{"name", call.name}, {"arguments", call.arguments.dump()}};
  return json;
}

// ---- A stream ----------------------------------------------------------------------------------

std::vector<Json> OpenAiResponse::FirstChunks() const {
  std::vector<Json> chunks;
  if (kind_ != Kind::kChat) return chunks;
  for (uint32_t i = 0; i < options_.choices; ++i) {
    Json chunk = Head("chat.completion.chunk");
    chunk["choices"] = Json::array({{{"index", i},
                                     {"delta", {{"role", "assistant"}, {"content", ""}}},
                                     {"logprobs", nullptr},
                                     {"finish_reason", nullptr}}});
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

std::vector<Json> OpenAiResponse::Chunks(const AnswerEvent& event) {
  const size_t calls_before = choices_[event.choice].calls.size();
  const size_t text_before = choices_[event.choice].content.size();
  Add(event);
  if (event.delta.empty() && event.finish_reason.empty() && event.logprobs.empty()) return {};
  Json choice = {{"index", event.choice}};
  if (kind_ == Kind::kChat) {
    Json delta = Json::object();
    if (!event.delta.reasoning.empty()) delta["reasoning_content"] = event.delta.reasoning;
    if (!event.delta.content.empty()) delta["content"] = event.delta.content;
    for (size_t i = 0; i < event.delta.calls.size(); ++i) {
      delta["tool_calls"].push_back(CallJson(event.delta.calls[i], calls_before + i, true));
    }
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = event.delta.content;
  }
  choice["logprobs"] =
      event.logprobs.empty() ? Json(nullptr) : Logprobs(event.logprobs, text_before);
  choice["finish_reason"] = event.finish_reason.empty() ? Json(nullptr) : Json(event.finish_reason);
  Json chunk = Head(kind_ == Kind::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(choice)});
  return {std::move(chunk)};
}

Json OpenAiResponse::UsageChunk(const RequestReport& report) const {
  Json chunk = Head(kind_ == Kind::kChat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array();
  chunk["usage"] = UsageJson(report);
  return chunk;
}

// ---- All at once -------------------------------------------------------------------------------

void OpenAiResponse::Add(const AnswerEvent& event) {
  Choice& choice = choices_[event.choice];
  choice.content += event.delta.content;
  choice.reasoning += event.delta.reasoning;
  for (const ToolCall& call : event.delta.calls) {
    choice.calls.push_back(call);
    choice.calls.back().id = id_ + "-" + call.id;
  }
  choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  choice.logprobs.insert(choice.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  if (!event.finish_reason.empty()) choice.finish_reason = event.finish_reason;
}

Json OpenAiResponse::Whole(const RequestReport& report) const {
  Json whole = Head(kind_ == Kind::kChat ? "chat.completion" : "text_completion");
  whole["choices"] = Json::array();
  for (uint32_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Json json = {{"index", i}};
    if (kind_ == Kind::kChat) {
      Json message = {{"role", "assistant"}, {"content", choice.content}};
      if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
      if (!choice.calls.empty()) {
        if (choice.content.empty()) message["content"] = nullptr;
        for (const ToolCall& call : choice.calls) {
          Json item = {{"id", call.id},
                       {"type", "function"},
                       {"function", {{"name", call.name}, {"arguments", call.arguments.dump()}}}};
          message["tool_calls"].push_back(std::move(item));
        }
      }
      json["message"] = std::move(message);
    } else {
      json["text"] = echo_ + choice.content;
    }
    json["logprobs"] = Logprobs(choice.logprobs, echo_.size());
    json["finish_reason"] = choice.finish_reason;
    whole["choices"].push_back(std::move(json));
  }
  whole["usage"] = UsageJson(report);
  whole["reprise"] = ReportJson(report);
  return whole;
}

}  // namespace reprise::server
