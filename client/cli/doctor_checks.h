#pragma once

#include <string>
#include <vector>

#include "protocol/rdma/verbs.h"

namespace reprise::cli {

// One line of `reprise doctor`.
struct Check {
  enum class Level { kOk, kWarn, kFail };
  std::string name;
  Level level = Level::kOk;
  std::string found;   // What is so.
  std::string advice;  // What to do; empty when ok.
};

const char* LevelName(Check::Level level);

// What this machine gives the daemon. Each looks for itself, changes nothing that stays, and needs
// no daemon.
Check CheckIoUring();
Check CheckMemlock();
Check CheckHugePages();
Check CheckCongestionControl();
Check CheckRdma();
Check CheckGpu();
Check CheckDirectIo(const std::string& directory);

// Judgements apart from looking, for tests.
Check JudgeMemlock(bool may_lock_all, unsigned long long limit_bytes);
Check JudgeHugePages(unsigned long long free_pages, const std::string& shmem_enabled);
Check JudgeRdma(const std::vector<rdma::Port>& ports, bool driver);
Check JudgeCongestionControl(const std::string& default_name, const std::string& chosen_name);

}  // namespace reprise::cli
