#pragma once

#include <filesystem>
#include <string>

#include "gtest/gtest.h"

namespace reprise::storage {

// A directory of the running test's own under the build folder; empty at first, gone at the end.
class TempDirectory {
 public:
  TempDirectory() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_.append(RP_BINARY_DIR "/tmp/")
        .append(test->test_suite_name())
        .append(".")
        .append(test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace reprise::storage
