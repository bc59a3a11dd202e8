#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/rdma/verbs.h"
#include "protocol/transport/remote_write.h"

namespace reprise::rdma {

// One end of a reliable connection: bytes in order, as of a stream, and writes into the peer's
// memory. The bytes and tags of a Flush arrive after its earlier writes have landed.
//
// Bytes travel as messages (SEND) into receives that the peer has posted. It says how many it
// posts; each message spends one, and carries back how many were posted again, so that no message
// ever finds none (credits). The last credit is kept for a message that only returns credits: two
// ends that both wait cannot happen.
//
// Work is queued by Send and Write and posted in one piece by Flush, of which only the last asks
// for a completion; a queue pair completes in order, so that one tells of all before it. One
// thread.
class Endpoint {
 public:
  struct Options {
    uint32_t receives = 32;
    uint32_t sends = 32;            // Messages under way.
    uint32_t queue_depth = 128;     // Messages and writes under way.
    uint32_t message_bytes = 4096;  // Of one message at most.
    uint32_t inline_bytes =
        220;  // Messages of so many go with the request itself, if the device can.
  };
  // Completions that one endpoint can have waiting in its queue.
  static uint32_t CompletionsMax(const Options& options) {
    return options.receives + options.queue_depth;
  }

  // `queue` hands its completions to OnCompleted, by queue pair number. Both outlive the endpoint.
  static absl::StatusOr<std::unique_ptr<Endpoint>> Create(Device* device, CompletionQueue* queue,
                                                          const Options& options);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // To be told to the peer. Receives are posted: it may send as soon as it knows.
  const PeerAddress& address() const { return address_; }
  uint32_t number() const { return pair_->number(); }
  absl::Status Connect(const PeerAddress& peer);
  bool connected() const { return connected_; }

  // ---- Out. Nothing leaves before Flush.
  // Takes a prefix of `bytes`, as credits and buffers allow, and says how long.
  size_t Send(ConstBytes bytes);
  // `local_key`: of the memory that its data lies in. False: no room now.
  [[nodiscard]] bool Write(const RemoteWrite& write, uint32_t local_key);
  // What is sent from now on may tell the peer window->key(), by which it can write to `part` of
  // `memory`; until the work of a CloseWindow is finished. False: no room now.
  [[nodiscard]] bool OpenWindow(Window* window, const Memory& memory, ConstBytes part);
  [[nodiscard]] bool CloseWindow(const Window& window);
  // Posts what is queued. Its work, and all before it, is done once finished(Flush()).
  uint64_t Flush();
  bool finished(uint64_t work) const { return done_ >= work; }
  bool all_finished() const { return done_ == queued_; }

  // ---- In
  size_t readable() const { return readable_; }
  // Up to out.size() bytes that have arrived.
  size_t Receive(Bytes out);
  // The oldest tag that has not been taken; false: none.
  bool TakeTag(uint32_t* tag);

  void OnCompleted(const Completed& completed);

  // ---- The end. Nothing is posted any more; the owner destroys it.
  bool broken() const { return !why_.empty(); }
  const std::string& why() const { return why_; }
  WorkError error() const { return error_; }
  void Break(WorkError error, std::string why);

  uint32_t credits() const { return credits_; }
  uint64_t memory_bytes() const { return memory_.size(); }

 private:
  // Receives have ids of their own.
  static constexpr uint64_t kReceiveBit = uint64_t{1} << 63;

  struct FreePages {
    void operator()(std::byte* pages) const;
  };
  struct Arrived {
    uint32_t buffer = 0, bytes = 0, taken = 0;
  };

  Endpoint(Device* device, const Options& options) : device_(*device), options_(options) {}
  absl::Status Open(CompletionQueue* queue);
  void PostReceive(uint32_t buffer);
  void PostFreedReceives();
  void CloseMessage();
  bool MakeRoom();
  void Queue(SendWork work);
  void OnReceive(const Completed& completed);
  uint32_t room() const { return options_.queue_depth - static_cast<uint32_t>(queued_ - done_); }
  std::byte* receive_buffer(uint32_t index) {
    return memory_.data() + uint64_t{index} * options_.message_bytes;
  }
  std::byte* send_buffer(uint32_t index) { return receive_buffer(options_.receives + index); }

  Device& device_;
  Options options_;
  std::unique_ptr<std::byte, FreePages> pages_;
  Bytes memory_;  // Of the receives, then of the sends.
  std::unique_ptr<Memory> region_;
  std::unique_ptr<QueuePair> pair_;  // Destroyed before the memory that it uses.
  PeerAddress address_;
  bool connected_ = false;
  std::string why_;  // Empty: it works.
  WorkError error_ = WorkError::kNone;

  // Out. Work is numbered from 1.
  uint64_t queued_ = 0, done_ = 0;
  std::vector<SendWork> batch_;
  std::vector<uint64_t> buffer_work_;  // By send buffer: the work that last used it.
  uint32_t next_buffer_ = 0;
  uint32_t open_bytes_ = 0;  // Of the message that is being filled, in next_buffer_.
  uint32_t credits_ = 0;
  uint32_t message_bytes_ = 0;

  // In.
  std::vector<Arrived> arrived_;
  size_t first_arrived_ = 0;
  size_t readable_ = 0;
  std::vector<uint32_t> tags_;
  size_t first_tag_ = 0;
  std::vector<ReceiveWork> freed_;
  uint32_t owed_ = 0;  // Receives posted again that the peer does not know of.
};

}  // namespace reprise::rdma
