// Loads records into Redis or memcached and fetches them again, as quickly as one connection can:
// the yardstick of `reprise bench dram` and `reprise bench wire`. Requests are pipelined, replies
// are received in large pieces into warm memory, and values are looked at but not copied. Prints
// one JSON object.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"

namespace reprise {
namespace {

struct Options {
  std::string peer;     // redis, memcached
  std::string address;  // unix:PATH or tcp:HOST:PORT (a numeric host)
  std::string action;   // fill, get
  uint32_t values = 2'000;
  uint32_t value_bytes = 114'688;
  uint32_t depth = 1;
  double seconds = 2;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "peer_client: %s\n", why.c_str());
  std::exit(1);
}

int ConnectUnix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) Fail(path + ": too long for a Unix socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Fail("cannot connect to " + path + ": " + std::strerror(errno));
  }
  return fd;
}

int ConnectTcp(const std::string& host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (colon == std::string::npos ||
      inet_pton(AF_INET, host_and_port.substr(0, colon).c_str(), &address.sin_addr) != 1) {
    Fail(host_and_port + ": give a numeric host and a port");
  }
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(host_and_port.substr(colon + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    Fail("cannot connect to " + host_and_port + ": " + std::strerror(errno));
  }
  return fd;
}

int Connect(const std::string& address) {
  if (address.rfind("unix:", 0) == 0) return ConnectUnix(address.substr(5));
  if (address.rfind("tcp:", 0) == 0) return ConnectTcp(address.substr(4));
  Fail(address + ": give unix:PATH or tcp:HOST:PORT");
}

// What differs between the two protocols.
class Peer {
 public:
  explicit Peer(const Options& options) : redis_(options.peer == "redis") {}

  std::string Set(uint32_t i, uint32_t bytes) const {
    const std::string key = Key(i);
    return redis_ ? "*3\r\n$3\r\nSET\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n$" +
                        std::to_string(bytes) + "\r\n"
                  : "set " + key + " 0 0 " + std::to_string(bytes) + "\r\n";
  }
  std::string_view set_reply() const { return redis_ ? "+OK\r\n" : "STORED\r\n"; }

  std::string Get(uint32_t i) const {
    const std::string key = Key(i);
    return redis_ ? "*2\r\n$3\r\nGET\r\n$" + std::to_string(key.size()) + "\r\n" + key + "\r\n"
                  : "get " + key + "\r\n";
  }
  // What stands before and behind the value of `bytes`.
  std::string GetHead(uint32_t i, uint32_t bytes) const {
    return redis_ ? "$" + std::to_string(bytes) + "\r\n"
                  : "VALUE " + Key(i) + " 0 " + std::to_string(bytes) + "\r\n";
  }
  std::string_view get_tail() const { return redis_ ? "\r\n" : "\r\nEND\r\n"; }

 private:
  static std::string Key(uint32_t i) { return "block:" + std::to_string(i); }
  bool redis_;
};

// A receive buffer in huge pages: taken from the front, filled at the back.
class Inbox {
 public:
  explicit Inbox(int fd) : fd_(fd) {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) Fail("no memory");
    madvise(memory, kBytes, MADV_HUGEPAGE);
    std::memset(memory, 1, kBytes);
    data_ = static_cast<char*>(memory);
  }

  // The next `count` bytes. Valid until the next call.
  std::string_view Take(size_t count) {
    if (count > kBytes / 2) Fail("a reply is too long");
    while (end_ - begin_ < count) Receive();
    const std::string_view taken(data_ + begin_, count);
    begin_ += count;
    return taken;
  }

 private:
  static constexpr size_t kBytes = 8_MiB;

  void Receive() {
    if (begin_ == end_) {
      begin_ = end_ = 0;
    } else if (kBytes - end_ < kBytes / 4) {
      std::memmove(data_, data_ + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const ssize_t got = recv(fd_, data_ + end_, kBytes - end_, 0);
    if (got <= 0) Fail("the connection ended");
    end_ += static_cast<size_t>(got);
  }

  int fd_;
  char* data_;
  size_t begin_ = 0, end_ = 0;
};

void SendAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) Fail("the connection ended");
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void Expect(std::string_view got, std::string_view wanted) {
  if (got != wanted) Fail("expected " + std::string(wanted) + ", got " + std::string(got));
}

// A value begins with its number, so that a wrong one is noticed.
void Fill(int fd, const Options& options) {
  const Peer peer(options);
  Inbox inbox(fd);
  std::string value(options.value_bytes, '\0');
  Prng prng(1);
  for (char& c : value) c = static_cast<char>(prng.Next());
  for (uint32_t i = 0; i < options.values; ++i) {
    StoreLe(value.data(), i);
    SendAll(fd, peer.Set(i, options.value_bytes));
    SendAll(fd, value);
    SendAll(fd, "\r\n");
    Expect(inbox.Take(peer.set_reply().size()), peer.set_reply());
  }
  std::printf("{\"values\": %u}\n", options.values);
}

class Getter {
 public:
  Getter(int fd, const Options& options) : fd_(fd), options_(options), peer_(options), inbox_(fd) {}

  void Run() {
    for (uint32_t i = 0; i < options_.depth; ++i) Ask();
    RunFor(options_.seconds / 8);  // Buffers and congestion windows grow.
    const SystemClock clock;
    const Instant begin = clock.Now();
    const uint64_t before = received_;
    RunFor(options_.seconds);
    const double seconds = static_cast<double>(clock.Now() - begin) * 1e-9;
    const auto count = static_cast<double>(received_ - before);
    std::printf("{\"gets_per_second\": %.1f, \"bytes_per_second\": %.0f, \"seconds\": %.4f}\n",
                count / seconds, count * options_.value_bytes / seconds, seconds);
  }

 private:
  void Ask() {
    SendAll(fd_, peer_.Get(next_asked_));
    next_asked_ = (next_asked_ + 1) % options_.values;
  }

  void RunFor(double seconds) {
    const SystemClock clock;
    const Instant end = clock.Now() + static_cast<Nanos>(seconds * 1e9);
    while (clock.Now() < end) {
      // As many requests go out as replies came in, in one send.
      std::string requests;
      const uint32_t count = std::max(1u, options_.depth / 2);
      for (uint32_t i = 0; i < count; ++i) TakeReply();
      for (uint32_t i = 0; i < count; ++i) {
        requests += peer_.Get(next_asked_);
        next_asked_ = (next_asked_ + 1) % options_.values;
      }
      SendAll(fd_, requests);
    }
  }

  void TakeReply() {
    const std::string head = peer_.GetHead(next_reply_, options_.value_bytes);
    Expect(inbox_.Take(head.size()), head);
    const std::string_view value = inbox_.Take(options_.value_bytes);
    if (LoadLe<uint32_t>(value.data()) != next_reply_) Fail("a wrong value");
    Expect(inbox_.Take(peer_.get_tail().size()), peer_.get_tail());
    next_reply_ = (next_reply_ + 1) % options_.values;
    ++received_;
  }

  int fd_;
  const Options& options_;
  Peer peer_;
  Inbox inbox_;
  uint32_t next_asked_ = 0, next_reply_ = 0;
  uint64_t received_ = 0;
};

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  using reprise::Options;
  CLI::App app("One connection to Redis or memcached, as quick as it can be");
  Options options;
  app.add_option("peer", options.peer)->required()->check(CLI::IsMember({"redis", "memcached"}));
  app.add_option("action", options.action)->required()->check(CLI::IsMember({"fill", "get"}));
  app.add_option("--address", options.address)->required();
  app.add_option("--values", options.values)->check(CLI::PositiveNumber);
  app.add_option("--value-bytes", options.value_bytes)->check(CLI::Range(8, 4'000'000));
  app.add_option("--depth", options.depth, "Requests in flight")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const int fd = reprise::Connect(options.address);
  if (options.action == "fill") {
    reprise::Fill(fd, options);
  } else {
    reprise::Getter(fd, options).Run();
  }
  close(fd);
  return 0;
}
