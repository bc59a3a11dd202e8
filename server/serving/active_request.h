#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/engine/batch.h"
#include "server/serving/hit_blocks.h"
#include "server/serving/request.h"
#include "server/serving/serving_context.h"
#include "server/serving/session_snapshot.h"

namespace reprise::server {

// One request from its start to its end: what is stored of its prompt is looked up and loaded, the
// rest is run as turns of a batch, and what was computed is stored.
//
//   Start -> Lookup -> ProbeWindows -> Acquire beside TakeWindow -> turns -> Put, PutWindow -> end
//
// What fails on the way (a block that cannot be read, a snapshot that fails a check) makes the hit
// smaller, never the request fail. Callbacks of the store hold a pointer to it: it must live until
// ended(). The engine's thread.
class ActiveRequest {
 public:
  ActiveRequest(ServingContext* context, std::shared_ptr<const GenerationRequest> request,
                std::shared_ptr<RequestEvents> events, Instant submitted_at);
  ~ActiveRequest();
  ActiveRequest(const ActiveRequest&) = delete;
  ActiveRequest& operator=(const ActiveRequest&) = delete;

  // Buffers that a request may need at most.
  static uint32_t BuffersFor(const GenerationRequest& request);

  // False: its memory is not free now.
  bool Start();
  // Its turns that have something to run.
  void AppendTurns(std::vector<engine::Turn*>* turns);
  // After a step of these turns.
  void AfterStep();
  void Cancel();
  // The engine failed: nothing of what is being run can be trusted.
  void Fail(const absl::Status& status);
  // Nothing of it is left anywhere, and OnDone was called.
  bool ended() const { return state_ == State::kEnded; }

  const GenerationRequest& request() const { return *request_; }
  const RequestReport& report() const { return report_; }
  const absl::Status& status() const { return status_; }  // How it ended.

 private:
  enum class State : uint8_t { kWaiting, kLoading, kRunning, kStoring, kEnded };

  // One answer. Its blocks before `own_from` are the first choice's or those of the hit.
  struct Choice {
    std::unique_ptr<engine::Turn> turn;
    std::byte* window = nullptr;
    std::vector<std::byte*> blocks;
    std::vector<Hash256> chain;  // Of whole blocks.
    uint32_t own_from = 0;
    uint32_t published = 0;  // Blocks that are stored, or on their way.
    bool prompt_done = false;
    bool done = false;
  };

  // ---- What is stored of the prompt
  void OnLookup(std::vector<StorePort::Residency> where);
  void OnProbed(const std::vector<wire::WindowKey>& windows, const std::vector<uint32_t>& bytes);
  void Load(uint32_t blocks, const wire::WindowKey* window);
  void OnLoaded();
  void CutExact();
  // The position that the snapshot allows to go on from, or 0.
  absl::StatusOr<uint32_t> RestoreWindow(Choice* choice, engine::ResumePoint* resume);
  std::vector<wire::WindowKey> WindowCandidates(uint32_t blocks) const;

  // ---- Running
  void Run();
  absl::Status Begin();
  absl::Status TakeBlocks(Choice* choice, uint32_t from);
  std::byte* TakeBlock();
  absl::Status AddChoices();
  void AfterStep(Choice* choice);
  engine::GiveToken GiveFor(uint32_t choice);

  // ---- Storing
  uint32_t RowsDone(const Choice& choice) const;
  void PublishBlocks(Choice* choice);
  BlockWriter::Block Finished(Choice* choice, uint32_t block);
  void PublishWindow(Choice* choice, uint32_t position, bool decoder);
  bool replay_derived(const Choice& choice) const {
    return derived_ || !choice.turn->sequence().encoder_exact();
  }

  // ---- Ending
  void FinishChoice(Choice* choice, FinishReason reason);
  void EndWhenIdle();
  void CallDone();  // Of the store: one less is pending.

  ServingContext& context_;
  std::shared_ptr<const GenerationRequest> request_;
  std::shared_ptr<RequestEvents> events_;
  const engine::ModelGeometry& geometry_;
  Instant submitted_at_;
  Instant started_at_ = 0;
  Instant load_began_ = 0;
  Instant run_began_ = 0;
  State state_ = State::kWaiting;
  RequestReport report_;
  absl::Status status_;
  bool cancelled_ = false;
  uint32_t pending_ = 0;       // Calls of the store, and copies, that have not come back.
  uint32_t reserved_ = 0;      // Buffers,
  uint32_t hbm_reserved_ = 0;  // and slots of the HBM tier.

  std::vector<Hash256> chain_;  // Of the prompt's whole blocks.
  std::vector<StorePort::Residency> where_;
  HitBlocks hit_;
  std::vector<std::byte> window_;
  uint32_t window_position_ = 0;
  bool derived_ = false;  // Something of the hit derives from an encoder replay.
  uint64_t session_id_ = 0;
  uint32_t replay_stop_ = 0;  // Where a snapshot of a fork is taken. 0: nowhere.
  std::vector<std::unique_ptr<Choice>> choices_;
  std::vector<std::byte*> taken_;  // Blocks of its own, as the engine was lent them.
};

}  // namespace reprise::server
