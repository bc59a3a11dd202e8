#include "protocol/transport/rdma_transport.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "protocol/base/prng.h"
#include "tests/protocol/fake_verbs.h"

namespace reprise {
namespace {

// A pair of connected TCP sockets on loopback.
std::array<int, 2> TcpPair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener, generic, size), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, generic, &size), 0);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(client, generic, size), 0);
  const int server = accept(listener, nullptr, nullptr);
  close(listener);
  return {client, server};
}

struct CountedReceive : ReceiveOp {
  int calls = 0;
  CountedReceive() {
    done = [](Completion* self, int32_t) { ++static_cast<CountedReceive*>(self)->calls; };
  }
};
struct CountedSend : SendOp {
  int calls = 0;
  CountedSend() {
    done = [](Completion* self, int32_t) { ++static_cast<CountedSend*>(self)->calls; };
  }
};

// A daemon's side with its ring, and a client's endpoint and socket.
class RdmaTransportTest : public testing::Test {
 protected:
  static constexpr uint64_t kRecord = 8192;
  static constexpr uint32_t kRecords = 300;

  RdmaTransportTest() : fabric_(1), memory_(kRecord * kRecords) {
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i / kRecord);
    port_.device = *fabric_.Open((*fabric_.Ports())[0]);
    port_.memory = *rdma::RegisteredMemory::Register(port_.device.get(), memory_,
                                                     rdma::Access::kReadHere, kRecord);
    client_device_ = *fabric_.Open((*fabric_.Ports())[0]);
    client_queue_ = *client_device_->MakeCompletionQueue(1000);
  }

  void SetUp() override { Begin(4); }
  void Begin(uint32_t queue_pairs_max) {
    ASSERT_TRUE(ring_.Open(64).ok());
    transport_ = std::make_unique<RdmaTransport>(&ring_, std::vector<const RdmaPort*>{&port_},
                                                 queue_pairs_max);
    ASSERT_TRUE(transport_->Open().ok());
    NewConnection();
  }
  void NewConnection() {
    if (socket_ >= 0) close(socket_);
    const auto [client, server] = TcpPair();
    socket_ = client;
    stream_ = transport_->Wrap(server);
  }
  void TearDown() override {
    if (socket_ >= 0) close(socket_);
    if (stream_ != nullptr) {
      stream_->Shutdown();
      RunUntil([this] { return Quiet(); });
      stream_.reset();
    }
    RunUntil([this] { return transport_->idle(); });
    EXPECT_EQ(transport_->counters().queue_pairs, 0u);
    EXPECT_EQ(transport_->counters().message_bytes, 0u);
    EXPECT_EQ(transport_->counters().staging_bytes, 0u);
    client_.reset();
    EXPECT_EQ(fabric_.queue_pairs(), 0u);
    transport_.reset();
  }
  bool Quiet() const { return receive_.calls == receives_ && send_.calls == sends_; }

  void Turn() {
    ASSERT_TRUE(ring_.RunOnce(0).ok());
    transport_->Poll();
    fabric_.Run();
    PollClient();
  }
  void RunUntil(const std::function<bool()>& reached) {
    for (int i = 0; i < 20'000 && !reached(); ++i) Turn();
    ASSERT_TRUE(reached());
  }
  void PollClient() {
    if (client_ == nullptr) return;
    std::array<rdma::Completed, 64> completed;
    const size_t count = *client_queue_->Poll(completed);
    for (size_t i = 0; i < count; ++i) client_->OnCompleted(completed[i]);
  }

  void Receive(Bytes into) {
    receive_.buffer = into;
    ++receives_;
    stream_->Receive(&receive_);
  }
  void Send(std::string_view text, std::span<const RemoteWrite> writes = {}) {
    send_.part_count = 0;
    send_.AddPart(AsBytes(text));
    send_.writes = writes;
    ++sends_;
    stream_->Send(&send_);
  }
  // Hello, the daemon's answer, and both ends connected.
  void Upgrade() {
    client_ = *rdma::Endpoint::Create(client_device_.get(), client_queue_.get(), {});
    const auto grant = stream_->AcceptRdma(client_->address(), staging_);
    ASSERT_TRUE(grant.ok()) << grant.status();
    grant_ = *grant;
    ASSERT_TRUE(client_->Connect(grant_.address).ok());
    Send("hello to you");
    RunUntil([this] { return Quiet(); });
    std::array<char, 64> text;
    EXPECT_EQ(recv(socket_, text.data(), text.size(), 0), 12);  // Still by the socket.
    EXPECT_TRUE(stream_->rdma());
  }

  rdma::test::FakeFabric fabric_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> staging_ = std::vector<std::byte>(kRecord * 4);
  RdmaPort port_;
  std::unique_ptr<rdma::Device> client_device_;
  std::unique_ptr<rdma::CompletionQueue> client_queue_;
  Ring ring_;
  std::unique_ptr<RdmaTransport> transport_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<rdma::Endpoint> client_;
  RdmaGrant grant_;
  CountedReceive receive_;
  CountedSend send_;
  int receives_ = 0, sends_ = 0;
  int socket_ = -1;
};

TEST_F(RdmaTransportTest, ASocketThatStaysOneLosesNothing) {
  const std::string text = "hello, and the next request right behind it";
  ASSERT_EQ(send(socket_, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  std::string received;
  std::array<std::byte, 5> buffer;
  for (int i = 0; received.size() < text.size(); ++i) {
    Receive(buffer);
    RunUntil([this] { return Quiet(); });
    ASSERT_GT(receive_.result, 0);
    received.append(reinterpret_cast<const char*>(buffer.data()),
                    static_cast<size_t>(receive_.result));
    if (i == 0) stream_->DeclineRdma();
  }
  EXPECT_EQ(received, text);
  Receive(buffer);
  Send("answer");
  RunUntil([this] { return send_.calls == sends_; });
  std::array<char, 64> answer;
  EXPECT_EQ(recv(socket_, answer.data(), answer.size(), 0), 6);
  close(std::exchange(socket_, -1));
  RunUntil([this] { return Quiet(); });
  EXPECT_EQ(receive_.result, 0);
  EXPECT_EQ(transport_->counters().declined, 1u);
}

TEST_F(RdmaTransportTest, AnOfferWithMoreBehindItStaysWithTheSocket) {
  ASSERT_EQ(send(socket_, "hello,more", 10, 0), 10);
  std::array<std::byte, 6> buffer;
  Receive(buffer);
  RunUntil([this] { return Quiet(); });
  ASSERT_EQ(receive_.result, 6);
  client_ = *rdma::Endpoint::Create(client_device_.get(), client_queue_.get(), {});
  EXPECT_FALSE(stream_->AcceptRdma(client_->address(), staging_).ok());
  stream_->DeclineRdma();
  Receive(buffer);
  RunUntil([this] { return Quiet(); });
  EXPECT_EQ(receive_.result, 4);
}

TEST_F(RdmaTransportTest, BytesGoBothWaysAndWritesLandBeforeThem) {
  Upgrade();
  std::array<std::byte, 64> buffer;
  Receive(buffer);
  EXPECT_EQ(client_->Send(AsBytes("request")), 7u);
  client_->Flush();
  RunUntil([this] { return Quiet(); });
  EXPECT_EQ(receive_.result, 7);

  std::vector<std::byte> landing(kRecord * kRecords);
  const auto region = *client_device_->Register(landing, rdma::Access::kPeerWrites);
  std::vector<RemoteWrite> writes;  // Many times the queue's depth.
  for (uint32_t i = 0; i < kRecords; ++i) {
    writes.push_back({.data = ConstBytes(memory_).subspan(i * kRecord, kRecord),
                      .address = reinterpret_cast<uint64_t>(landing.data()) + i * kRecord,
                      .key = region->remote_key(),
                      .told = i + 1 == kRecords,
                      .tag = 5});
  }
  Send("reply", writes);
  std::string reply;
  RunUntil([&] {
    std::array<std::byte, 64> part;
    const size_t count = client_->Receive(part);
    reply.append(reinterpret_cast<const char*>(part.data()), count);
    EXPECT_TRUE(count == 0 || landing == memory_);
    return Quiet() && reply == "reply";
  });
  EXPECT_EQ(send_.result, 0);
  uint32_t tag = 0;
  EXPECT_TRUE(client_->TakeTag(&tag));
  EXPECT_EQ(tag, 5u);
  EXPECT_EQ(transport_->counters().writes, kRecords);
}

TEST_F(RdmaTransportTest, ThePeerWritesToItsStagingAreaAndNowhereElse) {
  Upgrade();
  std::vector<std::byte> record(kRecord, std::byte{9});
  const auto region = *client_device_->Register(record, rdma::Access::kReadHere);
  ASSERT_TRUE(client_->Write(
      {.data = record, .address = grant_.staging_address + kRecord, .key = grant_.staging_key},
      region->local_key()));
  client_->Flush();
  RunUntil([this] { return client_->all_finished(); });
  EXPECT_EQ(staging_[2 * kRecord - 1], std::byte{9});
  // The arena's key is not for peers.
  std::array<std::byte, 64> buffer;
  Receive(buffer);
  uint32_t key = 0;
  ASSERT_TRUE(port_.memory.Find(ConstBytes(memory_).first(1), &key));
  ASSERT_TRUE(client_->Write({.data = record,
                              .address = reinterpret_cast<uint64_t>(memory_.data()),
                              .key = key | 0x8000'0000u},
                             region->local_key()));
  client_->Flush();
  RunUntil([this] { return Quiet(); });
  EXPECT_EQ(receive_.result, 0);  // Over.
  EXPECT_EQ(client_->error(), rdma::WorkError::kPeerRefused);
  EXPECT_EQ(memory_[0], std::byte{0});
}

TEST_F(RdmaTransportTest, EveryOperationEndsOnceHoweverTheConnectionEnds) {
  const std::vector<std::pair<const char*, std::function<void()>>> faults = {
      {"socket", [this] { close(std::exchange(socket_, -1)); }},
      {"peer's queue pair", [this] { client_.reset(); }},
      {"shut down", [this] { stream_->Shutdown(); }},
      {"link", [this] { fabric_.set_link(false); }},
      {"device", [this] { fabric_.FailCall(1); }},
      {"bytes on the socket", [this] { EXPECT_EQ(send(socket_, "x", 1, 0), 1); }},
  };
  for (const auto& [name, fault] : faults) {
    for (uint32_t steps = 0; steps < 40; steps += 3) {
      SCOPED_TRACE(name);
      NewConnection();
      Upgrade();
      std::vector<std::byte> landing(memory_.size());
      auto region = *client_device_->Register(landing, rdma::Access::kPeerWrites);
      std::vector<RemoteWrite> writes;
      for (uint32_t i = 0; i < kRecords; ++i) {
        writes.push_back({.data = ConstBytes(memory_).subspan(i * kRecord, kRecord),
                          .address = reinterpret_cast<uint64_t>(landing.data()) + i * kRecord,
                          .key = region->remote_key()});
      }
      std::array<std::byte, 64> buffer;
      Receive(buffer);
      Send("reply", writes);
      for (uint32_t i = 0; i < steps; ++i) {
        transport_->Poll();
        fabric_.Step();
      }
      fault();
      // What is posted after the fault ends as well.
      RunUntil([this] { return send_.calls == sends_; });
      if (receive_.calls < receives_) {
        if (client_ != nullptr) {
          (void)client_->Send(AsBytes("more"));
          client_->Flush();
        }
        Turn();
        stream_->Shutdown();
      }
      RunUntil([this] { return Quiet(); });
      EXPECT_TRUE(send_.result == -EPIPE || (steps > 30 && send_.result == 0)) << send_.result;
      stream_.reset();
      client_.reset();
      region.reset();
      fabric_.set_link(true);
      fabric_.FailCall(0);
      RunUntil([this] { return transport_->idle(); });
      EXPECT_EQ(transport_->counters().queue_pairs, 0u);
    }
  }
}

TEST_F(RdmaTransportTest, OffersBeyondTheLimitAreDeclined) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<int> sockets;
  auto offer = *rdma::Endpoint::Create(client_device_.get(), client_queue_.get(), {});
  for (int i = 0; i < 5; ++i) {
    const auto [client, server] = TcpPair();
    sockets.push_back(client);
    streams.push_back(transport_->Wrap(server));
    const auto grant = streams.back()->AcceptRdma(offer->address(), staging_);
    EXPECT_EQ(grant.ok(), i < 4);
    if (grant.ok()) continue;
    EXPECT_THAT(Message(grant.status()), testing::HasSubstr("rdma.queue_pairs_max"));
    streams.back()->DeclineRdma();
  }
  EXPECT_EQ(transport_->counters().queue_pairs, 4u);
  EXPECT_EQ(transport_->counters().staging_bytes, 4 * staging_.size());
  Turn();  // Sockets are being watched now.
  streams.clear();
  EXPECT_FALSE(transport_->idle());
  for (const int socket : sockets) close(socket);
}

TEST_F(RdmaTransportTest, ASleepingRingWakesForACompletion) {
  Upgrade();
  std::array<std::byte, 64> buffer;
  Receive(buffer);
  while (transport_->Poll()) {
  }
  ASSERT_TRUE(ring_.RunOnce(0).ok());
  ASSERT_TRUE(transport_->PrepareSleep());
  EXPECT_EQ(*ring_.RunOnce(kMillisecond), 0u);  // Nothing is there.
  EXPECT_EQ(client_->Send(AsBytes("wake up")), 7u);
  client_->Flush();
  fabric_.Run();
  EXPECT_GE(*ring_.RunOnce(10 * kSecond), 1u);
  EXPECT_TRUE(transport_->Poll());
  EXPECT_EQ(receive_.calls, 1);
  // What came between the last look and the sleep is seen.
  Receive(buffer);
  while (transport_->Poll()) {
  }
  EXPECT_EQ(client_->Send(AsBytes("again")), 5u);
  client_->Flush();
  fabric_.Run();
  EXPECT_FALSE(transport_->PrepareSleep());
  transport_->Poll();
  EXPECT_EQ(receive_.calls, 2);
}

}  // namespace
}  // namespace reprise
