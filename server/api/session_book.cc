#include "server/api/session_book.h"

#include <algorithm>
#include <utility>

#include "protocol/base/prng.h"
#include "server/api/openai_request.h"
#include "server/log.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "session/";
constexpr size_t kNameMax = 64;
constexpr size_t kSessionsMax = 100'000;

std::string RowKey(const Session& session) { return kPrefix + session.tenant + "/" + session.name; }

absl::Status NoSession(const std::string& name) {
  return NotFound("there is no session \"" + name + "\"; GET /v1/sessions lists them");
}

}  // namespace

Json SessionJson(const Session& session) {
  Json messages = Json::array();
  for (const ChatMessage& message : session.messages) messages.push_back(MessageJson(message));
  return {{"name", session.name},
          {"tenant", session.tenant},
          {"id", session.id},
          {"created_ms", session.created_ms},
          {"used_ms", session.used_ms},
          {"turns", session.turns},
          {"tokens", session.tokens},
          {"thinking", session.chat.thinking},
          {"effort", session.chat.effort},
          {"tools", session.tools},
          {"messages", std::move(messages)}};
}

absl::StatusOr<Session> ParseSession(const Json& json) {
  const auto bad = [](const std::string& what) {
    return DataLoss("a session's row is damaged: " + what);
  };
  if (!json.is_object()) return bad("no object");
  Session session;
  const Json empty;
  const auto at = [&](const char* key) -> const Json& {
    const auto found = json.find(key);
    return found == json.end() ? empty : *found;
  };
  if (!at("name").is_string() || !at("tenant").is_string()) return bad("no name");
  session.name = at("name").get<std::string>();
  session.tenant = at("tenant").get<std::string>();
  for (const auto& [key, value] :
       {std::pair{"created_ms", &session.created_ms}, {"used_ms", &session.used_ms}}) {
    if (at(key).is_number_integer()) *value = at(key).get<int64_t>();
  }
  if (at("id").is_number_unsigned()) session.id = at("id").get<uint64_t>();
  for (const auto& [key, value] : {std::pair{"turns", &session.turns},
                                   {"tokens", &session.tokens},
                                   {"effort", &session.chat.effort}}) {
    if (at(key).is_number_unsigned()) *value = at(key).get<uint32_t>();
  }
  if (at("thinking").is_boolean()) session.chat.thinking = at("thinking").get<bool>();
  if (at("tools").is_array()) {
    session.tools = at("tools");
    if (ParseTools(session.tools, &session.chat.tools)) return bad("tools");
  }
  if (at("messages").is_array() && !at("messages").empty()) {
    if (const auto problem = ParseMessages(at("messages"), &session.messages)) {
      return bad(problem->message);
    }
  }
  return session;
}

SessionBook::SessionBook(storage::MetaStore* meta, const Clock* clock, uint64_t seed)
    : meta_(meta), clock_(clock), seed_(seed) {
  for (const auto& [key, value] : meta->LoadRows(kPrefix)) {
    auto session = ParseSession(Json::parse(value, nullptr, false));
    if (!session.ok()) {
      LogWarning("session_damaged", {{"row", key}, {"why", session.status()}});
      continue;
    }
    const Key name = {session->tenant, session->name};
    rows_[name].session = *std::move(session);
  }
}

absl::Status SessionBook::CheckName(const std::string& name) const {
  const bool fits = !name.empty() && name.size() <= kNameMax && name != "import" &&
                    std::all_of(name.begin(), name.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                    });
  if (fits) return absl::OkStatus();
  return InvalidArgument("a session's name has 1 to 64 letters, digits, '.', '_' or '-'");
}

std::string SessionBook::NewName() {
  Prng prng(++seed_ + static_cast<uint64_t>(clock_->WallMillis()));
  return "session-" + ToHex(AsBytes(prng.Next())).substr(0, 10);
}

void SessionBook::Store(const Session& session) {
  meta_->PutRow(RowKey(session),
                SessionJson(session).dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::StatusOr<Session> SessionBook::Create(const std::string& tenant, const std::string& name,
                                            std::vector<ChatMessage> messages,
                                            const ChatOptions& chat, const Json& tools) {
  const std::lock_guard lock(mutex_);
  Session session{.name = name.empty() ? NewName() : name,
                  .tenant = tenant,
                  .created_ms = clock_->WallMillis(),
                  .messages = std::move(messages),
                  .chat = chat,
                  .tools = tools};
  RP_TRY(CheckName(session.name));
  if (rows_.size() >= kSessionsMax) {
    return ResourceExhausted("there are " + std::to_string(kSessionsMax) +
                             " sessions already; remove some");
  }
  session.used_ms = session.created_ms;
  session.id = Prng(++seed_ ^ static_cast<uint64_t>(session.created_ms)).Next() | 1;
  const Key key = {tenant, session.name};
  if (rows_.count(key) != 0) {
    return absl::AlreadyExistsError("session \"" + session.name + "\" exists already");
  }
  rows_[key].session = session;
  Store(session);
  return session;
}

absl::StatusOr<Session> SessionBook::Find(const std::string& tenant,
                                          const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find({tenant, name});
  if (row == rows_.end()) return NoSession(name);
  return row->second.session;
}

std::vector<Session> SessionBook::List(const std::string& tenant) const {
  std::vector<Session> sessions;
  {
    const std::lock_guard lock(mutex_);
    for (auto row = rows_.lower_bound({tenant, ""});
         row != rows_.end() && row->first.first == tenant; ++row) {
      sessions.push_back(row->second.session);
    }
  }
  std::stable_sort(sessions.begin(), sessions.end(),
                   [](const Session& a, const Session& b) { return a.used_ms > b.used_ms; });
  return sessions;
}

absl::StatusOr<Session> SessionBook::Fork(const std::string& tenant, const std::string& from,
                                          const std::string& name) {
  RP_ASSIGN(const Session session, Find(tenant, from));
  RP_ASSIGN(Session fork, Create(tenant, name, session.messages, session.chat, session.tools));
  fork.turns = session.turns;
  fork.tokens = session.tokens;
  const std::lock_guard lock(mutex_);
  rows_[{tenant, fork.name}].session = fork;
  Store(fork);
  return fork;
}

absl::Status SessionBook::Remove(const std::string& tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find({tenant, name});
  if (row == rows_.end()) return NoSession(name);
  if (row->second.busy) {
    return FailedPrecondition("session \"" + name + "\" is answering; stop it first");
  }
  meta_->DeleteRow(RowKey(row->second.session));
  rows_.erase(row);
  return absl::OkStatus();
}

absl::StatusOr<Session> SessionBook::Begin(const std::string& tenant, const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find({tenant, name});
  if (row == rows_.end()) return NoSession(name);
  if (row->second.busy) {
    return FailedPrecondition("session \"" + name +
                              "\" is answering another message; wait for it, or fork the session");
  }
  row->second.busy = true;
  return row->second.session;
}

void SessionBook::End(const Session& session) {
  {
    const std::lock_guard lock(mutex_);
    Row& row = rows_[{session.tenant, session.name}];
    row.session = session;
    row.session.used_ms = clock_->WallMillis();
    row.busy = false;
    Store(row.session);
  }
  meta_->Flush();
}

void SessionBook::Abandon(const Session& session) {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find({session.tenant, session.name});
  if (row != rows_.end()) row->second.busy = false;
}

size_t SessionBook::size() const {
  const std::lock_guard lock(mutex_);
  return rows_.size();
}

}  // namespace reprise::server
