#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "protocol/base/bytes.h"

namespace reprise {

// Memory for records that arrive over a socket. Fresh memory costs a page fault per 4 KiB, which is
// more than receiving into it, so buffers are made of 2 MiB pages where there are any and used
// again. One thread.
class ReceiveBuffers {
 public:
  ReceiveBuffers() = default;
  ~ReceiveBuffers();
  ReceiveBuffers(const ReceiveBuffers&) = delete;
  ReceiveBuffers& operator=(const ReceiveBuffers&) = delete;

  // At least `bytes` long; empty when the machine has no more memory.
  Bytes Take(uint64_t bytes);
  // REQUIRES: `buffer` came from Take, whole.
  void Return(Bytes buffer);

  // Called with a buffer before its memory is given back to the system.
  void OnUnmap(std::function<void(Bytes)> tell) { on_unmap_ = std::move(tell); }

  uint64_t kept_bytes() const { return kept_bytes_; }

  static constexpr uint64_t kKeptBytesMax = 256_MiB;
  static constexpr uint64_t kStepBytes = 2_MiB;

 private:
  std::vector<Bytes> kept_;
  std::function<void(Bytes)> on_unmap_;
  uint64_t kept_bytes_ = 0;
};

}  // namespace reprise
