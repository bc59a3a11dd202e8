#include "server/api/backend.h"

#include <filesystem>
#include <utility>

#include "gpu/checkpoint/weights_digest.h"
#include "gpu/model/model_limits.h"
#include "gpu/tokenizer/read_file.h"
#include "protocol/base/units.h"
#include "protocol/record/record_layout.h"
#include "server/log.h"

namespace reprise::server {
absl::StatusOr<std::unique_ptr<Backend>> Backend::Start(const Options& options,
                                                        const Daemon& daemon) {
  std::unique_ptr<Backend> backend(new Backend(options, daemon));
  RP_ASSIGN(const std::string folder, engine::FindModelFolder(options.model));
  RP_ASSIGN(backend->model_,
            engine::LoadModel(folder, {.device = options.device, .threads = options.threads},
                              options.make));
  const engine::LoadedModel& model = backend->model_;
  if (!model.note.empty()) LogInfo("engine_device", {{"note", model.note}});
  backend->model_name_ = options.model == "nano"
                             ? options.model
                             : std::filesystem::path(folder).lexically_normal().filename().string();
  backend->created_s_ = daemon.clock->WallMillis() / 1000;
  RP_ASSIGN(ChatFormat format, ChatFormat::Load(folder, model.tokenizer.get()));
  backend->format_ = std::make_unique<ChatFormat>(std::move(format));

  RP_ASSIGN(backend->manifest_, Manifest::For(model.geometry.kv));
  Manifest& manifest = backend->manifest_;
  RP_ASSIGN(const std::string config,
            engine::ReadFile(folder + "/config.json", engine::kConfigBytesMax));
  manifest.model_config = ToHex(Sha256({AsBytes(std::string_view(config))}));
  manifest.weights_digest = ToHex(engine::WeightsDigest(*model.checkpoint));
  manifest.tokenizer_digest =
      ToHex(Sha256({AsBytes(model.tokenizer->Digest()), AsBytes(backend->format_->Digest())}));
  RP_TRY(backend->NamespaceOf("").status());

  backend->sessions_ = std::make_unique<SessionBook>(
      daemon.meta, daemon.clock, static_cast<uint64_t>(daemon.clock->WallMillis()));
  // The small steps of a generation share rows with at least one step that cannot be cut.
  const uint64_t rows =
      uint64_t{options.scheduler.sequences_max} * (engine::GenerateOptions().drafts_max + 1);
  if (rows + model.geometry.config.window > model.engine->rows_max()) {
    return InvalidArgument("engine.sequences_max = " +
                           std::to_string(options.scheduler.sequences_max) + ": the engine runs " +
                           std::to_string(model.engine->rows_max()) + " rows at once; lower it");
  }
  RP_ASSIGN(std::unique_ptr<HbmTier> tier,
            HbmTier::For(*model.engine, options.hbm_bytes, options.scheduler.sequences_max));
  if (const storage::Arena* arena = daemon.entry->facts().arena; tier != nullptr) {
    LogInfo("hbm_tier", {{"bytes", FormatBytes(tier->slots() * tier->slot_bytes())},
                         {"blocks", tier->slots()}});
    auto pinned = model.engine->memory().Pin(arena->slots());
    if (pinned.ok()) {
      backend->pinned_arena_ = *std::move(pinned);
    } else {
      LogWarning("not_pinned", {{"what", "the DRAM tier"},
                                {"why", pinned.status()},
                                {"action", "blocks are loaded into HBM slowly"}});
    }
  }
  Scheduler::Options scheduler = options.scheduler;
  RP_ASSIGN(scheduler.lend, backend->TermsOf(tier.get()));
  backend->scheduler_ = std::make_unique<Scheduler>(model.engine.get(), std::move(tier),
                                                    daemon.entry, daemon.clock, scheduler);
  return backend;
}

absl::StatusOr<SlotLeases::Terms> Backend::TermsOf(const HbmTier* tier) const {
  if (options_.hbm_lease_bytes == 0) return SlotLeases::Terms();
  if (tier == nullptr) {
    return InvalidArgument("engine.hbm_lease_bytes = " + FormatBytes(options_.hbm_lease_bytes) +
                           ": the engine runs on " + std::string(model_.engine->backend()) +
                           ", which has no HBM to lend; set it to 0B, or engine.device to cuda");
  }
  SlotLeases::Terms terms;
  RP_ASSIGN(terms.slots_max, tier->SlotsToLend(options_.hbm_lease_bytes));
  RP_ASSIGN(terms.slots, tier->Export());
  LogInfo("hbm_lent", {{"blocks_max", terms.slots_max}, {"devices", terms.slots.devices.size()}});
  return terms;
}

Manifest Backend::ManifestOf(const std::string& tenant) const {
  Manifest manifest = manifest_;
  manifest.tenant_salt = tenant;
  return manifest;
}

absl::StatusOr<Connection::OpenNamespace> Backend::NamespaceOf(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  const auto known = namespaces_.find(tenant);
  if (known != namespaces_.end()) return known->second;
  RP_ASSIGN(const auto opened, daemon_.namespaces->Open(ManifestOf(tenant)));
  return namespaces_[tenant] = {.name_space = opened.name_space, .index = opened.index};
}

}  // namespace reprise::server
