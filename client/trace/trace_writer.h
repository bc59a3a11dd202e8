#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/trace/trace.h"

// Traces, written.
namespace reprise {

class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  // The lines of one request, with line feeds; the first call's begin with a header where the
  // format has one. Requests in order of time, all with hash ids of one block size.
  virtual absl::StatusOr<std::string> Lines(const TraceRequest& request) = 0;
};
std::unique_ptr<TraceWriter> MakeMooncakeWriter();
// Ids are the session's own in this format: a trace whose sessions share ids is refused, and one
// that names no sessions is written as one.
std::unique_ptr<TraceWriter> MakeDeltaWriter();

// Puts hashes of the prompt's whole blocks of 128 in the place of its token ids. `*ids` is the
// memory that they lie in.
void HashTokens(TraceRequest* request, std::vector<uint64_t>* ids);

// Takes out what a trace could tell of its origin: ids become keyed hashes, sessions numbers in
// order of appearance, time begins at 0. Equal ids stay equal.
class TraceAnonymiser {
 public:
  explicit TraceAnonymiser(std::string key) : key_(std::move(key)) {}
  // In place; the request's ids live in this object until the next call.
  void Anonymise(TraceRequest* request);

 private:
  std::string key_;
  std::unordered_map<uint64_t, uint64_t> hashes_;
  std::unordered_map<int64_t, int64_t> sessions_;
  std::vector<uint64_t> ids_;
  Nanos first_ns_ = 0;
  bool begun_ = false;
};

// SHA-256 of a trace's file, in hex; empty for a generated trace and for stdin.
absl::StatusOr<std::string> TraceFingerprint(const std::string& spec);

}  // namespace reprise
