#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "client/client_impl.h"

namespace reprise {

Lease::Lease(Lease&& other) noexcept { *this = std::move(other); }

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  client_ = std::exchange(other.client_, nullptr);
  lease_id_ = std::exchange(other.lease_id_, 0);
  records_ = std::exchange(other.records_, {});
  slots_ = std::exchange(other.slots_, {});
  buffers_ = std::exchange(other.buffers_, {});
  from_ssd_ = other.from_ssd_;
  stopped_by_ = other.stopped_by_;
  return *this;
}

Lease::~Lease() { Release(); }

Outcome Lease::CopyTo(uint32_t i, Bytes out) const {
  if (i >= records_.size() || out.empty()) return Outcome::kInvalid;
  std::memcpy(out.data(), records_[i].data(), std::min(out.size(), records_[i].size()));
  if (slots_.empty()) return Outcome::kOk;
  // The copy's loads must be done before the generation is read.
  std::atomic_thread_fence(std::memory_order_acquire);
  return client_->impl_->memory.Current(slots_[i]) ? Outcome::kOk : Outcome::kClosed;
}

void Lease::Release() {
  if (client_ == nullptr) return;
  if (lease_id_ != 0) client_->impl_->channel.Release(lease_id_);
  for (const Bytes buffer : buffers_) client_->impl_->buffers.Return(buffer);
  client_ = nullptr;
  lease_id_ = 0;
  records_.clear();
  slots_.clear();
  buffers_.clear();
}

}  // namespace reprise
