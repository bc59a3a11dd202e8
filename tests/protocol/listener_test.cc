#include "protocol/transport/listener.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/transport/socket_address.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(ring_.Open(32).ok());
    std::string pattern = ::testing::TempDir() + "reprise_listen_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = directory_ + "/s";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }

  void RunUntil(const std::function<bool()>& reached) {
    for (int turn = 0; turn < 500 && !reached(); ++turn) {
      ASSERT_TRUE(ring_.RunOnce(10 * kMillisecond).ok());
    }
    ASSERT_TRUE(reached());
  }

  static int ConnectTcp(const std::string& where) {
    auto addresses = SocketAddress::Resolve(where);
    EXPECT_TRUE(addresses.ok()) << addresses.status();
    const int fd = socket(addresses->front().family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, addresses->front().address(), addresses->front().size()), 0) << where;
    return fd;
  }

  int ConnectUnix() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
  }

  Ring ring_;
  std::string directory_;
  std::string path_;
};

// Collects accepted descriptors.
struct Guests {
  std::vector<int> fds;
  ~Guests() {
    for (const int fd : fds) close(fd);
  }
  static void Take(void* context, int fd) { static_cast<Guests*>(context)->fds.push_back(fd); }
};

TEST_F(ListenerTest, UnixSocketFileLivesAsLongAsTheListener) {
  const mode_t old_mask = umask(0022);
  {
    auto listener = ListenUnix(path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    struct stat info {};
    ASSERT_EQ(stat(path_.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    EXPECT_EQ(info.st_mode & 07777, 0660u);
    EXPECT_EQ((*listener)->address(), path_);
    EXPECT_EQ((*listener)->port(), 0);
    const int fd = ConnectUnix();
    EXPECT_GE(fd, 0);
    close(fd);
  }
  umask(old_mask);
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(ListenerTest, UnixRefusesALiveSocketAndTakesOverAStaleOne) {
  auto first = ListenUnix(path_);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = ListenUnix(path_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Message(second.status()), HasSubstr("another daemon is listening"));
  EXPECT_THAT(Message(second.status()), HasSubstr(path_));
  const int fd = ConnectUnix();
  EXPECT_GE(fd, 0);  // The first was not disturbed.
  close(fd);

  // A daemon that was killed leaves its file behind.
  const std::string stale = directory_ + "/stale";
  ASSERT_EQ(link(path_.c_str(), stale.c_str()), 0);
  first->reset();
  ASSERT_EQ(rename(stale.c_str(), path_.c_str()), 0);
  ASSERT_LT(ConnectUnix(), 0);
  auto third = ListenUnix(path_);
  ASSERT_TRUE(third.ok()) << third.status();
}

TEST_F(ListenerTest, UnixListenerLeavesAFileThatIsNotItsOwn) {
  auto listener = ListenUnix(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_EQ(unlink(path_.c_str()), 0);
  auto successor = ListenUnix(path_);
  ASSERT_TRUE(successor.ok()) << successor.status();
  listener->reset();
  const int fd = ConnectUnix();
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST_F(ListenerTest, UnixErrorsNameThePath) {
  struct Case {
    std::string path;
    const char* says;
  };
  const std::string file = directory_ + "/file";
  close(open(file.c_str(), O_CREAT | O_CLOEXEC | O_WRONLY, 0600));
  const Case cases[] = {{"", "1 to 107 bytes"},
                        {std::string(108, 'a'), "1 to 107 bytes"},
                        {file, "is not a socket"},
                        {directory_, "is not a socket"},
                        {directory_ + "/none/s", "No such file or directory"}};
  for (const Case& c : cases) {
    const auto listener = ListenUnix(c.path);
    ASSERT_FALSE(listener.ok()) << c.path;
    EXPECT_THAT(Message(listener.status()), HasSubstr(c.says));
    EXPECT_THAT(Message(listener.status()), HasSubstr("\"" + c.path + "\""));
  }
  EXPECT_EQ(access(file.c_str(), F_OK), 0);  // Not ours, not touched.
  unlink(file.c_str());
}

TEST_F(ListenerTest, TcpPortZeroAndBothFamilies) {
  for (const char* where : {"127.0.0.1:0", "[::1]:0", "localhost:0"}) {
    auto listener = ListenTcp(where);
    if (!listener.ok() && std::string(where) == "[::1]:0") continue;  // A machine without IPv6.
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_NE((*listener)->port(), 0);
    EXPECT_THAT((*listener)->address(),
                ::testing::EndsWith(":" + std::to_string((*listener)->port())));
    const int fd = ConnectTcp((*listener)->address());
    SocketAddress peer;
    ASSERT_TRUE(peer.ReadPeer(fd));
    EXPECT_EQ(peer.ToString(), (*listener)->address());
    EXPECT_TRUE(peer.loopback());
    close(fd);
    // A port in use, here by ourselves.
    const auto again = ListenTcp((*listener)->address());
    ASSERT_FALSE(again.ok());
    EXPECT_THAT(Message(again.status()), HasSubstr((*listener)->address()));
    EXPECT_THAT(Message(again.status()), HasSubstr("Address already in use"));
  }
}

TEST_F(ListenerTest, TcpAddressesThatAreNone) {
  for (const char* where :
       {"", ":", "127.0.0.1", "127.0.0.1:", ":7070", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:80x", "::1:7070", "[]:7070", "[::1]", "[::1:7070", "256.0.0.1:7070"}) {
    const auto listener = ListenTcp(where);
    ASSERT_FALSE(listener.ok()) << where;
    EXPECT_THAT(Message(listener.status()), HasSubstr("\"" + std::string(where) + "\"")) << where;
  }
  const auto foreign = ListenTcp("192.0.2.1:0");  // TEST-NET-1: nobody's.
  ASSERT_FALSE(foreign.ok());
  EXPECT_THAT(Message(foreign.status()), HasSubstr("192.0.2.1:0"));
}

TEST_F(ListenerTest, AcceptsUntilStopped) {
  auto listener = ListenUnix(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  Guests guests;
  Acceptor acceptor(&ring_, **listener, &Guests::Take, &guests);
  EXPECT_TRUE(acceptor.stopped());
  acceptor.Start();
  EXPECT_FALSE(acceptor.stopped());
  std::vector<int> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(ConnectUnix());
  RunUntil([&] { return guests.fds.size() == 100; });
  EXPECT_EQ(acceptor.stats().accepted, 100u);
  ASSERT_EQ(write(clients[42], "x", 1), 1);
  EXPECT_EQ(fcntl(guests.fds[0], F_GETFD), FD_CLOEXEC);
  acceptor.Stop();
  acceptor.Stop();
  RunUntil([&] { return acceptor.stopped(); });
  clients.push_back(ConnectUnix());  // Into the backlog, where it stays.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring_.RunOnce(kMillisecond).ok());
  EXPECT_EQ(guests.fds.size(), 100u);
  for (const int fd : clients) close(fd);
}

TEST_F(ListenerTest, StopFromTheCallback) {
  struct Once : Guests {
    Acceptor* acceptor = nullptr;
  };
  auto listener = ListenUnix(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  Once once;
  Acceptor acceptor(
      &ring_, **listener,
      [](void* context, int fd) {
        auto* self = static_cast<Once*>(context);
        self->fds.push_back(fd);
        self->acceptor->Stop();
      },
      &once);
  once.acceptor = &acceptor;
  acceptor.Start();
  const int clients[] = {ConnectUnix(), ConnectUnix()};
  RunUntil([&] { return acceptor.stopped(); });
  EXPECT_EQ(once.fds.size(), 1u);
  for (const int fd : clients) close(fd);
}

// Out of descriptors: waits without spinning, and accepts who waited once there are some again.
TEST_F(ListenerTest, SurvivesWantOfDescriptors) {
  auto listener = ListenUnix(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  Guests guests;
  Acceptor acceptor(&ring_, **listener, &Guests::Take, &guests);
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  rlimit tight = old;
  const int next = dup(0);  // The lowest free descriptor.
  close(next);
  tight.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);

  acceptor.Start();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  SystemClock clock;
  const Instant start = clock.Now();
  uint32_t turns = 0;
  for (; clock.Now() - start < 350 * kMillisecond; ++turns) {
    ASSERT_TRUE(ring_.RunOnce(50 * kMillisecond).ok());
  }
  EXPECT_LT(turns, 50u);
  EXPECT_GE(acceptor.stats().pauses, 2u);
  EXPECT_LE(acceptor.stats().pauses, 5u);
  EXPECT_EQ(acceptor.stats().last_error, EMFILE);
  EXPECT_TRUE(guests.fds.empty());

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  RunUntil([&] { return guests.fds.size() == 1; });
  // Stopped in the middle of a pause, it does not wait for its end.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const uint64_t pauses = acceptor.stats().pauses;
  RunUntil([&] { return acceptor.stats().pauses > pauses || acceptor.stats().accepted == 1; });
  acceptor.Stop();
  RunUntil([&] { return acceptor.stopped(); });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  close(client);
}

}  // namespace
}  // namespace reprise
