#include "tests/protocol/fake_verbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "protocol/base/check.h"

namespace reprise::rdma::test {
namespace {

constexpr uint32_t kRemoteBit = 0x8000'0000u;  // Of the keys that peers use.

}  // namespace

class FakeMemory final : public Memory {
 public:
  FakeMemory(FakeFabric* fabric, uint32_t key) : fabric_(*fabric), key_(key) {}
  ~FakeMemory() override {
    for (const auto& [key, window] : fabric_.open_windows_) RP_CHECK(window.region_key != key_);
    fabric_.regions_.erase(key_);
  }
  uint32_t local_key() const override { return key_; }
  uint32_t remote_key() const override { return key_ | kRemoteBit; }

 private:
  FakeFabric& fabric_;
  uint32_t key_;
};

class FakeWindow final : public Window {
 public:
  explicit FakeWindow(FakeFabric* fabric) : fabric_(*fabric) {
    ++fabric_.windows_;
    NextKey();
  }
  ~FakeWindow() override {
    --fabric_.windows_;
    fabric_.open_windows_.erase(key_);
  }
  uint32_t key() const override { return key_; }
  uint32_t NextKey() override {
    RP_CHECK(!fabric_.open_windows_.contains(key_));
    return key_ = fabric_.next_key_++ | kRemoteBit;
  }

 private:
  FakeFabric& fabric_;
  uint32_t key_ = 0;
};

class FakeQueue final : public CompletionQueue {
 public:
  explicit FakeQueue(uint32_t entries)
      : entries_(entries), fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~FakeQueue() override { close(fd_); }

  void Push(const Completed& completed) {
    RP_CHECK(completed_.size() < entries_);
    completed_.push_back(completed);
    const uint64_t one = 1;
    if (std::exchange(armed_, false)) RP_CHECK(write(fd_, &one, sizeof(one)) == sizeof(one));
  }
  absl::StatusOr<size_t> Poll(std::span<Completed> out) override {
    const size_t count = std::min(out.size(), completed_.size());
    std::copy_n(completed_.begin(), count, out.begin());
    completed_.erase(completed_.begin(), completed_.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }
  absl::Status Arm() override {
    armed_ = true;
    return absl::OkStatus();
  }
  int event_fd() const override { return fd_; }
  void TakeEvents() override {
    uint64_t count = 0;
    (void)!read(fd_, &count, sizeof(count));
  }

 private:
  size_t entries_;
  int fd_;
  bool armed_ = false;
  std::deque<Completed> completed_;
};

class FakeQueuePair final : public QueuePair {
 public:
  FakeQueuePair(FakeFabric* fabric, const Device* device, FakeQueue* queue,
                const QueuePairShape& shape)
      : fabric_(*fabric),
        device_(device),
        queue_(*queue),
        shape_(shape),
        number_(fabric->next_pair_++) {
    fabric_.pairs_[number_] = this;
  }
  ~FakeQueuePair() override {
    for (const auto& [key, window] : fabric_.open_windows_) RP_CHECK(window.queue_pair != number_);
    fabric_.pairs_.erase(number_);
  }

  uint32_t number() const override { return number_; }
  uint32_t inline_bytes() const override { return shape_.inline_bytes; }
  absl::Status Connect(const PeerAddress& peer, uint32_t) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    peer_ = peer.queue_pair;
    return absl::OkStatus();
  }
  absl::Status PostReceives(std::span<const ReceiveWork> work) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    receives_.insert(receives_.end(), work.begin(), work.end());
    RP_CHECK(receives_.size() <= shape_.receives);
    return absl::OkStatus();
  }
  absl::Status PostSends(std::span<const SendWork> work) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    RP_CHECK(peer_ != 0);
    unfinished_ += work.size();
    RP_CHECK(unfinished_ <= shape_.sends);
    sends_.insert(sends_.end(), work.begin(), work.end());
    while (fabric_.immediate_ && StepOnce()) {
    }
    return absl::OkStatus();
  }

  bool has_work() const { return !sends_.empty(); }
  bool StepOnce() {
    if (sends_.empty()) return false;
    const SendWork work = sends_.front();
    sends_.pop_front();
    ++unsignaled_;
    if (failed_) {
      Complete(work.id, WorkError::kFlushed);
    } else {
      fabric_.Execute(this, work);
    }
    return true;
  }
  // Work that asks for no completion is finished by the next that does.
  void Complete(uint64_t id, WorkError error) {
    unfinished_ -= std::exchange(unsignaled_, 0);
    queue_.Push({.id = id, .queue_pair = number_, .error = error});
  }
  void Fail(const SendWork& work, WorkError error) {
    failed_ = true;
    Complete(work.id, error);
  }
  void FailReceives() {
    failed_ = true;
    while (!receives_.empty()) {
      queue_.Push(
          {.id = receives_.front().id, .queue_pair = number_, .error = WorkError::kFlushed});
      receives_.pop_front();
    }
  }

  FakeFabric& fabric_;
  const Device* device_;
  FakeQueue& queue_;
  QueuePairShape shape_;
  uint32_t number_;
  uint32_t peer_ = 0;
  bool failed_ = false;
  uint64_t unfinished_ = 0, unsignaled_ = 0;
  std::deque<ReceiveWork> receives_;
  std::deque<SendWork> sends_;
};

class FakeDevice final : public Device {
 public:
  FakeDevice(FakeFabric* fabric, const Port& port) : fabric_(*fabric), port_(port) {}
  const Port& port() const override { return port_; }

  absl::StatusOr<std::unique_ptr<Memory>> Register(Bytes memory, Access access) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    if (memory.size() > fabric_.region_bytes_max_) return ResourceExhausted("too large");
    const uint32_t key = fabric_.next_key_++;
    fabric_.regions_[key] = {this, memory, access};
    return std::make_unique<FakeMemory>(&fabric_, key);
  }
  absl::StatusOr<std::unique_ptr<Memory>> RegisterDmabuf(int, uint64_t, uint64_t,
                                                         uint64_t) override {
    return FailedPrecondition("this device takes no device memory");
  }
  absl::StatusOr<std::unique_ptr<Window>> MakeWindow() override {
    RP_CHECK(port_.windows);
    if (fabric_.TakeFault()) return Internal("a fault");
    return std::make_unique<FakeWindow>(&fabric_);
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> MakeCompletionQueue(uint32_t entries) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    return std::make_unique<FakeQueue>(entries);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> MakeQueuePair(CompletionQueue* queue,
                                                           const QueuePairShape& shape) override {
    if (fabric_.TakeFault()) return Internal("a fault");
    return std::make_unique<FakeQueuePair>(&fabric_, this, static_cast<FakeQueue*>(queue), shape);
  }

 private:
  FakeFabric& fabric_;
  Port port_;
};

absl::StatusOr<std::vector<Port>> FakeFabric::Ports() {
  Port port{.device = "fake0", .active = true, .ethernet = true, .mtu_bytes = 4096, .gid_index = 1};
  port.gid[10] = port.gid[11] = std::byte{0xff};
  port.gid[12] = std::byte{127};
  port.gid[15] = std::byte{1};
  port.gid_kind = GidKind::kRoceV2;
  port.region_bytes_max = region_bytes_max_;
  port.queue_pairs_max = 1000;
  port.completions_max = 65'536;
  port.windows = has_windows_;
  return std::vector<Port>{port};
}

absl::StatusOr<std::unique_ptr<Device>> FakeFabric::Open(const Port& port) {
  return std::make_unique<FakeDevice>(this, port);
}

void FakeFabric::KillDevice(const Device* device) {
  std::erase_if(open_windows_, [this, device](const auto& window) {
    return regions_.at(window.second.region_key).device == device;
  });
  std::erase_if(pairs_, [device](const auto& pair) { return pair.second->device_ == device; });
  std::erase_if(regions_, [device](const auto& region) { return region.second.device == device; });
}

bool FakeFabric::Step() {
  std::vector<FakeQueuePair*> with_work;
  for (const auto& [number, pair] : pairs_) {
    if (pair->has_work()) with_work.push_back(pair);
  }
  if (with_work.empty()) return false;
  return with_work[prng_.Below(with_work.size())]->StepOnce();
}

const FakeFabric::Region* FakeFabric::Find(uint32_t key, const std::byte* at,
                                           uint64_t bytes) const {
  const auto found = regions_.find(key);
  if (found == regions_.end()) return nullptr;
  const Bytes memory = found->second.memory;
  const bool inside = at >= memory.data() && at + bytes <= memory.data() + memory.size();
  return inside ? &found->second : nullptr;
}

bool FakeFabric::MayWrite(const FakeQueuePair& pair, uint32_t key, const std::byte* at,
                          uint64_t bytes) const {
  if (const auto window = open_windows_.find(key); window != open_windows_.end()) {
    const Bytes memory = window->second.memory;
    return window->second.queue_pair == pair.number_ && at >= memory.data() &&
           at + bytes <= memory.data() + memory.size();
  }
  const Region* region = (key & kRemoteBit) != 0 ? Find(key & ~kRemoteBit, at, bytes) : nullptr;
  return region != nullptr && region->access == Access::kPeerWrites;
}

bool FakeFabric::Open(const FakeQueuePair& pair, const SendWork& work) {
  const uint32_t region_key = work.memory->local_key();
  const Region* region = Find(region_key, work.data, work.bytes);
  if (region == nullptr || region->access != Access::kWindows || region->device != pair.device_) {
    return false;
  }
  const Bytes memory(const_cast<std::byte*>(work.data), work.bytes);
  const OpenWindow window = {pair.number_, region_key, memory};
  return open_windows_.try_emplace(work.remote_key, window).second;
}

void FakeFabric::Execute(FakeQueuePair* from, const SendWork& work) {
  const bool opens = work.kind == SendWork::Kind::kOpenWindow;
  if (opens || work.kind == SendWork::Kind::kCloseWindow) {  // The peer learns nothing.
    const bool done = opens ? Open(*from, work) : open_windows_.erase(work.remote_key) == 1;
    if (!done) return from->Fail(work, WorkError::kLocal);
    if (work.signaled) from->Complete(work.id, WorkError::kNone);
    return;
  }
  if (work.bytes > 0 && !work.inlined && Find(work.local_key, work.data, work.bytes) == nullptr) {
    return from->Fail(work, WorkError::kLocal);
  }
  const auto found = pairs_.find(from->peer_);
  FakeQueuePair* to = found == pairs_.end() ? nullptr : found->second;
  if (!link_up_ || to == nullptr || to->failed_) return from->Fail(work, WorkError::kPeerSilent);
  if (work.kind != SendWork::Kind::kSend && work.bytes > 0) {
    auto* target = reinterpret_cast<std::byte*>(work.remote_address);
    if (!MayWrite(*to, work.remote_key, target, work.bytes)) {
      to->FailReceives();
      return from->Fail(work, WorkError::kPeerRefused);
    }
    std::memcpy(target, work.data, work.bytes);
  }
  if (work.kind != SendWork::Kind::kWrite) {
    if (to->receives_.empty()) {
      ++messages_without_receive_;
      return from->Fail(work, WorkError::kNoReceive);
    }
    const ReceiveWork receive = to->receives_.front();
    to->receives_.pop_front();
    const bool told = work.kind == SendWork::Kind::kWriteTold;
    if (!told) {
      RP_CHECK(work.bytes <= receive.bytes);
      if (work.bytes > 0) std::memcpy(receive.data, work.data, work.bytes);
    }
    to->queue_.Push({.id = receive.id,
                     .queue_pair = to->number_,
                     .told = told,
                     .bytes = work.bytes,
                     .immediate = work.immediate});
  }
  if (work.signaled) from->Complete(work.id, WorkError::kNone);
}

}  // namespace reprise::rdma::test
