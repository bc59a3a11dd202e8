#include "server/serving/active_request.h"

#include <algorithm>
#include <utility>

#include "protocol/identity/block_hash.h"
#include "server/log.h"

namespace reprise::server {
namespace {

uint32_t BlocksFor(uint64_t tokens) {
  return static_cast<uint32_t>(DivideUp(tokens, kBlockTokens));
}

}  // namespace

ActiveRequest::ActiveRequest(ServingContext* context,
                             std::shared_ptr<const GenerationRequest> request,
                             std::shared_ptr<RequestEvents> events, Instant submitted_at)
    : context_(*context),
      request_(std::move(request)),
      events_(std::move(events)),
      geometry_(context->engine.geometry()),
      submitted_at_(submitted_at),
      hit_(context) {
  report_.prompt_tokens = static_cast<uint32_t>(request_->prompt.size());
}

ActiveRequest::~ActiveRequest() { RP_CHECK(pending_ == 0 && taken_.empty()); }

uint32_t ActiveRequest::BuffersFor(const GenerationRequest& request) {
  const uint32_t first = BlocksFor(request.prompt.size() + request.options.tokens_max);
  const uint32_t other = BlocksFor(uint64_t{request.options.tokens_max}) + 1;
  return first + (request.choices - 1) * other;
}

bool ActiveRequest::Start() {
  if (!context_.Reserve(BuffersFor(*request_))) return false;
  reserved_ = BuffersFor(*request_);
  if (context_.tier != nullptr) hbm_reserved_ = reserved_;
  started_at_ = context_.clock.Now();
  report_.queue_seconds = static_cast<double>(started_at_ - submitted_at_) / kSecond;
  session_id_ = request_->session_id;
  state_ = State::kLoading;
  chain_ = PrefixChain(request_->name_space.name_space, request_->prompt);
  // At least one token is left to be run, to have logits.
  std::vector<BlockKey> keys;
  for (size_t i = 0; i < (request_->prompt.size() - 1) / kBlockTokens; ++i) {
    keys.push_back(KeyOf(chain_[i]));
  }
  if (!request_->read_cache) keys.clear();
  ++pending_;
  context_.store.Lookup(request_->name_space, std::move(keys), LookupFor::kRequest,
                        [this](std::vector<StorePort::Residency> where) {
                          CallDone();
                          OnLookup(std::move(where));
                        });
  return true;
}

// ---- What is stored of the prompt --------------------------------------------------------------

void ActiveRequest::OnLookup(std::vector<StorePort::Residency> where) {
  using Residency = StorePort::Residency;
  if (cancelled_) return EndWhenIdle();
  uint32_t blocks = 0;
  while (blocks < where.size() &&
         (where[blocks] == Residency::kDram || where[blocks] == Residency::kSsd)) {
    ++blocks;
  }
  if (context_.tier != nullptr) {
    for (size_t i = 0; i < where.size(); ++i) {
      const BlockKey key = KeyOf(chain_[i]);
      // What was removed from the store must not be found in a faster place.
      if (where[i] == Residency::kAbsent) context_.tier->Forget(key);
      if (i < blocks && context_.tier->Has(key)) where[i] = Residency::kDram;  // No read.
    }
  }
  where.resize(blocks);
  where_ = std::move(where);
  std::vector<wire::WindowKey> windows;
  if (request_->read_cache) windows = WindowCandidates(blocks);
  ++pending_;
  context_.store.ProbeWindows(request_->name_space, windows,
                              [this, windows](const std::vector<uint32_t>& bytes) {
                                CallDone();
                                OnProbed(windows, bytes);
                              });
}

// Every position around the end of the hit: a snapshot that lies less than a window before it is
// worth more than a replay, which runs as many rows and is not exact. Farthest first.
std::vector<wire::WindowKey> ActiveRequest::WindowCandidates(uint32_t blocks) const {
  const uint64_t end = uint64_t{blocks} * kBlockTokens;
  const uint64_t reach = std::min<uint64_t>(end + kBlockTokens, request_->prompt.size());
  const uint64_t lowest = end - std::min<uint64_t>(end, geometry_.config.window) + 1;
  std::vector<wire::WindowKey> windows;
  for (uint64_t position = reach - 1; position >= lowest; --position) {
    const Hash256 prefix = ExactPrefixHash(request_->name_space.name_space, chain_,
                                           request_->prompt, static_cast<uint32_t>(position));
    windows.push_back({KeyOf(prefix), position});
  }
  return windows;
}

void ActiveRequest::OnProbed(const std::vector<wire::WindowKey>& windows,
                             const std::vector<uint32_t>& bytes) {
  if (cancelled_) return EndWhenIdle();
  const uint64_t tokens = request_->prompt.size();
  const auto worth = [&](uint32_t blocks, uint32_t replay_tokens) {
    if (!context_.gate_loads) return blocks;
    return context_.gate.BlocksToUse(std::span(where_).first(blocks), tokens,
                                     context_.store.record_bytes(), replay_tokens);
  };
  for (size_t i = 0; i < windows.size(); ++i) {
    if (bytes[i] == 0) continue;
    const auto blocks = static_cast<uint32_t>(windows[i].position / kBlockTokens);
    if (worth(blocks, 0) == blocks) return Load(blocks, &windows[i]);
    break;
  }
  const auto all = static_cast<uint32_t>(where_.size());
  const uint32_t used = worth(all, geometry_.config.window);
  context_.counters.loads_declined += all - used;
  Load(used, nullptr);
}

void ActiveRequest::Load(uint32_t blocks, const wire::WindowKey* window) {
  load_began_ = context_.clock.Now();
  where_.resize(blocks);
  if (blocks == 0 && window == nullptr) return OnLoaded();
  pending_ += 1 + (window != nullptr ? 1 : 0);
  if (window != nullptr) {
    window_position_ = static_cast<uint32_t>(window->position);
    context_.store.TakeWindow(request_->name_space, *window,
                              [this](std::vector<std::byte> snapshot) {
                                window_ = std::move(snapshot);
                                CallDone();
                                if (pending_ == 0) OnLoaded();
                              });
  }
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < blocks; ++i) keys.push_back(KeyOf(chain_[i]));
  hit_.Load(request_->name_space, std::move(keys), request_->exact, context_.load_limit_ns,
            [this, blocks](const HitBlocks::Loaded& loaded) {
              report_.ssd_blocks = loaded.from_ssd;
              if (hit_.size() < blocks) {
                ++context_.counters.load_shortfalls;
                LogWarning("load_shortfall", {{"blocks", blocks},
                                              {"loaded", hit_.size()},
                                              {"outcome", OutcomeName(loaded.stopped_by)},
                                              {"action", "the rest is computed again"}});
              }
              context_.gate.RecordLoad(uint64_t{loaded.from_ssd} * context_.store.record_bytes(),
                                       context_.SecondsSince(load_began_));
              CallDone();
              if (pending_ == 0) OnLoaded();
            });
}

void ActiveRequest::OnLoaded() {
  if (cancelled_) return EndWhenIdle();
  report_.load_seconds = context_.SecondsSince(load_began_);
  Run();
}

// An exact answer uses nothing that derives from a replay.
void ActiveRequest::CutExact() {
  uint32_t exact = 0;
  while (exact < hit_.size() && !hit_.replay_derived(exact)) ++exact;
  hit_.CutTo(exact);
}

absl::StatusOr<uint32_t> ActiveRequest::RestoreWindow(Choice* choice, engine::ResumePoint* resume) {
  const uint32_t position = window_position_;
  const uint32_t whole = position / kBlockTokens;
  if (window_.empty() || hit_.size() < whole) return 0;
  const auto refuse = [this](std::string_view why) {
    ++context_.counters.bad_windows;
    LogWarning("bad_window", {{"why", why}, {"action", "its windows are replayed"}});
    return 0u;
  };
  const auto decoded = DecodeSessionSnapshot(window_);
  if (!decoded.ok()) return refuse(Message(decoded.status()));
  const auto partial = std::span(request_->prompt).subspan(whole * kBlockTokens);
  if (decoded->partial_tokens.size() != position % kBlockTokens ||
      !std::equal(decoded->partial_tokens.begin(), decoded->partial_tokens.end(),
                  partial.begin())) {
    return refuse("its token ids are not the prompt's");
  }
  const uint32_t payload = geometry_.record.payload_bytes;
  if (decoded->partial_payload.size() != (position % kBlockTokens == 0 ? 0 : payload)) {
    return refuse("its partial block has another size");
  }
  const auto info = context_.windows.Restore(decoded->windows, choice->window);
  if (!info.ok()) return refuse(Message(info.status()));
  if (info->position != position) return refuse("it is of another position");
  const bool derived = decoded->replay_derived || info->encoder_replayed;
  if (request_->exact && derived) return 0;
  derived_ = derived_ || derived;
  if (session_id_ == 0) session_id_ = decoded->session_id;
  const uint32_t from = position - std::min(position, geometry_.config.window);
  *resume = {.hit = position,
             .encoder_window = true,
             .encoder_from = from,
             .decoder_window = info->decoder,
             .decoder_from = from};
  if (position % kBlockTokens != 0) {
    choice->blocks[whole] = TakeBlock();
    const engine::MemoryCopy copy{choice->blocks[whole], decoded->partial_payload.data(), payload};
    RP_TRY(context_.engine.memory().Copy({&copy, 1}));
  }
  report_.loaded_bytes += window_.size();
  return position;
}

}  // namespace reprise::server
