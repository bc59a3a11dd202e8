#include "server/api/api_error.h"

#include <nlohmann/json.hpp>

namespace reprise::server {

std::string ApiError::Body() const {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Json body = {{"error",
                      {{"message", message},
                       {"type", type},
                       {"param", text_or_null(param)},
                       {"code", text_or_null(code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

ApiError ApiError::Of(const absl::Status& status) {
  ApiError error{.message = Message(status)};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return error;
    case absl::StatusCode::kNotFound:
      error.status = 404;
      return error;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      error.status = 409;
      return error;
    case absl::StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "too_many_requests";
      return error;
    case absl::StatusCode::kCancelled:
      error.status = 499;
      error.type = "cancelled";
      return error;
    case absl::StatusCode::kUnavailable:
      error.status = 503;
      error.type = "service_unavailable_error";
      return error;
    default:
      error.status = 500;
      error.type = "server_error";
      return error;
  }
}

}  // namespace reprise::server
