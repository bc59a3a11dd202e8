#include "server/shard_thread.h"

#include <algorithm>

namespace reprise::server {
namespace {

constexpr uint32_t kRingEntries = 512;
constexpr Nanos kSleepMax = kSecond;

// A connection on its way to the shard that will own it: the stream is made there, on its ring.
struct AdoptTask : Task {
  int fd = -1;
};

}  // namespace

ShardThread::ShardThread(Options options, ServerFacts* facts, const Clock* clock)
    : options_(std::move(options)), facts_(facts), clock_(clock), memory_(options_.arena) {}

ShardThread::~ShardThread() { RP_CHECK(!thread_.joinable()); }

void ShardThread::Start() {
  thread_ = std::thread([this] { Run(); });
}

void ShardThread::MoveTo(Phase phase) {
  phase_.store(phase, std::memory_order_release);
  phase_.notify_all();
}

absl::Status ShardThread::WaitUntilSetUp() {
  phase_.wait(Phase::kSettingUp, std::memory_order_acquire);
  if (phase_.load(std::memory_order_acquire) == Phase::kFailed) return status_;
  return absl::OkStatus();
}

void ShardThread::Go(std::vector<Shard*> shards) {
  shards_ = std::move(shards);
  shard_->Connect(shards_);
  MoveTo(Phase::kRunning);
}

void ShardThread::Drain() {
  MoveTo(Phase::kStopping);
  wake_.Wake();
}

void ShardThread::Join() {
  if (thread_.joinable()) thread_.join();
}

void ShardThread::Run() {
  status_ = SetUp();
  if (!status_.ok()) {
    MoveTo(Phase::kFailed);
    return;
  }
  MoveTo(Phase::kSetUp);
  phase_.wait(Phase::kSetUp, std::memory_order_acquire);
  if (phase_.load(std::memory_order_acquire) == Phase::kRunning) Loop();
  acceptors_.clear();
}

absl::Status ShardThread::SetUp() {
  RP_TRY(ring_.Open(kRingEntries));
  RP_TRY(wake_.Open());
  wake_.Arm(&ring_);
  if (options_.device != nullptr) {
    const int fd = options_.device->fd();
    RP_TRY(ring_.RegisterFiles({&fd, 1}));
    options_.device->Attach(&ring_, 0);
    if (!options_.device->remark().empty()) remarks_.push_back(options_.device->remark());
    const uint64_t slot_bytes = options_.arena->slot_bytes();
    const uint64_t count = options_.shard.block_slots + options_.shard.window_slots;
    const Bytes own =
        options_.arena->slots().subspan(options_.shard.first_slot * slot_bytes, count * slot_bytes);
    const absl::Status registered = ring_.RegisterMemory(own);
    if (!registered.ok()) {
      remarks_.push_back("SSD transfers use unregistered memory: " + Message(registered) +
                         "; raise LimitMEMLOCK (ulimit -l)");
    }
  }
  if (!options_.rdma.empty()) {
    rdma_ = std::make_unique<RdmaTransport>(&ring_, options_.rdma, options_.queue_pairs_max);
    if (const absl::Status status = rdma_->Open(); !status.ok()) {
      remarks_.push_back("no RDMA: " + Message(status));
      rdma_.reset();
    }
  }
  options_.shard.rdma = rdma_.get();
  options_.shard.ring = &ring_;
  options_.shard.log.device = options_.device.get();
  options_.shard.log.meta = options_.meta;
  RP_ASSIGN(shard_, Shard::Create(options_.shard, facts_, clock_, &memory_, &wake_));
  if (options_.device == nullptr) return absl::OkStatus();
  RP_ASSIGN(const auto rows, options_.meta->LoadRegions(options_.shard.index));
  return shard_->Recover(rows, [this] { return ring_.RunOnce(10 * kMillisecond).status(); });
}

void ShardThread::StartAccepting() {
  for (const Listener* listener : listeners_) {
    acceptors_.push_back(std::make_unique<Acceptor>(&ring_, *listener, &OnAccepted, this));
    acceptors_.back()->Start();
  }
}

void ShardThread::OnAccepted(void* context, int fd) {
  auto* self = static_cast<ShardThread*>(context);
  const uint32_t target = self->next_shard_++ % self->facts_->shard_count;
  auto* task = new AdoptTask;
  task->fd = fd;
  task->run = [](Task* base, void* receiver) {
    const std::unique_ptr<AdoptTask> adopt(static_cast<AdoptTask*>(base));
    static_cast<Shard*>(receiver)->AdoptSocket(adopt->fd);
  };
  self->shards_[target]->mailbox().Post(task);
}

bool ShardThread::TurnOnce() {
  const bool did = shard_->Turn(clock_->Now());
  if (did) active_at_ = shard_->now();
  return did;
}

void ShardThread::Loop() {
  StartAccepting();
  active_at_ = clock_->Now();
  Nanos wait_ns = 0;
  for (;;) {
    const absl::StatusOr<uint32_t> completed = ring_.RunOnce(wait_ns);
    if (!completed.ok()) {  // The kernel refuses the ring itself: nothing can go on.
      LogError("ring_failed", {{"shard", shard_->index()}, {"error", completed.status()}});
      std::abort();
    }
    const bool did = TurnOnce();
    const Instant now = shard_->now();
    if (*completed > 0) active_at_ = now;
    if (phase_.load(std::memory_order_acquire) == Phase::kStopping && Stopped(now)) return;
    wait_ns = 0;
    if (did || *completed > 0 || now - active_at_ < options_.spin_ns) continue;
    if (rdma_ != nullptr && !rdma_->PrepareSleep()) continue;
    if (!shard_->mailbox().PrepareSleep()) continue;
    wait_ns = std::clamp<Nanos>(shard_->next_deadline() - now, 1, kSleepMax);
  }
}

bool ShardThread::Stopped(Instant now) {
  if (drain_until_ == 0) {
    drain_until_ = now + options_.drain_ns;
    for (const auto& acceptor : acceptors_) acceptor->Stop();
  }
  active_at_ = now;  // Do not sleep while draining.
  if (now >= drain_until_) {
    shard_->CloseConnections();
  } else {
    shard_->CloseIdleConnections();
  }
  const bool accepting = std::any_of(acceptors_.begin(), acceptors_.end(),
                                     [](const auto& acceptor) { return !acceptor->stopped(); });
  // Other shards may still send work here until all of them are drained.
  if (!accepting && shard_->drained()) facts_->drained_shards |= uint64_t{1} << shard_->index();
  return facts_->drained_shards.load() ==
         (facts_->shard_count == 64 ? ~uint64_t{0} : (uint64_t{1} << facts_->shard_count) - 1);
}

}  // namespace reprise::server
