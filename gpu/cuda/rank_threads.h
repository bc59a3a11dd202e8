#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/base/status.h"

namespace reprise::engine::cuda {

// A thread for each rank, that lives as long as this does. One caller at a time.
class RankThreads {
 public:
  explicit RankThreads(uint32_t ranks);
  RankThreads(const RankThreads&) = delete;
  ~RankThreads();

  uint32_t ranks() const { return static_cast<uint32_t>(threads_.size()); }
  // Runs work(rank) on every thread at once, and blocks until all have ended: what each gave.
  std::vector<absl::Status> Run(const std::function<absl::Status(uint32_t rank)>& work);

 private:
  void Serve(uint32_t rank);

  std::mutex mutex_;
  std::condition_variable begins_, ended_;
  const std::function<absl::Status(uint32_t)>* work_ = nullptr;
  std::vector<absl::Status> results_;
  uint64_t turn_ = 0;
  uint32_t left_ = 0;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace reprise::engine::cuda
