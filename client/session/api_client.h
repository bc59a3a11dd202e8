#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "protocol/base/status.h"

namespace reprise {

// The daemon's HTTP API, for programs. Blocking; one request at a time; one thread, but for Stop.
//
// Errors of the API keep their words: 400 and 413 are InvalidArgument, 404 NotFound, 409
// FailedPrecondition, 429 ResourceExhausted, 401 and 403 PermissionDenied, 503 and no connection
// Unavailable.
class ApiClient {
 public:
  using Json = nlohmann::ordered_json;

  struct Options {
    std::string url = "http://127.0.0.1:7441";
    std::string key;  // Empty: none.
  };
  static absl::StatusOr<std::unique_ptr<ApiClient>> Create(const Options& options);
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;
  ApiClient& operator=(const ApiClient&) = delete;

  absl::StatusOr<Json> Get(const std::string& path);
  absl::StatusOr<Json> Post(const std::string& path, const Json& body);
  absl::StatusOr<Json> Delete(const std::string& path);

  // Server-sent events: `chunk` gets each as JSON, and null now and then while there is none; false
  // from it closes the connection, which cancels the answer, and makes the call return Cancelled.
  absl::Status PostStream(const std::string& path, const Json& body,
                          const std::function<bool(const Json& chunk)>& chunk);

  // Lines of text as they come, without their ends; false from `line` closes the connection and
  // makes the call return Cancelled.
  absl::Status GetLines(const std::string& path,
                        const std::function<bool(std::string_view line)>& line);

  // A file, to or from; `progress` gets bytes so far.
  absl::Status Download(const std::string& path, const std::string& file,
                        const std::function<void(uint64_t)>& progress);
  absl::StatusOr<Json> Upload(const std::string& path, const std::string& file,
                              const std::function<void(uint64_t)>& progress);

 private:
  class Impl;
  explicit ApiClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
