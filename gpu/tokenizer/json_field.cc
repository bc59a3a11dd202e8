#include "gpu/tokenizer/json_field.h"

namespace reprise::engine {

JsonField JsonField::Under(std::string_view key, const Json& value) const {
  return {value, path_.empty() ? std::string(key) : path_ + "." + std::string(key)};
}

bool JsonField::Has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

absl::StatusOr<JsonField> JsonField::Get(std::string_view key) const {
  if (!value_->is_object()) return Refuse("must be an object");
  const auto found = value_->find(key);
  if (found == value_->end()) return Under(key, *value_).Refuse("is missing");
  return Under(key, *found);
}

absl::StatusOr<std::string> JsonField::Text(std::string_view key) const {
  RP_ASSIGN(const JsonField field, Get(key));
  if (!field.value().is_string()) return field.Refuse("must be a string");
  return field.value().get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonField::Flag(std::string_view key) const {
  RP_ASSIGN(const JsonField field, Get(key));
  if (!field.value().is_boolean()) return field.Refuse("must be true or false");
  return *field.value().get_ptr<const bool*>();
}

absl::StatusOr<bool> JsonField::Flag(std::string_view key, bool when_missing) const {
  if (!Has(key)) return when_missing;
  return Flag(key);
}

absl::StatusOr<uint32_t> JsonField::Number(std::string_view key, uint32_t max) const {
  RP_ASSIGN(const JsonField field, Get(key));
  const auto* number = field.value().get_ptr<const uint64_t*>();
  if (number == nullptr || *number > max) {
    return field.Refuse("must be a whole number from 0 to " + std::to_string(max));
  }
  return static_cast<uint32_t>(*number);
}

absl::StatusOr<std::vector<JsonField>> JsonField::List(std::string_view key,
                                                       size_t count_max) const {
  RP_ASSIGN(const JsonField field, Get(key));
  if (!field.value().is_array()) return field.Refuse("must be a list");
  if (field.value().size() > count_max) {
    return field.Refuse("has " + std::to_string(field.value().size()) + " entries, at most " +
                        std::to_string(count_max) + " are supported");
  }
  std::vector<JsonField> items;
  items.reserve(field.value().size());
  for (const Json& item : field.value()) {
    items.emplace_back(item, field.path_ + "[" + std::to_string(items.size()) + "]");
  }
  return items;
}

}  // namespace reprise::engine
