#include "gpu/checkpoint/strict_json.h"

#include <utility>

namespace reprise::engine {

absl::Status StrictJson::Read(std::string_view text) {
  status_ = absl::OkStatus();
  const bool whole = nlohmann::json::sax_parse(text, this);
  if (!whole && status_.ok()) return DataLoss("not valid JSON");
  return status_;
}

bool StrictJson::parse_error(size_t position, const std::string&,
                             const nlohmann::detail::exception&) {
  return Refuse("not valid JSON at byte " + std::to_string(position));
}

bool StrictJson::Refuse(std::string what) {
  if (status_.ok()) status_ = DataLoss(what);
  return false;
}

std::string Quoted(std::string_view name) {
  constexpr size_t kShownMax = 100;
  std::string text = "\"";
  for (const char c : name.substr(0, kShownMax)) {
    text += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c;
  }
  return text + (name.size() > kShownMax ? "...\"" : "\"");
}

}  // namespace reprise::engine
