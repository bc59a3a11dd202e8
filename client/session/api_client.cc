#include "client/session/api_client.h"

#include <httplib.h>
#include <sys/stat.h>

#include <fstream>
#include <utility>

namespace reprise {
namespace {

using Json = ApiClient::Json;

// An answer may take as long as a long prompt takes; the daemon says something every second.
constexpr time_t kReadSeconds = 120;
constexpr time_t kConnectSeconds = 5;

absl::StatusCode CodeOf(int status) {
  switch (status) {
    case 400:
    case 413:
      return absl::StatusCode::kInvalidArgument;
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 409:
      return absl::StatusCode::kFailedPrecondition;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::Status ErrorOf(int status, const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  std::string message = "the daemon answered " + std::to_string(status);
  if (json.is_object() && json.contains("error") && json["error"].is_string()) {
    message = json["error"].get<std::string>();  // Of an administrator's path.
  }
  if (json.is_object() && json.contains("error") && json["error"].is_object() &&
      json["error"].contains("message") && json["error"]["message"].is_string()) {
    message = json["error"]["message"].get<std::string>();
  }
  return absl::Status(CodeOf(status), message);
}

}  // namespace

class ApiClient::Impl {
 public:
  explicit Impl(const Options& options) : url_(options.url), client_(options.url) {
    client_.set_connection_timeout(kConnectSeconds);
    client_.set_read_timeout(kReadSeconds);
    client_.set_write_timeout(kReadSeconds);
    client_.set_keep_alive(true);
    if (!options.key.empty()) client_.set_bearer_token_auth(options.key);
  }
  bool valid() const { return client_.is_valid(); }

  httplib::Request Request(const std::string& method, const std::string& path) const {
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.set_header("Accept", "application/json, text/event-stream");
    return request;
  }

  absl::StatusOr<Json> Ask(httplib::Request request) {
    const httplib::Result result = client_.send(request);
    if (!result) return Unreachable(result.error());
    if (result->status < 200 || result->status > 299) return ErrorOf(result->status, result->body);
    Json json = Json::parse(result->body, nullptr, false);
    if (json.is_discarded()) return Internal("the daemon's answer is not JSON");
    if (json.is_object() && json.contains("error")) return ErrorOf(500, result->body);
    return json;
  }

  // `take` gets the body piece by piece when the status is good.
  absl::Status Stream(httplib::Request request,
                      const std::function<bool(const char* data, size_t bytes)>& take) {
    int status = 0;
    std::string error;
    bool stopped = false;
    request.response_handler = [&](const httplib::Response& response) {
      status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t bytes, uint64_t, uint64_t) {
      if (status != 200) {
        error.append(data, bytes);
        return true;
      }
      stopped = !take(data, bytes);
      return !stopped;
    };
    const httplib::Result result = client_.send(request);
    if (stopped) return absl::CancelledError("stopped");
    if (!result) return Unreachable(result.error());
    return status == 200 ? absl::OkStatus() : ErrorOf(status, error);
  }

 private:
  absl::Status Unreachable(httplib::Error error) const {
    return Unavailable("no answer from " + url_ + " (" + httplib::to_string(error) +
                       "); is reprised running there, with engine.model set? --http names it");
  }

  std::string url_;
  httplib::Client client_;
};

absl::StatusOr<std::unique_ptr<ApiClient>> ApiClient::Create(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  if (options.url.compare(0, 7, "http://") != 0 || !impl->valid()) {
    return InvalidArgument("\"" + options.url + "\" is no address; write http://host:port");
  }
  return std::unique_ptr<ApiClient>(new ApiClient(std::move(impl)));
}

ApiClient::ApiClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiClient::~ApiClient() = default;

absl::StatusOr<Json> ApiClient::Get(const std::string& path) {
  return impl_->Ask(impl_->Request("GET", path));
}

absl::StatusOr<Json> ApiClient::Delete(const std::string& path) {
  return impl_->Ask(impl_->Request("DELETE", path));
}

absl::StatusOr<Json> ApiClient::Post(const std::string& path, const Json& body) {
  httplib::Request request = impl_->Request("POST", path);
  request.set_header("Content-Type", "application/json");
  request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return impl_->Ask(std::move(request));
}

absl::Status ApiClient::PostStream(const std::string& path, const Json& body,
                                   const std::function<bool(const Json& chunk)>& chunk) {
  httplib::Request request = impl_->Request("POST", path);
  request.set_header("Content-Type", "application/json");
  request.body = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string rest;
  absl::Status failed;
  const absl::Status status =
      impl_->Stream(std::move(request), [&](const char* data, size_t bytes) {
        rest.append(data, bytes);
        for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
          const std::string line = rest.substr(0, end);
          rest.erase(0, end + 1);
          if (line.compare(0, 1, ":") == 0 && !chunk(Json())) return false;
          if (line.compare(0, 6, "data: ") != 0 || line == "data: [DONE]") continue;
          const Json json = Json::parse(line.substr(6), nullptr, false);
          if (json.is_object() && json.contains("error")) {
            failed = ErrorOf(500, json.dump());
            return false;
          }
          if (!json.is_discarded() && !chunk(json)) return false;
        }
        return true;
      });
  return failed.ok() ? status : failed;
}

absl::Status ApiClient::GetLines(const std::string& path,
                                 const std::function<bool(std::string_view line)>& line) {
  std::string rest;
  return impl_->Stream(impl_->Request("GET", path), [&](const char* data, size_t bytes) {
    rest.append(data, bytes);
    size_t begin = 0;
    for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      if (!line(std::string_view(rest).substr(begin, end - begin))) return false;
      begin = end + 1;
    }
    rest.erase(0, begin);
    return true;
  });
}

absl::Status ApiClient::Download(const std::string& path, const std::string& file,
                                 const std::function<void(uint64_t)>& progress) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  if (!out) return InvalidArgument("cannot write " + file);
  uint64_t done = 0;
  const absl::Status status =
      impl_->Stream(impl_->Request("GET", path), [&](const char* data, size_t bytes) {
        out.write(data, static_cast<std::streamsize>(bytes));
        progress(done += bytes);
        return static_cast<bool>(out);
      });
  out.close();
  if (!out) return ResourceExhausted("cannot write all of " + file + "; is the disk full?");
  return status;
}

absl::StatusOr<Json> ApiClient::Upload(const std::string& path, const std::string& file,
                                       const std::function<void(uint64_t)>& progress) {
  std::ifstream in(file, std::ios::binary);
  struct stat info {};
  if (!in || ::stat(file.c_str(), &info) != 0) return InvalidArgument("cannot read " + file);
  httplib::Request request = impl_->Request("POST", path);
  request.set_header("Content-Type", "application/octet-stream");
  request.content_length_ = static_cast<size_t>(info.st_size);
  request.content_provider_ = [&](size_t offset, size_t length, httplib::DataSink& sink) {
    std::string piece(std::min<size_t>(length, 1 << 20), '\0');
    in.seekg(static_cast<std::streamoff>(offset));
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    piece.resize(static_cast<size_t>(in.gcount()));
    progress(offset + piece.size());
    return !piece.empty() && sink.write(piece.data(), piece.size());
  };
  return impl_->Ask(std::move(request));
}

}  // namespace reprise
