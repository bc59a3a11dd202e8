#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/record/geometry.h"

namespace reprise {

// Everything that must agree for stored bytes to mean the same. Its hash is the namespace, and a
// lookup never crosses namespaces. PROTOCOL.md, "Manifest", has the encoding;
// tests/golden/manifest.hex pins it.
struct Manifest {
  // "tokens": blocks are named by token ids. "opaque": by keys that an engine chose.
  std::string kind = "tokens";
  std::string
      model_config;  // SHA-256 (hex) of the model's canonical config.json, or the preset's name.
  std::string
      weights_digest;  // SHA-256 (hex) over the checkpoint: gpu/checkpoint/weights_digest.h.
  std::string tokenizer_digest;  // SHA-256 (hex) of the tokenizer and chat template.
  std::string record_layout;     // "1": version of the record layout.
  std::string kv_formats;        // Canonical text of the row formats (FormatText).
  std::string
      kv_sources;  // Canonical text of sources and ratios (SourcesText): "2/2 8/2 14/2 20/1".
  uint32_t payload_bytes = 0;  // Bytes of payload in a block.
  std::string tenant_salt;     // Separates tenants that must not see each other's hits.
  std::string adapter;         // LoRA or adapter identity: name and digest of its weights.
  std::string engine;          // Opaque kind only: engine, version and layout fingerprint.

  friend bool operator==(const Manifest&, const Manifest&) = default;

  // Fills the fields that follow from a geometry.
  static absl::StatusOr<Manifest> For(const KvGeometry& geometry);
};

std::string FormatText(const KvGeometry& geometry);
std::string SourcesText(const KvGeometry& geometry);

// The canonical, length-framed encoding: equal manifests give equal bytes, different ones different
// bytes, whatever a tenant writes into a field.
std::string EncodeManifest(const Manifest& manifest);
// Accepts exactly what EncodeManifest writes; anything else is named in the error. Never trusts a
// length.
absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes);

// SHA-256 of the encoding.
Hash256 NamespaceOf(const Manifest& manifest);

// Names of the fields in which the two differ, in encoding order.
std::vector<std::string> DifferingFields(const Manifest& a, const Manifest& b);

}  // namespace reprise
