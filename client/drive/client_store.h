#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "client/client.h"
#include "client/drive/drive_store.h"

namespace reprise {

// Connections to a daemon, all in one namespace.
class ClientStoreMaker final : public DriveStoreMaker {
 public:
  ClientStoreMaker(ClientOptions options, Manifest manifest)
      : options_(std::move(options)), manifest_(std::move(manifest)) {}

  absl::StatusOr<std::unique_ptr<DriveStore>> Connect() override;

 private:
  const ClientOptions options_;
  const Manifest manifest_;
};

// What drive stores is made up, so its namespace is no model's: it differs from the real one in the
// weights' digest.
absl::StatusOr<Manifest> DriveManifest(const std::string& model, const std::string& tenant_salt);

// From the daemon's status document (`reprise status --json`).
absl::StatusOr<StoreCounters> CountersFromStatus(std::string_view json);

}  // namespace reprise
