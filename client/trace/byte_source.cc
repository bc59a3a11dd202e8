#include "client/trace/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

namespace reprise {
namespace {

constexpr size_t kInputBytes = 128_KiB;
constexpr std::array<std::byte, 2> kGzipMagic = {std::byte{0x1f}, std::byte{0x8b}};
constexpr std::array<std::byte, 4> kZstdMagic = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f},
                                                 std::byte{0xfd}};

class FileSource final : public ByteSource {
 public:
  FileSource(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~FileSource() override { ::close(fd_); }

  absl::StatusOr<size_t> Read(Bytes out) override {
    for (;;) {
      const ssize_t got = ::read(fd_, out.data(), out.size());
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EINTR) return ErrnoStatus(errno, "cannot read " + path_);
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_;
};

// The compressed side of a decoder: a file and the part of it that was read but not used.
class Input {
 public:
  explicit Input(std::unique_ptr<FileSource> file) : file_(std::move(file)), buffer_(kInputBytes) {}

  // Reads on until `count` bytes are unused, or the file ends.
  absl::Status Fill(size_t count) {
    while (unused_.size() < count && !at_end_) {
      std::memmove(buffer_.data(), unused_.data(), unused_.size());
      const size_t kept = unused_.size();
      RP_ASSIGN(const size_t got, file_->Read(Bytes(buffer_).subspan(kept)));
      at_end_ = got == 0;
      unused_ = ConstBytes(buffer_).first(kept + got);
    }
    return absl::OkStatus();
  }
  ConstBytes unused() const { return unused_; }
  void Use(size_t count) { unused_ = unused_.subspan(count); }
  const std::string& path() const { return file_->path(); }

 private:
  std::unique_ptr<FileSource> file_;
  std::vector<std::byte> buffer_;
  ConstBytes unused_{buffer_.data(), 0};
  bool at_end_ = false;
};

bool StartsWith(ConstBytes bytes, ConstBytes magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

class PlainSource final : public ByteSource {
 public:
  explicit PlainSource(Input input) : input_(std::move(input)) {}

  absl::StatusOr<size_t> Read(Bytes out) override {
    RP_TRY(input_.Fill(1));
    const size_t count = std::min(out.size(), input_.unused().size());
    std::memcpy(out.data(), input_.unused().data(), count);
    input_.Use(count);
    return count;
  }

 private:
  Input input_;
};

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(Input input) : input_(std::move(input)) {
    constexpr int kGzipWindowBits = 15 + 16;
    RP_CHECK(inflateInit2(&stream_, kGzipWindowBits) == Z_OK);
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Read(Bytes out) override {
    for (;;) {
      RP_TRY(input_.Fill(1));
      if (input_.unused().empty()) {
        if (!inside_) return size_t{0};
        return DataLoss(input_.path() + " ends inside a gzip member: the file is cut short");
      }
      const ConstBytes in = input_.unused();
      // zlib does not write to its input; its type is older than const.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(in.data()));
      stream_.avail_in = static_cast<uInt>(in.size());
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), 1_GiB));
      const uInt room = stream_.avail_out;
      inside_ = true;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      input_.Use(in.size() - stream_.avail_in);
      if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return DataLoss(input_.path() + " is not valid gzip data: " +
                        (stream_.msg != nullptr ? stream_.msg : zError(result)));
      }
      if (result == Z_STREAM_END) {
        inside_ = false;
        RP_CHECK(inflateReset(&stream_) == Z_OK);
      }
      if (stream_.avail_out < room) return size_t{room - stream_.avail_out};
    }
  }

 private:
  Input input_;
  z_stream stream_ = {};
  bool inside_ = false;
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(Input input) : input_(std::move(input)), stream_(ZSTD_createDStream()) {
    RP_CHECK(stream_ != nullptr);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  absl::StatusOr<size_t> Read(Bytes out) override {
    for (;;) {
      RP_TRY(input_.Fill(1));
      const ConstBytes in = input_.unused();
      ZSTD_inBuffer source = {in.data(), in.size(), 0};
      ZSTD_outBuffer target = {out.data(), out.size(), 0};
      if (in.empty() && !inside_) return size_t{0};
      // With no input left, this still hands out what the decoder holds back.
      const size_t result = ZSTD_decompressStream(stream_, &target, &source);
      if (ZSTD_isError(result)) {
        return DataLoss(input_.path() + " is not valid zstd data: " + ZSTD_getErrorName(result));
      }
      input_.Use(source.pos);
      inside_ = result != 0;
      if (target.pos > 0) return target.pos;
      if (in.empty()) {
        return DataLoss(input_.path() + " ends inside a zstd frame: the file is cut short");
      }
    }
  }

 private:
  Input input_;
  ZSTD_DStream* stream_;
  bool inside_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path) {
  const int fd = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "cannot open " + path);
  Input input(std::make_unique<FileSource>(path, fd));
  RP_TRY(input.Fill(kZstdMagic.size()));
  std::unique_ptr<ByteSource> source;
  if (StartsWith(input.unused(), kGzipMagic)) {
    source = std::make_unique<GzipSource>(std::move(input));
  } else if (StartsWith(input.unused(), kZstdMagic)) {
    source = std::make_unique<ZstdSource>(std::move(input));
  } else {
    source = std::make_unique<PlainSource>(std::move(input));
  }
  return source;
}

}  // namespace reprise
