#include "gpu/cuda/rank_threads.h"

#include <utility>

namespace reprise::engine::cuda {

RankThreads::RankThreads(uint32_t ranks) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    threads_.emplace_back([this, rank] { Serve(rank); });
  }
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  begins_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<absl::Status> RankThreads::Run(const std::function<absl::Status(uint32_t)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  left_ = ranks();
  results_.assign(ranks(), absl::OkStatus());
  ++turn_;
  begins_.notify_all();
  ended_.wait(lock, [&] { return left_ == 0; });
  work_ = nullptr;
  return std::move(results_);
}

void RankThreads::Serve(uint32_t rank) {
  uint64_t turn = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begins_.wait(lock, [&] { return over_ || turn_ != turn; });
    if (over_) return;
    turn = turn_;
    const auto* const work = work_;
    lock.unlock();
    absl::Status status = (*work)(rank);
    lock.lock();
    results_[rank] = std::move(status);
    if (--left_ == 0) ended_.notify_one();
  }
}

}  // namespace reprise::engine::cuda
