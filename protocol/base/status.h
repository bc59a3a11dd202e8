#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/base/check.h"

// Two kinds of answers, never mixed:
//  - Outcome: what the data path answers (hit, miss, busy, rejected). Cheap, normal, counted; it
//  goes
//    on the wire as one byte.
//  - absl::Status: an operating error with words for a person (bad configuration, EIO at start).
// A broken invariant is neither: it is RP_CHECK.
namespace reprise {

// One byte on the wire: a value is never renumbered and never reused (PROTOCOL.md, "Outcomes").
enum class Outcome : uint8_t {
  kOk = 0,
  kNotFound = 1,         // A miss: the store does not hold the block.
  kBusy = 2,             // A limit was reached; try again later, the caller owns the back-off.
  kRejected = 3,         // Policy or quota said no; trying again does not help.
  kInvalid = 4,          // The peer sent something malformed or out of range.
  kCorrupt = 5,          // A check failed on load; the entry was withdrawn.
  kIo = 6,               // The device failed.
  kTimeout = 7,          // The deadline passed first.
  kClosed = 8,           // The connection or the daemon is going away.
  kExists = 9,           // A put found the block already stored; nothing was written.
  kPending = 10,         // The block is being written right now.
  kWrongNamespace = 11,  // The record belongs to a namespace that the connection did not open.
  kHashMismatch = 12,    // The token ids and parent of a record do not give its block hash.
  kUnsupported = 13,     // The peer does not speak this version or feature.
};

// "ok", "not_found", ...: the words used in JSON, metrics and logs.
std::string_view OutcomeName(Outcome outcome);

// The number of Outcome values; a value read from a peer must be below it.
inline constexpr uint8_t kOutcomeCount = 14;

// "what: strerror(error)" with the canonical code that fits the errno.
absl::Status ErrnoStatus(int error, std::string_view what);

// Debian's absl::string_view is its own type; these convert at the border.
inline absl::Status InvalidArgument(std::string_view message) {
  return absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
}
inline absl::Status FailedPrecondition(std::string_view message) {
  return absl::FailedPreconditionError(absl::string_view(message.data(), message.size()));
}
inline absl::Status DataLoss(std::string_view message) {
  return absl::DataLossError(absl::string_view(message.data(), message.size()));
}
inline absl::Status NotFound(std::string_view message) {
  return absl::NotFoundError(absl::string_view(message.data(), message.size()));
}
inline absl::Status Unavailable(std::string_view message) {
  return absl::UnavailableError(absl::string_view(message.data(), message.size()));
}
inline absl::Status ResourceExhausted(std::string_view message) {
  return absl::ResourceExhaustedError(absl::string_view(message.data(), message.size()));
}
inline absl::Status Internal(std::string_view message) {
  return absl::InternalError(absl::string_view(message.data(), message.size()));
}
inline absl::Status DeadlineExceeded(std::string_view message) {
  return absl::DeadlineExceededError(absl::string_view(message.data(), message.size()));
}
inline std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

}  // namespace reprise

#define RP_CONCAT_(a, b) a##b
#define RP_CONCAT(a, b) RP_CONCAT_(a, b)

// Return the error of a Status expression to the caller.
#define RP_TRY(expression) \
  if (absl::Status reprise_status = (expression); !reprise_status.ok()) return reprise_status

// RP_ASSIGN(auto x, F()): unwrap a StatusOr or return its error.
#define RP_ASSIGN_IMPL_(result, target, expression) \
  auto result = (expression);                       \
  if (!result.ok()) return result.status();         \
  target = *std::move(result)
#define RP_ASSIGN(target, expression) \
  RP_ASSIGN_IMPL_(RP_CONCAT(reprise_result_, __LINE__), target, expression)
