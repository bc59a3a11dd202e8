#include "client/trace/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace reprise {
namespace {

constexpr size_t kBufferBytes = 256_KiB;
// A prompt of kInputTokensMax token ids, written out, fits.
constexpr size_t kLineBytesMax = 128_MiB;

}  // namespace

LineReader::LineReader(std::string path, std::unique_ptr<ByteSource> source)
    : path_(std::move(path)), source_(std::move(source)), buffer_(kBufferBytes) {}

absl::StatusOr<std::unique_ptr<LineReader>> LineReader::Open(const std::string& path) {
  RP_ASSIGN(auto source, OpenByteSource(path));
  return std::unique_ptr<LineReader>(new LineReader(path, std::move(source)));
}

std::string LineReader::Position() const {
  return path_ + ":" + std::to_string(line_number_) + ": ";
}

absl::StatusOr<bool> LineReader::Next(std::string_view* line) {
  if (unread_) {
    unread_ = false;
    *line = line_;
    return true;
  }
  for (;;) {
    RP_ASSIGN(const bool found, NextRaw(&line_));
    if (!found) return false;
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (line_.find_first_not_of(" \t") == std::string_view::npos) continue;
    *line = line_;
    return true;
  }
}

absl::StatusOr<bool> LineReader::NextRaw(std::string_view* line) {
  size_t searched = 0;
  for (;;) {
    const char* const text = reinterpret_cast<const char*>(buffer_.data());
    const size_t unused = end_ - begin_;
    const void* const feed = unused > searched
                                 ? std::memchr(text + begin_ + searched, '\n', unused - searched)
                                 : nullptr;
    if (feed != nullptr || at_end_) {
      if (feed == nullptr && unused == 0) return false;
      const size_t length =
          feed == nullptr ? unused : static_cast<const char*>(feed) - (text + begin_);
      *line = {text + begin_, length};
      begin_ += std::min(length + 1, unused);
      ++line_number_;
      return true;
    }
    searched = unused;
    std::memmove(buffer_.data(), buffer_.data() + begin_, unused);
    begin_ = 0;
    end_ = unused;
    if (unused == buffer_.size()) {
      if (unused >= kLineBytesMax) {
        return InvalidArgument(path_ + ":" + std::to_string(line_number_ + 1) +
                               ": the line is longer than 128 MiB: this is not a trace");
      }
      buffer_.resize(2 * buffer_.size());
    }
    RP_ASSIGN(const size_t got, source_->Read(Bytes(buffer_).subspan(end_)));
    at_end_ = got == 0;
    end_ += got;
  }
}

}  // namespace reprise
