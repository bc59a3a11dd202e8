#include "server/api/answer_reader.h"

#include <algorithm>
#include <utility>

namespace reprise::server {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Bytes of the character that begins with `first`; 0: none does.
size_t CharacterBytes(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return 2;
  if (first >= 0xe0 && first < 0xf0) return 3;
  if (first >= 0xf0 && first < 0xf5) return 4;
  return 0;
}

// Whether `next` may follow `first` as a character's second byte: no overlong forms, no surrogates,
// nothing beyond U+10FFFF.
bool SecondFits(unsigned char first, unsigned char next) {
  if ((next & 0xc0) != 0x80) return false;
  if (first == 0xe0) return next >= 0xa0;
  if (first == 0xed) return next < 0xa0;
  if (first == 0xf0) return next >= 0x90;
  if (first == 0xf4) return next < 0x90;
  return true;
}

// Characters at the end of `text` that begin `word`.
size_t OverlapBytes(const std::string& text, const std::string& word) {
  for (size_t bytes = std::min(text.size(), word.size() - 1); bytes > 0; --bytes) {
    if (text.compare(text.size() - bytes, bytes, word, 0, bytes) == 0) return bytes;
  }
  return 0;
}

}  // namespace

// ---- Utf8Stream --------------------------------------------------------------------------------

std::string Utf8Stream::Add(const std::string& bytes) {
  pending_ += bytes;
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const auto first = static_cast<unsigned char>(pending_[at]);
    const size_t length = CharacterBytes(first);
    size_t good = length == 0 ? 0 : 1;
    while (good > 0 && good < length && at + good < pending_.size()) {
      const auto next = static_cast<unsigned char>(pending_[at + good]);
      const bool fits = good == 1 ? SecondFits(first, next) : (next & 0xc0) == 0x80;
      if (!fits) break;
      ++good;
    }
    if (length > 0 && good == length) {
      text.append(pending_, at, length);
      at += length;
    } else if (length > 0 && at + good == pending_.size()) {
      break;  // The rest of the character is still to come.
    } else {
      text += kReplacement;
      at += std::max<size_t>(good, 1);
    }
  }
  pending_.erase(0, at);
  return text;
}

std::string Utf8Stream::Finish() {
  const bool cut = !std::exchange(pending_, {}).empty();
  return cut ? kReplacement : "";
}

// ---- StopStrings -------------------------------------------------------------------------------

std::string StopStrings::Add(const std::string& text) {
  if (found_) return "";
  pending_ += text;
  size_t cut = std::string::npos;
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    if (stop.empty()) continue;
    cut = std::min(cut, pending_.find(stop));
    keep = std::max(keep, OverlapBytes(pending_, stop));
  }
  if (cut != std::string::npos) {
    found_ = true;
    return std::exchange(pending_, {}).substr(0, cut);
  }
  std::string shown = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::Finish() { return std::exchange(pending_, {}); }

// ---- AnswerReader ------------------------------------------------------------------------------

AnswerReader::AnswerReader(const engine::Tokenizer* tokenizer, const ChatFormat* format,
                           std::vector<ChatTool> tools, bool thinking,
                           std::vector<std::string> stops)
    : tokenizer_(tokenizer),
      format_(format),
      tools_(std::move(tools)),
      part_(thinking ? Part::kReasoning : Part::kContent),
      stops_(std::move(stops)) {}

const std::string& AnswerReader::Marker() const {
  static const std::string none;
  if (format_ == nullptr) return none;
  switch (part_) {
    case Part::kReasoning:
      return format_->think_close();
    case Part::kContent:
      return format_->calls_open();
    case Part::kCalls:
      return format_->calls_close();
  }
  return none;
}

AnswerDelta AnswerReader::Add(TokenId token) {
  AnswerDelta delta;
  const bool end = format_ != nullptr &&
                   std::find(format_->stop_tokens().begin(), format_->stop_tokens().end(), token) !=
                       format_->stop_tokens().end();
  if (!end) Text(utf8_.Add(tokenizer_->Piece(token, format_ != nullptr)), &delta);
  return delta;
}

void AnswerReader::Text(const std::string& text, AnswerDelta* delta) {
  pending_ += text;
  for (;;) {
    const std::string& marker = Marker();
    const size_t at = marker.empty() ? std::string::npos : pending_.find(marker);
    if (at == std::string::npos) {
      const size_t keep = marker.empty() ? 0 : OverlapBytes(pending_, marker);
      Give(pending_.substr(0, pending_.size() - keep), delta);
      pending_.erase(0, pending_.size() - keep);
      return;
    }
    Give(pending_.substr(0, at), delta);
    pending_.erase(0, at + marker.size());
    switch (part_) {
      case Part::kReasoning:
        part_ = Part::kContent;
        break;
      case Part::kContent:
        part_ = Part::kCalls;
        break;
      case Part::kCalls:
        EndCalls(delta);
        part_ = Part::kContent;
        break;
    }
  }
}

void AnswerReader::Give(const std::string& text, AnswerDelta* delta) {
  switch (part_) {
    case Part::kReasoning:
      delta->reasoning += text;
      return;
    case Part::kContent:
      delta->content += stops_.Add(text);
      return;
    case Part::kCalls:
      calls_ += text;
      return;
  }
}

void AnswerReader::EndCalls(AnswerDelta* delta) {
  const std::string block = std::exchange(calls_, {});
  auto calls = format_->ParseCalls(block, tools_);
  if (!calls.ok()) {  // The model wrote something else: it is shown as it is.
    delta->content += stops_.Add(format_->calls_open() + block + format_->calls_close());
    return;
  }
  for (ToolCall& call : *calls) {
    call.id = "call_" + std::to_string(calls_made_++);
    delta->calls.push_back(std::move(call));
  }
}

AnswerDelta AnswerReader::Finish() {
  AnswerDelta delta;
  Text(utf8_.Finish(), &delta);
  if (part_ == Part::kCalls) {
    delta.content += stops_.Add(format_->calls_open() + std::exchange(calls_, {}));
    part_ = Part::kContent;
  }
  Give(std::exchange(pending_, {}), &delta);
  delta.content += stops_.Finish();
  return delta;
}

}  // namespace reprise::server
