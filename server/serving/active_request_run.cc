// What a request does once its hit is loaded: it runs, stores, and ends.
#include <algorithm>
#include <utility>

#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "server/log.h"
#include "server/serving/active_request.h"

namespace reprise::server {
namespace {

engine::PrefillMode ModeOf(const GenerationRequest& request) {
  return request.exact ? engine::PrefillMode::kExact : engine::PrefillMode::kBounded;
}

}  // namespace

// ---- Running -----------------------------------------------------------------------------------

engine::GiveToken ActiveRequest::GiveFor(uint32_t choice) {
  return [this, choice](TokenId token, std::span<const float> logits) {
    if (report_.output_tokens++ == 0) {
      report_.prefill_seconds = context_.SecondsSince(run_began_);
      events_->OnPrompt(report_);
    }
    return events_->OnToken(choice, token, logits);
  };
}

void ActiveRequest::Run() {
  if (request_->exact) CutExact();
  if (const absl::Status status = Begin(); !status.ok()) return Fail(status);
  window_.clear();
  window_.shrink_to_fit();
  run_began_ = context_.clock.Now();
  state_ = State::kRunning;
}

absl::Status ActiveRequest::Begin() {
  choices_.push_back(std::make_unique<Choice>());
  Choice* choice = choices_.back().get();
  RP_ASSIGN(choice->window, context_.windows.Take());
  choice->blocks.resize(
      DivideUp(request_->prompt.size() + request_->options.tokens_max, kBlockTokens));
  engine::ResumePoint resume;
  RP_ASSIGN(uint32_t hit, RestoreWindow(choice, &resume));
  if (hit == 0) {
    // A replay of the whole hit would be a cold run.
    const uint32_t held = hit_.size() * kBlockTokens;
    hit = held > geometry_.config.window ? held : 0;
    resume = {.hit = hit};
  }
  const uint32_t whole = hit / kBlockTokens;
  hit_.CutTo(whole);
  for (uint32_t i = 0; i < whole; ++i) {
    derived_ = derived_ || hit_.replay_derived(i);
    choice->blocks[i] = hit_.data(i);
  }
  choice->own_from = choice->published = whole;
  choice->chain.assign(chain_.begin(), chain_.begin() + whole);
  RP_TRY(TakeBlocks(choice, whole));
  // What the hit saves of the reservation is there for others.
  context_.buffers.Unreserve(whole);
  reserved_ -= whole;

  report_.hit_tokens = hit;
  report_.hbm_blocks = hit_.FromHbm(whole);
  report_.ssd_blocks = std::min(report_.ssd_blocks, whole - report_.hbm_blocks);
  report_.dram_blocks = whole - report_.hbm_blocks - report_.ssd_blocks;
  report_.loaded_bytes += uint64_t{whole - report_.hbm_blocks} * context_.store.record_bytes();
  report_.window = hit == 0                ? WindowSource::kCold
                   : resume.encoder_window ? WindowSource::kFound
                   : request_->exact       ? WindowSource::kRebuilt
                                           : WindowSource::kReplayed;
  if (session_id_ == 0) session_id_ = context_.prng.Next() | 1;

  const std::vector<TokenId>& prompt = request_->prompt;
  engine::Sequence sequence(&context_.engine, {.blocks = choice->blocks, .window = choice->window});
  sequence.Resume({prompt.begin(), prompt.begin() + hit}, resume);
  choice->turn = std::make_unique<engine::Turn>(std::move(sequence), request_->options, GiveFor(0));
  if (request_->choices > 1) choice->turn->KeepPromptLogits();
  RP_TRY(choice->turn->Begin(std::span(prompt).subspan(hit), ModeOf(*request_)));
  report_.replayed_tokens = static_cast<uint32_t>(choice->turn->sequence().replayed_rows());
  report_.computed_tokens = report_.prompt_tokens - hit;
  report_.exact = !replay_derived(*choice);
  report_.saved_seconds =
      std::max(0.0, (double{1} * hit - report_.replayed_tokens) * context_.gate.seconds_per_row());
  const bool fork = report_.window == WindowSource::kReplayed &&
                    context_.forks.SeenBefore(KeyOf(chain_[whole - 1]));
  if (fork && request_->write_cache) {
    replay_stop_ = hit;
    choice->turn->StopAt(hit);
  } else if (request_->stable_tokens > hit && request_->write_cache) {
    choice->turn->StopAt(request_->stable_tokens);
  }
  return absl::OkStatus();
}

std::byte* ActiveRequest::TakeBlock() {
  taken_.push_back(context_.tier == nullptr ? context_.buffers.Take() : context_.tier->Take());
  return taken_.back();
}

absl::Status ActiveRequest::TakeBlocks(Choice* choice, uint32_t from) {
  const size_t before = taken_.size();
  for (uint32_t i = from; i < choice->blocks.size(); ++i) {
    if (choice->blocks[i] == nullptr) choice->blocks[i] = TakeBlock();
  }
  if (context_.tier == nullptr) return absl::OkStatus();  // Buffers are clean.
  return context_.tier->Clear(std::span(taken_).subspan(before));
}

// The other answers go on from the first one's prompt, with windows and a last block of their own.
absl::Status ActiveRequest::AddChoices() {
  const Choice& first = *choices_.front();
  const engine::Sequence& prompt = first.turn->sequence();
  const uint32_t whole = prompt.length() / kBlockTokens;
  for (uint32_t i = 1; i < request_->choices; ++i) {
    auto choice = std::make_unique<Choice>();
    choice->blocks.assign(first.blocks.begin(), first.blocks.begin() + whole);
    choice->blocks.resize(first.blocks.size());
    choice->own_from = choice->published = whole;
    choice->chain = first.chain;
    RP_TRY(TakeBlocks(choice.get(), whole));
    RP_ASSIGN(choice->window, context_.windows.Take());
    const uint64_t partial =
        prompt.length() % kBlockTokens == 0 ? 0 : geometry_.record.payload_bytes;
    const engine::MemoryCopy copies[] = {
        {choice->window, first.window, context_.engine.window_layout().bytes},
        {choice->blocks[whole], first.blocks[whole], partial}};
    engine::Sequence sequence = prompt;
    sequence.SetMemory({.blocks = choice->blocks, .window = choice->window});
    engine::GenerateOptions options = request_->options;
    options.sampling.seed += i;
    choice->turn = std::make_unique<engine::Turn>(std::move(sequence), options, GiveFor(i));
    choices_.push_back(std::move(choice));
    RP_TRY(context_.engine.memory().Copy(copies));
    choices_.back()->turn->BeginAfter(*first.turn);
    choices_.back()->prompt_done = true;
  }
  return absl::OkStatus();
}

void ActiveRequest::AppendTurns(std::vector<engine::Turn*>* turns) {
  if (state_ != State::kRunning) return;
  for (const auto& choice : choices_) {
    if (!choice->done) turns->push_back(choice->turn.get());
  }
}

void ActiveRequest::AfterStep() {
  if (state_ != State::kRunning) return;
  for (size_t i = 0; i < choices_.size(); ++i) {  // AddChoices makes it grow.
    if (!choices_[i]->done) AfterStep(choices_[i].get());
  }
  EndWhenIdle();
}

void ActiveRequest::AfterStep(Choice* choice) {
  using Phase = engine::Turn::Phase;
  engine::Turn& turn = *choice->turn;
  PublishBlocks(choice);
  if (turn.phase() == Phase::kPrefill) {
    if (turn.sequence().rows_left() == 0 || !request_->write_cache) return;
    const uint32_t reached = turn.sequence().next_row();
    const uint32_t stable = request_->stable_tokens;
    if (reached == replay_stop_ && replay_stop_ != 0) {
      PublishWindow(choice, reached, false);
      replay_stop_ = 0;
      if (stable > reached) turn.StopAt(stable);
    } else if (reached == stable && reached > report_.hit_tokens) {
      PublishWindow(choice, reached, false);
    }
    return;
  }
  if (!choice->prompt_done) {
    choice->prompt_done = true;
    PublishWindow(choice, turn.sequence().length(), true);
    if (request_->choices > 1) {
      if (const absl::Status status = AddChoices(); !status.ok()) return Fail(status);
    }
  }
  if (turn.phase() == Phase::kDone) {
    FinishChoice(choice, turn.report().stopped ? FinishReason::kStop : FinishReason::kLength);
  }
}

// ---- Storing -----------------------------------------------------------------------------------

uint32_t ActiveRequest::RowsDone(const Choice& choice) const {
  const engine::Sequence& sequence = choice.turn->sequence();
  return sequence.rows_left() > 0 ? sequence.next_row() : sequence.length();
}

BlockWriter::Block ActiveRequest::Finished(Choice* choice, uint32_t block) {
  const Hash256& name_space = request_->name_space.name_space;
  const Hash256 parent = block == 0 ? name_space : choice->chain[block - 1];
  const auto tokens = std::span(choice->turn->sequence().tokens())
                          .subspan(size_t{block} * kBlockTokens, kBlockTokens);
  choice->chain.push_back(BlockHash(parent, tokens));
  return {.data = choice->blocks[block],
          .header = {.flags = replay_derived(*choice) ? kReplayDerived : 0u,
                     .name_space = name_space,
                     .block_hash = choice->chain[block],
                     .parent_hash = parent,
                     .block_index = block,
                     .payload_bytes = geometry_.record.payload_bytes,
                     .record_bytes = context_.store.record_bytes(),
                     .token_count = kBlockTokens,
                     .created_ms = context_.clock.WallMillis()},
          .tokens = tokens};
}

void ActiveRequest::PublishBlocks(Choice* choice) {
  if (!request_->write_cache) return;
  const uint32_t complete = RowsDone(*choice) / kBlockTokens;
  if (complete <= choice->published) return;
  std::vector<BlockWriter::Block> blocks;
  for (uint32_t block = choice->published; block < complete; ++block) {
    blocks.push_back(Finished(choice, block));
  }
  choice->published = complete;
  ++pending_;
  context_.writer.Write(request_->name_space, std::move(blocks),
                        [this](const BlockWriter::Written& written) {
                          report_.stored_bytes += written.stored_bytes;
                          context_.counters.publish_failures += written.failed;
                          CallDone();
                          EndWhenIdle();
                        });
}

// REQUIRES: the live window holds this position, and chain reaches it.
void ActiveRequest::PublishWindow(Choice* choice, uint32_t position, bool decoder) {
  if (!request_->write_cache || position == 0) return;
  const engine::Sequence& sequence = choice->turn->sequence();
  const uint32_t whole = position / kBlockTokens;
  std::vector<std::byte> windows(engine::SnapshotBytes(geometry_, position, decoder));
  absl::Status saved = context_.windows.Save(choice->window,
                                             {.position = position,
                                              .decoder = decoder,
                                              .encoder_replayed = replay_derived(*choice),
                                              .decoder_replayed = !sequence.exact()},
                                             windows);
  std::vector<std::byte> copied;
  ConstBytes partial;
  if (position % kBlockTokens != 0) {
    partial = {choice->blocks[whole], geometry_.record.payload_bytes};
    if (saved.ok() && !context_.engine.memory().host()) {
      copied.resize(partial.size());
      const engine::MemoryCopy copy{copied.data(), partial.data(), partial.size()};
      saved = context_.engine.memory().Copy({&copy, 1});
      partial = copied;
    }
  }
  if (!saved.ok()) {
    LogError("window_not_saved", {{"error", saved}, {"action", "it will be replayed"}});
    ++context_.counters.publish_failures;
    return;
  }
  const auto tokens = std::span(sequence.tokens());
  SessionSnapshot snapshot{
      .windows = windows, .session_id = session_id_, .replay_derived = replay_derived(*choice)};
  if (position % kBlockTokens != 0) {
    snapshot.partial_tokens = tokens.subspan(size_t{whole} * kBlockTokens, position % kBlockTokens);
    snapshot.partial_payload = partial;
  }
  const Hash256& name_space = request_->name_space.name_space;
  const Hash256 prefix = ExactPrefixHash(name_space, choice->chain, tokens, position);
  ++pending_;
  context_.store.PutWindow(request_->name_space, {KeyOf(prefix), position}, session_id_,
                           EncodeSessionSnapshot(snapshot), [this](Outcome outcome) {
                             const bool stored =
                                 outcome == Outcome::kOk || outcome == Outcome::kExists;
                             // A daemon may have no window pool: every window is replayed.
                             if (!stored && outcome != Outcome::kRejected) {
                               ++context_.counters.publish_failures;
                             }
                             CallDone();
                             EndWhenIdle();
                           });
}

// ---- Ending ------------------------------------------------------------------------------------

void ActiveRequest::FinishChoice(Choice* choice, FinishReason reason) {
  choice->done = true;
  const engine::Turn& turn = *choice->turn;
  report_.drafted += turn.report().drafted;
  report_.accepted += turn.report().accepted;
  if (choice->prompt_done && turn.sequence().length() > report_.prompt_tokens) {
    PublishWindow(choice, turn.sequence().length(), true);
  }
  events_->OnChoiceDone(static_cast<uint32_t>(std::find_if(choices_.begin(), choices_.end(),
                                                           [choice](const auto& other) {
                                                             return other.get() == choice;
                                                           }) -
                                              choices_.begin()),
                        reason);
}

void ActiveRequest::Cancel() {
  if (cancelled_ || state_ == State::kStoring || state_ == State::kEnded) return;
  cancelled_ = true;
  if (status_.ok()) status_ = absl::CancelledError("the request was cancelled");
  if (state_ == State::kRunning) {
    for (const auto& choice : choices_) {
      if (!choice->done) FinishChoice(choice.get(), FinishReason::kCancelled);
    }
  }
  EndWhenIdle();
}

void ActiveRequest::Fail(const absl::Status& status) {
  status_ = status;
  cancelled_ = true;
  for (const auto& choice : choices_) choice->done = true;
  if (state_ == State::kRunning || state_ == State::kLoading) state_ = State::kStoring;
  EndWhenIdle();
}

void ActiveRequest::CallDone() {
  RP_CHECK(pending_ > 0);
  --pending_;
}

void ActiveRequest::EndWhenIdle() {
  const bool running =
      state_ == State::kRunning && std::any_of(choices_.begin(), choices_.end(),
                                               [](const auto& choice) { return !choice->done; });
  const bool loading = state_ == State::kLoading && !cancelled_;
  if (running || loading || state_ == State::kEnded) return;
  if (state_ != State::kWaiting) state_ = State::kStoring;
  if (pending_ > 0) return;
  // From the end: what lies behind leaves the HBM tier before what it is of no use without.
  for (; !taken_.empty(); taken_.pop_back()) {
    if (context_.tier == nullptr) {
      context_.buffers.Return(taken_.back());
    } else {
      context_.tier->Unpin(taken_.back());
    }
  }
  hit_.CutTo(0);
  for (const auto& choice : choices_) {
    if (choice->window != nullptr) context_.windows.Return(choice->window);
  }
  context_.buffers.Unreserve(std::exchange(reserved_, 0));
  if (context_.tier != nullptr) context_.tier->Unreserve(std::exchange(hbm_reserved_, 0));
  state_ = State::kEnded;
  report_.total_seconds = context_.SecondsSince(submitted_at_);
  events_->OnDone(report_, status_);
}

}  // namespace reprise::server
