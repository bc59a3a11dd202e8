#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/trace/byte_source.h"
#include "protocol/base/status.h"

namespace reprise {

// The lines of a text file, plain or compressed, in memory of one line and a buffer.
class LineReader {
 public:
  static absl::StatusOr<std::unique_ptr<LineReader>> Open(const std::string& path);

  // The next line that is not blank, without its end ("\n" or "\r\n"), or false at the end of the
  // file. The view ends with the next call.
  absl::StatusOr<bool> Next(std::string_view* line);
  // The next call of Next gives the same line again.
  void Unread() { unread_ = true; }

  // Of the line that Next gave last; the first line is 1.
  uint64_t line_number() const { return line_number_; }
  // "path:line: "
  std::string Position() const;
  const std::string& path() const { return path_; }

 private:
  LineReader(std::string path, std::unique_ptr<ByteSource> source);
  // The next line, blank or not.
  absl::StatusOr<bool> NextRaw(std::string_view* line);

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // Of the bytes in buffer_ that no line has used.
  bool at_end_ = false;
  bool unread_ = false;
  std::string_view line_;
  uint64_t line_number_ = 0;
};

}  // namespace reprise
