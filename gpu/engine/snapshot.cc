#include "gpu/engine/snapshot.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"

namespace reprise::engine {
namespace {

constexpr uint32_t kMagic = 0x53575052;  // "RPWS"
constexpr uint32_t kVersion = 1;
constexpr uint32_t kHasDecoder = 1, kHasTails = 2, kEncoderReplayed = 4, kDecoderReplayed = 8;

struct Header {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t flags = 0;
  uint32_t window = 0;
  uint64_t position = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;
  std::byte reserved[28] = {};
};
static_assert(sizeof(Header) == kSnapshotHeaderBytes);

// The layers' planes, one after the other, in both directions.
class Planes {
 public:
  Planes(const ModelGeometry& geometry, const LiveWindowLayout& layout, uint32_t position)
      : geometry_(geometry),
        layout_(layout),
        position_(position),
        from_(position - std::min(position, layout.window)) {}

  // move(live row, its place in the snapshot, bytes)
  template <typename Move>
  void ForRows(std::byte* window, uint32_t layers, std::byte* planes, Move&& move) const {
    const size_t codes = size_t{layout_.window} * layout_.code_bytes;
    const size_t layer_bytes = codes + size_t{layout_.window} * layout_.scale_bytes;
    for (uint32_t layer = 0; layer < layers; ++layer) {
      std::byte* plane = planes + layer * layer_bytes;
      for (uint32_t position = from_; position < position_; ++position) {
        const size_t row = position % layout_.window;
        move(layout_.codes(window, layer, position), plane + row * layout_.code_bytes,
             layout_.code_bytes);
        move(layout_.scales(window, layer, position), plane + codes + row * layout_.scale_bytes,
             layout_.scale_bytes);
      }
    }
  }
  template <typename Move>
  void ForTails(std::byte* window, std::byte* tails, Move&& move) const {
    const size_t bytes = 2 * size_t{layout_.latent} * sizeof(float);
    for (uint32_t layer = 0; layer < geometry_.all_layers(); ++layer) {
      if (layout_.tail_of_layer[layer] == kNoLayer) continue;
      move(reinterpret_cast<uint8_t*>(layout_.tail(window, layer, position_ - 1)), tails, bytes);
      tails += bytes;
    }
  }

 private:
  const ModelGeometry& geometry_;
  const LiveWindowLayout& layout_;
  uint32_t position_;
  uint32_t from_;
};

uint32_t SnapshotCrc(ConstBytes snapshot) {
  constexpr size_t kBefore = offsetof(Header, crc), kAfter = kBefore + sizeof(uint32_t);
  return Crc32c(snapshot.subspan(kAfter), Crc32c(snapshot.first(kBefore)));
}

uint32_t LayersOf(const ModelGeometry& geometry, bool decoder) {
  return decoder ? geometry.all_layers() : geometry.encoder_layers;
}

}  // namespace

uint64_t SnapshotBytes(const ModelGeometry& geometry, uint32_t position, bool decoder) {
  return kSnapshotHeaderBytes + LayersOf(geometry, decoder) * geometry.window_bytes_layer +
         (position % 2 != 0 ? geometry.tail_bytes : 0);
}

void SaveSnapshot(const ModelGeometry& geometry, const LiveWindowLayout& layout,
                  const std::byte* window, const SnapshotInfo& info, Bytes out) {
  RP_CHECK(out.size() == SnapshotBytes(geometry, info.position, info.decoder));
  std::memset(out.data(), 0, out.size());
  const auto copy = [](const uint8_t* live, std::byte* stored, size_t bytes) {
    std::memcpy(stored, live, bytes);
  };
  const Planes planes(geometry, layout, info.position);
  const uint32_t layers = LayersOf(geometry, info.decoder);
  auto* live = const_cast<std::byte*>(window);  // Only read.
  std::byte* body = out.data() + kSnapshotHeaderBytes;
  planes.ForRows(live, layers, body, copy);
  const bool odd = info.position % 2 != 0;
  if (odd) planes.ForTails(live, body + layers * geometry.window_bytes_layer, copy);
  Header header{.flags = (info.decoder ? kHasDecoder : 0) | (odd ? kHasTails : 0) |
                         (info.encoder_replayed ? kEncoderReplayed : 0) |
                         (info.decoder_replayed ? kDecoderReplayed : 0),
                .window = layout.window,
                .position = info.position,
                .bytes = out.size()};
  std::memcpy(out.data(), &header, sizeof(header));
  header.crc = SnapshotCrc(out);
  std::memcpy(out.data(), &header, sizeof(header));
}

absl::StatusOr<SnapshotInfo> RestoreSnapshot(const ModelGeometry& geometry,
                                             const LiveWindowLayout& layout, ConstBytes snapshot,
                                             std::byte* window) {
  const auto refuse = [](const std::string& why) {
    return DataLoss("a window snapshot " + why + "; its windows must be replayed");
  };
  if (snapshot.size() < kSnapshotHeaderBytes) return refuse("is shorter than its header");
  const auto header = LoadLe<Header>(snapshot.data());
  if (header.magic != kMagic) return refuse("does not begin with RPWS");
  if (header.version != kVersion) {
    return refuse("has version " + std::to_string(header.version) + ", not 1");
  }
  const bool decoder = (header.flags & kHasDecoder) != 0;
  const bool odd = header.position % 2 != 0;
  if (header.window != layout.window || header.position > geometry.config.max_positions ||
      odd != ((header.flags & kHasTails) != 0)) {
    return refuse("is not of this model");
  }
  const auto position = static_cast<uint32_t>(header.position);
  if (header.bytes != snapshot.size() ||
      snapshot.size() != SnapshotBytes(geometry, position, decoder)) {
    return refuse("has " + std::to_string(snapshot.size()) + " bytes instead of " +
                  std::to_string(SnapshotBytes(geometry, position, decoder)));
  }
  if (SnapshotCrc(snapshot) != header.crc) return refuse("fails its checksum");
  const auto copy = [](uint8_t* live, const std::byte* stored, size_t bytes) {
    std::memcpy(live, stored, bytes);
  };
  const Planes planes(geometry, layout, position);
  const uint32_t layers = LayersOf(geometry, decoder);
  auto* body = const_cast<std::byte*>(snapshot.data()) + kSnapshotHeaderBytes;  // Only read.
  planes.ForRows(window, layers, body, copy);
  if (odd) planes.ForTails(window, body + layers * geometry.window_bytes_layer, copy);
  return SnapshotInfo{.position = position,
                      .decoder = decoder,
                      .encoder_replayed = (header.flags & kEncoderReplayed) != 0,
                      .decoder_replayed = (header.flags & kDecoderReplayed) != 0};
}

}  // namespace reprise::engine
