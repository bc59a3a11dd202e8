#include "server/api/openai_request.h"

#include <cmath>
#include <limits>
#include <utility>

#include "server/serving/request.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;
using Problem = std::optional<ApiError>;

constexpr uint32_t kTopLogprobsMax = 20;
constexpr size_t kStopsMax = 16;

ApiError Bad(const std::string& param, const std::string& what) {
  return {.message = param + " " + what, .param = param};
}

// Null and absent are the same: the default.
const Json* Given(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

Problem ReadBool(const Json& json, const char* key, bool* out) {
  const Json* value = Given(json, key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) return Bad(key, "must be true or false");
  *out = value->get<bool>();
  return {};
}

Problem ReadCount(const Json& json, const char* key, uint32_t min, uint32_t max, uint32_t* out) {
  const Json* value = Given(json, key);
  if (value == nullptr) return {};
  const bool integer = value->is_number_integer() && value->is_number();
  const bool fits = integer && (value->is_number_unsigned() || value->get<int64_t>() >= 0) &&
                    value->get<uint64_t>() >= min && value->get<uint64_t>() <= max;
  if (!fits) {
    return Bad(key,
               "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  *out = value->get<uint32_t>();
  return {};
}

Problem ReadNumber(const Json& json, const char* key, double min, double max, double* out) {
  const Json* value = Given(json, key);
  if (value == nullptr) return {};
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    return Bad(key, "must be a number from " + Json(min).dump() + " to " + Json(max).dump());
  }
  *out = value->get<double>();
  return {};
}

Problem ReadText(const Json& json, const char* key, std::string* out) {
  const Json* value = Given(json, key);
  if (value == nullptr) return {};
  if (!value->is_string()) return Bad(key, "must be a string");
  *out = value->get<std::string>();
  return {};
}

Problem ReadModel(const Json& json, std::string* model) {
  if (Given(json, "model") == nullptr) return Bad("model", "is missing; /v1/models lists them");
  return ReadText(json, "model", model);
}

// Parameters of the API that this engine does not have.
Problem RefuseUnsupported(const Json& json) {
  for (const char* key : {"presence_penalty", "frequency_penalty"}) {
    double value = 0;
    if (auto problem = ReadNumber(json, key, -2, 2, &value)) return problem;
    if (value != 0) return Bad(key, "is not supported; leave it out or 0");
  }
  if (const Json* bias = Given(json, "logit_bias"); bias != nullptr && !bias->empty()) {
    return Bad("logit_bias", "is not supported");
  }
  if (const Json* format = Given(json, "response_format"); format != nullptr) {
    if (!format->is_object() || format->value("type", "") != "text") {
      return Bad("response_format", "can only be {\"type\": \"text\"}");
    }
  }
  uint32_t best_of = 1;
  if (auto problem = ReadCount(json, "best_of", 1, 1, &best_of)) return problem;
  if (const Json* suffix = Given(json, "suffix"); suffix != nullptr && *suffix != "") {
    return Bad("suffix", "is not supported");
  }
  return {};
}

Problem ReadStops(const Json& json, std::vector<std::string>* stops) {
  const Json* value = Given(json, "stop");
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kStopsMax) {
    return Bad("stop", "has more than " + std::to_string(kStopsMax) + " strings");
  }
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      return Bad("stop", "must be a string, or an array of strings, none of them empty");
    }
    stops->push_back(stop.get<std::string>());
  }
  return {};
}

Problem ReadExtension(const Json& json, AnswerOptions* options) {
  const Json* extension = Given(json, "reprise");
  if (extension == nullptr) return {};
  if (!extension->is_object()) return Bad("reprise", "must be an object");
  for (const auto& [key, value] : extension->items()) {
    bool* flag = key == "exact"         ? &options->exact
                 : key == "read_cache"  ? &options->read_cache
                 : key == "write_cache" ? &options->write_cache
                 : key == "draft"       ? &options->draft
                                        : nullptr;
    if (flag == nullptr) {
      return Bad("reprise." + key,
                 "is unknown; there are exact, read_cache, write_cache and draft");
    }
    if (!value.is_boolean()) return Bad("reprise." + key, "must be true or false");
    *flag = value.get<bool>();
  }
  return {};
}

Problem ReadStream(const Json& json, AnswerOptions* options) {
  if (auto problem = ReadBool(json, "stream", &options->stream)) return problem;
  const Json* stream_options = Given(json, "stream_options");
  if (stream_options == nullptr) return {};
  if (!stream_options->is_object()) return Bad("stream_options", "must be an object");
  return ReadBool(*stream_options, "include_usage", &options->stream_usage);
}

Problem ReadSampling(const Json& json, AnswerOptions* options) {
  engine::SamplingOptions* sampling = &options->sampling;
  sampling->temperature = 1;
  if (auto problem = ReadNumber(json, "temperature", 0, 2, &sampling->temperature)) return problem;
  if (auto problem = ReadNumber(json, "top_p", 0, 1, &sampling->top_p)) return problem;
  if (sampling->top_p == 0) *sampling = {};  // The likeliest token alone.
  if (const Json* seed = Given(json, "seed"); seed != nullptr) {
    if (!seed->is_number_integer()) return Bad("seed", "must be a whole number");
    sampling->seed = static_cast<uint64_t>(seed->get<int64_t>());
    options->seeded = true;
  }
  return {};
}

Problem ReadOptions(const Json& json, AnswerOptions* options) {
  if (auto problem = RefuseUnsupported(json)) return problem;
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (Given(json, key) == nullptr) continue;
    uint32_t tokens = 0;
    if (auto problem = ReadCount(json, key, 1, std::numeric_limits<int32_t>::max(), &tokens)) {
      return problem;
    }
    options->tokens_max = tokens;
  }
  if (auto problem = ReadSampling(json, options)) return problem;
  if (auto problem = ReadStops(json, &options->stops)) return problem;
  if (auto problem = ReadCount(json, "n", 1, kChoicesMax, &options->choices)) return problem;
  if (auto problem = ReadStream(json, options)) return problem;
  return ReadExtension(json, options);
}

// Text, or an array of text parts.
Problem ReadContent(const Json& value, const std::string& where, std::string* out) {
  if (value.is_null()) return {};
  if (value.is_string()) {
    *out = value.get<std::string>();
    return {};
  }
  if (!value.is_array()) return Bad(where, "must be a string or an array of text parts");
  for (const Json& part : value) {
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      return Bad(where, "may have parts of type text alone: this engine serves text");
    }
    *out += part["text"].get<std::string>();
  }
  return {};
}

Problem ReadCalls(const Json& value, const std::string& where, std::vector<ToolCall>* calls) {
  if (!value.is_array()) return Bad(where, "must be an array");
  for (const Json& item : value) {
    const Json* function = item.is_object() ? Given(item, "function") : nullptr;
    if (function == nullptr || !function->is_object() || Given(*function, "name") == nullptr ||
        !(*function)["name"].is_string()) {
      return Bad(where, "must hold calls with a function that has a name");
    }
    ToolCall call{.id = {}, .name = (*function)["name"].get<std::string>()};
    if (const Json* id = Given(item, "id"); id != nullptr && id->is_string()) {
      call.id = id->get<std::string>();
    }
    if (const Json* arguments = Given(*function, "arguments"); arguments != nullptr) {
      const Json parsed = arguments->is_string()
                              ? Json::parse(arguments->get<std::string>(), nullptr, false)
                              : *arguments;
      if (!parsed.is_object()) return Bad(where, "has arguments that are no JSON object");
      call.arguments = parsed;
    }
    calls->push_back(std::move(call));
  }
  return {};
}

Problem ReadMessage(const Json& json, const std::string& where, ChatMessage* message) {
  if (!json.is_object()) return Bad(where, "must be an object");
  if (Given(json, "role") == nullptr) return Bad(where + ".role", "is missing");
  if (!json["role"].is_string()) return Bad(where + ".role", "must be a string");
  message->role = json["role"].get<std::string>();
  if (message->role == "developer") message->role = "system";
  const bool known = message->role == "system" || message->role == "user" ||
                     message->role == "assistant" || message->role == "tool";
  if (!known) return Bad(where + ".role", "must be system, user, assistant or tool");
  if (json.contains("content")) {
    if (auto problem = ReadContent(json["content"], where + ".content", &message->content)) {
      return problem;
    }
  }
  for (const char* key : {"reasoning_content", "reasoning"}) {
    if (const Json* value = Given(json, key); value != nullptr && value->is_string()) {
      message->reasoning = value->get<std::string>();
    }
  }
  if (const Json* id = Given(json, "tool_call_id"); id != nullptr && id->is_string()) {
    message->call_id = id->get<std::string>();
  }
  if (const Json* calls = Given(json, "tool_calls"); calls != nullptr) {
    if (auto problem = ReadCalls(*calls, where + ".tool_calls", &message->calls)) return problem;
  }
  if (const Json* ids = Given(json, "ids"); ids != nullptr && ids->is_array()) {
    for (const Json& id : *ids) {
      if (!id.is_number_integer()) return Bad(where + ".ids", "must be token ids");
      message->ids.push_back(id.get<TokenId>());
    }
    message->thought = json.value("thought", false);
  }
  return {};
}

// reasoning_effort as OpenAI and DeepSeek name it, or a number; thinking on its own, as vLLM and
// DeepSeek spell it.
Problem ReadThinking(const Json& json, ChatOptions* chat, bool* given) {
  if (const Json* effort = Given(json, "reasoning_effort"); effort != nullptr) {
    const std::pair<const char*, uint32_t> names[] = {
        {"none", 0}, {"minimal", 25}, {"low", 50}, {"medium", 60}, {"high", 75}, {"max", 100}};
    bool known = effort->is_number_unsigned() && effort->get<uint64_t>() <= 100;
    if (known) chat->effort = effort->get<uint32_t>();
    for (const auto& [name, value] : names) {
      if (*effort != name) continue;
      known = true;
      chat->effort = value;
    }
    if (!known) {
      return Bad("reasoning_effort", "must be none, minimal, low, medium, high, max or 0 to 100");
    }
    chat->thinking = chat->effort > 0;
    *given = true;
  }
  const Json* places[] = {&json, Given(json, "chat_template_kwargs")};
  for (const Json* place : places) {
    if (place == nullptr || !place->is_object()) continue;
    for (const char* key : {"thinking", "enable_thinking"}) {
      const Json* value = Given(*place, key);
      if (value == nullptr) continue;
      *given = true;
      if (value->is_object()) {  // {"type": "enabled"}
        chat->thinking = value->value("type", "") == "enabled";
      } else if (auto problem = ReadBool(*place, key, &chat->thinking)) {
        return problem;
      }
    }
  }
  return {};
}

Problem ReadChatOptions(const Json& json, ChatOptions* chat, bool* given) {
  if (auto problem = ReadThinking(json, chat, given)) return problem;
  if (const Json* tools = Given(json, "tools"); tools != nullptr) {
    *given = true;
    if (auto problem = ParseTools(*tools, &chat->tools)) return problem;
  }
  if (const Json* choice = Given(json, "tool_choice"); choice != nullptr) {
    if (*choice == "none") {
      chat->tools.clear();
    } else if (*choice != "auto") {
      return Bad("tool_choice", "can only be auto or none");
    }
  }
  return {};
}

Problem ReadChatLogprobs(const Json& json, AnswerOptions* options) {
  if (auto problem = ReadBool(json, "logprobs", &options->logprobs)) return problem;
  if (auto problem = ReadCount(json, "top_logprobs", 0, kTopLogprobsMax, &options->top_logprobs)) {
    return problem;
  }
  if (options->top_logprobs > 0 && !options->logprobs) {
    return Bad("top_logprobs", "needs logprobs to be true");
  }
  return {};
}

}  // namespace

Problem ParseJson(const std::string& body, Json* json) {
  *json = Json::parse(body, nullptr, false);
  if (json->is_discarded()) {
    return ApiError{.message = "the body is not JSON in UTF-8"};
  }
  if (!json->is_object()) return ApiError{.message = "the body must be a JSON object"};
  return {};
}

Problem ParseTools(const Json& json, std::vector<ChatTool>* out) {
  if (!json.is_array()) return Bad("tools", "must be an array");
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string where = "tools[" + std::to_string(i) + "]";
    const Json* function = json[i].is_object() ? Given(json[i], "function") : nullptr;
    if (function == nullptr || !function->is_object() || Given(*function, "name") == nullptr ||
        !(*function)["name"].is_string()) {
      return Bad(where, "must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    ChatTool tool{.name = (*function)["name"].get<std::string>(), .schema = function->dump()};
    if (const Json* parameters = Given(*function, "parameters"); parameters != nullptr) {
      if (!parameters->is_object()) return Bad(where + ".parameters", "must be an object");
      if (const Json* properties = Given(*parameters, "properties");
          properties != nullptr && properties->is_object()) {
        for (const auto& [name, schema] : properties->items()) tool.arguments.push_back(name);
      }
    }
    out->push_back(std::move(tool));
  }
  return {};
}

Problem ParseMessages(const Json& json, std::vector<ChatMessage>* out) {
  if (!json.is_array() || json.empty()) {
    return Bad("messages", "must be an array of at least one message");
  }
  for (size_t i = 0; i < json.size(); ++i) {
    out->emplace_back();
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (auto problem = ReadMessage(json[i], where, &out->back())) return problem;
  }
  return {};
}

Problem ParseCompletion(const Json& json, CompletionRequest* out) {
  if (auto problem = ReadModel(json, &out->model)) return problem;
  if (auto problem = ReadOptions(json, &out->options)) return problem;
  if (auto problem = ReadBool(json, "echo", &out->echo)) return problem;
  if (const Json* logprobs = Given(json, "logprobs"); logprobs != nullptr) {
    out->options.logprobs = true;
    if (auto problem =
            ReadCount(json, "logprobs", 0, kTopLogprobsMax, &out->options.top_logprobs)) {
      return problem;
    }
  }
  const Json* prompt = Given(json, "prompt");
  if (prompt == nullptr) return Bad("prompt", "is missing");
  const Json* one = prompt;
  const bool nested =
      prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number_integer();
  if (nested) one = &prompt->front();
  if (one->is_string()) {
    out->prompt = one->get<std::string>();
    return {};
  }
  if (!one->is_array()) return Bad("prompt", "must be a string or an array of token ids");
  for (const Json& id : *one) {
    const bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 &&
                      id.get<int64_t>() <= std::numeric_limits<TokenId>::max();
    if (!fits) {
      return Bad("prompt",
                 "must be one string or one array of token ids; send several prompts as "
                 "several requests");
    }
    out->tokens.push_back(id.get<TokenId>());
  }
  return {};
}

Problem ParseChat(const Json& json, ChatRequest* out) {
  if (auto problem = ReadModel(json, &out->model)) return problem;
  if (auto problem = ReadOptions(json, &out->options)) return problem;
  if (auto problem = ReadChatLogprobs(json, &out->options)) return problem;
  bool given = false;
  if (auto problem = ReadChatOptions(json, &out->chat, &given)) return problem;
  if (Given(json, "messages") == nullptr) return Bad("messages", "is missing");
  return ParseMessages(json["messages"], &out->messages);
}

Problem ParseSend(const Json& json, SendRequest* out) {
  if (auto problem = ReadOptions(json, &out->options)) return problem;
  if (auto problem = ReadChatLogprobs(json, &out->options)) return problem;
  if (out->options.choices != 1) return Bad("n", "can only be 1 in a session; fork it instead");
  if (auto problem = ReadChatOptions(json, &out->chat, &out->chat_given)) return problem;
  if (const Json* content = Given(json, "content"); content != nullptr) {
    out->messages.push_back({.role = "user"});
    return ReadContent(*content, "content", &out->messages.back().content);
  }
  if (Given(json, "messages") == nullptr) return Bad("content", "is missing");
  return ParseMessages(json["messages"], &out->messages);
}

Json MessageJson(const ChatMessage& message) {
  Json json = {{"role", message.role}, {"content", message.content}};
  if (!message.reasoning.empty()) json["reasoning_content"] = message.reasoning;
  for (const ToolCall& call : message.calls) {
    json["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments.dump()}}}});
  }
  if (!message.call_id.empty()) json["tool_call_id"] = message.call_id;
  if (!message.ids.empty()) {
    json["ids"] = message.ids;
    json["thought"] = message.thought;
  }
  return json;
}

}  // namespace reprise::server
