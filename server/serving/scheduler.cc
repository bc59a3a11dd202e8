#include "server/serving/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "gpu/engine/sampler.h"
#include "server/log.h"

namespace reprise::server {
namespace {

constexpr Nanos kIdleWait = 100 * kMillisecond;
constexpr Nanos kCopyWait = 20 * kMicrosecond;  // While blocks are copied and nothing else is due.
constexpr size_t kShadowTokensMax = 32;         // Of an answer that are compared.
constexpr size_t kShadowsWaitingMax = 4;

}  // namespace

// ---- Shadow requests ---------------------------------------------------------------------------

// The beginning of an answer with what it was chosen from, to be compared with an exact run.
struct Scheduler::Shadow {
  std::shared_ptr<const GenerationRequest> request;
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;
};

// Hands events on, and keeps what a comparison needs; or, in the exact run, compares.
class Scheduler::ShadowEvents final : public RequestEvents {
 public:
  // Of the request that somebody made: `hand_on` is theirs.
  ShadowEvents(Scheduler* scheduler, std::shared_ptr<RequestEvents> hand_on,
               std::shared_ptr<Shadow> shadow)
      : scheduler_(*scheduler), hand_on_(std::move(hand_on)), shadow_(std::move(shadow)) {}
  // Of the exact run.
  ShadowEvents(Scheduler* scheduler, std::shared_ptr<Shadow> shadow)
      : scheduler_(*scheduler), shadow_(std::move(shadow)) {}

  void OnPrompt(const RequestReport& report) override {
    if (hand_on_ != nullptr) hand_on_->OnPrompt(report);
  }
  bool OnToken(uint32_t choice, TokenId token, std::span<const float> logits) override {
    if (hand_on_ == nullptr) {
      Compare(logits);
      return true;
    }
    if (choice == 0 && shadow_->tokens.size() < kShadowTokensMax) {
      shadow_->tokens.push_back(token);
      shadow_->logits.emplace_back(logits.begin(), logits.end());
    }
    return hand_on_->OnToken(choice, token, logits);
  }
  void OnChoiceDone(uint32_t choice, FinishReason reason) override {
    if (hand_on_ != nullptr) hand_on_->OnChoiceDone(choice, reason);
  }
  void OnDone(const RequestReport& report, const absl::Status& status) override {
    if (hand_on_ == nullptr) {
      scheduler_.shadow_running_ = false;
      scheduler_.context_.counters.shadow_requests += status.ok() ? 1 : 0;
      return;
    }
    const bool compare = status.ok() && report.window == WindowSource::kReplayed &&
                         scheduler_.shadows_.size() < kShadowsWaitingMax;
    if (compare) scheduler_.shadows_.push_back(shadow_);
    hand_on_->OnDone(report, status);
  }

 private:
  void Compare(std::span<const float> exact) {
    if (compared_ == shadow_->logits.size()) return;
    const std::vector<float>& replayed = shadow_->logits[compared_++];
    ServingCounters& counters = scheduler_.context_.counters;
    ++counters.shadow_tokens;
    counters.shadow_kl_nats += engine::KlNats(exact, replayed);
    if (engine::LikeliestToken(exact) == engine::LikeliestToken(replayed)) ++counters.shadow_agreed;
  }

  Scheduler& scheduler_;
  std::shared_ptr<RequestEvents> hand_on_;
  std::shared_ptr<Shadow> shadow_;
  size_t compared_ = 0;
};

// When nobody waits, one at a time: the same tokens after the same prompt, with exact windows.
void Scheduler::RunShadow() {
  if (shadows_.empty() || shadow_running_ || !active_.empty() || !waiting_.empty() || stopping_) {
    return;
  }
  const std::shared_ptr<Shadow> shadow = shadows_.front();
  shadows_.pop_front();
  auto request = std::make_shared<GenerationRequest>(*shadow->request);
  request->exact = true;
  request->write_cache = false;
  request->choices = 1;
  request->options.forced = shadow->tokens;
  request->options.tokens_max = static_cast<uint32_t>(shadow->tokens.size());
  request->options.stop_tokens.clear();
  request->options.give_logits = true;
  shadow_running_ = true;
  waiting_.push_back({next_id_++, std::make_unique<ActiveRequest>(
                                      &context_, std::move(request),
                                      std::make_shared<ShadowEvents>(this, shadow), clock_.Now())});
  ++waiting_count_;
}

// ---- Requests in -------------------------------------------------------------------------------

Scheduler::Scheduler(engine::Engine* engine, std::unique_ptr<HbmTier> tier, Shard* entry,
                     const Clock* clock, const Options& options)
    : engine_(*engine),
      clock_(*clock),
      options_(options),
      store_(entry, &queue_),
      context_(engine, &store_, clock, entry->facts().record_bytes,
               static_cast<uint32_t>(options.memory_bytes / entry->facts().record_bytes),
               std::move(tier)),
      runner_(engine, clock, {.prefill_rows_beside = options.prefill_rows_beside}) {
  context_.gate_loads = options.gate_loads;
  context_.durable = options.durable;
  if (options.lend.slots_max > 0) {
    leases_ = std::make_unique<SlotLeases>(&context_, &queue_, options.lend);
  }
  PublishState();
  thread_ = std::thread([this] { Run(); });
}

Scheduler::~Scheduler() { Join(); }

absl::Status Scheduler::Check(const GenerationRequest& request) const {
  const engine::ModelConfig& config = engine_.geometry().config;
  const uint64_t tokens = request.prompt.size();
  if (tokens == 0) return InvalidArgument("the prompt is empty");
  if (request.options.tokens_max == 0) return InvalidArgument("max_tokens must be at least 1");
  if (tokens + request.options.tokens_max > config.max_positions) {
    return InvalidArgument("the prompt's " + std::to_string(tokens) + " tokens and max_tokens " +
                           std::to_string(request.options.tokens_max) +
                           " exceed the model's context of " +
                           std::to_string(config.max_positions) + " tokens");
  }
  for (const TokenId token : request.prompt) {
    if (token < 0 || static_cast<uint32_t>(token) >= config.vocab_size) {
      return InvalidArgument("token id " + std::to_string(token) + " is not in the vocabulary of " +
                             std::to_string(config.vocab_size));
    }
  }
  if (request.choices == 0 || request.choices > std::min(kChoicesMax, options_.sequences_max)) {
    return InvalidArgument("n must be from 1 to " +
                           std::to_string(std::min(kChoicesMax, options_.sequences_max)));
  }
  RP_TRY(engine::Validate(request.options.sampling));
  const uint32_t lent_max = options_.lend.slots_max;  // They may stay for as long as they like.
  if (context_.tier != nullptr &&
      ActiveRequest::BuffersFor(request) > context_.tier->slots() - lent_max) {
    return InvalidArgument(
        "the request may need " + std::to_string(ActiveRequest::BuffersFor(request)) +
        " blocks in HBM and there are " + std::to_string(context_.tier->slots() - lent_max) +
        (lent_max == 0 ? "" : " beside those that may be lent") +
        "; lower max_tokens or n, or raise engine.hbm_bytes");
  }
  if (ActiveRequest::BuffersFor(request) > context_.buffers.count()) {
    return InvalidArgument(
        "the request may need " + std::to_string(ActiveRequest::BuffersFor(request)) +
        " blocks of memory and the engine has " + std::to_string(context_.buffers.count()) +
        "; lower max_tokens or n, or raise engine.memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Scheduler::Submit(std::shared_ptr<const GenerationRequest> request,
                                           std::shared_ptr<RequestEvents> events) {
  RP_TRY(Check(*request));
  if (stopping_) return Unavailable("the daemon is stopping");
  if (waiting_count_.fetch_add(1) >= options_.waiting_max + options_.sequences_max) {
    --waiting_count_;
    queue_.Post([this] { ++context_.counters.refused; });
    return ResourceExhausted("too many requests: " + std::to_string(options_.waiting_max) +
                             " wait already; try again in a few seconds");
  }
  const uint64_t id = next_id_++;
  const Instant now = clock_.Now();
  queue_.Post([this, id, now, request = std::move(request), events = std::move(events)]() mutable {
    if (options_.shadow_fraction > 0 && context_.prng.Unit() < options_.shadow_fraction) {
      auto shadow = std::make_shared<Shadow>();
      shadow->request = request;
      auto with_logits = std::make_shared<GenerationRequest>(*request);
      with_logits->options.give_logits = true;
      request = std::move(with_logits);
      events = std::make_shared<ShadowEvents>(this, std::move(events), std::move(shadow));
    }
    waiting_.push_back({id, std::make_unique<ActiveRequest>(&context_, std::move(request),
                                                            std::move(events), now)});
  });
  return id;
}

void Scheduler::Cancel(uint64_t id) {
  queue_.Post([this, id] {
    for (const Entry& entry : active_) {
      if (entry.id == id) entry.request->Cancel();
    }
    for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
      if (entry->id != id) continue;
      entry->request->Cancel();
      Count(*entry->request);
      waiting_.erase(entry);
      --waiting_count_;
      return;
    }
  });
}

void Scheduler::Stop() {
  stopping_ = true;
  queue_.Post([] {});
}

void Scheduler::Join() {
  ending_ = true;
  Stop();
  if (thread_.joinable()) thread_.join();
}

// ---- The loop ----------------------------------------------------------------------------------

void Scheduler::Run() {
  if (const absl::Status status = engine_.EnterThread(); !status.ok()) {
    LogError("engine_failed", {{"error", status}, {"action", "every request will fail"}});
  }
  for (;;) {
    queue_.Run();
    if (context_.tier != nullptr) context_.tier->Poll();
    if (stopping_) {
      for (const Entry& entry : active_) entry.request->Cancel();
      for (const Entry& entry : waiting_) {
        entry.request->Cancel();
        Count(*entry.request);
        --waiting_count_;
      }
      waiting_.clear();
    }
    RemoveEnded();
    if (ending_ && active_.empty()) break;
    RunShadow();
    Admit();
    Step();
    RemoveEnded();
    PublishState();
  }
  EndLoans();
  store_.Close();
  while (store_.outstanding() > 0) {  // Sent by others before it was closed.
    if (!queue_.Run()) queue_.Wait(kIdleWait);
  }
  PublishState();
}

// With the store still open: what a loan has pinned there on its way is given back.
void Scheduler::EndLoans() {
  if (leases_ == nullptr) return;
  leases_->Close();
  while (!leases_->idle()) {
    if (!queue_.Run()) WaitForWork();
    context_.tier->Poll();
  }
}

void Scheduler::WaitForWork() {
  const bool copying = context_.tier != nullptr && context_.tier->copying();
  queue_.Wait(copying ? kCopyWait : kIdleWait);
}

void Scheduler::Admit() {
  uint32_t sequences = 0;
  for (const Entry& entry : active_) sequences += entry.request->request().choices;
  while (!waiting_.empty()) {
    ActiveRequest& next = *waiting_.front().request;
    if (sequences + next.request().choices > options_.sequences_max || !next.Start()) return;
    sequences += next.request().choices;
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    --waiting_count_;
  }
}

void Scheduler::Step() {
  std::vector<engine::Turn*> turns;
  for (const Entry& entry : active_) entry.request->AppendTurns(&turns);
  if (turns.empty()) return WaitForWork();
  const auto report = runner_.Step(turns);
  if (!report.ok()) {
    LogError("engine_failed", {{"error", report.status()}, {"sequences", turns.size()}});
    for (const Entry& entry : active_) entry.request->Fail(report.status());
    return;
  }
  ++context_.counters.steps;
  context_.counters.engine_seconds += report->forward_seconds + report->draft_seconds;
  if (report->generate_rows == 0) {
    context_.gate.RecordRows(report->prefill_rows, report->forward_seconds);
  }
  for (const Entry& entry : active_) entry.request->AfterStep();
}

void Scheduler::RemoveEnded() {
  for (const Entry& entry : active_) {
    if (entry.request->ended()) Count(*entry.request);
  }
  std::erase_if(active_, [](const Entry& entry) { return entry.request->ended(); });
}

void Scheduler::Count(const ActiveRequest& request) {
  const RequestReport& report = request.report();
  ServingCounters& counters = context_.counters;
  ++counters.requests;
  if (request.status().code() == absl::StatusCode::kCancelled) {
    ++counters.cancelled;
  } else if (!request.status().ok()) {
    ++counters.failed;
  }
  if (report.output_tokens > 0) {
    switch (report.window) {
      case WindowSource::kCold:
        ++counters.cold;
        break;
      case WindowSource::kFound:
        ++counters.found;
        break;
      case WindowSource::kReplayed:
        ++counters.replayed;
        break;
      case WindowSource::kRebuilt:
        ++counters.rebuilt;
        break;
    }
    ++(report.exact ? counters.exact_answers : counters.replayed_answers);
    counters.prompt_tokens += report.prompt_tokens;
    counters.hit_tokens += report.hit_tokens;
    counters.computed_tokens += report.computed_tokens;
    counters.replayed_tokens += report.replayed_tokens;
  }
  counters.output_tokens += report.output_tokens;
  counters.drafted += report.drafted;
  counters.accepted += report.accepted;
  counters.hbm_blocks += report.hbm_blocks;
  counters.dram_blocks += report.dram_blocks;
  counters.ssd_blocks += report.ssd_blocks;
  counters.loaded_bytes += report.loaded_bytes;
  counters.stored_bytes += report.stored_bytes;
  counters.saved_seconds += report.saved_seconds;
}

void Scheduler::PublishState() {
  const std::lock_guard lock(mutex_);
  state_.counters = context_.counters;
  state_.running = static_cast<uint32_t>(active_.size());
  state_.waiting = static_cast<uint32_t>(waiting_.size());
  state_.buffers = context_.buffers.count();
  state_.buffers_reserved = context_.buffers.reserved();
  if (const HbmTier* tier = context_.tier.get(); tier != nullptr) {
    const HbmTier::Counters& counters = tier->counters();
    state_.hbm = {.slots = tier->slots(),
                  .reserved = tier->reserved(),
                  .lent = leases_ == nullptr ? 0 : leases_->lent(),
                  .lent_max = options_.lend.slots_max,
                  .blocks = tier->with_key(),
                  .bytes = tier->slots() * tier->slot_bytes(),
                  .loads = counters.loads,
                  .loaded_bytes = counters.loaded_bytes,
                  .evictions = counters.evictions,
                  .stored_out = counters.stored_out};
  }
  state_.seconds_per_row = context_.gate.seconds_per_row();
  state_.load_bytes_per_second = context_.gate.load_bytes_per_second();
}

ServingMetrics Scheduler::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace reprise::server
