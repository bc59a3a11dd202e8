#pragma once

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "protocol/base/bytes.h"

namespace reprise::test {

// A file of tests/golden: comments begin with '#', "name:" begins an entry, indented lines are its
// bytes in hexadecimal.
inline std::map<std::string, std::vector<std::byte>> ReadGolden(const std::string& file) {
  std::ifstream in(std::string(RP_SOURCE_DIR "/tests/golden/") + file);
  std::map<std::string, std::string> texts;
  std::string name;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == ' ') {
      texts[name] += line.substr(2);
    } else {
      name = line.substr(0, line.size() - 1);
    }
  }
  std::map<std::string, std::vector<std::byte>> entries;
  for (const auto& [key, text] : texts) {
    std::vector<std::byte> bytes(text.size() / 2);
    if (!FromHex(text, bytes)) bytes.clear();
    entries[key] = bytes;
  }
  return entries;
}

}  // namespace reprise::test
