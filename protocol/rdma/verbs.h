#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

// The door to RDMA hardware. What is above it sees devices, queue pairs and completions only
// through these classes: LibVerbs (lib_verbs.h) in the product, FakeVerbs in tests. Terms are those
// of the InfiniBand specification, volume 1.
namespace reprise::rdma {

using Gid = std::array<std::byte, 16>;

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

// A port of a device, with the address by which peers reach it.
struct Port {
  std::string device;  // "mlx5_0", "rxe0".
  uint8_t number = 1;
  bool active = false;
  bool ethernet = false;
  uint16_t lid = 0;  // InfiniBand.
  uint32_t mtu_bytes = 1024;
  int gid_index = -1;  // -1: it has no address.
  Gid gid{};
  GidKind gid_kind = GidKind::kInfiniBand;
  uint64_t region_bytes_max = 0;  // Of one memory region.
  uint32_t regions_max = 0;
  uint32_t queue_pairs_max = 0;
  uint32_t queue_depth_max = 0;
  uint32_t completions_max = 0;  // Of one completion queue.
  bool windows = false;          // It has memory windows of type 2.
};

// True for an address that stands for an IPv4 one (::ffff:a.b.c.d).
bool IsIpv4(const Gid& gid);
// False: it is neither an IPv4 nor an IPv6 address.
bool GidOf(const sockaddr_storage& address, Gid* gid);
std::string GidText(const Gid& gid);  // "10.0.0.1" or "fe80:0:..."

// Of the ports that are active and have an address: one of `device` ("mlx5_0", "mlx5_0:2"; empty:
// any), with `gid_index` (-1: any), that has the address `prefer` if there is one, else RoCEv2 with
// IPv4, else any. Null: none, and *why says so.
const Port* ChoosePort(std::span<const Port> ports, std::string_view device, int gid_index,
                       const Gid* prefer, std::string* why);

// What the other side has to know of a queue pair. Goes over the wire as it is (PROTOCOL.md,
// "RDMA").
struct PeerAddress {
  Gid gid{};
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // Packet sequence number, 24 bits.
  uint32_t mtu_bytes = 1024;
  uint32_t receives = 0;       // Messages that it can take in before it reads one.
  uint32_t message_bytes = 0;  // Of one message at most.
  uint16_t lid = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(PeerAddress) == 40);

enum class Access : uint8_t {
  kReadHere,    // The device reads it for what is sent and written from it.
  kWriteHere,   // And receives into it.
  kPeerWrites,  // And the peer writes to it, where it has the key.
  kWindows,     // The peer writes to what windows show of it. Its own remote key is of no use.
};

// Memory that the device may use; until it is destroyed.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

// A key to a part of registered memory, from the work that opens it to the work that closes it;
// each time another key, of 256. Belongs to the queue pair that opened it: no other peer can use
// it. Is closed, and that work finished, before it opens again, and destroyed before queue pair and
// memory.
class Window {
 public:
  virtual ~Window() = default;
  // Of the window that is open, or was last.
  virtual uint32_t key() const = 0;
  // The key that it will open with next, which is key() from now on.
  virtual uint32_t NextKey() = 0;
};
// What one window can show: devices take less than 2 GiB.
inline constexpr uint64_t kWindowBytesMax = 1_GiB;

struct SendWork {
  // kWriteTold: a write that takes a receive of the peer and gives it `immediate`.
  // kOpenWindow: `window` shows data and bytes, a part of `memory`, by `remote_key`; to what is
  // sent after it. kCloseWindow: ends `remote_key`; once it is finished, nothing lands any more.
  enum class Kind : uint8_t { kSend, kWrite, kWriteTold, kOpenWindow, kCloseWindow };
  Kind kind = Kind::kSend;
  bool signaled = false;
  bool inlined = false;
  uint32_t bytes = 0;
  const std::byte* data = nullptr;
  uint32_t local_key = 0;
  uint32_t immediate = 0;  // kSend, kWriteTold.
  uint64_t remote_address = 0;
  uint32_t remote_key = 0;
  Window* window = nullptr;        // kOpenWindow, as is the next.
  const Memory* memory = nullptr;  // Of Access::kWindows.
  uint64_t id = 0;
};

struct ReceiveWork {
  uint64_t id = 0;
  std::byte* data = nullptr;
  uint32_t bytes = 0;
  uint32_t local_key = 0;
};

// Why work failed. After any of them a reliable queue pair is of no more use.
enum class WorkError : uint8_t {
  kNone,
  kFlushed,      // It was in a queue pair that failed or was shut down.
  kPeerSilent,   // Retries were used up.
  kPeerRefused,  // Wrong key, outside its region, or no right to write.
  kNoReceive,    // The peer had no receive posted, again and again.
  kLocal,        // Wrong local memory or length: a mistake of ours.
  kOther,
};
inline constexpr size_t kWorkErrors = 7;
std::string_view WorkErrorName(WorkError error);

struct Completed {
  uint64_t id = 0;
  uint32_t queue_pair = 0;
  WorkError error = WorkError::kNone;
  bool told = false;  // A receive that was taken by kWriteTold.
  uint32_t bytes = 0;
  uint32_t immediate = 0;
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // How many of `out` were filled. An error: the queue itself is broken.
  [[nodiscard]] virtual absl::StatusOr<size_t> Poll(std::span<Completed> out) = 0;
  // The next completion makes event_fd readable; look once more after this, before waiting.
  [[nodiscard]] virtual absl::Status Arm() = 0;
  virtual int event_fd() const = 0;
  // Takes what made event_fd readable.
  virtual void TakeEvents() = 0;
};

struct QueuePairShape {
  uint32_t sends = 128;
  uint32_t receives = 32;
  uint32_t inline_bytes = 0;  // Asked for.
};

// A reliable connection. Destroying it ends what is posted: the device touches none of its memory
// afterwards; completions may still come and name its number.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  virtual uint32_t inline_bytes() const = 0;
  [[nodiscard]] virtual absl::Status Connect(const PeerAddress& peer, uint32_t first_packet) = 0;
  // All or an error; after an error nothing is known and the queue pair is to be destroyed.
  [[nodiscard]] virtual absl::Status PostReceives(std::span<const ReceiveWork> work) = 0;
  [[nodiscard]] virtual absl::Status PostSends(std::span<const SendWork> work) = 0;
};

// A port in use, with its own protection domain. Any thread may call it. It outlives what it made.
class Device {
 public:
  virtual ~Device() = default;
  virtual const Port& port() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Memory>> Register(Bytes memory, Access access) = 0;
  // Device memory behind a dma-buf descriptor, which stays the caller's; addressed from `address`
  // on.
  virtual absl::StatusOr<std::unique_ptr<Memory>> RegisterDmabuf(int fd, uint64_t offset,
                                                                 uint64_t bytes,
                                                                 uint64_t address) = 0;
  // REQUIRES: port().windows.
  virtual absl::StatusOr<std::unique_ptr<Window>> MakeWindow() = 0;
  virtual absl::StatusOr<std::unique_ptr<CompletionQueue>> MakeCompletionQueue(
      uint32_t entries) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> MakeQueuePair(CompletionQueue* queue,
                                                                   const QueuePairShape& shape) = 0;
};

class Verbs {
 public:
  virtual ~Verbs() = default;
  // Of all devices; empty where there are none. An error says what is missing.
  virtual absl::StatusOr<std::vector<Port>> Ports() = 0;
  virtual absl::StatusOr<std::unique_ptr<Device>> Open(const Port& port) = 0;
};

}  // namespace reprise::rdma
