#include "gpu/tokenizer/added_tokens.h"

#include <algorithm>

#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

bool EndsWithWord(std::string_view text) {
  const CodePoint last = LastCodePoint(text);
  return last.bytes > 0 && IsWord(last.value);
}

bool BeginsWithWord(std::string_view text) {
  const CodePoint first = FirstCodePoint(text);
  return first.bytes > 0 && IsWord(first.value);
}

size_t LeadingSpaceBytes(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint point = FirstCodePoint(text.substr(at));
    if (point.bytes == 0 || !IsWhitespace(point.value)) break;
    at += point.bytes;
  }
  return at;
}

size_t TrailingSpaceBytes(std::string_view text) {
  size_t left = text.size();
  while (left > 0) {
    const CodePoint point = LastCodePoint(text.substr(0, left));
    if (point.bytes == 0 || !IsWhitespace(point.value)) break;
    left -= point.bytes;
  }
  return text.size() - left;
}

}  // namespace

bool AddedTokenFinder::Add(std::string_view text, AddedToken token) {
  uint32_t* link = &roots_[static_cast<uint8_t>(text.front())];
  uint32_t node = kNone;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    while (*link != kNone && nodes_[*link].byte != byte) link = &nodes_[*link].next_sibling;
    if (*link == kNone) {
      *link = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.byte = byte});  // `link` may dangle from here on.
      node = static_cast<uint32_t>(nodes_.size() - 1);
    } else {
      node = *link;
    }
    link = &nodes_[node].first_child;
  }
  if (nodes_[node].token != kNone) return false;
  nodes_[node].token = static_cast<uint32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
  return true;
}

uint32_t AddedTokenFinder::Child(uint32_t node, uint8_t byte) const {
  uint32_t child = nodes_[node].first_child;
  while (child != kNone && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

AddedTokenFinder::Found AddedTokenFinder::LongestAt(std::string_view text) const {
  Found longest;
  uint32_t node = roots_[static_cast<uint8_t>(text.front())];
  for (size_t i = 1; node != kNone; ++i) {
    if (nodes_[node].token != kNone) longest = {i, nodes_[node].token};
    if (i == text.size()) break;
    node = Child(node, static_cast<uint8_t>(text[i]));
  }
  return longest;
}

void AddedTokenFinder::ForEachPart(std::string_view text, const TakePart& take) const {
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    const Found found = LongestAt(text.substr(at));
    if (found.bytes == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found.token];
    size_t begin = at;
    size_t end = at + found.bytes;
    at = end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || BeginsWithWord(text.substr(end)))) {
      continue;
    }
    // White space that the token before took along is gone.
    if (token.left_strip) begin -= TrailingSpaceBytes(text.substr(done, begin - done));
    if (token.right_strip) end += LeadingSpaceBytes(text.substr(end));
    if (done < begin) take(text.substr(done, begin - done), nullptr);
    take(text.substr(begin, end - begin), &token);
    done = end;
    at = end;
  }
  if (done < text.size()) take(text.substr(done), nullptr);
}

}  // namespace reprise::engine
