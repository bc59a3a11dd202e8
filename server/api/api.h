#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "server/api/backend.h"

namespace httplib {
class Server;
}

namespace reprise::server {

// The OpenAI-compatible API, sessions, and the page: routes of the daemon's HTTP server.
//
//   GET  /                                      the page
//   GET  /v1/models, /v1/models/NAME
//   POST /v1/completions, /v1/chat/completions
//   GET, POST        /v1/sessions
//   GET, DELETE      /v1/sessions/NAME
//   POST             /v1/sessions/NAME/send, /v1/sessions/NAME/fork, /v1/sessions/import
//   GET              /v1/sessions/NAME/blocks, /v1/sessions/NAME/export
//
// Errors have OpenAI's shape. With keys, every path under /v1 needs one of them. A browser's
// request from another site is refused. Thread-safe.
class Api {
 public:
  struct Options {
    std::string keys_file;  // Lines "KEY" or "KEY TENANT"; empty: no keys are needed.
    uint64_t body_bytes_max = 0;
  };
  static absl::StatusOr<std::unique_ptr<Api>> Create(const Options& options);

  // Before the server listens.
  void AddRoutes(httplib::Server* server);
  // Null: requests are answered with `reason` (503). Handlers that run keep the one that they have.
  void Serve(std::shared_ptr<Backend> backend, const std::string& reason = "");
  // The backend, for metrics; may be null.
  std::shared_ptr<Backend> backend() const;

 private:
  explicit Api(const Options& options) : options_(options) {}
  absl::Status ReadKeys();
  struct Access;  // What a request may do.

  Options options_;
  std::map<std::string, std::string> tenants_;  // By key.
  mutable std::mutex mutex_;
  std::shared_ptr<Backend> backend_;
  std::string reason_ = "the daemon is starting";
};

// The page, as text.
extern const char* const kPage;

}  // namespace reprise::server
