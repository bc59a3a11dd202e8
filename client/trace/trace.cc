#include "client/trace/trace.h"

#include <array>
#include <utility>

#include "client/trace/generated_trace.h"
#include "client/trace/json_row.h"
#include "client/trace/line_reader.h"
#include "client/trace/row_parser.h"

namespace reprise {
namespace {

struct NamedFormat {
  std::string_view name;
  TraceFormat format;
};
constexpr std::array kFormats = {
    NamedFormat{"mooncake", TraceFormat::kMooncake},
    NamedFormat{"qwen", TraceFormat::kQwen},
    NamedFormat{"delta", TraceFormat::kDelta},
    NamedFormat{"azure", TraceFormat::kAzure},
    NamedFormat{"tokens", TraceFormat::kTokens},
    NamedFormat{"generated", TraceFormat::kGenerated},
};
constexpr std::string_view kGeneratedPrefix = "generated";

// From the first line of a file.
absl::StatusOr<TraceFormat> DetectFormat(std::string_view line) {
  if (line.starts_with("TIMESTAMP,")) return TraceFormat::kAzure;
  JsonRow row;
  if (row.Parse(line).ok()) {
    if (row.Has("kvtrace")) return TraceFormat::kDelta;
    if (row.Has("chat_id")) return TraceFormat::kQwen;
    if (row.Has("tokens")) return TraceFormat::kTokens;
    if (row.Has("hash_ids")) return TraceFormat::kMooncake;
  }
  return InvalidArgument(
      "this does not look like a trace: give --format mooncake, qwen, delta, azure or tokens, and "
      "see "
      "what is wrong with the line");
}

class TraceFile final : public TraceReader {
 public:
  TraceFile(std::unique_ptr<LineReader> lines, std::unique_ptr<RowParser> parser,
            TraceFormat format, bool lenient)
      : lines_(std::move(lines)), parser_(std::move(parser)), format_(format), lenient_(lenient) {}

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    for (;;) {
      std::string_view line;
      RP_ASSIGN(const bool found, lines_->Next(&line));
      if (!found) return AtEnd();
      *request = TraceRequest();
      const absl::StatusOr<bool> parsed = ParseRow(line, request);
      if (parsed.ok() && *parsed) {
        last_time_ns_ = request->time_ns;
        ++requests_;
        return true;
      }
      if (parsed.ok()) continue;
      if (!lenient_) return InvalidArgument(lines_->Position() + Message(parsed.status()));
      if (skipped_lines_++ == 0) first_problem_ = lines_->Position() + Message(parsed.status());
      parser_->OnSkipped();
    }
  }
  TraceFormat format() const override { return format_; }
  uint64_t skipped_lines() const override { return skipped_lines_; }

 private:
  absl::StatusOr<bool> ParseRow(std::string_view line, TraceRequest* request) {
    RP_ASSIGN(const bool found, parser_->Parse(line, request));
    if (found && request->time_ns < last_time_ns_) {
      return InvalidArgument("time goes back by " +
                             std::to_string((last_time_ns_ - request->time_ns) / kMicrosecond) +
                             " us: a trace is in order of time");
    }
    return found;
  }

  absl::StatusOr<bool> AtEnd() const {
    if (requests_ > 0) return false;
    return InvalidArgument(
        lines_->path() + " holds no request" +
        (first_problem_.empty() ? "" : "; the first broken line: " + first_problem_));
  }

  std::unique_ptr<LineReader> lines_;
  std::unique_ptr<RowParser> parser_;
  const TraceFormat format_;
  const bool lenient_;
  Nanos last_time_ns_ = 0;
  uint64_t requests_ = 0;
  uint64_t skipped_lines_ = 0;
  std::string first_problem_;
};

}  // namespace

std::string_view TraceFormatName(TraceFormat format) {
  for (const NamedFormat& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "unknown";
}

absl::StatusOr<TraceFormat> ParseTraceFormat(std::string_view name) {
  for (const NamedFormat& known : kFormats) {
    if (known.name == name && known.format != TraceFormat::kGenerated) return known.format;
  }
  return InvalidArgument("unknown trace format \"" + std::string(name) +
                         "\": use mooncake, qwen, delta, azure or tokens");
}

absl::StatusOr<std::unique_ptr<RowParser>> MakeRowParser(TraceFormat format,
                                                         uint32_t block_tokens) {
  if (block_tokens > kTraceBlockTokensMax) {
    return InvalidArgument("--trace-block " + std::to_string(block_tokens) + ": want 1 to " +
                           std::to_string(kTraceBlockTokensMax));
  }
  switch (format) {
    case TraceFormat::kMooncake:
      return MakeMooncakeParser(block_tokens != 0 ? block_tokens : 512);
    case TraceFormat::kQwen:
      return MakeQwenParser(block_tokens != 0 ? block_tokens : 16);
    case TraceFormat::kDelta:
      return MakeDeltaParser(block_tokens);
    default:
      break;
  }
  if (block_tokens != 0) {
    return InvalidArgument("a trace of format " + std::string(TraceFormatName(format)) +
                           " has no blocks of its own: leave --trace-block out");
  }
  if (format == TraceFormat::kAzure) return MakeAzureParser();
  if (format == TraceFormat::kTokens) return MakeTokensParser();
  return InvalidArgument("a generated trace is not read from a file");
}

absl::Status CheckIdCount(size_t id_count, uint32_t input_tokens, uint32_t block_tokens) {
  const uint64_t whole = input_tokens / block_tokens;
  const uint64_t listed = DivideUp(input_tokens, block_tokens);
  if (id_count == whole || id_count == listed) return absl::OkStatus();
  std::string hint;
  for (uint32_t other = 1; other <= kTraceBlockTokensMax && id_count > 0; other *= 2) {
    if (id_count != input_tokens / other && id_count != DivideUp(input_tokens, other)) continue;
    hint = "; --trace-block " + std::to_string(other) + " would fit";
    break;
  }
  return InvalidArgument("the request lists " + std::to_string(id_count) + " hash ids, but " +
                         std::to_string(input_tokens) + " tokens in blocks of " +
                         std::to_string(block_tokens) + " have " + std::to_string(whole) +
                         (whole == listed ? "" : " or " + std::to_string(listed)) + hint);
}

absl::StatusOr<std::unique_ptr<TraceReader>> OpenTrace(const std::string& spec,
                                                       const TraceOptions& options) {
  if (spec == kGeneratedPrefix || spec.starts_with("generated:")) {
    if (!options.format.empty() || options.block_tokens != 0) {
      return InvalidArgument(
          "a generated trace takes its options in its name, as in "
          "\"generated:sessions=16,block=64\": leave --format and --trace-block out");
    }
    RP_ASSIGN(const GeneratorOptions generator, ParseGeneratorOptions(spec));
    return std::unique_ptr<TraceReader>(std::make_unique<GeneratedTrace>(generator));
  }
  RP_ASSIGN(auto lines, LineReader::Open(spec));
  TraceFormat format;
  if (options.format.empty()) {
    std::string_view line;
    RP_ASSIGN(const bool found, lines->Next(&line));
    if (!found) return InvalidArgument(spec + " is empty: it holds no request");
    const absl::StatusOr<TraceFormat> detected = DetectFormat(line);
    if (!detected.ok()) return InvalidArgument(lines->Position() + Message(detected.status()));
    format = *detected;
    lines->Unread();
  } else {
    RP_ASSIGN(format, ParseTraceFormat(options.format));
  }
  RP_ASSIGN(auto parser, MakeRowParser(format, options.block_tokens));
  return std::unique_ptr<TraceReader>(
      std::make_unique<TraceFile>(std::move(lines), std::move(parser), format, options.lenient));
}

std::string MooncakeRow(const TraceRequest& request) {
  std::string row = "{\"timestamp\":" + std::to_string(request.time_ns / kMillisecond) +
                    ",\"input_length\":" + std::to_string(request.input_tokens) +
                    ",\"output_length\":" + std::to_string(request.output_tokens);
  if (request.session != kNoSession) row += ",\"session\":" + std::to_string(request.session);
  row += ",\"hash_ids\":[";
  for (size_t i = 0; i < request.hash_ids.size(); ++i) {
    if (i > 0) row += ',';
    row += std::to_string(request.hash_ids[i]);
  }
  return row + "]}";
}

}  // namespace reprise
