#include "gpu/model/config_json.h"

#include <set>

#include "gpu/model/model_limits.h"

namespace reprise::engine {
namespace {

constexpr size_t kShownMax = 60;

// What a wrong value is called in an error. Lists and objects are not printed: they may be deep.
std::string Shown(const Json& json) {
  if (json.is_array()) return "a list";
  if (json.is_object()) return "an object";
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

}  // namespace

void ConfigReader::Fail(std::string_view key, const Json& json, std::string_view must) {
  if (!status_->ok()) return;
  *status_ = InvalidArgument(path_ + std::string(key) + " is " + Shown(json) + ": it must be " +
                             std::string(must));
}

const Json* ConfigReader::Value(const char* key) {
  if (!status_->ok() || object_ == nullptr) return nullptr;
  const auto found = object_->find(key);
  if (found != object_->end()) return &*found;
  *status_ = InvalidArgument(path_ + key +
                             " is missing: every key of the model must be given, none has a "
                             "default");
  return nullptr;
}

void ConfigReader::Whole(const std::string& key, const Json& json, uint64_t max, uint64_t* value) {
  const auto* number = json.get_ptr<const Json::number_unsigned_t*>();
  if (number == nullptr || *number > max) {
    return Fail(key, json, "a whole number from 0 to " + std::to_string(max));
  }
  *value = *number;
}

void ConfigReader::operator()(const char* key, int32_t& value) {
  if (const Json* json = Value(key)) {
    uint64_t number = 0;
    Whole(key, *json, INT32_MAX, &number);
    value = static_cast<int32_t>(number);
  }
}

void ConfigReader::operator()(const char* key, uint32_t& value) {
  if (const Json* json = Value(key)) {
    uint64_t number = 0;
    Whole(key, *json, UINT32_MAX, &number);
    value = static_cast<uint32_t>(number);
  }
}

void ConfigReader::operator()(const char* key, uint64_t& value) {
  if (const Json* json = Value(key)) Whole(key, *json, UINT64_MAX, &value);
}

void ConfigReader::operator()(const char* key, double& value) {
  const Json* json = Value(key);
  if (json == nullptr) return;
  if (!json->is_number()) return Fail(key, *json, "a number");
  value = json->get<double>();
}

template <typename T>
void ConfigReader::List(const char* key, uint64_t max, std::vector<T>* values) {
  const Json* json = Value(key);
  if (json == nullptr) return;
  if (!json->is_array()) return Fail(key, *json, "a list of whole numbers");
  values->clear();
  for (const Json& item : *json) {
    uint64_t number = 0;
    Whole(key + ("[" + std::to_string(values->size()) + "]"), item, max, &number);
    values->push_back(static_cast<T>(number));
  }
}

void ConfigReader::operator()(const char* key, std::vector<uint32_t>& values) {
  List(key, UINT32_MAX, &values);
}

void ConfigReader::operator()(const char* key, std::vector<uint64_t>& values) {
  List(key, UINT64_MAX, &values);
}

void ConfigReader::Fixed(const char* key, const char* json) {
  const Json* value = Value(key);
  if (value == nullptr || *value == Json::parse(json, nullptr, false)) return;
  Fail(key, *value, std::string(json) + ", the only one supported");
}

ConfigReader ConfigReader::Object(const char* key) {
  const Json* json = Value(key);
  if (json != nullptr && !json->is_object()) {
    Fail(key, *json, "an object");
    json = nullptr;
  }
  return {json, path_ + key + ".", status_};
}

ConfigReader ConfigReader::OptionalObject(const char* key) {
  const bool there = object_ != nullptr && object_->contains(key) && !(*object_)[key].is_null();
  return there ? Object(key) : ConfigReader(nullptr, path_ + key + ".", status_);
}

absl::StatusOr<Json> ParseConfigObject(std::string_view text) {
  if (text.size() > kConfigBytesMax) {
    return InvalidArgument("it has " + std::to_string(text.size()) +
                           " bytes: the config.json of a model has at most " +
                           std::to_string(kConfigBytesMax));
  }
  std::vector<std::set<std::string>>
      open;  // The keys so far of each object around the current one.
  std::string twice;
  const auto note = [&open, &twice](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key &&
        !open.back().insert(*parsed.get_ptr<const std::string*>()).second) {
      twice = Shown(parsed);
    }
    return true;
  };
  Json json = Json::parse(text, note, false);
  if (!json.is_object()) return InvalidArgument("it is not valid JSON with an object at the top");
  if (!twice.empty())
    return InvalidArgument("key " + twice + " is there twice: remove one of them");
  return json;
}

}  // namespace reprise::engine
