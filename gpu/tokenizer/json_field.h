#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"

namespace reprise::engine {

// A value of a JSON file with the path that leads to it, so that every refusal names its key.
class JsonField {
 public:
  using Json = nlohmann::json;

  JsonField(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  absl::Status Refuse(std::string_view sentence) const {
    return InvalidArgument(path_ + " " + std::string(sentence));
  }

  // Whether this is an object in which `key` is there and not null.
  bool Has(std::string_view key) const;
  // A key that must be there.
  absl::StatusOr<JsonField> Get(std::string_view key) const;
  absl::StatusOr<std::string> Text(std::string_view key) const;
  absl::StatusOr<bool> Flag(std::string_view key) const;
  absl::StatusOr<bool> Flag(std::string_view key, bool when_missing) const;
  absl::StatusOr<uint32_t> Number(std::string_view key, uint32_t max) const;
  absl::StatusOr<std::vector<JsonField>> List(std::string_view key, size_t count_max) const;

 private:
  JsonField Under(std::string_view key, const Json& value) const;

  const Json* value_;
  std::string path_;
};

}  // namespace reprise::engine
