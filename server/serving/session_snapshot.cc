#include "server/serving/session_snapshot.h"

#include <cstring>
#include <string>

namespace reprise::server {
namespace {

constexpr uint32_t kMagic = 0x53535052;  // "RPSS"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kReplayDerivedFlag = 1;

struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t partial_tokens = 0;
  uint32_t partial_bytes = 0;
  uint64_t session_id = 0;
  uint32_t flags = 0;
  uint32_t zero = 0;
};
static_assert(sizeof(Header) == 32);

}  // namespace

std::vector<std::byte> EncodeSessionSnapshot(const SessionSnapshot& snapshot) {
  const Header header{.partial_tokens = static_cast<uint32_t>(snapshot.partial_tokens.size()),
                      .partial_bytes = static_cast<uint32_t>(snapshot.partial_payload.size()),
                      .session_id = snapshot.session_id,
                      .flags = snapshot.replay_derived ? kReplayDerivedFlag : 0};
  const ConstBytes parts[] = {AsBytes(header), std::as_bytes(snapshot.partial_tokens),
                              snapshot.partial_payload, snapshot.windows};
  std::vector<std::byte> bytes;
  for (const ConstBytes part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

absl::StatusOr<DecodedSnapshot> DecodeSessionSnapshot(ConstBytes bytes) {
  if (bytes.size() < sizeof(Header)) return DataLoss("a session's snapshot is shorter than 32 B");
  const auto header = LoadLe<Header>(bytes.data());
  if (header.magic != kMagic || header.version != kVersion) {
    return DataLoss("a session's snapshot does not begin with RPSS version 1");
  }
  const uint64_t ids_bytes = uint64_t{header.partial_tokens} * sizeof(TokenId);
  if (header.partial_tokens >= kBlockTokens ||
      sizeof(Header) + ids_bytes + header.partial_bytes > bytes.size()) {
    return DataLoss("a session's snapshot of " + std::to_string(bytes.size()) +
                    " bytes is too short for its partial block");
  }
  DecodedSnapshot decoded{.partial_tokens = std::vector<TokenId>(header.partial_tokens),
                          .partial_payload = {},
                          .windows = {},
                          .session_id = header.session_id,
                          .replay_derived = (header.flags & kReplayDerivedFlag) != 0};
  ConstBytes rest = bytes.subspan(sizeof(Header));
  if (ids_bytes > 0) std::memcpy(decoded.partial_tokens.data(), rest.data(), ids_bytes);
  rest = rest.subspan(ids_bytes);
  decoded.partial_payload = rest.first(header.partial_bytes);
  decoded.windows = rest.subspan(header.partial_bytes);
  return decoded;
}

}  // namespace reprise::server
