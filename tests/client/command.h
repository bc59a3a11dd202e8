#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace reprise::test {

struct CommandResult {
  int exit_code = -1;
  std::string out;  // stdout; stderr too where the command line says 2>&1.
};

inline CommandResult RunCommand(const std::string& line) {
  CommandResult result;
  std::FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return result;
  std::array<char, 4096> piece;
  for (size_t count; (count = fread(piece.data(), 1, piece.size(), pipe)) > 0;) {
    result.out.append(piece.data(), count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace reprise::test
