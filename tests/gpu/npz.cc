#include "tests/gpu/npz.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "protocol/base/status.h"

namespace reprise {
namespace {

// ---- The .npy format ---------------------------------------------------------------------------

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::array<std::string_view, 9> kDtypes = {"f4", "f8", "i2", "i4", "i8",
                                                     "u1", "u2", "u4", "b1"};

// The text after `'key':` in a header such as {'descr': '<f4', 'fortran_order': False, ...}.
std::optional<std::string_view> ValueOf(std::string_view header, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "':";
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view value = header.substr(at + quoted.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  return value;
}

absl::StatusOr<std::string> ParseDtype(std::string_view header) {
  const auto value = ValueOf(header, "descr");
  const size_t end = value ? value->find('\'', 1) : std::string_view::npos;
  if (end == std::string_view::npos || value->front() != '\'' || end < 3) {
    return InvalidArgument("its header names no plain 'descr'; structured arrays are not read");
  }
  const std::string text(value->substr(1, end - 1));
  const std::string dtype = text.substr(1);
  const bool known = std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end();
  const bool little = text[0] == '<' || (text[0] == '|' && dtype.back() == '1');
  if (!known || !little) {
    return InvalidArgument("its dtype '" + text +
                           "' is not read; save it as little-endian f4, f8, i2, i4, i8, u2 or u4, "
                           "or as u1 or b1");
  }
  return dtype;
}

absl::StatusOr<std::vector<uint64_t>> ParseShape(std::string_view header) {
  const auto value = ValueOf(header, "shape");
  const size_t end = value ? value->find(')') : std::string_view::npos;
  if (end == std::string_view::npos || value->front() != '(') {
    return InvalidArgument("its header has no 'shape' between round brackets");
  }
  std::vector<uint64_t> shape;
  const char* at = value->data() + 1;
  const char* const last = value->data() + end;
  while (at < last) {
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    uint64_t extent = 0;
    const auto [next, error] = std::from_chars(at, last, extent);
    if (error != std::errc()) {
      return InvalidArgument("its shape " + std::string(value->substr(0, end + 1)) +
                             " has something that is not a number of elements");
    }
    shape.push_back(extent);
    at = next;
  }
  return shape;
}

// The bytes that an array of this shape has; nullopt when 64 bits cannot hold them.
std::optional<uint64_t> ByteCount(const std::vector<uint64_t>& shape, uint64_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// ---- The zip format ----------------------------------------------------------------------------

constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCommentBytesMax = 65'535;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
constexpr uint16_t kEncryptedFlag = 1;
constexpr uint64_t kDeflateRatioMax = 1'032;  // Deflate cannot do better.

struct Member {
  std::string name;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t crc32 = 0;
  uint64_t packed_bytes = 0;
  uint64_t bytes = 0;
  uint64_t local_offset = 0;
};

struct Directory {
  uint64_t offset = 0;
  uint16_t entries = 0;
};

absl::StatusOr<Directory> FindDirectory(ConstBytes archive) {
  if (archive.size() < kEndBytes) return DataLoss("is not a zip archive: it is too short");
  const uint64_t last = archive.size() - kEndBytes;
  const uint64_t first = last - std::min(last, kCommentBytesMax);
  for (uint64_t at = last + 1; at-- > first;) {
    const std::byte* end = archive.data() + at;
    if (LoadLe<uint32_t>(end) != kEndSignature) continue;
    const Directory directory = {.offset = LoadLe<uint32_t>(end + 16),
                                 .entries = LoadLe<uint16_t>(end + 10)};
    if (directory.offset > at) {
      return DataLoss("has a central directory outside the file; zip64 archives are not read");
    }
    return directory;
  }
  return DataLoss("is not a zip archive, or is cut short: it has no central directory");
}

absl::StatusOr<Member> ParseCentralEntry(ConstBytes archive, uint64_t* offset) {
  const uint64_t at = *offset;
  if (archive.size() - at < kCentralBytes ||
      LoadLe<uint32_t>(archive.data() + at) != kCentralSignature) {
    return DataLoss("has a damaged central directory at byte " + std::to_string(at));
  }
  const std::byte* entry = archive.data() + at;
  const uint64_t name_bytes = LoadLe<uint16_t>(entry + 28);
  const uint64_t rest_bytes =
      name_bytes + LoadLe<uint16_t>(entry + 30) + LoadLe<uint16_t>(entry + 32);
  if (archive.size() - at - kCentralBytes < rest_bytes) {
    return DataLoss("has a damaged central directory at byte " + std::to_string(at));
  }
  *offset = at + kCentralBytes + rest_bytes;
  return Member{.name = std::string(AsText(archive.subspan(at + kCentralBytes, name_bytes))),
                .flags = LoadLe<uint16_t>(entry + 8),
                .method = LoadLe<uint16_t>(entry + 10),
                .crc32 = LoadLe<uint32_t>(entry + 16),
                .packed_bytes = LoadLe<uint32_t>(entry + 20),
                .bytes = LoadLe<uint32_t>(entry + 24),
                .local_offset = LoadLe<uint32_t>(entry + 42)};
}

// The member's bytes as they lie in the file.
absl::StatusOr<ConstBytes> PackedBytes(ConstBytes archive, const Member& member) {
  if (member.flags & kEncryptedFlag) return InvalidArgument("it is encrypted; save it without");
  const uint64_t at = member.local_offset;
  if (at > archive.size() || archive.size() - at < kLocalBytes ||
      LoadLe<uint32_t>(archive.data() + at) != kLocalSignature) {
    return DataLoss("the central directory points at byte " + std::to_string(at) +
                    ", where no member begins");
  }
  const std::byte* local = archive.data() + at;
  const uint64_t begin =
      at + kLocalBytes + LoadLe<uint16_t>(local + 26) + LoadLe<uint16_t>(local + 28);
  if (begin > archive.size() || archive.size() - begin < member.packed_bytes) {
    return DataLoss("its data reach beyond the end of the file");
  }
  return archive.subspan(begin, member.packed_bytes);
}

absl::StatusOr<std::vector<std::byte>> Inflate(ConstBytes packed, uint64_t bytes) {
  if (bytes > packed.size() * kDeflateRatioMax + kPageBytes ||
      packed.size() > std::numeric_limits<uInt>::max() ||
      bytes > std::numeric_limits<uInt>::max()) {
    return DataLoss("it claims " + std::to_string(bytes) + " bytes in " +
                    std::to_string(packed.size()) + ", which deflate cannot reach");
  }
  std::vector<std::byte> out(bytes);
  std::byte nothing{};
  z_stream stream = {};
  RP_CHECK(inflateInit2(&stream, -MAX_WBITS) == Z_OK);  // Negative: no zlib header.
  // zlib does not write to its input; its type is older than const.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.empty() ? &nothing : out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = inflate(&stream, Z_FINISH);
  const bool whole = result == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  if (!whole) return DataLoss("its deflated data are damaged");
  return out;
}

absl::StatusOr<std::vector<std::byte>> Unpack(ConstBytes archive, const Member& member) {
  RP_ASSIGN(const ConstBytes packed, PackedBytes(archive, member));
  std::vector<std::byte> out;
  if (member.method == kDeflated) {
    RP_ASSIGN(out, Inflate(packed, member.bytes));
  } else if (member.method == kStored && packed.size() == member.bytes) {
    out.assign(packed.begin(), packed.end());
  } else {
    return InvalidArgument("its compression method " + std::to_string(member.method) +
                           " is not read; save it stored or deflated");
  }
  const uint32_t sum = static_cast<uint32_t>(
      crc32_z(crc32(0, Z_NULL, 0), reinterpret_cast<const Bytef*>(out.data()), out.size()));
  if (sum != member.crc32) return DataLoss("its checksum does not match; get the file again");
  return out;
}

absl::StatusOr<NpyArray> LoadMember(ConstBytes archive, const Member& member) {
  RP_ASSIGN(const std::vector<std::byte> file, Unpack(archive, member));
  return ParseNpy(file);
}

absl::Status Prefixed(const absl::Status& status, const std::string& prefix) {
  const std::string message = prefix + Message(status);
  return absl::Status(status.code(), absl::string_view(message.data(), message.size()));
}

}  // namespace

uint64_t NpyArray::size() const {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

absl::StatusOr<NpyArray> ParseNpy(ConstBytes file) {
  if (file.size() < 12 || AsText(file.first(kNpyMagic.size())) != kNpyMagic) {
    return DataLoss("it is not an .npy array: its first bytes are not those of the format");
  }
  const auto major = static_cast<unsigned>(file[6]);
  if (major != 1 && major != 2) {
    return InvalidArgument("its format is " + std::to_string(major) + ".x; save it as 1.0 or 2.0");
  }
  const uint64_t header_at = major == 1 ? 10 : 12;
  const uint64_t header_bytes = major == 1 ? uint64_t{LoadLe<uint16_t>(file.data() + 8)}
                                           : uint64_t{LoadLe<uint32_t>(file.data() + 8)};
  if (file.size() - header_at < header_bytes) return DataLoss("its header is cut short");
  const std::string_view header = AsText(file.subspan(header_at, header_bytes));
  const auto order = ValueOf(header, "fortran_order");
  if (!order || order->substr(0, 5) != "False") {
    return InvalidArgument("it is in Fortran order; save it through numpy.ascontiguousarray");
  }
  NpyArray array;
  RP_ASSIGN(array.dtype, ParseDtype(header));
  RP_ASSIGN(array.shape, ParseShape(header));
  const ConstBytes data = file.subspan(header_at + header_bytes);
  const auto wanted = ByteCount(array.shape, static_cast<uint64_t>(array.dtype[1] - '0'));
  if (!wanted || *wanted != data.size()) {
    return DataLoss("its shape does not fit its " + std::to_string(data.size()) + " bytes of data");
  }
  array.bytes.assign(data.begin(), data.end());
  return array;
}

absl::StatusOr<Npz> Npz::Load(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoStatus(errno, "cannot open " + path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return ErrnoStatus(errno, "cannot read " + path);
  return Parse(AsBytes(text), path);
}

absl::StatusOr<Npz> Npz::Parse(ConstBytes archive, std::string_view name) {
  const std::string prefix(name);
  auto directory = FindDirectory(archive);
  if (!directory.ok()) return Prefixed(directory.status(), prefix + " ");
  Npz npz;
  uint64_t offset = directory->offset;
  for (uint16_t entry = 0; entry < directory->entries; ++entry) {
    auto member = ParseCentralEntry(archive, &offset);
    if (!member.ok()) return Prefixed(member.status(), prefix + " ");
    auto array = LoadMember(archive, *member);
    if (!array.ok()) return Prefixed(array.status(), prefix + ", array " + member->name + ": ");
    std::string key = member->name;
    if (key.ends_with(".npy")) key.resize(key.size() - 4);
    if (!npz.arrays_.emplace(key, *std::move(array)).second) {
      return InvalidArgument(prefix + " has two arrays called " + key + "; give them two names");
    }
  }
  return npz;
}

const NpyArray* Npz::Find(std::string_view name) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : &found->second;
}

}  // namespace reprise
