#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/reactor/timers.h"
#include "protocol/transport/transport.h"
#include "protocol/wire/frame.h"
#include "server/metrics.h"
#include "storage/arena.h"

namespace reprise::server {

class Connection;
class Operation;
class Shard;

// A frame on its way out. Owns its header and body; the data parts are borrowed from arena slots
// that its operation keeps pinned until `sent`.
struct OutFrame {
  wire::FrameHeader header;
  std::string body;
  std::vector<ConstBytes> data;
  std::vector<RemoteWrite> writes;  // From pinned slots too; they land before the frame is there.
  std::array<int, 2> fds{};
  uint32_t fd_count = 0;
  // Called when the frame is sent or will never be; may be null. `delivered` tells which.
  void (*sent)(Operation* operation, uint64_t tag, bool delivered) = nullptr;
  Operation* operation = nullptr;
  uint64_t tag = 0;
};

// Where the data part of a frame goes: an operation takes it buffer by buffer.
class DataSink {
 public:
  virtual ~DataSink() = default;
  // The next bytes go here; empty: not now, ResumeReceiving() will be called.
  virtual Bytes NextBuffer(uint64_t left) = 0;
  // The buffer is full. `left` bytes of the data part are still to come.
  virtual void OnBufferFull(uint64_t left) = 0;
  // The connection broke first: nothing more will come.
  virtual void OnDataLost() = 0;
};

// What a lease pins: slots of the arena, a window's, or a loan of HBM. Released by the client, or
// with the connection.
struct LeaseRecord {
  std::vector<uint32_t> slots;
  uint64_t loan_id = 0;  // Of the SlotLender.
  uint32_t window_shard = 0;
  uint32_t window_handle = 0;
  bool window = false;
};

// One client: bytes to frames to operations, and frames back. Lives on the shard that accepted it.
//
// Flow control: at most kOperationsMax operations at a time, else nothing more is read; replies
// wait in order for the sends that the stream takes at a time. A frame that stands half-read for
// longer than idle_frame_timeout_ns, or a send that makes no progress for send_timeout_ns, closes
// the connection. Closing releases the leases and waits for the operations, each of which has a
// deadline.
class Connection {
 public:
  static constexpr uint32_t kOperationsMax = 64;

  Connection(Shard* shard, std::unique_ptr<Stream> stream, uint64_t id);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void Start();
  // Says why in one frame, then closes.
  void Refuse(Outcome outcome, std::string error);
  void Close(std::string_view why);

  // ---- For operations -------------------------------------------------------------------------
  Shard& shard() { return *shard_; }
  bool closing() const { return closing_; }
  bool local() const { return stream_->local(); }
  TransportKind transport() const;
  Stream& stream() { return *stream_; }
  void Send(std::unique_ptr<OutFrame> frame);
  // Every operation tells when it exists and when it is gone.
  void OperationStarted() { ++operations_; }
  void OperationDone();
  void ReceiveData(DataSink* sink, uint64_t bytes);  // The data part of the frame just parsed.
  void ResumeReceiving();

  uint64_t AddLease(LeaseRecord lease);
  void EndLease(uint64_t lease_id);

  struct OpenNamespace {
    Hash256 name_space;
    uint16_t index = 0;
    uint32_t payload_bytes = 0;  // Of its blocks.
  };
  uint32_t AddNamespace(const OpenNamespace& name_space);
  const OpenNamespace* FindNamespace(uint32_t id) const;

  // Hello.
  bool greeted() const { return greeted_; }
  void Greet(std::string client_name) {
    greeted_ = true;
    name_ = std::move(client_name);
  }
  // Makes the staging area; null when the budget or the machine does not allow it.
  const storage::StagingArea* MakeStaging(uint32_t slots);
  const storage::StagingArea* staging() const { return staging_.get(); }
  void DropStaging();

  uint32_t operation_count() const { return operations_; }
  uint32_t lease_count() const { return static_cast<uint32_t>(leases_.size()); }
  std::string Describe() const;

 private:
  static constexpr size_t kBufferBytes = 4096;

  enum class Parse : uint8_t { kHeader, kBody, kData, kStopped };

  void OnReceived(int32_t result);
  struct Sending;
  void OnSent(Sending* sending, int32_t result);
  bool sending() const { return frames_in_flight_ > 0; }
  void Advance();   // Parses what is buffered, then receives more.
  bool ParseOne();  // False: needs more bytes, or must wait.
  bool TakeHeader();
  bool TakeBody();
  bool TakeData();
  void Dispatch(ConstBytes body);
  bool ReserveBody(uint32_t bytes);
  void ReleaseBody();
  void ReceiveMore();
  void StartSend();
  void FillSending(Sending* sending);
  void DropQueue();
  void LoseData();
  void GiveBack(const LeaseRecord& lease);
  void FinishClose();
  void ArmReceiveTimer();
  size_t buffered() const { return end_ - begin_; }
  void Consume(size_t count) { begin_ += count; }

  struct Receiving : ReceiveOp {
    Connection* connection = nullptr;
    bool active = false;
    bool direct = false;  // Into the body or the data sink, not into the buffer.
  };
  struct Sending : SendOp {
    Connection* connection = nullptr;
    uint32_t frames = 0;              // 0: it is free.
    std::vector<RemoteWrite> copies;  // Of the frames' writes, in one piece.
  };
  struct OwnedTimer : Timer {
    using Timer::Timer;
    Connection* connection = nullptr;
  };

  Shard* shard_;
  std::unique_ptr<storage::StagingArea>
      staging_;  // Outlives the stream, whose peer may write to it.
  uint64_t staging_bytes_ = 0;
  std::unique_ptr<Stream> stream_;
  uint64_t id_;
  std::string name_ = "?";
  bool greeted_ = false;
  bool closing_ = false;
  bool retired_ = false;
  bool close_when_sent_ = false;
  bool advancing_ = false;

  // Receiving.
  Receiving receiving_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;
  Parse parse_ = Parse::kHeader;
  wire::FrameHeader header_;
  std::vector<std::byte> body_;
  size_t body_filled_ = 0;
  uint32_t body_reserved_ = 0;
  DataSink* sink_ = nullptr;
  Bytes sink_buffer_;
  size_t sink_filled_ = 0;
  uint64_t data_left_ = 0;
  OwnedTimer receive_timer_;

  // Sending.
  std::array<Sending, Stream::kSendsMax> sendings_;
  uint32_t next_sending_ = 0;
  uint32_t frames_in_flight_ = 0;  // The first ones of the queue.
  std::vector<std::unique_ptr<OutFrame>> queue_;
  OwnedTimer send_timer_;

  uint32_t operations_ = 0;
  absl::flat_hash_map<uint64_t, LeaseRecord> leases_;
  uint64_t next_lease_id_ = 1;
  std::vector<OpenNamespace> namespaces_;
};

}  // namespace reprise::server
