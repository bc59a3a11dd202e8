#include "protocol/transport/socket_transport.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/base/prng.h"
#include "protocol/transport/listener.h"
#include "protocol/transport/socket_address.h"

namespace reprise {
namespace {

using ::testing::StartsWith;

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  Prng prng(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(prng.Next());
  return bytes;
}

// Counts and keeps results.
struct Receive : ReceiveOp {
  uint32_t calls = 0;
  Receive() {
    done = [](Completion* self, int32_t) { ++static_cast<Receive*>(self)->calls; };
  }
};
struct Send : SendOp {
  uint32_t calls = 0;
  Send() {
    done = [](Completion* self, int32_t) { ++static_cast<Send*>(self)->calls; };
  }
};

class SocketTransportTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ASSERT_TRUE(ring_.Open(32).ok()); }

  void RunUntil(const std::function<bool()>& reached) {
    for (int turn = 0; turn < 500 && !reached(); ++turn) {
      ASSERT_TRUE(ring_.RunOnce(10 * kMillisecond).ok());
    }
    ASSERT_TRUE(reached());
  }

  // A connected pair of descriptors: Unix, or TCP over loopback.
  std::pair<int, int> Pair(bool unix_socket) {
    int fds[2] = {-1, -1};
    if (unix_socket) {
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
      return {fds[0], fds[1]};
    }
    auto listener = ListenTcp("127.0.0.1:0");
    EXPECT_TRUE(listener.ok()) << listener.status();
    fds[0] = ConnectTcp((*listener)->address());
    fds[1] = accept4((*listener)->fd(), nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(fds[1], 0);
    return {fds[0], fds[1]};
  }

  static int ConnectTcp(const std::string& where) {
    auto addresses = SocketAddress::Resolve(where);
    EXPECT_TRUE(addresses.ok()) << addresses.status();
    const int fd = socket(addresses->front().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, addresses->front().address(), addresses->front().size()), 0);
    return fd;
  }

  Ring ring_;
};

INSTANTIATE_TEST_SUITE_P(Sockets, SocketTransportTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Unix" : "Tcp"; });

TEST_P(SocketTransportTest, MovesManyPartsWholeAndInOrder) {
  const auto [a, b] = Pair(GetParam());
  auto sender = MakeSocketStream(&ring_, a);
  auto receiver = MakeSocketStream(&ring_, b);
  // Parts of awkward sizes, more bytes than any socket buffer: partial sends are certain.
  const std::vector<std::byte> sent = RandomBytes(24'000'000, 1);
  Send send;
  size_t at = 0;
  for (size_t i = 0; i < SendOp::kPartsMax; ++i) {
    const size_t left = sent.size() - at;
    const size_t bytes = i + 1 == SendOp::kPartsMax ? left : std::min(left, i * 2801 + 1);
    send.AddPart(ConstBytes(sent).subspan(at, bytes));
    at += bytes;
  }
  ASSERT_EQ(at, sent.size());
  ASSERT_EQ(send.part_count, SendOp::kPartsMax);
  sender->Send(&send);
  EXPECT_EQ(send.calls, 0u);

  std::vector<std::byte> received(sent.size());
  size_t have = 0;
  Receive receive;
  while (have < received.size()) {
    receive.calls = 0;
    receive.buffer = Bytes(received).subspan(have, std::min<size_t>(333'333, sent.size() - have));
    receiver->Receive(&receive);
    ASSERT_EQ(receive.calls, 0u);
    RunUntil([&] { return receive.calls == 1; });
    ASSERT_GT(receive.result, 0);
    have += static_cast<size_t>(receive.result);
  }
  RunUntil([&] { return send.calls == 1; });
  EXPECT_EQ(send.result, 0);
  EXPECT_TRUE(received == sent);
}

TEST_P(SocketTransportTest, ShutdownEndsBothOperationsOnce) {
  const auto [a, b] = Pair(GetParam());
  auto stream = MakeSocketStream(&ring_, a);
  const std::vector<std::byte> much = RandomBytes(32'000'000, 2);
  Send send;
  send.AddPart(much);
  stream->Send(&send);  // The peer does not read: it cannot finish.
  std::vector<std::byte> buffer(100);
  Receive receive;
  receive.buffer = buffer;
  stream->Receive(&receive);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring_.RunOnce(kMillisecond).ok());
  EXPECT_EQ(send.calls, 0u);
  EXPECT_EQ(receive.calls, 0u);
  stream->Shutdown();
  RunUntil([&] { return send.calls == 1 && receive.calls == 1; });
  EXPECT_LT(send.result, 0);
  EXPECT_EQ(receive.result, 0);
  // Still usable as an interface: what starts now ends at once.
  stream->Shutdown();
  Send late;
  late.AddPart(much);
  stream->Send(&late);
  RunUntil([&] { return late.calls == 1; });
  EXPECT_EQ(late.result, -EPIPE);
  EXPECT_EQ(ring_.in_kernel(), 0u);
  close(b);
}

TEST_P(SocketTransportTest, PeerThatClosesGivesZeroThenErrors) {
  const auto [a, b] = Pair(GetParam());
  auto stream = MakeSocketStream(&ring_, a);
  ASSERT_EQ(write(b, "hello", 5), 5);
  close(b);
  std::vector<std::byte> buffer(100);
  Receive receive;
  receive.buffer = buffer;
  stream->Receive(&receive);
  RunUntil([&] { return receive.calls == 1; });
  EXPECT_EQ(receive.result, 5);
  stream->Receive(&receive);
  RunUntil([&] { return receive.calls == 2; });
  EXPECT_EQ(receive.result, 0);
}

TEST_P(SocketTransportTest, MayBeDestroyedFromItsLastCompletion) {
  struct Owner : Receive {
    std::unique_ptr<Stream> stream;
  };
  const auto [a, b] = Pair(GetParam());
  Owner owner;
  owner.stream = MakeSocketStream(&ring_, a);
  owner.done = [](Completion* self, int32_t) {
    auto* op = static_cast<Owner*>(self);
    ++op->calls;
    op->stream.reset();
  };
  std::vector<std::byte> buffer(100);
  owner.buffer = buffer;
  owner.stream->Receive(&owner);
  owner.stream->Shutdown();
  RunUntil([&] { return owner.calls == 1; });
  EXPECT_EQ(owner.stream, nullptr);
  EXPECT_EQ(read(b, buffer.data(), 1), 0);  // Closed for the peer too.
  close(b);
}

TEST_P(SocketTransportTest, NonBlockingDescriptorsWaitAllTheSame) {
  const auto [a, b] = Pair(GetParam());
  ASSERT_EQ(fcntl(a, F_SETFL, fcntl(a, F_GETFL) | O_NONBLOCK), 0);
  auto stream = MakeSocketStream(&ring_, a);
  std::vector<std::byte> buffer(100);
  Receive receive;
  receive.buffer = buffer;
  stream->Receive(&receive);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring_.RunOnce(kMillisecond).ok());
  ASSERT_EQ(receive.calls, 0u);
  ASSERT_EQ(write(b, "x", 1), 1);
  RunUntil([&] { return receive.calls == 1; });
  EXPECT_EQ(receive.result, 1);
  close(b);
}

TEST_P(SocketTransportTest, DestroyingWithAnOperationInFlightIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto [a, b] = Pair(GetParam());
  EXPECT_DEATH(
      {
        Ring ring;
        if (!ring.Open(8).ok()) std::abort();
        auto stream = MakeSocketStream(&ring, a);
        std::vector<std::byte> buffer(100);
        Receive receive;
        receive.buffer = buffer;
        stream->Receive(&receive);
        stream.reset();
      },
      "check failed: receive_ == nullptr");
  close(a);
  close(b);
}

TEST_F(SocketTransportTest, DescriptorsTravelOnceWithTheFirstByte) {
  const auto [a, b] = Pair(true);
  auto stream = MakeSocketStream(&ring_, a);
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const std::vector<std::byte> sent = RandomBytes(3'000'000, 3);  // Several partial sends.
  Send send;
  send.AddPart(sent);
  send.fds = {pipes[0], pipes[1]};
  send.fd_count = 2;
  stream->Send(&send);

  std::vector<int> fds;
  std::vector<std::byte> received;
  std::vector<std::byte> piece(100'000);
  while (received.size() < sent.size()) {
    ASSERT_TRUE(ring_.RunOnce(0).ok());
    alignas(cmsghdr) char control[256];
    iovec part{piece.data(), piece.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t bytes = recvmsg(b, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (bytes < 0 && errno == EAGAIN) continue;
    ASSERT_GT(bytes, 0);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      ASSERT_EQ(c->cmsg_type, SCM_RIGHTS);
      ASSERT_TRUE(received.empty());
      const auto* first = reinterpret_cast<const int*>(CMSG_DATA(c));
      fds.insert(fds.end(), first, first + (c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    }
    received.insert(received.end(), piece.begin(), piece.begin() + bytes);
  }
  RunUntil([&] { return send.calls == 1; });
  EXPECT_EQ(send.result, 0);
  EXPECT_TRUE(received == sent);
  ASSERT_EQ(fds.size(), 2u);
  ASSERT_EQ(write(fds[1], "z", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(pipes[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'z');
  for (const int fd : {fds[0], fds[1], pipes[0], pipes[1], b}) close(fd);
}

TEST_F(SocketTransportTest, NamesItsPeer) {
  {
    const auto [a, b] = Pair(true);
    auto stream = MakeSocketStream(&ring_, a);
    EXPECT_EQ(stream->peer(), "unix:pid=" + std::to_string(getpid()));
    EXPECT_TRUE(stream->local());
    close(b);
  }
  const auto [a, b] = Pair(false);
  SocketAddress other;
  ASSERT_TRUE(other.ReadLocal(b));
  auto stream = MakeSocketStream(&ring_, a);
  EXPECT_EQ(stream->peer(), other.ToString());
  EXPECT_THAT(stream->peer(), StartsWith("127.0.0.1:"));
  EXPECT_FALSE(stream->local());
  char name[16] = {};
  socklen_t size = sizeof(name);
  ASSERT_EQ(getsockopt(a, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
  EXPECT_STREQ(name, "reno");  // Built into every kernel, and allowed to everybody.
  int no_delay = 0;
  size = sizeof(no_delay);
  ASSERT_EQ(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size), 0);
  EXPECT_EQ(no_delay, 1);
  close(b);
}

}  // namespace
}  // namespace reprise
