#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/inputs.h"
#include "client/cli/progress.h"
#include "client/record_builder.h"
#include "protocol/base/units.h"
#include "protocol/identity/block_hash.h"

namespace reprise::cli {
namespace {

constexpr uint64_t kPayloadFileBytesMax = 64_GiB;
constexpr size_t kBatchBlocks = 64;  // Records in memory at a time.

struct BlocksOptions {
  ManifestOptions manifest;
  std::string tokens;
  std::string file;
  bool durable = false;
  bool replay_derived = false;
};

absl::StatusOr<uint32_t> PayloadBytes(const Client& client, const ManifestOptions& options) {
  RP_ASSIGN(const KvGeometry geometry,
            KvGeometry::Preset(options.model.empty() ? client.model() : options.model));
  RP_ASSIGN(const RecordLayout layout, RecordLayout::For(geometry));
  return layout.payload_bytes;
}

// Builds, seals and sends the records of a token file's whole blocks, a batch at a time.
class PutRun {
 public:
  PutRun(Client* client, uint32_t id, const BlocksOptions& options, std::span<const TokenId> tokens,
         std::string_view payload, uint32_t payload_bytes)
      : client_(*client),
        id_(id),
        options_(options),
        tokens_(tokens),
        payload_(payload),
        payload_bytes_(payload_bytes),
        chain_(PrefixChain(client->name_space(id), tokens)) {}

  absl::Status Run() {
    const SystemClock clock;
    Progress progress("put", chain_.size(), Progress::Unit::kCount, clock);
    for (size_t first = 0; first < chain_.size(); first += kBatchBlocks) {
      RP_TRY(PutBatch(first, std::min(kBatchBlocks, chain_.size() - first), clock.WallMillis()));
      progress.Update(first);
    }
    return absl::OkStatus();
  }

  Result Summary() const {
    Result result;
    Json outcomes = Json::object();
    uint64_t kept = 0;
    for (const auto& [outcome, count] : counts_) {
      outcomes[std::string(OutcomeName(outcome))] = count;
      if (outcome == Outcome::kOk || outcome == Outcome::kExists) kept += count;
      result.text += Padded(count) + " blocks " + std::string(OutcomeName(outcome)) + "\n";
    }
    result.json = {{"namespace", ToHex(client_.name_space(id_))},
                   {"blocks", chain_.size()},
                   {"payload_bytes", chain_.size() * payload_bytes_},
                   {"durable", options_.durable},
                   {"outcomes", outcomes}};
    result.exit_code = kept == chain_.size() ? kExitOk : kExitServerError;
    return result;
  }

 private:
  static std::string Padded(uint64_t count) {
    const std::string text = std::to_string(count);
    return std::string(text.size() < 8 ? 8 - text.size() : 0, ' ') + text;
  }

  absl::Status PutBatch(size_t first, size_t count, int64_t now_ms) {
    storage_.resize(count * client_.record_bytes());
    std::vector<ConstBytes> records;
    for (size_t i = first; i < first + count; ++i) {
      const Bytes record = i - first < client_.staging_slots()
                               ? client_.staging(static_cast<uint32_t>(i - first))
                               : Bytes(storage_).subspan((i - first) * client_.record_bytes(),
                                                         client_.record_bytes());
      const TokenBlock block{.name_space = client_.name_space(id_),
                             .parent_hash = i == 0 ? client_.name_space(id_) : chain_[i - 1],
                             .block_index = static_cast<uint32_t>(i),
                             .tokens = tokens_.subspan(i * kBlockTokens, kBlockTokens),
                             .flags = options_.replay_derived ? uint32_t{kReplayDerived} : 0,
                             .created_ms = now_ms};
      const auto payload = AsBytes(payload_.substr(i * payload_bytes_, payload_bytes_));
      RP_TRY(BuildTokenRecord(block, payload, record).status());
      records.push_back(record);
    }
    std::vector<Outcome> outcomes(count);
    RP_TRY(client_.Put(id_, records,
                       options_.durable ? wire::Durability::kDurable : wire::Durability::kRelaxed,
                       outcomes));
    for (const Outcome outcome : outcomes) ++counts_[outcome];
    return absl::OkStatus();
  }

  Client& client_;
  uint32_t id_;
  const BlocksOptions& options_;
  std::span<const TokenId> tokens_;
  std::string_view payload_;
  uint32_t payload_bytes_;
  std::vector<Hash256> chain_;
  std::vector<std::byte> storage_;
  std::map<Outcome, uint64_t> counts_;
};

absl::StatusOr<Result> RunPut(const Globals& globals, const BlocksOptions& options) {
  RP_ASSIGN(const std::vector<TokenId> tokens, ReadTokens(options.tokens));
  RP_ASSIGN(const std::string payload, ReadFile(options.file, kPayloadFileBytesMax));
  RP_ASSIGN(const auto client, Connect(globals, "reprise put"));
  RP_ASSIGN(const uint32_t id, OpenNamespace(client.get(), options.manifest));
  RP_ASSIGN(const uint32_t payload_bytes, PayloadBytes(*client, options.manifest));
  const uint64_t blocks = tokens.size() / kBlockTokens;
  if (blocks == 0) {
    return InvalidArgument(options.tokens + ": " + std::to_string(tokens.size()) +
                           " tokens are no whole block of 128; nothing can be stored");
  }
  if (payload.size() != blocks * payload_bytes) {
    return InvalidArgument(options.file + ": has " + std::to_string(payload.size()) + " bytes; " +
                           std::to_string(blocks) + " blocks of " + std::to_string(payload_bytes) +
                           " bytes need " + std::to_string(blocks * payload_bytes));
  }
  PutRun run(client.get(), id, options, tokens, payload, payload_bytes);
  RP_TRY(run.Run());
  return run.Summary();
}

struct Got {
  uint32_t blocks = 0;
  uint32_t from_ssd = 0;
  Outcome stopped_by = Outcome::kOk;
};

// Writes the payloads of the leading blocks that the store holds.
absl::StatusOr<Got> WritePayloads(Client* client, uint32_t id, std::span<const TokenId> tokens,
                                  std::ostream* out) {
  const std::vector<BlockKey> keys = PrefixKeys(client->name_space(id), tokens);
  const SystemClock clock;
  Progress progress("get", keys.size(), Progress::Unit::kCount, clock);
  std::vector<std::byte> record(client->record_bytes());
  Got got;
  while (got.blocks < keys.size() && got.stopped_by == Outcome::kOk) {
    const auto batch =
        std::span(keys).subspan(got.blocks, std::min(kBatchBlocks, keys.size() - got.blocks));
    RP_ASSIGN(Lease lease, client->Acquire(id, batch));
    got.from_ssd += lease.from_ssd();
    got.stopped_by = lease.stopped_by();
    if (lease.size() == 0 && got.stopped_by == Outcome::kOk) got.stopped_by = Outcome::kNotFound;
    for (uint32_t i = 0; i < lease.size(); ++i) {
      const Outcome copied = lease.CopyTo(i, record);
      const Outcome checked = copied == Outcome::kOk ? VerifyRecord(record, batch[i]) : copied;
      const auto block = tokens.subspan(uint64_t{got.blocks} * kBlockTokens, kBlockTokens);
      if (checked != Outcome::kOk || !Client::TokensMatch(record, block)) {
        got.stopped_by = checked != Outcome::kOk ? checked : Outcome::kCorrupt;
        return got;
      }
      out->write(reinterpret_cast<const char*>(record.data()),
                 LoadRecordHeader(record).payload_bytes);
      ++got.blocks;
    }
    progress.Update(got.blocks);
  }
  return got;
}

absl::StatusOr<Result> RunGet(const Globals& globals, const BlocksOptions& options) {
  RP_ASSIGN(const std::vector<TokenId> tokens, ReadTokens(options.tokens));
  RP_ASSIGN(const auto client, Connect(globals, "reprise get"));
  RP_ASSIGN(const uint32_t id, OpenNamespace(client.get(), options.manifest));
  std::ofstream out(options.file, std::ios::binary | std::ios::trunc);
  if (!out) return InvalidArgument(options.file + ": " + std::strerror(errno));
  RP_ASSIGN(const Got got, WritePayloads(client.get(), id, tokens, &out));
  const auto written_bytes = static_cast<uint64_t>(out.tellp());
  out.close();
  if (!out) return Internal(options.file + ": cannot be written; is the disk full?");
  const uint64_t asked = tokens.size() / kBlockTokens;
  Result result;
  result.json = {{"namespace", ToHex(client->name_space(id))},
                 {"asked_blocks", asked},
                 {"hit_blocks", got.blocks},
                 {"hit_tokens", uint64_t{got.blocks} * kBlockTokens},
                 {"from_ssd", got.from_ssd},
                 {"payload_bytes", written_bytes},
                 {"stopped_by", OutcomeName(got.stopped_by)}};
  result.text = std::to_string(got.blocks) + " of " + std::to_string(asked) + " blocks, " +
                FormatBytes(written_bytes) + " written to " + options.file + ", " +
                std::to_string(got.from_ssd) + " from ssd\n";
  if (got.blocks < asked) {
    result.text +=
        "stopped: " + std::string(OutcomeName(got.stopped_by)) + "; reprise explain tells more\n";
  }
  result.exit_code = got.blocks < asked ? kExitMiss : kExitOk;
  return result;
}

}  // namespace

void AddBlocks(CLI::App* app, Globals* globals) {
  CLI::App* put = app->add_subcommand("put", "Store the blocks of a token sequence");
  const auto put_options = std::make_shared<BlocksOptions>();
  AddManifestOptions(put, &put_options->manifest);
  put->add_option("--tokens", put_options->tokens, "Token ids: text, or int32 in a .bin file")
      ->required();
  put->add_option("--payload", put_options->file,
                  "The payloads of all whole blocks, one after another")
      ->required();
  put->add_flag("--durable", put_options->durable, "Return when the blocks are on SSD and synced");
  put->add_flag("--replay-derived", put_options->replay_derived,
                "Mark the blocks as computed after a bounded replay");
  OnRun(put, globals, [globals, put_options] { return RunPut(*globals, *put_options); });

  CLI::App* get = app->add_subcommand("get", "Load the blocks of a token sequence");
  const auto get_options = std::make_shared<BlocksOptions>();
  AddManifestOptions(get, &get_options->manifest);
  get->add_option("--tokens", get_options->tokens, "Token ids: text, or int32 in a .bin file")
      ->required();
  get->add_option("--out", get_options->file, "File for the payloads of the blocks that hit")
      ->required();
  OnRun(get, globals, [globals, get_options] { return RunGet(*globals, *get_options); });
}

}  // namespace reprise::cli
