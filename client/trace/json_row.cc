#include "client/trace/json_row.h"

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace reprise {
namespace {

std::string Quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

std::string Plain(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.15g", value);
  return text;
}

}  // namespace

// Receives the events of the JSON parser. Returning false stops it.
class JsonRowHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonRowHandler(JsonRow* row) : row_(row) {}

  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("true or false"); }
  bool string(string_t&) override { return Other("a text"); }
  bool binary(binary_t&) override { return Other("binary"); }

  bool number_integer(number_integer_t value) override {
    if (depth_ == 1) return SetInteger(value);
    return Other(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (InList()) {
      field_->items.push_back(value);
      return true;
    }
    if (depth_ != 1) return Other("a number");
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    if (value <= kMax) return SetInteger(static_cast<int64_t>(value));
    return SetReal(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    if (depth_ == 1) return SetReal(value);
    return Other(Plain(value));
  }

  bool start_object(std::size_t) override { return Open("an object"); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return Stop("is a JSON array, not an object");
    if (depth_ == 1) field_->kind = JsonRow::Kind::kArray;
    return Open("an array");
  }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (depth_ != 1) return true;
    if (row_->Find(name) != nullptr) return Stop("names " + Quoted(name) + " twice");
    if (row_->field_count_ == row_->fields_.size()) row_->fields_.emplace_back();
    field_ = &row_->fields_[row_->field_count_++];
    field_->name = name;
    field_->kind = JsonRow::Kind::kOther;
    field_->items.clear();
    field_->problem.clear();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Stop("is not valid JSON at column " + std::to_string(position));
  }

  const std::string& error() const { return error_; }

 private:
  bool Stop(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool InList() const {
    return depth_ == 2 && field_ != nullptr && field_->kind == JsonRow::Kind::kArray;
  }
  bool SetInteger(int64_t value) {
    field_->kind = JsonRow::Kind::kInteger;
    field_->integer = value;
    return true;
  }
  bool SetReal(double value) {
    field_->kind = JsonRow::Kind::kReal;
    field_->real = value;
    return true;
  }
  // A value that no field wants. In a list it spoils the list; elsewhere it is passed over.
  bool Other(std::string_view what) {
    if (depth_ == 0) return Stop("is " + std::string(what) + ", not a JSON object");
    if (InList() && field_->problem.empty()) {
      field_->problem = "[" + std::to_string(field_->items.size()) + "] is " + std::string(what);
    }
    return true;
  }
  bool Open(std::string_view what) {
    if (depth_ > 0) Other(what);
    ++depth_;
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }

  JsonRow* row_;
  JsonRow::Field* field_ = nullptr;
  uint32_t depth_ = 0;
  std::string error_;
};

absl::Status JsonRow::Parse(std::string_view line) {
  field_count_ = 0;
  JsonRowHandler handler(this);
  const bool parsed = nlohmann::json::sax_parse(line.begin(), line.end(), &handler);
  if (parsed) return absl::OkStatus();
  return InvalidArgument("the line " + handler.error());
}

const JsonRow::Field* JsonRow::Find(std::string_view name) const {
  for (size_t i = 0; i < field_count_; ++i) {
    if (fields_[i].name == name) return &fields_[i];
  }
  return nullptr;
}

absl::StatusOr<const JsonRow::Field*> JsonRow::Need(std::string_view name) const {
  const Field* const field = Find(name);
  if (field == nullptr) return InvalidArgument(Quoted(name) + " is missing");
  return field;
}

absl::StatusOr<int64_t> JsonRow::Integer(std::string_view name, int64_t min, int64_t max) const {
  RP_ASSIGN(const Field* const field, Need(name));
  if (field->kind == Kind::kReal) {
    return InvalidArgument(Quoted(name) + " is " + Plain(field->real) + ": want a whole number");
  }
  if (field->kind != Kind::kInteger) return InvalidArgument(Quoted(name) + " is not a number");
  if (field->integer < min || field->integer > max) {
    return InvalidArgument(Quoted(name) + " is " + std::to_string(field->integer) + ": want " +
                           std::to_string(min) + " to " + std::to_string(max));
  }
  return field->integer;
}

absl::StatusOr<double> JsonRow::Number(std::string_view name, double min, double max) const {
  RP_ASSIGN(const Field* const field, Need(name));
  if (field->kind != Kind::kInteger && field->kind != Kind::kReal) {
    return InvalidArgument(Quoted(name) + " is not a number");
  }
  const double value =
      field->kind == Kind::kInteger ? static_cast<double>(field->integer) : field->real;
  if (!(value >= min && value <= max)) {
    return InvalidArgument(Quoted(name) + " is " + Plain(value) + ": want " + Plain(min) + " to " +
                           Plain(max));
  }
  return value;
}

absl::StatusOr<std::span<const uint64_t>> JsonRow::Integers(std::string_view name) const {
  RP_ASSIGN(const Field* const field, Need(name));
  if (field->kind != Kind::kArray) return InvalidArgument(Quoted(name) + " is not an array");
  if (!field->problem.empty()) {
    return InvalidArgument(Quoted(name) + field->problem + ": want whole numbers of 0 or more");
  }
  return std::span<const uint64_t>(field->items);
}

}  // namespace reprise
