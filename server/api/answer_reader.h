#pragma once

#include <string>
#include <vector>

#include "server/api/chat_format.h"

namespace reprise::server {

// Bytes of tokens to text: holds back what is not yet a whole UTF-8 character.
class Utf8Stream {
 public:
  // What is whole now; bytes that can never be a character become U+FFFD.
  std::string Add(const std::string& bytes);
  std::string Finish();

 private:
  std::string pending_;
};

// Text in which stop strings are looked for: holds back what may be the beginning of one.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // What may be shown now. Once a stop string was found, which is not shown, nothing more is.
  std::string Add(const std::string& text);
  std::string Finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool found_ = false;
};

// What became known of an answer with one more token.
struct AnswerDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> calls;

  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
};

// An answer as it comes, token by token, into reasoning, content and calls. Without a chat format
// all of it is content. One thread.
class AnswerReader {
 public:
  // `format` null: plain text. `thinking`: it begins with reasoning.
  AnswerReader(const engine::Tokenizer* tokenizer, const ChatFormat* format,
               std::vector<ChatTool> tools, bool thinking, std::vector<std::string> stops);

  AnswerDelta Add(TokenId token);
  // What was held back. A call that was cut short is content.
  AnswerDelta Finish();
  // A stop string was found: nothing more is wanted.
  bool stopped() const { return stops_.found(); }
  bool called() const { return calls_made_ > 0; }

 private:
  enum class Part { kReasoning, kContent, kCalls };

  void Text(const std::string& text, AnswerDelta* delta);
  void Give(const std::string& text, AnswerDelta* delta);
  void EndCalls(AnswerDelta* delta);
  // The marker that ends the part at hand, or begins calls; empty: none.
  const std::string& Marker() const;

  const engine::Tokenizer* tokenizer_;
  const ChatFormat* format_;
  std::vector<ChatTool> tools_;
  Part part_;
  Utf8Stream utf8_;
  std::string pending_;  // May be the beginning of a marker.
  std::string calls_;    // Text of calls so far.
  StopStrings stops_;
  size_t calls_made_ = 0;
};

}  // namespace reprise::server
