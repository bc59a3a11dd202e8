#include "protocol/identity/manifest.h"

#include <array>
#include <cstring>

#include "protocol/base/bytes.h"
#include "protocol/base/sha256.h"
#include "protocol/record/record_layout.h"

namespace reprise {
namespace {

constexpr std::string_view kPreamble = "reprise-manifest-1";
constexpr size_t kFieldBytesMax = 64 * 1024;

// Field numbers are for ever; order here is the order of the encoding.
struct Field {
  uint16_t number;
  const char* name;
  std::string Manifest::*text;  // Null for payload_bytes.
};

constexpr std::array<Field, 11> kFields = {{{1, "kind", &Manifest::kind},
                                            {2, "model_config", &Manifest::model_config},
                                            {3, "weights_digest", &Manifest::weights_digest},
                                            {4, "tokenizer_digest", &Manifest::tokenizer_digest},
                                            {5, "record_layout", &Manifest::record_layout},
                                            {6, "kv_formats", &Manifest::kv_formats},
                                            {7, "kv_sources", &Manifest::kv_sources},
                                            {8, "payload_bytes", nullptr},
                                            {9, "tenant_salt", &Manifest::tenant_salt},
                                            {10, "adapter", &Manifest::adapter},
                                            {11, "engine", &Manifest::engine}}};

std::string Value(const Manifest& manifest, const Field& field) {
  if (field.text != nullptr) return manifest.*field.text;
  std::string bytes(sizeof(manifest.payload_bytes), '\0');
  StoreLe(bytes.data(), manifest.payload_bytes);
  return bytes;
}

template <typename T>
void Append(std::string* out, T value) {
  const size_t at = out->size();
  out->resize(at + sizeof(T));
  StoreLe(out->data() + at, value);
}

// Takes `count` bytes off the front, or fails.
bool Take(std::string_view* in, size_t count, std::string_view* out) {
  if (in->size() < count) return false;
  *out = in->substr(0, count);
  in->remove_prefix(count);
  return true;
}

absl::Status CheckManifest(const Manifest& manifest) {
  if (manifest.kind != "tokens" && manifest.kind != "opaque") {
    return InvalidArgument("manifest: kind must be \"tokens\" or \"opaque\", not \"" +
                           manifest.kind.substr(0, 64) + "\"");
  }
  if (manifest.payload_bytes == 0) return InvalidArgument("manifest: payload_bytes is 0");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Manifest> Manifest::For(const KvGeometry& geometry) {
  RP_ASSIGN(const RecordLayout layout, RecordLayout::For(geometry));
  Manifest manifest;
  manifest.model_config = geometry.model;
  manifest.record_layout = "1";
  manifest.kv_formats = FormatText(geometry);
  manifest.kv_sources = SourcesText(geometry);
  manifest.payload_bytes = layout.payload_bytes;
  return manifest;
}

std::string FormatText(const KvGeometry& geometry) {
  const auto row = [](const RowFormat& f) {
    return std::to_string(f.values) + "x" + f.codes + "+" + f.scales + "/" +
           std::to_string(f.group);
  };
  return "main " + row(geometry.main) + " indexer " + row(geometry.indexer);
}

std::string SourcesText(const KvGeometry& geometry) {
  std::string text;
  for (const KvSource& source : geometry.sources) {
    if (!text.empty()) text += ' ';
    text += std::to_string(source.layer) + "/" + std::to_string(source.ratio);
  }
  return text;
}

std::string EncodeManifest(const Manifest& manifest) {
  std::string out(kPreamble);
  Append(&out, static_cast<uint16_t>(kFields.size()));
  for (const Field& field : kFields) {
    const std::string value = Value(manifest, field);
    Append(&out, field.number);
    Append(&out, static_cast<uint32_t>(value.size()));
    out += value;
  }
  return out;
}

absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes) {
  std::string_view part;
  if (!Take(&bytes, kPreamble.size(), &part) || part != kPreamble) {
    return InvalidArgument("manifest: does not begin with " + std::string(kPreamble));
  }
  if (!Take(&bytes, 2, &part) || LoadLe<uint16_t>(part.data()) != kFields.size()) {
    return InvalidArgument("manifest: must have " + std::to_string(kFields.size()) + " fields");
  }
  Manifest manifest;
  for (const Field& field : kFields) {
    const std::string where = std::string("manifest: field ") + field.name;
    if (!Take(&bytes, 2, &part) || LoadLe<uint16_t>(part.data()) != field.number) {
      return InvalidArgument(where + " is missing or out of order");
    }
    if (!Take(&bytes, 4, &part)) return InvalidArgument(where + " is cut short");
    const auto value_bytes = LoadLe<uint32_t>(part.data());
    if (value_bytes > kFieldBytesMax || !Take(&bytes, value_bytes, &part)) {
      return InvalidArgument(where + " has a wrong length");
    }
    if (field.text != nullptr) {
      manifest.*field.text = std::string(part);
    } else {
      if (value_bytes != sizeof(manifest.payload_bytes))
        return InvalidArgument(where + " is not 4 bytes");
      manifest.payload_bytes = LoadLe<uint32_t>(part.data());
    }
  }
  if (!bytes.empty()) return InvalidArgument("manifest: has bytes after the last field");
  RP_TRY(CheckManifest(manifest));
  return manifest;
}

Hash256 NamespaceOf(const Manifest& manifest) {
  return Sha256({AsBytes(EncodeManifest(manifest))});
}

std::vector<std::string> DifferingFields(const Manifest& a, const Manifest& b) {
  std::vector<std::string> names;
  for (const Field& field : kFields) {
    if (Value(a, field) != Value(b, field)) names.emplace_back(field.name);
  }
  return names;
}

}  // namespace reprise
