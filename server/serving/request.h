#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/engine/generation.h"
#include "gpu/engine/prefill_plan.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "server/connection.h"

namespace reprise::server {

constexpr uint32_t kChoicesMax = 16;  // Answers to one prompt.

// What somebody wants generated. Immutable once submitted.
struct GenerationRequest {
  Connection::OpenNamespace name_space;
  std::vector<TokenId> prompt;  // At least one token.
  // Later prompts will probably agree with this one up to here: a snapshot is taken there. 0: none.
  uint32_t stable_tokens = 0;
  engine::GenerateOptions options;
  uint32_t choices = 1;     // Answers to the same prompt.
  bool exact = false;       // A missing window is rebuilt exactly, and nothing replayed is used.
  bool read_cache = true;   // Use what is stored.
  bool write_cache = true;  // Store what is computed.
  uint64_t session_id =
      0;  // Whose snapshots they are; 0: of the session that is found, or a new one.
};

// Where the encoder's windows at the end of the hit came from.
enum class WindowSource : uint8_t {
  kCold = 0,      // There was no hit.
  kFound = 1,     // In the window pool: as if the session had never stopped.
  kReplayed = 2,  // Bounded replay of the last `window` tokens.
  kRebuilt = 3,   // Rebuilt exactly, from layers x window tokens.
};
std::string_view WindowSourceName(WindowSource source);  // "cold", "found", "replayed", "rebuilt"

// What a request cost and saved. Seconds are wall time.
struct RequestReport {
  uint32_t prompt_tokens = 0;
  uint32_t hit_tokens = 0;
  uint32_t hbm_blocks = 0;  // Of the hit, by where they were.
  uint32_t dram_blocks = 0;
  uint32_t ssd_blocks = 0;
  WindowSource window = WindowSource::kCold;
  // Nothing that the answer derives from was rebuilt by an encoder replay, now or earlier.
  bool exact = true;
  uint32_t computed_tokens = 0;  // Rows of the prompt that were not replayed ones.
  uint32_t replayed_tokens = 0;
  uint32_t output_tokens = 0;  // Over all choices.
  uint32_t drafted = 0, accepted = 0;
  uint64_t loaded_bytes = 0;  // Records and the snapshot.
  uint64_t stored_bytes = 0;
  double queue_seconds = 0;
  double load_seconds = 0;
  double prefill_seconds = 0;  // Until the first token.
  double total_seconds = 0;
  double saved_seconds = 0;  // What computing the hit would have taken, less its replay.
};

enum class FinishReason : uint8_t { kStop = 0, kLength = 1, kCancelled = 2 };

// Told about a request, on the engine's thread: must be quick, and must not call the scheduler.
class RequestEvents {
 public:
  virtual ~RequestEvents() = default;
  // The prompt was run; tokens follow.
  virtual void OnPrompt(const RequestReport& report) = 0;
  // With the logits when the request's options say so. False: no more of this choice.
  virtual bool OnToken(uint32_t choice, TokenId token, std::span<const float> logits) = 0;
  virtual void OnChoiceDone(uint32_t choice, FinishReason reason) = 0;
  // The last call, whatever happened. An error: there may be no answer, or a part of one.
  virtual void OnDone(const RequestReport& report, const absl::Status& status) = 0;
};

}  // namespace reprise::server
