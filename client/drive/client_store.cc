#include "client/drive/client_store.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/record/record_layout.h"

namespace reprise {
namespace {

// Records that wait to be put on a connection without staging memory.
constexpr uint32_t kRemotePutSlots = 64;

class ClientStore final : public DriveStore {
 public:
  ClientStore(std::unique_ptr<Client> client, uint32_t namespace_id)
      : client_(std::move(client)), namespace_id_(namespace_id) {
    if (client_->staging_slots() == 0) {
      own_slots_.resize(size_t{kRemotePutSlots} * client_->record_bytes());
    }
  }

  absl::StatusOr<Verdict> Lookup(std::span<const BlockKey> keys,
                                 std::span<const wire::WindowKey> windows) override {
    return client_->Lookup(namespace_id_, keys, windows);
  }

  absl::StatusOr<Loaded> Acquire(std::span<const BlockKey> keys) override {
    RP_ASSIGN(lease_, client_->Acquire(namespace_id_, keys));
    Loaded loaded;
    loaded.records.reserve(lease_.size());
    for (uint32_t i = 0; i < lease_.size(); ++i) loaded.records.push_back(lease_.record(i));
    loaded.from_ssd = lease_.from_ssd();
    loaded.stopped_by = lease_.stopped_by();
    return loaded;
  }
  void Release() override { lease_.Release(); }

  uint32_t put_slots() const override {
    return own_slots_.empty() ? client_->staging_slots() : kRemotePutSlots;
  }
  Bytes put_slot(uint32_t slot) override {
    if (own_slots_.empty()) return client_->staging(slot).first(client_->record_bytes());
    return Bytes(own_slots_)
        .subspan(size_t{slot} * client_->record_bytes(), client_->record_bytes());
  }
  absl::Status Put(std::span<const uint32_t> slots, bool durable,
                   std::span<Outcome> outcomes) override {
    records_.clear();
    for (const uint32_t slot : slots) records_.push_back(put_slot(slot));
    return client_->Put(namespace_id_, records_,
                        durable ? wire::Durability::kDurable : wire::Durability::kRelaxed,
                        outcomes);
  }

  absl::StatusOr<Snapshot> GetWindow(const wire::WindowKey& key) override {
    return client_->GetWindow(namespace_id_, key);
  }
  absl::StatusOr<Outcome> PutWindow(const wire::WindowKey& key, uint64_t session_id,
                                    ConstBytes snapshot) override {
    return client_->PutWindow(namespace_id_, key, session_id, snapshot);
  }

  absl::StatusOr<StoreCounters> Counters() override {
    RP_ASSIGN(const std::string json, client_->StatusJson());
    return CountersFromStatus(json);
  }

 private:
  std::unique_ptr<Client> client_;
  const uint32_t namespace_id_;
  Lease lease_;  // Ends before the client does.
  std::vector<std::byte> own_slots_;
  std::vector<ConstBytes> records_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DriveStore>> ClientStoreMaker::Connect() {
  RP_ASSIGN(auto client, Client::Connect(options_));
  const uint32_t record_bytes = RecordBytesFor(manifest_.payload_bytes);
  if (client->record_bytes() != record_bytes) {
    return InvalidArgument("the daemon keeps records of " + std::to_string(client->record_bytes()) +
                           " bytes (model " + client->model() + "), and these have " +
                           std::to_string(record_bytes) + ": give --model the daemon's model");
  }
  RP_ASSIGN(const uint32_t namespace_id, client->OpenNamespace(manifest_));
  return std::unique_ptr<DriveStore>(
      std::make_unique<ClientStore>(std::move(client), namespace_id));
}

absl::StatusOr<Manifest> DriveManifest(const std::string& model, const std::string& tenant_salt) {
  RP_ASSIGN(const KvGeometry geometry, KvGeometry::Preset(model));
  RP_ASSIGN(Manifest manifest, Manifest::For(geometry));
  manifest.weights_digest = "made up by reprise drive, version 1";
  manifest.tenant_salt = tenant_salt;
  return manifest;
}

absl::StatusOr<StoreCounters> CountersFromStatus(std::string_view json) {
  using Json = nlohmann::json;
  const Json status = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return DataLoss("the daemon's status is not a JSON object");
  const auto counter = [&](const char* pointer) -> std::optional<uint64_t> {
    const Json::json_pointer place(pointer);
    if (!status.contains(place) || !status[place].is_number_unsigned()) return std::nullopt;
    return status[place].get<uint64_t>();
  };
  return StoreCounters{counter("/tiers/ssd/bytes_written"), counter("/tiers/ssd/bytes_read"),
                       counter("/window_pool/peak_bytes")};
}

}  // namespace reprise
