#include "protocol/base/status.h"

#include <array>
#include <cstring>

namespace reprise {
namespace {

constexpr std::array<std::string_view, kOutcomeCount> kOutcomeNames = {"ok",
                                                                       "not_found",
                                                                       "busy",
                                                                       "rejected",
                                                                       "invalid",
                                                                       "corrupt",
                                                                       "io",
                                                                       "timeout",
                                                                       "closed",
                                                                       "exists",
                                                                       "pending",
                                                                       "wrong_namespace",
                                                                       "hash_mismatch",
                                                                       "unsupported"};

}  // namespace

std::string_view OutcomeName(Outcome outcome) {
  const auto index = static_cast<uint8_t>(outcome);
  return index < kOutcomeNames.size() ? kOutcomeNames[index] : std::string_view("unknown");
}

absl::Status ErrnoStatus(int error, std::string_view what) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      std::string(what) + ": " + std::strerror(error));
}

}  // namespace reprise
