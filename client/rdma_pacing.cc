#include "client/rdma_pacing.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr Nanos kPauseMin = kSecond;
constexpr Nanos kPauseMax = 60 * kSecond;

}  // namespace

RdmaPacing& RdmaPacing::Global() {
  static RdmaPacing pacing;
  return pacing;
}

bool RdmaPacing::Allowed(const std::string& address, Instant now) {
  const std::lock_guard lock(mutex_);
  const auto found = troubles_.find(address);
  return found == troubles_.end() || now >= found->second.until;
}

void RdmaPacing::Failed(const std::string& address, Instant now) {
  const std::lock_guard lock(mutex_);
  Trouble& trouble = troubles_[address];
  trouble.pause_ns = std::clamp(2 * trouble.pause_ns, kPauseMin, kPauseMax);
  trouble.until = now + trouble.pause_ns;
}

void RdmaPacing::Worked(const std::string& address) {
  const std::lock_guard lock(mutex_);
  troubles_.erase(address);
}

}  // namespace reprise
