#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "protocol/base/status.h"
#include "server/trace_tap.h"

namespace httplib {
class Server;
}

namespace reprise::server {

// What the HTTP server shows. Called from its threads, several at a time: implementations are
// thread-safe, and answer within a second or so even when a shard is stuck.
class HttpSource {
 public:
  virtual ~HttpSource() = default;
  virtual std::string Metrics() = 0;  // Prometheus text format.
  // True when requests are served. Else `reason` says why not, in a few words.
  virtual bool Ready(std::string* reason) = 0;
  virtual std::string StatusJson() = 0;          // One JSON object.
  virtual TraceTap* trace() { return nullptr; }  // Live requests; null: none to record.
};

// The administrator's door: GET and HEAD of
//
//   /metrics   Prometheus text
//   /healthz   200 while the process lives
//   /readyz    200 when ready; 503 with the reason while starting or draining
//   /status    the same JSON object as `reprise status --json`
//   /trace     requests as they come, anonymised, for ?seconds=N: what `reprise record` writes
//
// and what `add_routes` adds. Everything else is a JSON error. No authentication of its own: listen
// on loopback or on a management network. Requests are served by threads of its own; it never
// touches a shard's thread.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    uint16_t port = 7441;  // 0: any free one, see port().
    uint32_t threads = 4;  // Requests served at once.
    uint32_t waiting_max =
        64;  // Accepted connections that wait for a thread; more wait in the kernel.
    uint32_t timeout_ms = 2'000;  // For each read and write, and between requests of a connection.
  };

  // Binds and serves. Fails when the address cannot be bound, naming it. `source` is borrowed.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Options& options, HttpSource* source,
      const std::function<void(httplib::Server*)>& add_routes = nullptr);
  ~HttpServer();  // Stops: requests in progress are finished, for at most the timeout.
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::server
