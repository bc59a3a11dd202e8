#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/backends/loaded_model.h"
#include "protocol/identity/manifest.h"
#include "server/api/chat_format.h"
#include "server/api/session_book.h"
#include "server/namespaces.h"
#include "server/serving/scheduler.h"

namespace reprise::server {

// The model that a daemon serves, and what serves it. Thread-safe once made.
class Backend {
 public:
  struct Options {
    std::string model;            // "nano", or a folder.
    std::string device = "auto";  // See EngineOptions.
    uint32_t threads = 0;
    uint64_t hbm_bytes = 0;        // Of an engine with memory of its own; see HbmTier::For.
    uint64_t hbm_lease_bytes = 0;  // Of it, to other processes' engines.
    engine::EngineMaker make = engine::MakeEngine;
    uint32_t tokens_max_default = 1024;  // Of an answer when the request does not say.
    Scheduler::Options scheduler;
  };
  // What it needs of the daemon; must outlive it.
  struct Daemon {
    Shard* entry = nullptr;
    NamespaceTable* namespaces = nullptr;
    storage::MetaStore* meta = nullptr;
    const Clock* clock = nullptr;
  };

  // Loads the model: seconds to minutes.
  static absl::StatusOr<std::unique_ptr<Backend>> Start(const Options& options,
                                                        const Daemon& daemon);

  const std::string& model_name() const { return model_name_; }
  int64_t created_s() const { return created_s_; }
  const engine::LoadedModel& model() const { return model_; }
  const engine::ModelConfig& config() const { return model_.geometry.config; }
  const ChatFormat& format() const { return *format_; }
  Scheduler& scheduler() { return *scheduler_; }
  SessionBook& sessions() { return *sessions_; }
  const Clock& clock() const { return *daemon_.clock; }
  const Options& options() const { return options_; }

  // The namespace of a tenant's blocks.
  absl::StatusOr<Connection::OpenNamespace> NamespaceOf(const std::string& tenant);
  Manifest ManifestOf(const std::string& tenant) const;

 private:
  // What is lent of the tier; null: there is none.
  absl::StatusOr<SlotLeases::Terms> TermsOf(const HbmTier* tier) const;

  Backend(const Options& options, const Daemon& daemon) : options_(options), daemon_(daemon) {}

  Options options_;
  Daemon daemon_;
  std::string model_name_;
  int64_t created_s_ = 0;
  engine::LoadedModel model_;
  engine::EngineBuffer pinned_arena_;
  std::unique_ptr<ChatFormat> format_;
  Manifest manifest_;
  std::mutex mutex_;
  std::map<std::string, Connection::OpenNamespace> namespaces_;
  std::unique_ptr<SessionBook> sessions_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace reprise::server
