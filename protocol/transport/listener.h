#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/base/status.h"
#include "protocol/reactor/ring.h"

namespace reprise {

// A listening socket. The destructor closes it, and removes a Unix socket's file if it is still its
// own.
class Listener {
 public:
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int fd() const { return fd_; }
  const std::string& address() const {
    return address_;
  }                                        // "/run/reprised.sock", "127.0.0.1:7070".
  uint16_t port() const { return port_; }  // The bound port; 0 for Unix sockets.

 private:
  friend absl::StatusOr<std::unique_ptr<Listener>> ListenUnix(const std::string& path);
  friend absl::StatusOr<std::unique_ptr<Listener>> ListenTcp(std::string_view host_and_port);
  Listener() = default;

  int fd_ = -1;
  std::string address_;
  uint16_t port_ = 0;
  std::string path_;  // To be removed when its inode is still the bound one.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// Mode 0660. Takes over a socket file that nobody answers on, and refuses one on which somebody
// does. Errors name the path.
absl::StatusOr<std::unique_ptr<Listener>> ListenUnix(const std::string& path);

// "127.0.0.1:7070", "[::]:7070", "localhost:0". With port 0 the kernel picks one: see port(). Binds
// the first address that the host resolves to and that can be bound. Errors name the address.
absl::StatusOr<std::unique_ptr<Listener>> ListenTcp(std::string_view host_and_port);

// Keeps one accept in flight on a ring, from Start to Stop. Several acceptors, each on a ring of
// its own, may share a listener.
//
// No error ends it. Errors of one connection are skipped; when the process or the machine is out of
// descriptors or memory it pauses for 100 ms, while clients wait in the listener's backlog.
class Acceptor {
 public:
  // Takes the descriptor.
  using Accepted = void (*)(void* context, int fd);

  Acceptor(Ring* ring, const Listener& listener, Accepted accepted, void* context);
  ~Acceptor();  // REQUIRES: stopped().
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void Start();
  // Asks for the end; it has come, and no more connections will, when stopped().
  void Stop();
  bool stopped() const { return in_flight_ == 0; }

  struct Stats {
    uint64_t accepted = 0;
    uint64_t aborted = 0;  // Connections that failed before they were accepted.
    uint64_t pauses = 0;   // For want of descriptors or memory.
    int last_error = 0;    // The errno of the last pause.
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Op : Completion {
    Acceptor* acceptor = nullptr;
  };

  static void OnAccept(Completion* op, int32_t result);
  static void OnPauseOver(Completion* op, int32_t result);
  void Next();
  void Pause(int error);

  Ring* ring_;
  int fd_;
  Accepted accepted_;
  void* context_;
  Op accept_;
  Op pause_;
  Op cancel_;
  Op* waiting_ = nullptr;  // Which of accept_ and pause_ is in flight.
  uint32_t in_flight_ = 0;
  bool stopping_ = false;
  Stats stats_;
};

}  // namespace reprise
