#include "client/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/client.h"
#include "client/receive_buffers.h"
#include "tests/client/fake_server.h"

namespace reprise {
namespace {

TEST(ConnectionTest, AddressesThatAreNone) {
  for (const char* address : {"", "unix:", "tcp:", "tcp:host", "tcp::80", "tcp:host:", "http://x",
                              "/run/reprised.sock"}) {
    const auto status = Client::Connect({.address = address}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(Message(status), testing::HasSubstr("unix:/path/to/socket or tcp:host:port"));
  }
  const auto status = Client::Connect({.address = "unix:/" + std::string(200, 'x')}).status();
  EXPECT_THAT(Message(status), testing::HasSubstr("longer than 107 bytes"));
}

TEST(ConnectionTest, NobodyThere) {
  for (const char* address : {"unix:/nonexistent/socket", "tcp:127.0.0.1:1", "tcp:[::1]:1"}) {
    const auto status = Client::Connect({.address = address}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << address;
    EXPECT_THAT(Message(status), testing::HasSubstr("check that reprised runs"));
  }
}

TEST(ConnectionTest, APeerThatNeverSpeaksIsGivenUp) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t address_bytes = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_bytes);
  const auto status =
      Client::Connect({.address = "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port)),
                       .connect_timeout_ns = 50 * kMillisecond})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  close(listener);
}

TEST(ConnectionTest, HostNamesResolve) {
  test::FakeServer server({.tcp = true});
  const std::string port = server.address().substr(server.address().rfind(':'));
  EXPECT_TRUE(Client::Connect({.address = "tcp:localhost" + port}).ok());
}

TEST(ReceiveBuffersTest, AreUsedAgainBestFitFirst) {
  ReceiveBuffers buffers;
  const Bytes small = buffers.Take(1);
  const Bytes large = buffers.Take(10_MiB);
  EXPECT_EQ(small.size(), 2_MiB);
  EXPECT_EQ(large.size(), 10_MiB);
  buffers.Return(large);
  buffers.Return(small);
  EXPECT_EQ(buffers.kept_bytes(), 12_MiB);
  EXPECT_EQ(buffers.Take(2_MiB).data(), small.data());
  EXPECT_EQ(buffers.Take(2_MiB).data(), large.data());
  EXPECT_EQ(buffers.kept_bytes(), 0u);
  buffers.Return(small);
  buffers.Return(large);
  const Bytes huge = buffers.Take(ReceiveBuffers::kKeptBytesMax);
  buffers.Return(huge);
  EXPECT_EQ(buffers.kept_bytes(), 12_MiB) << "more than is kept goes back to the machine";
}

}  // namespace
}  // namespace reprise
