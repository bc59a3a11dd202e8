#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "protocol/base/prng.h"
#include "protocol/rdma/verbs.h"

namespace reprise::rdma::test {

class FakeQueuePair;
class FakeQueue;

// All devices of a test and the wires between them. Work waits in its queue pair until Step; queue
// pairs take turns as a seed says, so that completions of different ones come in any order.
// Everything that a device checks is checked: keys, windows, ranges, rights, states, posted
// receives. One thread.
class FakeFabric final : public Verbs {
 public:
  explicit FakeFabric(uint64_t seed = 1) : prng_(seed) {}

  // One piece of work of one queue pair; false: there is none.
  bool Step();
  void Run() {
    while (Step()) {
    }
  }
  // Work is done as it is posted.
  void set_immediate(bool immediate) { immediate_ = immediate; }

  // ---- Faults
  void set_link(bool up) { link_up_ = up; }  // Down: work ends with kPeerSilent.
  // The n-th call from now of Register, MakeQueuePair or Post.. fails; 0: none.
  void FailCall(uint32_t in) { fail_in_ = in; }
  // The process that opened it is gone, and ran no destructors.
  void KillDevice(const Device* device);
  void set_windows(bool windows) { has_windows_ = windows; }
  void set_region_bytes_max(uint64_t bytes) { region_bytes_max_ = bytes; }

  // What exists now: a test ends with none.
  uint32_t regions() const { return static_cast<uint32_t>(regions_.size()); }
  uint32_t queue_pairs() const { return static_cast<uint32_t>(pairs_.size()); }
  uint32_t windows() const { return windows_; }
  uint32_t open_windows() const { return static_cast<uint32_t>(open_windows_.size()); }
  uint64_t messages_without_receive() const { return messages_without_receive_; }

  absl::StatusOr<std::vector<Port>> Ports() override;
  absl::StatusOr<std::unique_ptr<Device>> Open(const Port& port) override;

 private:
  friend class FakeDevice;
  friend class FakeMemory;
  friend class FakeQueue;
  friend class FakeQueuePair;
  friend class FakeWindow;

  struct Region {
    const Device* device = nullptr;
    Bytes memory;
    Access access = Access::kReadHere;
  };

  struct OpenWindow {
    uint32_t queue_pair = 0;
    uint32_t region_key = 0;
    Bytes memory;
  };

  bool TakeFault() { return fail_in_ > 0 && --fail_in_ == 0; }
  const Region* Find(uint32_t key, const std::byte* at, uint64_t bytes) const;
  // Whether a peer may write there, through `pair`.
  bool MayWrite(const FakeQueuePair& pair, uint32_t key, const std::byte* at, uint64_t bytes) const;
  // False: the device would refuse.
  bool Open(const FakeQueuePair& pair, const SendWork& work);
  void Execute(FakeQueuePair* from, const SendWork& work);

  Prng prng_;
  bool immediate_ = false;
  bool link_up_ = true;
  bool has_windows_ = true;
  uint32_t fail_in_ = 0;
  uint64_t region_bytes_max_ = UINT64_MAX;
  uint32_t next_key_ = 100, next_pair_ = 1;
  uint64_t messages_without_receive_ = 0;
  std::map<uint32_t, Region> regions_;
  std::map<uint32_t, FakeQueuePair*> pairs_;
  uint32_t windows_ = 0;
  std::map<uint32_t, OpenWindow> open_windows_;  // By key.
};

}  // namespace reprise::rdma::test
