#include <array>
#include <charconv>
#include <chrono>
#include <optional>

#include "client/trace/row_parser.h"

namespace reprise {
namespace {

constexpr std::string_view kHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

std::optional<int64_t> Whole(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.starts_with('-')) {
    return std::nullopt;
  }
  return value;
}

// ".9799600" in nanoseconds.
std::optional<Nanos> Fraction(std::string_view text) {
  if (text.size() < 2 || text.size() > 10 || text[0] != '.') return std::nullopt;
  std::optional<int64_t> value = Whole(text.substr(1));
  for (size_t digits = text.size() - 1; value && digits < 9; ++digits) *value *= 10;
  return value;
}

// "2023-11-16 18:17:03.9799600", with or without the fraction and "+00:00", as Unix nanoseconds.
std::optional<Nanos> UnixNanos(std::string_view text) {
  if (text.ends_with("+00:00")) text.remove_suffix(6);
  constexpr size_t kSecondsEnd = 19;
  if (text.size() < kSecondsEnd || text[4] != '-' || text[7] != '-' || text[10] != ' ' ||
      text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const std::array parts = {Whole(text.substr(0, 4)),  Whole(text.substr(5, 2)),
                            Whole(text.substr(8, 2)),  Whole(text.substr(11, 2)),
                            Whole(text.substr(14, 2)), Whole(text.substr(17, 2))};
  for (const auto& part : parts) {
    if (!part) return std::nullopt;
  }
  namespace chrono = std::chrono;
  const chrono::year_month_day date{chrono::year(static_cast<int>(*parts[0])),
                                    chrono::month(static_cast<unsigned>(*parts[1])),
                                    chrono::day(static_cast<unsigned>(*parts[2]))};
  if (!date.ok() || *parts[0] < 1970 || *parts[0] > 2200 || *parts[3] > 23 || *parts[4] > 59 ||
      *parts[5] > 60) {
    return std::nullopt;
  }
  Nanos fraction_ns = 0;
  if (text.size() > kSecondsEnd) {
    const auto fraction = Fraction(text.substr(kSecondsEnd));
    if (!fraction) return std::nullopt;
    fraction_ns = *fraction;
  }
  const int64_t days = chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + *parts[3]) * 60 + *parts[4]) * 60 + *parts[5]) * kSecond + fraction_ns;
}

// Arrivals and lengths only: requests share nothing. Times count from the first row.
class AzureParser final : public RowParser {
 public:
  absl::StatusOr<bool> Parse(std::string_view line, TraceRequest* request) override {
    if (!header_seen_) {
      if (line != kHeader) {
        return InvalidArgument("the first line is not \"" + std::string(kHeader) + "\"");
      }
      header_seen_ = true;
      return false;
    }
    const size_t first = line.find(',');
    const size_t second = first == std::string_view::npos ? first : line.find(',', first + 1);
    if (second == std::string_view::npos) {
      return InvalidArgument("the line does not have 3 columns");
    }
    const auto time_ns = UnixNanos(line.substr(0, first));
    if (!time_ns) {
      return InvalidArgument("TIMESTAMP is \"" + std::string(line.substr(0, first)) +
                             "\": want YYYY-MM-DD HH:MM:SS.fraction");
    }
    RP_ASSIGN(request->input_tokens,
              Length("ContextTokens", line.substr(first + 1, second - first - 1), 1));
    RP_ASSIGN(request->output_tokens, Length("GeneratedTokens", line.substr(second + 1), 0));
    if (!start_ns_) start_ns_ = *time_ns;
    request->time_ns = *time_ns - *start_ns_;
    return true;
  }

 private:
  static absl::StatusOr<uint32_t> Length(std::string_view name, std::string_view text,
                                         int64_t min) {
    const auto value = Whole(text);
    if (!value || *value < min || *value > kInputTokensMax) {
      return InvalidArgument(std::string(name) + " is \"" + std::string(text) + "\": want " +
                             std::to_string(min) + " to " + std::to_string(kInputTokensMax));
    }
    return static_cast<uint32_t>(*value);
  }

  bool header_seen_ = false;
  std::optional<Nanos> start_ns_;
};

}  // namespace

std::unique_ptr<RowParser> MakeAzureParser() { return std::make_unique<AzureParser>(); }

}  // namespace reprise
