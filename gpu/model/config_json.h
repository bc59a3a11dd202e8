#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"

namespace reprise::engine {

using Json = nlohmann::json;

// Reads one JSON object key by key. The first thing that is wrong is kept in `status`, and all
// readings after it do nothing: so a caller may list its keys and look once.
class ConfigReader {
 public:
  // `path` is what errors call the object: "text_config." or "". `status` and `object` outlive
  // this; `object` is null when an earlier error left nothing to read.
  ConfigReader(const Json* object, std::string path, absl::Status* status)
      : object_(object), path_(std::move(path)), status_(status) {}

  void operator()(const char* key, int32_t& value);
  void operator()(const char* key, uint32_t& value);
  void operator()(const char* key, uint64_t& value);
  void operator()(const char* key, double& value);
  void operator()(const char* key, std::vector<uint32_t>& values);
  void operator()(const char* key, std::vector<uint64_t>& values);
  // The key must be there and have this value, given as JSON.
  void Fixed(const char* key, const char* json);
  // The object under a key that must be there.
  ConfigReader Object(const char* key);
  // The same, but it may be missing or null: then has_object() is false.
  ConfigReader OptionalObject(const char* key);
  bool has_object() const { return object_ != nullptr; }

 private:
  const Json* Value(const char* key);  // Null after an error.
  void Whole(const std::string& key, const Json& json, uint64_t max, uint64_t* value);
  template <typename T>
  void List(const char* key, uint64_t max, std::vector<T>* values);
  void Fail(std::string_view key, const Json& json, std::string_view must);

  const Json* object_;
  std::string path_;
  absl::Status* status_;
};

// Fills one JSON object; takes what ConfigReader takes.
class ConfigWriter {
 public:
  template <typename T>
  void operator()(const char* key, const T& value) {
    object_[key] = value;
  }
  void Fixed(const char* key, const char* json) {
    object_[key] = Json::parse(json, nullptr, false);
  }
  Json& object() { return object_; }

 private:
  Json object_ = Json::object();
};

// Parses a JSON object in which no key occurs twice. Never throws.
absl::StatusOr<Json> ParseConfigObject(std::string_view text);

}  // namespace reprise::engine
