#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "gpu/model/model_config.h"
#include "protocol/base/checksum.h"
#include "protocol/wire/control.pb.h"
#include "storage/format_check.h"
#include "tests/sim/corpus.h"

// Writes the first inputs of every fuzz target: small, well-formed, one for each kind of thing,
// from which a fuzzer finds the rest. Run it again after a change of format.
namespace {

using reprise::AsBytes;
using reprise::AsText;
using reprise::sim::Corpus;
namespace wire = reprise::wire;

class Writer {
 public:
  explicit Writer(std::filesystem::path root) : root_(std::move(root)) {}

  void Add(const char* target, const std::string& name, std::string_view bytes) {
    std::filesystem::create_directories(root_ / target);
    std::ofstream file(root_ / target / name, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    good_ = good_ && file.good();
  }
  bool good() const { return good_; }

 private:
  std::filesystem::path root_;
  bool good_ = true;
};

template <typename T>
std::string Raw(const T& value) {
  return std::string(AsText(AsBytes(value)));
}

std::string KeysBody(const std::vector<reprise::BlockKey>& keys) {
  std::string body;
  wire::Append(&body, wire::KeysRequest{1, static_cast<uint32_t>(keys.size())});
  wire::AppendArray(&body, std::span<const reprise::BlockKey>(keys));
  return body;
}

std::string SlotsBody(const std::vector<reprise::BlockKey>& keys) {
  std::string body;
  wire::Append(&body, wire::SlotAcquireRequest{.namespace_id = 1,
                                               .key_count = static_cast<uint32_t>(keys.size()),
                                               .held_only = 1});
  wire::AppendArray(&body, std::span<const reprise::BlockKey>(keys));
  return body;
}

std::string LookupBody(const std::vector<reprise::BlockKey>& keys, const wire::WindowKey& window) {
  std::string body;
  wire::Append(&body, wire::LookupRequest{.namespace_id = 1,
                                          .key_count = static_cast<uint32_t>(keys.size()),
                                          .window_count = 1});
  wire::AppendArray(&body, std::span<const reprise::BlockKey>(keys));
  wire::Append(&body, window);
  return body;
}

void AddMessages(Writer* writer, const Corpus& corpus) {
  const auto keys = corpus.Keys(0, 0, 0, corpus.depth(0));
  const wire::WindowKey window = corpus.Window(0, 0, 64).key;
  writer->Add("messages", "keys.bin", KeysBody(keys));
  writer->Add("messages", "lookup.bin", LookupBody(keys, window));
  std::string put;
  wire::Append(&put, wire::PutRequest{.namespace_id = 1, .record_count = 2});
  wire::Append(&put, uint64_t{0x0000000100000000});
  writer->Add("messages", "put_staged.bin", put);
  writer->Add("messages", "put_inline.bin",
              Raw(wire::PutRequest{.namespace_id = 1, .record_count = 2, .inline_data = 1}));
  writer->Add(
      "messages", "window_put.bin",
      Raw(wire::WindowPutRequest{.namespace_id = 1, .snapshot_bytes = 9, .inline_data = 1}));
  writer->Add("messages", "window.bin", Raw(wire::WindowRequest{.namespace_id = 1}));
  std::string release;
  wire::Append(&release, wire::ReleaseRequest{.lease_count = 1});
  wire::Append(&release, uint64_t{7});
  writer->Add("messages", "release.bin", release);
  writer->Add("messages", "slot_acquire.bin", SlotsBody(keys));
  std::string slots_reply;
  wire::Append(&slots_reply, wire::SlotAcquireReply{.lease_id = 7, .slot_count = 1});
  wire::Append(&slots_reply, wire::HbmSlot{.slot = 3, .generation = 2});
  writer->Add("messages", "slot_acquire_reply.bin", slots_reply);
  std::string put_reply;
  wire::Append(&put_reply, wire::PutReply{.record_count = 2});
  put_reply += std::string("\x00\x09", 2);
  writer->Add("messages", "put_reply.bin", put_reply);
}

void AddFrames(Writer* writer, const Corpus& corpus) {
  const std::string body = KeysBody(corpus.Keys(0, 0, 0, 1));
  wire::FrameHeader header{.opcode = static_cast<uint8_t>(wire::Opcode::kGet), .request_id = 3};
  wire::SealFrame(&header, AsBytes(body));
  writer->Add("frame", "get.bin", Raw(header) + body);
  header = {.opcode = static_cast<uint8_t>(wire::Opcode::kPut), .data_bytes = 8'192};
  wire::SealFrame(&header, {});
  writer->Add("frame", "put.bin", Raw(header));
}

std::string Step(wire::Opcode opcode, std::string_view body, std::string_view data) {
  std::string step;
  wire::Append(&step, static_cast<uint8_t>(static_cast<uint8_t>(opcode) - 1 + wire::kOpcodeMax));
  wire::Append(&step, static_cast<uint16_t>(body.size()));
  wire::Append(&step, static_cast<uint16_t>(data.size()));
  step += body;
  step += data;
  return step;
}

void AddConnections(Writer* writer, Corpus* corpus) {
  const auto keys = corpus->Keys(0, 0, 0, corpus->depth(0));
  const wire::WindowKey window = corpus->Window(0, 0, 64).key;
  const wire::PutRequest put{.namespace_id = 1, .record_count = 1, .inline_data = 1};
  writer->Add("connection", "reads.bin",
              Step(wire::Opcode::kLookup, LookupBody(keys, window), {}) +
                  Step(wire::Opcode::kGet, KeysBody(keys), {}) +
                  Step(wire::Opcode::kWindowGet, Raw(wire::WindowRequest{1, 0, window}), {}));
  writer->Add("connection", "slots.bin", Step(wire::Opcode::kSlotAcquire, SlotsBody(keys), {}));
  writer->Add("connection", "put.bin",
              Step(wire::Opcode::kPut, Raw(put), corpus->Record({0, 0, 0}, 0)));
  const std::string snapshot(100, 'w');
  writer->Add("connection", "window.bin",
              Step(wire::Opcode::kWindowPut,
                   Raw(wire::WindowPutRequest{.namespace_id = 1,
                                              .snapshot_bytes = 100,
                                              .snapshot_crc = reprise::Crc32c(AsBytes(snapshot)),
                                              .inline_data = 1,
                                              .session_id = 1,
                                              .window = window}),
                   snapshot) +
                  Step(wire::Opcode::kWindowGet, Raw(wire::WindowRequest{1, 0, window}), {}));
  wire::ControlRequest control;
  control.mutable_status();
  std::string steps = Step(wire::Opcode::kControl, control.SerializeAsString(), {});
  control.mutable_slot_pool();
  steps += Step(wire::Opcode::kControl, control.SerializeAsString(), {});
  control.mutable_verify()->set_namespace_id(1);
  control.mutable_verify()->set_all(true);
  steps += Step(wire::Opcode::kControl, control.SerializeAsString(), {});
  control.mutable_evict()->set_namespace_id(1);
  control.mutable_evict()->set_whole_namespace(true);
  steps += Step(wire::Opcode::kControl, control.SerializeAsString(), {});
  control.mutable_explain()->set_namespace_id(1);
  const std::vector<reprise::TokenId>& tokens = corpus->tokens(0);
  control.mutable_explain()->set_token_count(tokens.size());
  control.mutable_explain()->mutable_tokens()->Add(tokens.begin(),
                                                   tokens.begin() + reprise::kBlockTokens);
  for (const reprise::BlockKey& key : corpus->Keys(0, 0, 0, corpus->depth(0))) {
    control.mutable_explain()->add_keys(std::string(AsText(AsBytes(key))));
  }
  steps += Step(wire::Opcode::kControl, control.SerializeAsString(), {});
  writer->Add("connection", "control.bin", steps);
  writer->Add("connection", "raw.bin", std::string("\0\4\0abcd", 7));
}

void AddStorage(Writer* writer, Corpus* corpus) {
  using reprise::storage::RegionState;
  using reprise::storage::RegionStatePage;
  using reprise::storage::Superblock;
  const Superblock block{.sequence = 1,
                         .shard_count = 2,
                         .record_bytes = 8'192,
                         .region_bytes = 65'536,
                         .created_ms = 1};
  writer->Add("superblock", "both.bin", "\3" + Raw(block) + Raw(block));
  writer->Add("superblock", "first.bin", "\1" + Raw(block));
  writer->Add("superblock", "short.bin", "\7" + Raw(block) + Raw(block) + std::string("\x80\0", 2));

  const std::string& record = corpus->Record({0, 0, 0}, 0);
  writer->Add("record", "record.bin", std::string_view(record).substr(record.size() - 4'096));
  const auto page = [](RegionState state, uint64_t sequence) {
    return std::string("\1\1\0", 3) + Raw(RegionStatePage{.sequence = sequence, .state = state});
  };
  const reprise::RecordHeader header = reprise::LoadRecordHeader(AsBytes(record));
  const reprise::storage::TrailerEntry entry{.key = reprise::KeyOf(header.block_hash),
                                             .header_crc = header.header_crc};
  const std::string entries = std::string("\2\1\2", 3) + Raw(entry) + Raw(entry);
  writer->Add("recovery", "open.bin",
              page(RegionState::kOpen, 3) + std::string("\3\1\0", 3) + Raw(header));
  writer->Add("recovery", "sealed.bin", page(RegionState::kSealed, 4) + entries);
  std::string row = std::string("\4\1\0", 3);
  wire::Append(&row, uint64_t{4});
  writer->Add("recovery", "row.bin",
              page(RegionState::kSealed, 4) + entries + row + "\2" + Raw(entry) + Raw(entry));
  writer->Add("recovery", "bytes.bin", std::string("\0\0\0\1\0\0\4abcd", 11));
}

void AddText(Writer* writer, const Corpus& corpus) {
  writer->Add("manifest", "tokens.bin", reprise::EncodeManifest(corpus.manifest(0)));
  writer->Add("manifest", "opaque.bin",
              reprise::EncodeManifest({.kind = "opaque", .payload_bytes = 64, .engine = "e/1"}));
  writer->Add("units", "bytes.txt", "1.5 MiB");
  writer->Add("units", "duration.txt", "250ms");
  writer->Add("config", "small.toml",
              "shards = 2\nmodel = \"nano\"\n[dram]\nbytes = \"64MiB\"\n[ssd]\nbytes = \"1GiB\"\n"
              "write = \"demote\"\n[window]\nttl = \"30s\"\n");
  writer->Add("config", "empty.toml", "");
  writer->Add("config", "unknown.toml", "shard = 2\n");
  writer->Add("trace", "mooncake.bin",
              std::string("\1") +
                  "{\"timestamp\": 27, \"input_length\": 700, \"output_length\": 5, "
                  "\"hash_ids\": [1, 2]}\n");
  writer->Add(
      "trace", "qwen.bin",
      std::string("\2") +
          "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 0.5, \"input_length\": 20, "
          "\"output_length\": 3, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [7, 8]}\n");
  writer->Add("trace", "azure.bin",
              std::string("\4") +
                  "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n");
  writer->Add("trace", "guess.bin", std::string("\0", 1) + "{\"timestamp\": 1}\n");
}

void AddModels(Writer* writer) {
  using reprise::engine::ModelConfig;
  writer->Add("model_config", "v41_flash.json", ModelConfig::Preset("v4.1-flash")->ToJson());
  writer->Add("model_config", "nano.json", ModelConfig::Preset("nano")->ToJson());
  writer->Add("model_config", "other.json",
              R"({"model_type": "llama", "vocab_size": [1, -2.5e3]})");
  writer->Add("safetensors", "header.bin",
              Raw(uint32_t{12}) +
                  R"({"__metadata__":{"format":"pt"},)"
                  R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F8_E8M0","shape":[4,1],"data_offsets":[8,12]}}  )");
  writer->Add("safetensors", "empty.bin", Raw(uint32_t{0}) + "{}");
  writer->Add("safetensors", "index.bin",
              Raw(UINT32_MAX) + R"({"metadata":{"total_size":12,"by":["x",{}]},)"
                                R"("weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
}

void AddTokenizers(Writer* writer) {
  const auto add = [&](const char* name, std::string_view json, std::string_view text) {
    std::string input;
    wire::Append(&input, static_cast<uint16_t>(json.size()));
    writer->Add("tokenizer", name, input + std::string(json) + std::string(text));
  };
  add("merges.bin", R"json({"model": {
    "vocab": {"ab": 256, "abc": 257}, "merges": ["a b", ["ab", "c"]], "ignore_merges": true}})json",
      "abcab \xFF\xC3\xA9");
  add("added.bin", R"json({"added_tokens": [{"id": 256, "content": "<a>", "single_word": true,
    "lstrip": true, "rstrip": true, "normalized": true, "special": false}]})json",
      "x <a> y<a>");
  add("split.bin", R"json({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}|[^\\s]+|\\s+(?!\\S)"},
     "behavior": "MergedWithNext", "invert": true},
    {"type": "Digits", "individual_digits": true},
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]}})json",
      "it's 1234  (a) b");
  add("normal.bin", R"json({"normalizer": {"type": "Sequence", "normalizers": [
    {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
    {"type": "Replace", "pattern": {"String": "b"}, "content": "c"},
    {"type": "Strip", "strip_left": true, "strip_right": true},
    {"type": "Prepend", "prepend": "_"}]}})json",
      " \xC3\x89 ab ");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  reprise::Prng prng(1);
  Corpus corpus(&prng);
  Writer writer(argv[1]);
  AddMessages(&writer, corpus);
  AddFrames(&writer, corpus);
  AddConnections(&writer, &corpus);
  AddStorage(&writer, &corpus);
  AddText(&writer, corpus);
  AddModels(&writer);
  AddTokenizers(&writer);
  if (!writer.good()) std::fprintf(stderr, "cannot write to %s\n", argv[1]);
  return writer.good() ? 0 : 1;
}
