#pragma once

#include <httplib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "server/api/api_error.h"
#include "server/api/backend.h"

namespace reprise::server {

// One request to the API, as its handlers see it. Included by server/api/*.cc alone.
struct ApiCall {
  const httplib::Request& request;
  httplib::Response& response;
  const httplib::ContentReader* content = nullptr;  // Of a POST.
  std::shared_ptr<Backend> backend;
  std::string tenant;
  uint64_t body_bytes_max = 0;

  void Answer(const nlohmann::ordered_json& json, int status = 200) {
    response.status = status;
    response.set_content(
        json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
        "application/json");
  }
  void Refuse(const ApiError& error) {
    response.status = error.status;
    if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "2");
    response.set_content(error.Body(), "application/json");
  }
  void Refuse(const absl::Status& status) { Refuse(ApiError::Of(status)); }

  // The body as JSON; false: it was refused.
  bool ReadJson(nlohmann::ordered_json* json);
  // False: the daemon serves another one, and it was refused.
  bool CheckModel(const std::string& model);
};

}  // namespace reprise::server
