#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "server/api/chat_format.h"
#include "storage/meta_store.h"

namespace reprise::server {

// A conversation with a name. What it is made of are messages and the ids of answers; its blocks
// and windows are found by their content, as everybody's are.
struct Session {
  std::string name;
  std::string tenant;
  uint64_t id = 0;  // Of its window snapshots.
  int64_t created_ms = 0;
  int64_t used_ms = 0;
  std::vector<ChatMessage> messages;
  ChatOptions chat;
  nlohmann::ordered_json tools;  // As they were given.
  uint32_t turns = 0;            // Answers.
  uint32_t tokens = 0;           // Of the last prompt and its answer.
};

// The sessions of all tenants, kept in the MetaStore. Thread-safe. One turn of a session at a time.
class SessionBook {
 public:
  // Reads what is stored; what cannot be read is left out, logged.
  SessionBook(storage::MetaStore* meta, const Clock* clock, uint64_t seed);

  // Errors are for the API's caller: InvalidArgument for a bad name, AlreadyExists, NotFound,
  // FailedPrecondition (busy). An empty name is replaced by a new one.
  absl::StatusOr<Session> Create(const std::string& tenant, const std::string& name,
                                 std::vector<ChatMessage> messages, const ChatOptions& chat,
                                 const nlohmann::ordered_json& tools);
  absl::StatusOr<Session> Find(const std::string& tenant, const std::string& name) const;
  std::vector<Session> List(const std::string& tenant) const;  // Last used first.
  // A copy under another name: from here on it goes its own way.
  absl::StatusOr<Session> Fork(const std::string& tenant, const std::string& from,
                               const std::string& name);
  absl::Status Remove(const std::string& tenant, const std::string& name);

  // A turn: Begin gives the session and keeps others out until End, which stores it; or Abandon.
  absl::StatusOr<Session> Begin(const std::string& tenant, const std::string& name);
  void End(const Session& session);
  void Abandon(const Session& session);

  size_t size() const;

 private:
  struct Row {
    Session session;
    bool busy = false;
  };
  using Key = std::pair<std::string, std::string>;  // Tenant, name.

  absl::Status CheckName(const std::string& name) const;
  std::string NewName();
  void Store(const Session& session);

  storage::MetaStore* meta_;
  const Clock* clock_;
  mutable std::mutex mutex_;
  uint64_t seed_;
  std::map<Key, Row> rows_;
};

nlohmann::ordered_json SessionJson(const Session& session);
absl::StatusOr<Session> ParseSession(const nlohmann::ordered_json& json);

}  // namespace reprise::server
