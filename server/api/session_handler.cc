#include "server/api/session_handler.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "server/api/answer_handler.h"
#include "server/api/session_file.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kChunkBlocks = 32;  // Of an export or import, in memory at a time.
constexpr Nanos kStoreLimit = 10 * kSecond;

// Waits for one call of the store: call(done).
template <typename Result, typename Call>
Result WaitFor(Call&& call) {
  std::promise<Result> promise;
  std::future<Result> future = promise.get_future();
  call([&promise](Result result) { promise.set_value(std::move(result)); });
  return future.get();
}

Json Summary(const Session& session) {
  return {{"object", "session"},
          {"name", session.name},
          {"turns", session.turns},
          {"tokens", session.tokens},
          {"created_ms", session.created_ms},
          {"used_ms", session.used_ms},
          {"thinking", session.chat.thinking}};
}

Json Details(const Session& session) {
  Json json = Summary(session);
  json["messages"] = Json::array();
  for (const ChatMessage& message : session.messages) {
    Json shown = MessageJson(message);
    shown.erase("ids");
    shown.erase("thought");
    json["messages"].push_back(std::move(shown));
  }
  return json;
}

// The ids of all that was said.
absl::StatusOr<std::vector<TokenId>> TokensOf(Backend* backend, const Session& session) {
  RP_ASSIGN(ChatPrompt prompt, backend->format().Encode(session.messages, session.chat));
  prompt.tokens.resize(prompt.history_tokens);
  return std::move(prompt.tokens);
}

std::vector<BlockKey> KeysOf(const std::vector<Hash256>& chain) {
  std::vector<BlockKey> keys;
  for (const Hash256& hash : chain) keys.push_back(KeyOf(hash));
  return keys;
}

}  // namespace

void HandleSessionCreate(ApiCall* call) {
  Json json;
  if (!call->ReadJson(&json)) return;
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  SendRequest given;
  Json chat_part = json;
  chat_part["content"] = "";  // ParseSend wants a message; only the chat's options count here.
  if (const auto problem = ParseSend(chat_part, &given)) return call->Refuse(*problem);
  std::vector<ChatMessage> messages;
  if (!text("system").empty()) messages.push_back({.role = "system", .content = text("system")});
  const Json tools = json.contains("tools") ? json["tools"] : Json();
  auto session = call->backend->sessions().Create(call->tenant, text("name"), std::move(messages),
                                                  given.chat, tools);
  if (!session.ok()) return call->Refuse(session.status());
  call->Answer(Summary(*session), 201);
}

void HandleSessionList(ApiCall* call) {
  Json data = Json::array();
  for (const Session& session : call->backend->sessions().List(call->tenant)) {
    data.push_back(Summary(session));
  }
  call->Answer({{"object", "list"}, {"data", std::move(data)}});
}

void HandleSessionGet(ApiCall* call, const std::string& name) {
  const auto session = call->backend->sessions().Find(call->tenant, name);
  if (!session.ok()) return call->Refuse(session.status());
  call->Answer(Details(*session));
}

void HandleSessionRemove(ApiCall* call, const std::string& name) {
  const absl::Status status = call->backend->sessions().Remove(call->tenant, name);
  if (!status.ok()) return call->Refuse(status);
  call->Answer({{"object", "session.deleted"}, {"name", name}, {"deleted", true}});
}

void HandleSessionFork(ApiCall* call, const std::string& name) {
  Json json;
  if (!call->ReadJson(&json)) return;
  const bool named = json.contains("name") && json["name"].is_string();
  const auto fork = call->backend->sessions().Fork(call->tenant, name,
                                                   named ? json["name"].get<std::string>() : "");
  if (!fork.ok()) return call->Refuse(fork.status());
  call->Answer(Summary(*fork), 201);
}

void HandleSessionSend(ApiCall* call, const std::string& name) {
  Json json;
  SendRequest parsed;
  if (!call->ReadJson(&json)) return;
  if (const auto problem = ParseSend(json, &parsed)) return call->Refuse(*problem);
  auto begun = call->backend->sessions().Begin(call->tenant, name);
  if (!begun.ok()) return call->Refuse(begun.status());
  const auto session = std::make_shared<Session>(*std::move(begun));
  if (parsed.chat_given) {
    const std::vector<ChatTool> tools = session->chat.tools;
    session->chat = parsed.chat;
    if (json.contains("tools")) {
      session->tools = json["tools"];
    } else {
      session->chat.tools = tools;
    }
  }
  for (ChatMessage& message : parsed.messages) session->messages.push_back(std::move(message));
  const std::shared_ptr<Backend> backend = call->backend;
  auto prompt = backend->format().Encode(session->messages, session->chat);
  if (!prompt.ok()) {
    backend->sessions().Abandon(*session);
    return call->Refuse(prompt.status());
  }
  const auto prompt_tokens = static_cast<uint32_t>(prompt->tokens.size());
  AnswerJob job{.kind = OpenAiResponse::Kind::kChat,
                .prompt = std::move(prompt->tokens),
                .stable_tokens = prompt->stable_tokens,
                .options = parsed.options,
                .chat = session->chat,
                .session_id = session->id};
  job.finished = [backend, session, prompt_tokens](const OpenAiResponse::Choice& choice,
                                                   const RequestReport&, const absl::Status&) {
    if (choice.tokens.empty()) return backend->sessions().Abandon(*session);
    session->messages.push_back({.role = "assistant",
                                 .content = choice.content,
                                 .reasoning = choice.reasoning,
                                 .calls = choice.calls,
                                 .ids = choice.tokens,
                                 .thought = session->chat.thinking});
    ++session->turns;
    session->tokens = prompt_tokens + static_cast<uint32_t>(choice.tokens.size());
    backend->sessions().End(*session);
  };
  if (!RunAnswer(call, std::move(job))) backend->sessions().Abandon(*session);
}

// ---- Where a session's blocks are --------------------------------------------------------------

void HandleSessionBlocks(ApiCall* call, const std::string& name) {
  Backend& backend = *call->backend;
  const auto session = backend.sessions().Find(call->tenant, name);
  if (!session.ok()) return call->Refuse(session.status());
  const auto tokens = TokensOf(&backend, *session);
  if (!tokens.ok()) return call->Refuse(tokens.status());
  const auto name_space = backend.NamespaceOf(call->tenant);
  if (!name_space.ok()) return call->Refuse(name_space.status());
  const std::vector<Hash256> chain = PrefixChain(name_space->name_space, *tokens);
  StorePort& store = backend.scheduler().store();
  using Residency = StorePort::Residency;
  const auto where = WaitFor<std::vector<Residency>>([&](auto done) {
    store.Lookup(*name_space, KeysOf(chain), LookupFor::kInspection, std::move(done));
  });

  Json blocks = Json::array();
  uint64_t in_dram = 0, on_ssd = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const char* tier = where[i] == Residency::kDram      ? "dram"
                       : where[i] == Residency::kSsd     ? "ssd"
                       : where[i] == Residency::kPending ? "pending"
                                                         : "none";
    in_dram += where[i] == Residency::kDram ? 1 : 0;
    on_ssd += where[i] == Residency::kSsd ? 1 : 0;
    blocks.push_back({{"index", i}, {"key", ToHex(KeyOf(chain[i]))}, {"tier", tier}});
  }
  // Windows around the end, where the next turn would look for one.
  std::vector<wire::WindowKey> windows;
  const uint32_t lowest =
      static_cast<uint32_t>(tokens->size() - std::min<size_t>(tokens->size(), 2 * kBlockTokens));
  for (auto position = static_cast<uint32_t>(tokens->size()); position > lowest; --position) {
    windows.push_back(
        {KeyOf(ExactPrefixHash(name_space->name_space, chain, *tokens, position)), position});
  }
  const auto bytes = WaitFor<std::vector<uint32_t>>(
      [&](auto done) { store.ProbeWindows(*name_space, windows, std::move(done)); });
  Json found = Json::array();
  for (size_t i = 0; i < windows.size(); ++i) {
    if (bytes[i] != 0) found.push_back({{"position", windows[i].position}, {"bytes", bytes[i]}});
  }
  call->Answer({{"object", "session.blocks"},
                {"name", name},
                {"tokens", tokens->size()},
                {"record_bytes", store.record_bytes()},
                {"in_dram", in_dram},
                {"on_ssd_only", on_ssd},
                {"blocks", std::move(blocks)},
                {"windows", std::move(found)}});
}

// ---- One file ----------------------------------------------------------------------------------

namespace {

// Writes a session's file piece by piece: its blocks are loaded as they are sent.
class SessionExport {
 public:
  SessionExport(std::shared_ptr<Backend> backend, const Connection::OpenNamespace& name_space,
                SessionFileHeader header)
      : backend_(std::move(backend)),
        name_space_(name_space),
        header_(std::move(header)),
        keys_(KeysOf(PrefixChain(name_space.name_space, header_.tokens))) {}

  bool Write(httplib::DataSink* sink) {
    if (!sink->is_writable()) return false;
    if (!begun_) {
      begun_ = true;
      const std::string header = EncodeSessionFileHeader(header_);
      std::string start(16, '\0');
      const uint64_t numbers[2] = {kSessionFileMagic, header.size()};
      std::memcpy(start.data(), numbers, sizeof(numbers));
      return Send(sink, AsBytes(std::string_view(start))) &&
             Send(sink, AsBytes(std::string_view(header)));
    }
    if (next_ < header_.blocks) return SendBlocks(sink);
    const Hash256 digest = digest_;
    if (!Send(sink, AsBytes(digest))) return false;
    sink->done();
    return true;
  }

 private:
  bool Send(httplib::DataSink* sink, ConstBytes part) {
    digest_ = SessionFileDigest(digest_, part);
    return sink->write(reinterpret_cast<const char*>(part.data()), part.size());
  }

  // A block that has gone meanwhile cuts the file short: its reader sees that.
  bool SendBlocks(httplib::DataSink* sink) {
    StorePort& store = backend_->scheduler().store();
    const uint32_t end = std::min(header_.blocks, next_ + kChunkBlocks);
    std::vector<BlockKey> keys(keys_.begin() + next_, keys_.begin() + end);
    const auto acquired = WaitFor<StorePort::Acquired>([&](auto done) {
      store.Acquire(name_space_, std::move(keys), kStoreLimit, std::move(done));
    });
    bool sent = acquired.slots.size() == end - next_;
    for (size_t i = 0; sent && i < acquired.slots.size(); ++i) {
      sent = Send(sink, store.slot(acquired.slots[i]));
    }
    store.Release(acquired.slots);
    next_ = end;
    return sent;
  }

  std::shared_ptr<Backend> backend_;
  Connection::OpenNamespace name_space_;
  SessionFileHeader header_;
  std::vector<BlockKey> keys_;
  uint32_t next_ = 0;
  Hash256 digest_;
  bool begun_ = false;
};

// Takes a file in: its records are named anew for the tenant that imports it, and put.
class SessionImport {
 public:
  SessionImport(Backend* backend, std::string tenant, Connection::OpenNamespace name_space)
      : backend_(*backend), tenant_(std::move(tenant)), name_space_(name_space) {}

  SessionFileReader::Sink Sink() {
    return {.header = [this](const SessionFileHeader& header) { return OnHeader(header); },
            .record = [this](uint32_t block, Bytes record) { return OnRecord(block, record); }};
  }
  absl::Status Finish() { return Put(); }
  const SessionFileHeader& header() const { return header_; }
  uint32_t stored() const { return stored_; }

 private:
  absl::Status OnHeader(const SessionFileHeader& header) {
    header_ = header;
    Manifest theirs = header.manifest;
    theirs.tenant_salt = tenant_;
    const std::vector<std::string> differ = DifferingFields(theirs, backend_.ManifestOf(tenant_));
    if (!differ.empty()) {
      std::string fields;
      for (const std::string& field : differ) fields += (fields.empty() ? "" : ", ") + field;
      return InvalidArgument("the session was made by another model: its manifest differs in " +
                             fields + "; start a daemon that serves that model");
    }
    for (const TokenId id : header.tokens) {
      if (id < 0 || static_cast<uint32_t>(id) >= backend_.config().vocab_size) {
        return DataLoss("the session file has a token id outside the vocabulary");
      }
    }
    chain_ = PrefixChain(name_space_.name_space, header_.tokens);
    return absl::OkStatus();
  }

  absl::Status OnRecord(uint32_t block, Bytes record) {
    const uint32_t record_bytes = backend_.scheduler().store().record_bytes();
    RecordHeader header = LoadRecordHeader(record);
    if (RecordBytesFor(header.payload_bytes) > record_bytes) {
      return InvalidArgument("the session's blocks do not fit this daemon's records of " +
                             std::to_string(record_bytes) + " bytes");
    }
    // A daemon's records may be larger than the model needs: the padding differs, nothing else.
    std::vector<std::byte> ours(record_bytes);
    std::memcpy(ours.data(), record.data(), header.payload_bytes);
    std::memcpy(ours.data() + record_bytes - kRecordTokenBytes,
                record.data() + record.size() - kRecordTokenBytes, kRecordTokenBytes);
    header.name_space = name_space_.name_space;
    header.parent_hash = block == 0 ? name_space_.name_space : chain_[block - 1];
    header.block_hash = chain_[block];
    header.record_bytes = record_bytes;
    SealRecord(ours, header);
    records_.push_back(std::move(ours));
    return records_.size() < kChunkBlocks ? absl::OkStatus() : Put();
  }

  absl::Status Put() {
    if (records_.empty()) return absl::OkStatus();
    std::vector<ConstBytes> records(records_.begin(), records_.end());
    const auto outcomes = WaitFor<std::vector<Outcome>>([&](auto done) {
      backend_.scheduler().store().Put(name_space_, records, wire::Durability::kDurable,
                                       kStoreLimit, std::move(done));
    });
    records_.clear();
    for (const Outcome outcome : outcomes) {
      if (outcome != Outcome::kOk && outcome != Outcome::kExists) {
        return Unavailable("a block could not be stored: " + std::string(OutcomeName(outcome)) +
                           "; make room and import the file again");
      }
      ++stored_;
    }
    return absl::OkStatus();
  }

  Backend& backend_;
  std::string tenant_;
  Connection::OpenNamespace name_space_;
  SessionFileHeader header_;
  std::vector<Hash256> chain_;
  std::vector<std::vector<std::byte>> records_;
  uint32_t stored_ = 0;
};

}  // namespace

void HandleSessionExport(ApiCall* call, const std::string& name) {
  Backend& backend = *call->backend;
  const auto session = backend.sessions().Find(call->tenant, name);
  if (!session.ok()) return call->Refuse(session.status());
  auto tokens = TokensOf(&backend, *session);
  if (!tokens.ok()) return call->Refuse(tokens.status());
  const auto name_space = backend.NamespaceOf(call->tenant);
  if (!name_space.ok()) return call->Refuse(name_space.status());
  StorePort& store = backend.scheduler().store();
  using Residency = StorePort::Residency;
  const auto where = WaitFor<std::vector<Residency>>([&](auto done) {
    store.Lookup(*name_space, KeysOf(PrefixChain(name_space->name_space, *tokens)),
                 LookupFor::kInspection, std::move(done));
  });
  SessionFileHeader header{.manifest = backend.ManifestOf(call->tenant),
                           .session = *session,
                           .tokens = *std::move(tokens),
                           .record_bytes = store.record_bytes()};
  while (header.blocks < where.size() &&
         (where[header.blocks] == Residency::kDram || where[header.blocks] == Residency::kSsd)) {
    ++header.blocks;
  }
  const auto file = std::make_shared<SessionExport>(call->backend, *name_space, std::move(header));
  call->response.set_header("Content-Disposition",
                            "attachment; filename=\"" + name + ".rpsession\"");
  call->response.set_chunked_content_provider(
      "application/octet-stream",
      [file](size_t, httplib::DataSink& sink) { return file->Write(&sink); });
}

void HandleSessionImport(ApiCall* call) {
  Backend& backend = *call->backend;
  const auto name_space = backend.NamespaceOf(call->tenant);
  if (!name_space.ok()) return call->Refuse(name_space.status());
  SessionImport import(&backend, call->tenant, *name_space);
  SessionFileReader reader(import.Sink());
  absl::Status status;
  (*call->content)([&](const char* data, size_t bytes) {
    if (status.ok()) status = reader.Add(AsBytes(std::string_view(data, bytes)));
    return status.ok();
  });
  if (status.ok()) status = reader.Finish();
  if (status.ok()) status = import.Finish();
  if (!status.ok()) {
    ApiError error = ApiError::Of(status);
    if (status.code() == absl::StatusCode::kDataLoss) error.status = 400;
    return call->Refuse(error);
  }
  const Session& theirs = import.header().session;
  const std::string name =
      call->request.has_param("name") ? call->request.get_param_value("name") : theirs.name;
  auto session =
      backend.sessions().Create(call->tenant, name, theirs.messages, theirs.chat, theirs.tools);
  if (!session.ok()) return call->Refuse(session.status());
  session->turns = theirs.turns;
  session->tokens = theirs.tokens;
  backend.sessions().End(*session);
  Json json = Summary(*session);
  json["blocks_stored"] = import.stored();
  call->Answer(json, 201);
}

}  // namespace reprise::server
