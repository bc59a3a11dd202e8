#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "protocol/wire/frame.h"
#include "protocol/wire/messages.h"
#include "server/connection.h"
#include "server/shard.h"

namespace reprise::server {

// One request in progress, from its frame to the moment its last reply is sent. Made by
// DispatchFrame, owned by itself: End() is the only exit. It counts against its connection's limit
// all that time, which bounds what a slow reader can make the daemon hold.
class Operation {
 public:
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 protected:
  Operation(Connection* connection, const wire::FrameHeader& request)
      : connection_(connection),
        request_(request),
        started_at_(connection->shard().now()),
        deadline_(started_at_ + (request.deadline_ms != 0
                                     ? request.deadline_ms * kMillisecond
                                     : connection->shard().facts().deadline_default_ns)) {
    connection->OperationStarted();
  }
  virtual ~Operation() = default;

  Connection& connection() { return *connection_; }
  Shard& shard() { return connection_->shard(); }
  Instant deadline() const { return deadline_; }
  wire::Opcode opcode() const { return static_cast<wire::Opcode>(request_.opcode); }

  std::unique_ptr<OutFrame> MakeFrame(Outcome outcome) const {
    auto frame = std::make_unique<OutFrame>();
    frame->header.opcode = request_.opcode;
    frame->header.outcome = static_cast<uint8_t>(outcome);
    frame->header.request_id = request_.request_id;
    return frame;
  }
  // Sends the last (or only) reply and ends the operation when it is out.
  void SendLast(std::unique_ptr<OutFrame> frame) {
    shard().counters().Count(opcode(), static_cast<Outcome>(frame->header.outcome),
                             shard().clock().Now() - started_at_);
    frame->operation = this;
    frame->sent = [](Operation* operation, uint64_t, bool) {
      operation->OnLastSent();
      operation->End();
    };
    connection_->Send(std::move(frame));
  }
  void SendLast(Outcome outcome, std::string body = {}) {
    auto frame = MakeFrame(outcome);
    frame->body = std::move(body);
    SendLast(std::move(frame));
  }
  // What must be given back when the last reply is out.
  virtual void OnLastSent() {}

 private:
  void End() {
    Connection* connection = connection_;
    delete this;
    connection->OperationDone();
  }

  Connection* connection_;
  wire::FrameHeader request_;
  Instant started_at_;
  Instant deadline_;
};

// Ends a request of which nothing but its failure is to be said.
class FailedOperation final : public Operation {
 public:
  static void Start(Connection* connection, const wire::FrameHeader& request, Outcome outcome) {
    (new FailedOperation(connection, request))->SendLast(outcome);
  }

 private:
  using Operation::Operation;
};

// The namespace that a request names. Null when the connection has not opened it: the request has
// then been answered.
inline const Connection::OpenNamespace* NamespaceOf(Connection* connection,
                                                    const wire::FrameHeader& request, uint32_t id) {
  const Connection::OpenNamespace* opened = connection->FindNamespace(id);
  if (opened == nullptr) FailedOperation::Start(connection, request, Outcome::kWrongNamespace);
  return opened;
}

// The keys of a request, dealt to the shards that own them, in order within each shard. The
// original order comes back by walking the keys again with a cursor for each shard.
class KeyDeal {
 public:
  KeyDeal(ConstBytes keys, uint32_t key_count, uint32_t shard_count)
      : by_shard_(shard_count), cursors_(shard_count), owners_(shard_count > 1 ? key_count : 0) {
    if (shard_count == 1) {
      by_shard_[0].resize(key_count);
      if (key_count > 0) std::memcpy(by_shard_[0].data(), keys.data(), keys.size());
      return;
    }
    for (uint32_t i = 0; i < key_count; ++i) {
      const auto key = wire::At<BlockKey>(keys, i);
      owners_[i] = static_cast<uint8_t>(ShardOf(key, shard_count));
      by_shard_[owners_[i]].push_back(key);
    }
  }

  std::vector<BlockKey>& keys(uint32_t shard) { return by_shard_[shard]; }
  struct Place {
    uint32_t shard;
    uint32_t index;  // Into keys(shard).
  };
  // Places of keys 0, 1, 2, ... by calling it again and again; Rewind starts over.
  Place Next() {
    const uint32_t shard = owners_.empty() ? 0 : owners_[next_];
    ++next_;
    return {shard, cursors_[shard]++};
  }
  void Rewind() {
    next_ = 0;
    std::fill(cursors_.begin(), cursors_.end(), 0);
  }

 private:
  std::vector<std::vector<BlockKey>> by_shard_;
  std::vector<uint32_t> cursors_;
  std::vector<uint8_t> owners_;
  uint32_t next_ = 0;
};

}  // namespace reprise::server
