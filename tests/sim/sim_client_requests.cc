#include <algorithm>
#include <cstring>

#include "protocol/base/checksum.h"
#include "tests/sim/sim_client.h"

// What a simulated client asks.
namespace reprise::sim {

void SimClient::StartRequest() {
  --context_->ops_left;
  --requests_left_;
  const uint64_t draw = prng_.Below(100);
  if (draw < 38) return StartPut();
  if (draw < 62) return StartGet();
  if (draw < 74) return StartLookup();
  if (draw < 83) return StartWindowPut();
  if (draw < 91) return StartWindowGet();
  if (draw < 98) return StartControl();
  StartUnanswerable();
}

// ---- Blocks
// ----------------------------------------------------------------------------------------

std::string SimClient::SpoiledRecord(const Corpus::BlockRef& block, uint32_t version, Spoil spoil) {
  std::string record = context_->corpus->Record(block, version);
  const size_t tail = record.size() - kRecordTailBytes;
  switch (spoil) {
    case Spoil::kNone:
      break;
    case Spoil::kPayload:
      record[prng_.Below(tail)] ^= static_cast<char>(1u << prng_.Below(8));
      break;
    case Spoil::kHeader:  // Behind the namespace, which has an answer of its own.
      record[tail + 48 + prng_.Below(kRecordTailBytes - 48)] ^= static_cast<char>(1);
      break;
    case Spoil::kNamespace:
      record = context_->corpus->Record({1 - block.name_space, block.chain, block.index}, version);
      break;
    case Spoil::kTokens: {
      RecordHeader header = LoadRecordHeader(AsBytes(record));
      record[record.size() - 1] ^= 1;
      SealRecord({reinterpret_cast<std::byte*>(record.data()), record.size()}, header);
      break;
    }
  }
  return record;
}

void SimClient::StartPut() {
  Corpus& corpus = *context_->corpus;
  Request request{.opcode = wire::Opcode::kPut, .name = "put"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  request.durable = prng_.Chance(400);
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  const uint32_t depth = corpus.depth(chain);
  const auto first = static_cast<uint32_t>(prng_.Chance(600) ? 0 : prng_.Below(depth));
  const auto count = static_cast<uint32_t>(1 + prng_.Below(depth - first));
  const auto version =
      static_cast<uint32_t>(prng_.Chance(700) ? prng_.Below(2) : prng_.Below(Corpus::kVersions));
  std::string data;
  for (uint32_t i = first; i < first + count; ++i) {
    const Corpus::BlockRef block{request.name_space, chain, i};
    PutItem item;
    if (context_->faults->bad_puts && prng_.Chance(200)) {
      item.spoil = static_cast<Spoil>(1 + prng_.Below(4));
    } else {
      item.ticket = context_->model->PutSent(corpus.key(block), version, request.durable);
    }
    data += SpoiledRecord(block, version, item.spoil);
    request.puts.push_back(item);
  }
  wire::PutRequest put{
      .namespace_id = namespace_ids_[request.name_space],
      .record_count = count,
      .durability = request.durable ? wire::Durability::kDurable : wire::Durability::kRelaxed,
      .inline_data = 1};
  Send(std::move(request), std::string(AsText(AsBytes(put))), data);
}

void SimClient::StartGet() {
  if (rdma_ != nullptr && prng_.Chance(700)) return StartFetch();
  Corpus& corpus = *context_->corpus;
  Request request{.opcode = wire::Opcode::kGet, .name = "get"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  const uint32_t depth = corpus.depth(chain);
  const auto first = static_cast<uint32_t>(prng_.Chance(800) ? 0 : prng_.Below(depth));
  const auto count = static_cast<uint32_t>(1 + prng_.Below(depth - first));
  request.keys = corpus.Keys(request.name_space, chain, first, count);
  std::string body;
  wire::Append(&body, wire::KeysRequest{namespace_ids_[request.name_space], count});
  wire::AppendArray(&body, std::span<const BlockKey>(request.keys));
  Send(std::move(request), std::move(body));
}

void SimClient::StartLookup() {
  Corpus& corpus = *context_->corpus;
  Request request{.opcode = wire::Opcode::kLookup, .name = "lookup"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  request.keys = corpus.Keys(request.name_space, chain, 0, corpus.depth(chain));
  const auto tokens = static_cast<uint32_t>(corpus.tokens(chain).size());
  for (uint32_t position = 64; position < tokens && request.candidates.size() < 16;
       position += kBlockTokens) {
    request.candidates.push_back(corpus.Window(request.name_space, chain, position).key);
  }
  std::string body;
  wire::Append(
      &body, wire::LookupRequest{.namespace_id = namespace_ids_[request.name_space],
                                 .key_count = static_cast<uint32_t>(request.keys.size()),
                                 .window_count = static_cast<uint32_t>(request.candidates.size())});
  wire::AppendArray(&body, std::span<const BlockKey>(request.keys));
  wire::AppendArray(&body, std::span<const wire::WindowKey>(request.candidates));
  Send(std::move(request), std::move(body));
}

// ---- Windows
// ---------------------------------------------------------------------------------------

// At a block's boundary, or in its middle.
Corpus::WindowRef SimClient::AnyWindow(uint32_t name_space) {
  const Corpus& corpus = *context_->corpus;
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  const uint64_t half = kBlockTokens / 2;
  const uint64_t halves = corpus.tokens(chain).size() / half;
  return corpus.Window(name_space, chain, static_cast<uint32_t>((1 + prng_.Below(halves)) * half));
}

void SimClient::StartWindowPut() {
  Request request{.opcode = wire::Opcode::kWindowPut, .name = "window_put"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  request.window = AnyWindow(request.name_space);
  const auto version = static_cast<uint32_t>(prng_.Below(Corpus::kVersions));
  std::string snapshot = Corpus::Snapshot(request.window, version);
  const uint32_t crc = Crc32c(AsBytes(snapshot));
  if (context_->faults->bad_puts && prng_.Chance(200)) {
    request.spoil = Spoil::kPayload;
    snapshot[prng_.Below(snapshot.size())] ^= static_cast<char>(1);
  } else {
    context_->model->WindowSent(request.window, version);
  }
  wire::WindowPutRequest put{.namespace_id = namespace_ids_[request.name_space],
                             .snapshot_bytes = static_cast<uint32_t>(snapshot.size()),
                             .snapshot_crc = crc,
                             .inline_data = 1,
                             .session_id = prng_.Below(4),
                             .window = request.window.key};
  Send(std::move(request), std::string(AsText(AsBytes(put))), snapshot);
}

void SimClient::StartWindowGet() {
  Request request{.opcode = wire::Opcode::kWindowGet, .name = "window_get"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  request.window = AnyWindow(request.name_space);
  const wire::WindowRequest get{.namespace_id = namespace_ids_[request.name_space],
                                .window = request.window.key};
  Send(std::move(request), std::string(AsText(AsBytes(get))));
}

// ---- Administration
// --------------------------------------------------------------------------------

void SimClient::StartControl() {
  Corpus& corpus = *context_->corpus;
  Request request{.opcode = wire::Opcode::kControl, .name = "control"};
  request.name_space = static_cast<uint32_t>(prng_.Below(Corpus::kNamespaces));
  const uint32_t id = namespace_ids_[request.name_space];
  const auto chain = static_cast<uint32_t>(prng_.Below(corpus.chain_count()));
  wire::ControlRequest control;
  const uint64_t draw = prng_.Below(10);
  if (draw == 0) {
    control.mutable_status();
  } else if (draw < 4) {
    wire::ExplainRequest& explain = *control.mutable_explain();
    explain.set_namespace_id(id);
    const std::span<const TokenId> tokens = corpus.tokens(chain);
    explain.set_token_count(tokens.size());
    for (const TokenId token : tokens.first(std::min<size_t>(tokens.size(), kBlockTokens))) {
      explain.add_tokens(token);
    }
    for (const BlockKey& key : corpus.Keys(request.name_space, chain, 0, corpus.depth(chain))) {
      explain.add_keys(std::string(AsText(AsBytes(key))));
    }
  } else if (draw < 8) {
    wire::EvictRequest& evict = *control.mutable_evict();
    evict.set_namespace_id(id);
    evict.set_whole_namespace(prng_.Chance(150));
    request.keys = corpus.Keys(request.name_space, chain, 0, corpus.depth(chain));
    if (evict.whole_namespace()) {
      request.keys.clear();
      for (const auto& [key, block] : corpus.blocks()) {
        if (block.name_space == request.name_space) request.keys.push_back(key);
      }
    }
    for (const BlockKey& key : request.keys) {
      request.removals.push_back(context_->model->RemovalSent(key));
      if (!evict.whole_namespace()) evict.add_keys(std::string(AsText(AsBytes(key))));
    }
  } else {
    wire::VerifyRequest& verify = *control.mutable_verify();
    verify.set_namespace_id(id);
    verify.set_all(prng_.Chance(500));
    if (!verify.all()) {
      for (const BlockKey& key : corpus.Keys(request.name_space, chain, 0, corpus.depth(chain))) {
        verify.add_keys(std::string(AsText(AsBytes(key))));
      }
    }
  }
  request.control = control.request_case();
  Send(std::move(request), control.SerializeAsString());
}

// Well-formed requests to which there is one answer.
void SimClient::StartUnanswerable() {
  Request request{.opcode = wire::Opcode::kGet, .name = "unanswerable"};
  std::string body;
  const BlockKey key = context_->corpus->key({0, 0, 0});
  switch (prng_.Below(6)) {
    case 0:  // A namespace that was not opened.
      request.expected = Outcome::kWrongNamespace;
      wire::Append(&body, wire::KeysRequest{77, 1});
      break;
    case 1:  // Leases are for local clients.
      request.opcode = wire::Opcode::kAcquire;
      request.expected = Outcome::kUnsupported;
      wire::Append(&body, wire::KeysRequest{namespace_ids_[0], 1});
      break;
    case 2:  // Two keys announced, one sent.
      request.expected = Outcome::kInvalid;
      wire::Append(&body, wire::KeysRequest{namespace_ids_[0], 2});
      break;
    case 3:  // A key of the other namespace, which may well be stored there.
    case 4:
      request.expected = Outcome::kNotFound;
      wire::Append(&body, wire::KeysRequest{namespace_ids_[1], 1});
      break;
    default:  // Staged without a staging area.
      request.opcode = wire::Opcode::kPut;
      request.expected = Outcome::kInvalid;
      wire::Append(&body, wire::PutRequest{.namespace_id = namespace_ids_[0], .record_count = 4});
      break;
  }
  wire::Append(&body, key);
  Send(std::move(request), std::move(body));
}

// Bytes after which the server must end the connection, at once or when it has waited for the rest
// long enough.
void SimClient::SendRudeBytes() {
  std::string bytes;
  const std::string body(40, 'x');
  const uint64_t id = next_request_id_++;
  switch (prng_.Below(8)) {
    case 0:
      bytes.resize(1 + prng_.Below(300));
      for (char& byte : bytes) byte = static_cast<char>(prng_.Next());
      break;
    case 1:  // A damaged body.
      bytes = Frame(wire::Opcode::kGet, body, 0, id);
      bytes.back() ^= 1;
      break;
    case 2: {  // The largest body that may be announced, of which little follows.
      wire::FrameHeader header = LoadLe<wire::FrameHeader>(
          Frame(wire::Opcode::kLookup, std::string(wire::kBodyBytesMax, 'x'), 0, id).data());
      bytes = std::string(AsText(AsBytes(header))) + body.substr(prng_.Below(40));
      break;
    }
    case 3: {  // A flipped bit of what the header's checksum covers.
      constexpr size_t kFrom = offsetof(wire::FrameHeader, header_crc);
      bytes = Frame(wire::Opcode::kGet, body, 0, id);
      bytes[kFrom + prng_.Below(wire::kFrameHeaderBytes - kFrom)] ^=
          static_cast<char>(1u << prng_.Below(8));
      break;
    }
    case 4:  // Much data that nobody wants, of which a part follows. It is answered first.
      bytes = Frame(wire::Opcode::kPut, body, wire::kDataBytesMax, id);
      bytes.resize(bytes.size() + prng_.Below(30'000));
      requests_.emplace(
          id, Request{.opcode = wire::Opcode::kPut, .name = "rude", .expected = Outcome::kInvalid});
      break;
    case 5: {  // For another store.
      wire::FrameHeader header{.opcode = static_cast<uint8_t>(wire::Opcode::kLookup),
                               .request_id = id,
                               .store_id = ~context_->store_id};
      wire::SealFrame(&header, AsBytes(body));
      bytes = std::string(AsText(AsBytes(header))) + body;
      break;
    }
    case 6:  // A second hello.
      bytes = Frame(wire::Opcode::kHello, {}, 0, id);
      break;
    default:  // A damaged one-way message.
      bytes = Frame(wire::Opcode::kRelease, body, 0, 0);
      break;
  }
  Write(bytes);
}

}  // namespace reprise::sim
