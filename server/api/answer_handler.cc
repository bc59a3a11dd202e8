#include "server/api/answer_handler.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "protocol/base/prng.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr Nanos kBeat = kSecond;                 // A waiting client hears from us this often.
constexpr Nanos kBreath = 10 * kMillisecond;     // Between two pieces of a stream at least.
constexpr Nanos kPatience = 200 * kMillisecond;  // Between two looks at whether it is still there.

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Different every time.
uint64_t NewNumber(const Clock& clock) {
  static std::atomic<uint64_t> count = 0;
  return Prng(static_cast<uint64_t>(clock.WallMillis()) * 1'000'003 + ++count).Next();
}

std::string NewId(OpenAiResponse::Kind kind, const Clock& clock) {
  return (kind == OpenAiResponse::Kind::kChat ? "chatcmpl-" : "cmpl-") +
         ToHex(AsBytes(NewNumber(clock)));
}

// One answer on its way to its client. The provider of httplib's calls Write until it says that it
// is done; Close is called once, however it ended.
class AnswerRun {
 public:
  AnswerRun(std::shared_ptr<Backend> backend, AnswerJob job, std::shared_ptr<AnswerStream> stream,
            uint64_t request_id, std::string id)
      : backend_(std::move(backend)),
        job_(std::move(job)),
        stream_(std::move(stream)),
        request_id_(request_id),
        response_(job_.kind, std::move(id), backend_->clock().WallMillis() / 1000,
                  backend_->model_name(), job_.options) {
    response_.SetEcho(job_.echo);
    unfinished_ = job_.options.choices;
  }
  ~AnswerRun() { Close(); }

  // Waits for all of the answer for a while; false: it takes longer.
  bool WaitWhole(Nanos limit_ns) {
    const Instant until = backend_->clock().Now() + limit_ns;
    while (!stream_->done()) {
      const Nanos left = until - backend_->clock().Now();
      if (left <= 0) return false;
      AddAll(stream_->Take(left, 0));
    }
    return true;
  }
  absl::Status status() const { return stream_->status(); }
  Json Whole() {
    Finish();
    return response_.Whole(stream_->report());
  }

  // An answer in one piece that takes longer than a moment: JSON may begin with blanks.
  bool WriteWhole(httplib::DataSink* sink) {
    while (!stream_->done()) {
      AddAll(stream_->Take(kPatience, 0));
      if (!stream_->done() && !Beat(sink, " ")) return false;
    }
    const absl::Status failed = status();
    Finish();
    const std::string body =
        failed.ok() ? Dump(response_.Whole(stream_->report())) + "\n" : ApiError::Of(failed).Body();
    sink->write(body.data(), body.size());
    sink->done();
    return true;
  }

  // Server-sent events.
  bool WriteEvents(httplib::DataSink* sink) {
    if (!begun_) {
      begun_ = true;
      for (const Json& chunk : response_.FirstChunks()) {
        if (!Send(sink, chunk)) return false;
      }
      for (uint32_t i = 0; !job_.echo.empty() && i < job_.options.choices; ++i) {
        AnswerEvent echo{.choice = i, .delta = {.content = job_.echo}};
        for (const Json& chunk : response_.Chunks(echo)) {
          if (!Send(sink, chunk)) return false;
        }
      }
    }
    if (stream_->done()) {
      WriteEnd(sink);
      return true;
    }
    const Nanos since = backend_->clock().Now() - written_at_;
    const std::vector<AnswerEvent> events =
        stream_->Take(std::max<Nanos>(0, kBreath - since), kPatience);
    if (events.empty()) return stream_->done() || Beat(sink, ": waiting\n\n");
    std::string out;
    for (const AnswerEvent& event : events) {
      const bool last = !event.finish_reason.empty() && --unfinished_ == 0;
      for (const Json& chunk : response_.Chunks(event)) {
        if (last) {
          last_chunk_ = chunk;  // Goes out with what the request cost.
        } else {
          out += "data: " + Dump(chunk) + "\n\n";
        }
      }
    }
    written_at_ = backend_->clock().Now();
    return out.empty() || Write(sink, out);
  }

  // Whatever is still running is cancelled.
  void Close() {
    if (finished_) return;
    backend_->scheduler().Cancel(request_id_);
    while (!stream_->done()) {
      AddAll(stream_->Take(kPatience, 0));
    }
    Finish();
  }

 private:
  void AddAll(const std::vector<AnswerEvent>& events) {
    for (const AnswerEvent& event : events) response_.Add(event);
  }

  void Finish() {
    if (finished_) return;
    finished_ = true;
    if (job_.finished) job_.finished(response_.choices().front(), stream_->report(), status());
  }

  void WriteEnd(httplib::DataSink* sink) {
    const absl::Status failed = status();
    Finish();
    if (!failed.ok()) {
      std::string error = ApiError::Of(failed).Body();
      error.pop_back();  // Its newline.
      Write(sink, "data: " + error + "\n\n");
    } else {
      last_chunk_["reprise"] = ReportJson(stream_->report());
      Send(sink, last_chunk_);
      if (job_.options.stream_usage) Send(sink, response_.UsageChunk(stream_->report()));
      Write(sink, "data: [DONE]\n\n");
    }
    sink->done();
  }

  static bool Write(httplib::DataSink* sink, const std::string& text) {
    return sink->is_writable() && sink->write(text.data(), text.size());
  }
  static bool Send(httplib::DataSink* sink, const Json& chunk) {
    return Write(sink, "data: " + Dump(chunk) + "\n\n");
  }
  // False: the client is gone.
  bool Beat(httplib::DataSink* sink, const std::string& text) {
    if (!sink->is_writable()) return false;
    const Instant now = backend_->clock().Now();
    if (now < next_beat_) return true;
    next_beat_ = now + kBeat;
    return Write(sink, text);
  }

  std::shared_ptr<Backend> backend_;
  AnswerJob job_;
  std::shared_ptr<AnswerStream> stream_;
  uint64_t request_id_;
  OpenAiResponse response_;
  uint32_t unfinished_ = 0;
  Json last_chunk_ = Json::object();
  bool begun_ = false;
  bool finished_ = false;
  Instant next_beat_ = 0;
  Instant written_at_ = 0;
};

std::shared_ptr<GenerationRequest> RequestFor(const Backend& backend, const AnswerJob& job) {
  auto request = std::make_shared<GenerationRequest>();
  const AnswerOptions& options = job.options;
  const uint64_t positions = backend.config().max_positions;
  const uint64_t left = positions - std::min<uint64_t>(positions, job.prompt.size());
  request->prompt = job.prompt;
  request->stable_tokens = job.stable_tokens;
  request->options.tokens_max = options.tokens_max.value_or(static_cast<uint32_t>(
      std::max<uint64_t>(1, std::min<uint64_t>(left, backend.options().tokens_max_default))));
  request->options.stop_tokens = job.kind == OpenAiResponse::Kind::kChat
                                     ? backend.format().stop_tokens()
                                     : std::vector<TokenId>{backend.config().eos_token};
  request->options.sampling = options.sampling;
  if (!options.seeded) request->options.sampling.seed = NewNumber(backend.clock());
  request->choices = options.choices;
  request->options.draft = options.draft;
  request->options.give_logits = options.logprobs;
  request->exact = options.exact;
  request->read_cache = options.read_cache;
  request->write_cache = options.write_cache;
  request->session_id = job.session_id;
  return request;
}

}  // namespace

bool RunAnswer(ApiCall* call, AnswerJob job) {
  Backend& backend = *call->backend;
  const auto name_space = backend.NamespaceOf(call->tenant);
  if (!name_space.ok()) {
    call->Refuse(name_space.status());
    return false;
  }
  const bool chat = job.kind == OpenAiResponse::Kind::kChat;
  const std::shared_ptr<GenerationRequest> request = RequestFor(backend, job);
  request->name_space = *name_space;
  const auto stream = std::make_shared<AnswerStream>(
      backend.model().tokenizer.get(), chat ? &backend.format() : nullptr, job.options, job.chat);
  const auto id = backend.scheduler().Submit(request, stream);
  if (!id.ok()) {
    call->Refuse(id.status());
    return false;
  }
  const bool events = job.options.stream;
  const std::string name = NewId(job.kind, backend.clock());
  const auto run = std::make_shared<AnswerRun>(call->backend, std::move(job), stream, *id, name);
  if (events) {
    call->response.set_header("Cache-Control", "no-cache");
    call->response.set_header("X-Accel-Buffering", "no");
    call->response.set_chunked_content_provider(
        "text/event-stream",
        [run](size_t, httplib::DataSink& sink) { return run->WriteEvents(&sink); },
        [run](bool) { run->Close(); });
    return true;
  }
  if (run->WaitWhole(kBeat)) {
    const absl::Status status = run->status();
    if (status.ok()) {
      call->Answer(run->Whole());
    } else {
      run->Close();
      call->Refuse(status);
    }
    return true;
  }
  call->response.set_chunked_content_provider(
      "application/json", [run](size_t, httplib::DataSink& sink) { return run->WriteWhole(&sink); },
      [run](bool) { run->Close(); });
  return true;
}

void HandleCompletion(ApiCall* call) {
  Json json;
  CompletionRequest parsed;
  if (!call->ReadJson(&json)) return;
  if (const auto problem = ParseCompletion(json, &parsed)) return call->Refuse(*problem);
  if (!call->CheckModel(parsed.model)) return;
  AnswerJob job{.kind = OpenAiResponse::Kind::kCompletion, .options = parsed.options};
  const engine::Tokenizer& tokenizer = *call->backend->model().tokenizer;
  if (parsed.tokens.empty()) {
    job.prompt = tokenizer.Encode(parsed.prompt, true);
    const TokenId begin = call->backend->config().bos_token;
    if (job.prompt.empty() || job.prompt.front() != begin) {
      job.prompt.insert(job.prompt.begin(), begin);
    }
  } else {
    job.prompt = parsed.tokens;
  }
  if (parsed.echo) {
    job.echo = parsed.tokens.empty() ? parsed.prompt : tokenizer.Decode(parsed.tokens, false);
  }
  RunAnswer(call, std::move(job));
}

void HandleChat(ApiCall* call) {
  Json json;
  ChatRequest parsed;
  if (!call->ReadJson(&json)) return;
  if (const auto problem = ParseChat(json, &parsed)) return call->Refuse(*problem);
  if (!call->CheckModel(parsed.model)) return;
  auto prompt = call->backend->format().Encode(parsed.messages, parsed.chat);
  if (!prompt.ok()) return call->Refuse(prompt.status());
  RunAnswer(call, {.kind = OpenAiResponse::Kind::kChat,
                   .prompt = std::move(prompt->tokens),
                   .stable_tokens = prompt->stable_tokens,
                   .options = parsed.options,
                   .chat = parsed.chat});
}

}  // namespace reprise::server
