#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/reprise.h"

// What stands behind the opaque handles of reprise.h.
struct rp_client {
  std::unique_ptr<reprise::Client> client;
  std::string model;
  std::string server_version;
  std::string transport;
  std::vector<uint32_t> payload_bytes;  // Of each namespace.
  std::string error;
  std::string json;
};

struct rp_lease {
  reprise::Lease lease;
};

struct rp_slot_lease {
  reprise::SlotLease lease;
  std::vector<rp_slot> slots;
};

struct rp_landing {
  std::unique_ptr<reprise::LandingZone> zone;
};

namespace reprise::c_api {

rp_status StatusCode(const absl::Status& status);
// Remembers the text for rp_last_error and gives the code.
rp_status Fail(rp_client* client, const absl::Status& status);

inline BlockKey FromC(const rp_key& key) { return LoadLe<BlockKey>(key.bytes); }
inline rp_key ToC(const BlockKey& key) {
  rp_key out;
  StoreLe(out.bytes, key);
  return out;
}
inline wire::WindowKey FromC(const rp_window_key& key) { return {FromC(key.prefix), key.position}; }
std::vector<BlockKey> FromC(const rp_key* keys, size_t key_count);

// False, with the error set, when the id was not opened on this client.
bool CheckNamespace(rp_client* client, uint32_t namespace_id);

}  // namespace reprise::c_api
