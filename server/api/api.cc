#include "server/api/api.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <utility>

#include "protocol/base/units.h"
#include "server/api/answer_handler.h"
#include "server/api/api_call.h"
#include "server/api/session_handler.h"

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSessionPath = R"(/v1/sessions/([A-Za-z0-9._-]+))";

// The time does not tell how much of it is right.
bool SameKey(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

Json ModelJson(const Backend& backend) {
  return {{"id", backend.model_name()},
          {"object", "model"},
          {"created", backend.created_s()},
          {"owned_by", "reprise"},
          {"max_model_len", backend.config().max_positions}};
}

void HandleModels(ApiCall* call) {
  call->Answer({{"object", "list"}, {"data", Json::array({ModelJson(*call->backend)})}});
}

void HandleModel(ApiCall* call, const std::string& name) {
  if (call->CheckModel(name)) call->Answer(ModelJson(*call->backend));
}

// A page of another site may make a browser send requests here; it says so in Origin.
bool FromElsewhere(const httplib::Request& request) {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty()) return false;
  const size_t scheme = origin.find("://");
  return scheme == std::string::npos ||
         origin.substr(scheme + 3) != request.get_header_value("Host");
}

}  // namespace

bool ApiCall::ReadJson(Json* json) {
  std::string body;
  bool too_long = false;
  (*content)([&](const char* data, size_t bytes) {
    too_long = too_long || body.size() + bytes > body_bytes_max;
    if (!too_long) body.append(data, bytes);
    return !too_long;
  });
  if (too_long) {
    response.set_header("Connection", "close");
    Refuse(ApiError{.status = 413,
                    .message = "the body has more than " + FormatBytes(body_bytes_max) +
                               "; raise api.body_bytes_max if that is right"});
    return false;
  }
  if (const auto problem = ParseJson(body, json)) {
    Refuse(*problem);
    return false;
  }
  return true;
}

bool ApiCall::CheckModel(const std::string& model) {
  if (model == backend->model_name()) return true;
  Refuse(ApiError{
      .status = 404,
      .message = "there is no model \"" + model + "\"; this daemon serves " + backend->model_name(),
      .param = "model",
      .code = "model_not_found"});
  return false;
}

absl::StatusOr<std::unique_ptr<Api>> Api::Create(const Options& options) {
  std::unique_ptr<Api> api(new Api(options));
  RP_TRY(api->ReadKeys());
  return api;
}

absl::Status Api::ReadKeys() {
  if (options_.keys_file.empty()) return absl::OkStatus();
  std::ifstream file(options_.keys_file);
  if (!file) {
    return NotFound("api.keys_file = \"" + options_.keys_file + "\": cannot be read (" +
                    std::strerror(errno) + "); write one key a line, or set it to \"\"");
  }
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string key, tenant, more;
    if (!(words >> key)) continue;
    words >> tenant;
    if (key.size() < 8 || words >> more) {
      return InvalidArgument(options_.keys_file + ":" + std::to_string(number) +
                             ": a line has a key of at least 8 characters and, if there are "
                             "several, its tenant");
    }
    tenants_[key] = tenant;
  }
  if (tenants_.empty()) {
    return InvalidArgument("api.keys_file = \"" + options_.keys_file + "\": has no key in it");
  }
  return absl::OkStatus();
}

void Api::Serve(std::shared_ptr<Backend> backend, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  backend_ = std::move(backend);
  reason_ = reason;
}

std::shared_ptr<Backend> Api::backend() const {
  const std::lock_guard lock(mutex_);
  return backend_;
}

// ---- Routes ------------------------------------------------------------------------------------

// Checks that come before every handler.
struct Api::Access {
  static bool Allow(Api* api, ApiCall* call) {
    if (FromElsewhere(call->request)) {
      call->Refuse(ApiError{.status = 403,
                            .message = "requests of pages from other sites are refused",
                            .type = "permission_error"});
      return false;
    }
    if (!api->tenants_.empty() && !Tenant(api, call)) {
      call->response.set_header("WWW-Authenticate", "Bearer");
      call->Refuse(ApiError{.status = 401,
                            .message = "this needs a key: send \"Authorization: Bearer KEY\"",
                            .type = "authentication_error",
                            .code = "invalid_api_key"});
      return false;
    }
    const std::lock_guard lock(api->mutex_);
    call->backend = api->backend_;
    if (call->backend != nullptr) return true;
    call->Refuse(
        ApiError{.status = 503, .message = api->reason_, .type = "service_unavailable_error"});
    return false;
  }

  static bool Tenant(const Api* api, ApiCall* call) {
    const std::string header = call->request.get_header_value("Authorization");
    const std::string bearer = "Bearer ";
    if (header.compare(0, bearer.size(), bearer) != 0) return false;
    const std::string key = header.substr(bearer.size());
    for (const auto& [known, tenant] : api->tenants_) {
      if (!SameKey(known, key)) continue;
      call->tenant = tenant;
      return true;
    }
    return false;
  }
};

void Api::AddRoutes(httplib::Server* server) {
  using Request = httplib::Request;
  using Response = httplib::Response;
  using Content = httplib::ContentReader;
  using Action = std::function<void(ApiCall*, const std::string& name)>;
  const auto name_of = [](const Request& request) {
    return request.matches.size() > 1 ? request.matches[1].str() : std::string();
  };
  const auto without_body = [this, name_of](Action action) {
    return [this, name_of, action](const Request& request, Response& response) {
      ApiCall call{.request = request, .response = response, .backend = nullptr, .tenant = {}};
      if (Access::Allow(this, &call)) action(&call, name_of(request));
    };
  };
  const auto with_body = [this, name_of](Action action) {
    return [this, name_of, action](const Request& request, Response& response,
                                   const Content& content) {
      ApiCall call{.request = request,
                   .response = response,
                   .content = &content,
                   .backend = nullptr,
                   .tenant = {},
                   .body_bytes_max = options_.body_bytes_max};
      if (Access::Allow(this, &call)) {
        action(&call, name_of(request));
      } else {
        response.set_header("Connection", "close");  // Its body was not read.
      }
    };
  };
  const std::string session = kSessionPath;

  server->Get("/", [](const Request&, Response& response) {
    response.set_content(kPage, "text/html; charset=utf-8");
  });
  server->Get("/v1/models", without_body([](ApiCall* call, auto&) { HandleModels(call); }));
  server->Get("/v1/models/(.+)", without_body(HandleModel));
  server->Post("/v1/completions", with_body([](ApiCall* call, auto&) { HandleCompletion(call); }));
  server->Post("/v1/chat/completions", with_body([](ApiCall* call, auto&) { HandleChat(call); }));
  server->Post("/v1/sessions", with_body([](ApiCall* call, auto&) { HandleSessionCreate(call); }));
  server->Get("/v1/sessions", without_body([](ApiCall* call, auto&) { HandleSessionList(call); }));
  server->Post("/v1/sessions/import",
               with_body([](ApiCall* call, auto&) { HandleSessionImport(call); }));
  server->Get(session, without_body(HandleSessionGet));
  server->Delete(session, with_body(HandleSessionRemove));
  server->Post(session + "/send", with_body(HandleSessionSend));
  server->Post(session + "/fork", with_body(HandleSessionFork));
  server->Get(session + "/blocks", without_body(HandleSessionBlocks));
  server->Get(session + "/export", without_body(HandleSessionExport));

  // Every body is read by its handler, which knows how long it may be; a body for nobody is not.
  server->set_payload_max_length(std::numeric_limits<size_t>::max());
  const auto nobody = [](const Request& request, Response& response, const Content&) {
    response.status = 404;
    response.set_header("Connection", "close");
    const ApiError error{.status = 404, .message = "no " + request.method + " " + request.path};
    response.set_content(error.Body(), "application/json");
  };
  server->Post("/.*", nobody);
  server->Put("/.*", nobody);
  server->Patch("/.*", nobody);
  server->Delete("/.*", nobody);
}

}  // namespace reprise::server
