#pragma once

#include <string>

#include "protocol/base/status.h"

namespace reprise::server {

// An error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
struct ApiError {
  int status = 400;  // HTTP's.
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // Of the request; empty: null.
  std::string code;   // Empty: null.

  std::string Body() const;

  // An error of ours by its canonical code: 400, 404, 409, 429, 499, 503 or 500.
  static ApiError Of(const absl::Status& status);
};

}  // namespace reprise::server
