#pragma once

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"

// The daemon's log: one line an event, on stderr. An event is a short name in snake_case; what
// varies is in fields, so that a line can be searched by machine.
//
//   LogInfo("ready", {{"startup", FormatDuration(d)}, {"blocks", blocks}});
//   2026-01-31T12:00:00.000Z info ready startup="1.20 s" blocks=81920
//
// Thread-safe. Before LogStart everything from info up is written as text.
namespace reprise::server {

enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// A field's value: text, a number or a truth value. Text is quoted where it must be.
class LogValue {
 public:
  LogValue(const char* text) : text_(text), is_text_(true) {}         // NOLINT: reads as a literal.
  LogValue(std::string_view text) : text_(text), is_text_(true) {}    // NOLINT
  LogValue(const std::string& text) : text_(text), is_text_(true) {}  // NOLINT
  LogValue(bool value) : text_(value ? "true" : "false") {}           // NOLINT
  LogValue(double value);                                             // NOLINT
  LogValue(const absl::Status& status) : LogValue(Message(status)) {}  // NOLINT
  template <typename T>
  requires(std::is_integral_v<T>) LogValue(T value) : text_(std::to_string(value)) {}  // NOLINT

  const std::string& text() const { return text_; }
  bool is_text() const { return is_text_; }

 private:
  std::string text_;
  bool is_text_ = false;
};

struct LogField {
  std::string_view key;
  LogValue value;
};
using LogFields = std::initializer_list<LogField>;

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  bool json = false;         // One JSON object a line.
  std::FILE* out = nullptr;  // Null: stderr. Borrowed.
};

// "debug", "info", "warning", "error".
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);

void LogStart(const LogOptions& options);

void LogDebug(std::string_view event, LogFields fields = {});
void LogInfo(std::string_view event, LogFields fields = {});
void LogWarning(std::string_view event, LogFields fields = {});
void LogError(std::string_view event, LogFields fields = {});

// For warnings that the data path may raise thousands of times a second: at most `burst` at once
// and one a second after that. The next line that is let through carries suppressed=<how many were
// not>. Confined to one thread; keep one for each kind of event.
class LogLimiter {
 public:
  explicit LogLimiter(uint32_t burst = 10) : burst_(burst), tokens_(burst) {}

  void Warning(Instant now, std::string_view event, LogFields fields);

  uint64_t suppressed_total() const { return suppressed_total_; }

 private:
  bool Allow(Instant now);

  uint32_t burst_;
  uint32_t tokens_;
  Instant refilled_at_ = 0;
  uint64_t suppressed_ = 0;  // Since the last line.
  uint64_t suppressed_total_ = 0;
};

}  // namespace reprise::server
