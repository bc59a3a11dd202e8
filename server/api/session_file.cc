#include "server/api/session_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "protocol/base/sha256.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kHeaderBytesMax = 256_MiB;
constexpr uint64_t kRecordBytesMax = 64_MiB + 4096;
constexpr size_t kStartBytes = 16;

std::string HexText(std::string_view bytes) { return ToHex(AsBytes(bytes)); }

absl::StatusOr<std::string> FromHex(const std::string& hex) {
  std::string bytes;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    const int high = digit(hex[i]), low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return InvalidArgument("not hexadecimal");
    bytes.push_back(static_cast<char>(high * 16 + low));
  }
  return bytes;
}

absl::StatusOr<SessionFileHeader> ParseHeader(ConstBytes bytes) {
  const auto bad = [](const std::string& what) {
    return DataLoss("the session file's header is damaged: " + what);
  };
  const Json json = Json::parse(AsText(bytes), nullptr, false);
  if (!json.is_object() || !json.contains("manifest") || !json["manifest"].is_string() ||
      !json.contains("tokens") || !json["tokens"].is_array() || !json.contains("session")) {
    return bad("parts of it are missing");
  }
  SessionFileHeader header;
  RP_ASSIGN(const std::string manifest, FromHex(json["manifest"].get<std::string>()));
  RP_ASSIGN(header.manifest, DecodeManifest(manifest));
  RP_ASSIGN(header.session, ParseSession(json["session"]));
  for (const Json& id : json["tokens"]) {
    if (!id.is_number_integer()) return bad("a token id is no number");
    header.tokens.push_back(id.get<TokenId>());
  }
  for (const auto& [key, value] :
       {std::pair{"record_bytes", &header.record_bytes}, {"blocks", &header.blocks}}) {
    if (!json.contains(key) || !json[key].is_number_unsigned()) return bad(key);
    *value = json[key].get<uint32_t>();
  }
  if (header.record_bytes < kRecordTailBytes || header.record_bytes > kRecordBytesMax ||
      header.blocks > header.tokens.size() / kBlockTokens) {
    return bad("its sizes do not fit its tokens");
  }
  return header;
}

}  // namespace

Hash256 SessionFileDigest(const Hash256& so_far, ConstBytes part) {
  return Sha256({AsBytes(so_far), part});
}

std::string EncodeSessionFileHeader(const SessionFileHeader& header) {
  const Json json = {{"manifest", HexText(EncodeManifest(header.manifest))},
                     {"session", SessionJson(header.session)},
                     {"tokens", header.tokens},
                     {"record_bytes", header.record_bytes},
                     {"blocks", header.blocks}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void SessionFileReader::Expect(Part part, uint64_t bytes) {
  part_ = part;
  wanted_ = bytes;
}

absl::Status SessionFileReader::Add(ConstBytes bytes) {
  while (!bytes.empty()) {
    if (ended_) return DataLoss("the session file goes on after its digest");
    const size_t take = std::min<uint64_t>(bytes.size(), wanted_ - piece_.size());
    piece_.insert(piece_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(take));
    bytes = bytes.subspan(take);
    if (piece_.size() < wanted_) return absl::OkStatus();
    RP_TRY(Step());
    piece_.clear();
  }
  return absl::OkStatus();
}

absl::Status SessionFileReader::Step() {
  if (part_ == Part::kDigest) {
    ended_ = true;
    if (std::memcmp(piece_.data(), &digest_, sizeof(digest_)) == 0) return absl::OkStatus();
    return DataLoss("the session file was altered: its digest is wrong");
  }
  digest_ = SessionFileDigest(digest_, piece_);
  if (part_ == Part::kStart) {
    const auto header_bytes = LoadLe<uint64_t>(piece_.data() + 8);
    if (LoadLe<uint64_t>(piece_.data()) != kSessionFileMagic) {
      return InvalidArgument("this is no session file: it does not begin with RPSESS01");
    }
    if (header_bytes == 0 || header_bytes > kHeaderBytesMax) {
      return DataLoss("the session file's header is damaged: its length");
    }
    Expect(Part::kHeader, header_bytes);
    return absl::OkStatus();
  }
  RP_TRY(part_ == Part::kHeader ? TakeHeader() : TakeRecord());
  if (next_block_ < header_.blocks) {
    Expect(Part::kRecords, header_.record_bytes);
  } else {
    Expect(Part::kDigest, sizeof(Hash256));
  }
  return absl::OkStatus();
}

absl::Status SessionFileReader::TakeHeader() {
  RP_ASSIGN(header_, ParseHeader(piece_));
  parent_ = NamespaceOf(header_.manifest);
  return sink_.header(header_);
}

absl::Status SessionFileReader::TakeRecord() {
  const uint32_t block = next_block_++;
  const auto tokens = std::span(header_.tokens).subspan(size_t{block} * kBlockTokens, kBlockTokens);
  const Hash256 hash = BlockHash(parent_, tokens);
  const Outcome outcome = VerifyRecord(piece_, KeyOf(hash));
  if (outcome != Outcome::kOk) {
    return DataLoss("the session file was altered: block " + std::to_string(block) + " is " +
                    std::string(OutcomeName(outcome)));
  }
  parent_ = hash;
  return sink_.record(block, piece_);
}

absl::Status SessionFileReader::Finish() {
  if (ended_) return absl::OkStatus();
  return DataLoss("the session file was cut short: " + std::to_string(wanted_ - piece_.size()) +
                  " bytes are missing of " +
                  (part_ == Part::kRecords  ? "block " + std::to_string(next_block_)
                   : part_ == Part::kDigest ? "its digest"
                                            : "its header"));
}

}  // namespace reprise::server
