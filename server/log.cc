#include "server/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>

namespace reprise::server {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"debug", "info", "warning", "error"};

spdlog::level::level_enum NativeLevel(LogLevel level) {
  static constexpr std::array<spdlog::level::level_enum, 4> kNative = {
      spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  return kNative[static_cast<size_t>(level)];
}

// Whole lines to a FILE. A log that cannot be written must not stop the daemon: errors are ignored.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::FILE* out) : out_(out) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    std::fwrite(line.data(), 1, line.size(), out_);
  }
  void flush_() override { std::fflush(out_); }

 private:
  std::FILE* out_;
};

struct Log {
  std::shared_ptr<spdlog::logger> logger;
  bool json = false;
};

std::unique_ptr<Log> MakeLog(const LogOptions& options) {
  auto log = std::make_unique<Log>();
  log->json = options.json;
  log->logger = std::make_shared<spdlog::logger>(
      "reprised", std::make_shared<FileSink>(options.out == nullptr ? stderr : options.out));
  log->logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      options.json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %v",
      spdlog::pattern_time_type::utc));
  log->logger->set_level(NativeLevel(options.level));
  log->logger->flush_on(spdlog::level::debug);
  return log;
}

// One log a process. LogStart replaces it before threads start.
std::unique_ptr<Log>& TheLog() {
  static std::unique_ptr<Log> log = MakeLog({});
  return log;
}

// In quotes, with the escapes of JSON. Bytes beyond ASCII are escaped one by one: a peer's text can
// then break neither a line, nor the JSON, nor a terminal.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c < 0x20 || c >= 0x7f) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", c);
      out += escape.data();
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

// Text that reads as one word needs no quotes in a text line.
bool IsWord(std::string_view text) {
  for (const char c : text) {
    const bool plain = c > 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '=';
    if (!plain) return false;
  }
  return !text.empty();
}

class Line {
 public:
  Line(bool json, LogLevel level, std::string_view event) : json_(json) {
    const std::string name = kLevelNames[static_cast<size_t>(level)];
    text_ = json ? R"("level":")" + name + R"(","event":)" + Quote(event)
                 : name + " " + std::string(event);
  }

  void Add(std::string_view key, const LogValue& value) {
    if (json_) {
      text_ += "," + Quote(key) + ":" + (value.is_text() ? Quote(value.text()) : value.text());
    } else {
      const bool quote = value.is_text() && !IsWord(value.text());
      text_ += " " + std::string(key) + "=" + (quote ? Quote(value.text()) : value.text());
    }
  }

  const std::string& text() const { return text_; }

 private:
  bool json_;
  std::string text_;
};

void Write(LogLevel level, std::string_view event, LogFields fields, uint64_t suppressed) {
  const Log& log = *TheLog();
  const spdlog::level::level_enum native = NativeLevel(level);
  if (!log.logger->should_log(native)) return;
  Line line(log.json, level, event);
  for (const LogField& field : fields) line.Add(field.key, field.value);
  if (suppressed > 0) line.Add("suppressed", suppressed);
  log.logger->log(native, "{}", line.text());
}

}  // namespace

LogValue::LogValue(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  text_ = text.data();
  is_text_ = !std::isfinite(value);  // JSON has no number for these.
}

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (name == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  return InvalidArgument("\"" + std::string(name) +
                         "\" is not a log level; use debug, info, warning or error");
}

void LogStart(const LogOptions& options) { TheLog() = MakeLog(options); }

void LogDebug(std::string_view event, LogFields fields) {
  Write(LogLevel::kDebug, event, fields, 0);
}
void LogInfo(std::string_view event, LogFields fields) { Write(LogLevel::kInfo, event, fields, 0); }
void LogWarning(std::string_view event, LogFields fields) {
  Write(LogLevel::kWarning, event, fields, 0);
}
void LogError(std::string_view event, LogFields fields) {
  Write(LogLevel::kError, event, fields, 0);
}

bool LogLimiter::Allow(Instant now) {
  if (now - refilled_at_ >= kSecond) {
    const uint64_t seconds = static_cast<uint64_t>((now - refilled_at_) / kSecond);
    tokens_ = static_cast<uint32_t>(std::min<uint64_t>(burst_, tokens_ + seconds));
    refilled_at_ += static_cast<Nanos>(seconds) * kSecond;
  }
  if (tokens_ == 0) return false;
  --tokens_;
  return true;
}

void LogLimiter::Warning(Instant now, std::string_view event, LogFields fields) {
  if (!Allow(now)) {
    ++suppressed_;
    ++suppressed_total_;
    return;
  }
  Write(LogLevel::kWarning, event, fields, suppressed_);
  suppressed_ = 0;
}

}  // namespace reprise::server
