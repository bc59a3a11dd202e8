#include "server/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace reprise::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FakeSource final : public HttpSource {
 public:
  std::string Metrics() override { return "reprise_ready 1\n"; }
  bool Ready(std::string* reason) override {
    if (!ready) *reason = "recovering \"shard 0\"";
    return ready;
  }
  std::string StatusJson() override { return R"({"blocks":3})"; }

  std::atomic<bool> ready = true;
};

int Connect(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval timeout{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

std::string ReadAll(int fd) {
  std::string answer;
  char bytes[4096];
  for (ssize_t n; (n = ::recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
    answer.append(bytes, static_cast<size_t>(n));
  }
  ::close(fd);
  return answer;
}

// Sends bytes as they are, reads until the server closes.
std::string Exchange(uint16_t port, const std::string& bytes) {
  const int fd = Connect(port);
  ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return ReadAll(fd);
}

std::string Request(uint16_t port, const std::string& method, const std::string& path) {
  return Exchange(port, method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server =
        HttpServer::Start({.port = 0, .threads = 2, .waiting_max = 2, .timeout_ms = 100}, &source_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  FakeSource source_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, ServesItsFourPages) {
  EXPECT_THAT(Request(server_->port(), "GET", "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/plain; version=0.0.4"),
                    HasSubstr("\r\n\r\nreprise_ready 1\n")));
  EXPECT_THAT(Request(server_->port(), "GET", "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("{\"status\":\"alive\"}\n")));
  EXPECT_THAT(Request(server_->port(), "GET", "/readyz"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("{\"status\":\"ready\"}\n")));
  EXPECT_THAT(Request(server_->port(), "GET", "/status"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("application/json"),
                    HasSubstr("{\"blocks\":3}\n")));
  EXPECT_THAT(Request(server_->port(), "HEAD", "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpTest, ReadyzSaysWhyNot) {
  source_.ready = false;
  EXPECT_THAT(
      Request(server_->port(), "GET", "/readyz"),
      AllOf(StartsWith("HTTP/1.1 503"),
            HasSubstr("{\"status\":\"not ready\",\"reason\":\"recovering \\\"shard 0\\\"\"}")));
  EXPECT_THAT(Request(server_->port(), "GET", "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpTest, EverythingElseIsAJsonError) {
  for (const char* path : {"/", "/metric", "/metricsx", "/status/", "/../etc/passwd", "/%22%0a"}) {
    EXPECT_THAT(Request(server_->port(), "GET", path),
                AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("application/json"),
                      HasSubstr("{\"error\":\"no GET")))
        << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    EXPECT_THAT(
        Exchange(server_->port(), std::string(method) + " /status HTTP/1.1\r\nContent-Length: 2\r\n"
                                                        "Connection: close\r\n\r\n{}"),
        AllOf(StartsWith("HTTP/1.1 404"), HasSubstr("{\"error\":\"no ")));
  }
}

TEST_F(HttpTest, HostileRequestsAreRefusedAndTheServerLives) {
  EXPECT_THAT(Exchange(server_->port(), "nonsense\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  const std::string large_head =
      "GET /status HTTP/1.1\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n";
  EXPECT_THAT(Exchange(server_->port(), large_head), testing::Not(HasSubstr("blocks")));
  const std::string long_path =
      "GET /" + std::string(10'000, 'a') + " HTTP/1.1\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(Exchange(server_->port(), long_path), testing::Not(HasSubstr(" 200 ")));
  const std::string large_body =
      "POST /status HTTP/1.1\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(Exchange(server_->port(), large_body), testing::Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Exchange(server_->port(), std::string(64, '\0')), testing::Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Request(server_->port(), "GET", "/status"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpTest, SilentConnectionsDoNotHoldItForLong) {
  std::vector<int> silent;
  for (int i = 0; i < 6; ++i)
    silent.push_back(Connect(server_->port()));  // Threads 2, waiting 2, backlog.
  for (const int fd : silent) ::send(fd, "GET /st", 7, MSG_NOSIGNAL);
  EXPECT_THAT(Request(server_->port(), "GET", "/status"), StartsWith("HTTP/1.1 200"));
  for (const int fd : silent) EXPECT_THAT(ReadAll(fd), testing::Not(HasSubstr(" 200 ")));
}

TEST_F(HttpTest, ManyClientsAtOnce) {
  std::vector<std::thread> clients;
  std::atomic<int> served = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int j = 0; j < 10; ++j) {
        if (Request(server_->port(), "GET", "/status").starts_with("HTTP/1.1 200")) ++served;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(served, 80);
}

TEST_F(HttpTest, ATakenPortIsAnErrorThatNamesIt) {
  const auto second = HttpServer::Start({.port = server_->port()}, &source_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      Message(second.status()),
      AllOf(HasSubstr("127.0.0.1:" + std::to_string(server_->port())), HasSubstr("listen.http")));
  EXPECT_FALSE(HttpServer::Start({.host = "203.0.113.1", .port = 0}, &source_).ok()) << "not ours";
}

TEST_F(HttpTest, StopsInTimeAndThePortIsFreeAgain) {
  const uint16_t port = server_->port();
  const int idle = Connect(port);
  server_.reset();
  ::close(idle);
  auto again = HttpServer::Start({.port = port}, &source_);
  ASSERT_TRUE(again.ok()) << again.status();
  for (int i = 0; i < 20; ++i) {  // Started and stopped without a request in between.
    ASSERT_TRUE(HttpServer::Start({.port = 0}, &source_).ok());
  }
}

}  // namespace
}  // namespace reprise::server
