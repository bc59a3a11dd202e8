#include "gpu/checkpoint/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "gpu/checkpoint/strict_json.h"

namespace reprise::engine {
namespace {

constexpr size_t kRankMax = 8;
constexpr size_t kNameBytesMax = 512;

std::optional<DType> DTypeOf(std::string_view name) {
  for (const DType type : {DType::kF32, DType::kBf16, DType::kI8, DType::kF8E4m3, DType::kF8E8m0}) {
    if (DTypeName(type) == name) return type;
  }
  return std::nullopt;
}

// {"__metadata__": {key: string..}, name: {"dtype": string, "shape": [..], "data_offsets": [b,
// e]}..}
class HeaderReader final : public StrictJson {
 public:
  std::vector<SafetensorsEntry> Take() { return std::move(entries_); }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        return Enter(State::kNames);
      case State::kMetadataValue:
        return Enter(State::kMetadata);
      case State::kTensor:
        return Enter(State::kFields);
      default:
        return Unexpected("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::kNames) return Enter(State::kEnd);
    if (state_ == State::kMetadata) return Enter(State::kNames);
    if (!has_dtype_ || !has_shape_ || offset_count_ != 2) {
      return Refuse(Where() + ": dtype, shape and two data_offsets are needed");
    }
    return Enter(State::kNames);
  }

  bool key(std::string& name) override {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kFields) return Field(name);
    if (name == "__metadata__") return Enter(State::kMetadataValue);
    if (name.empty() || name.size() > kNameBytesMax) {
      return Refuse("a tensor's name has " + std::to_string(name.size()) +
                    " bytes, allowed are 1 to " + std::to_string(kNameBytesMax));
    }
    entries_.push_back({.name = std::move(name)});
    has_dtype_ = has_shape_ = false;
    offset_count_ = 0;
    return Enter(State::kTensor);
  }

  bool string(std::string& text) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kDType) return Unexpected("a string");
    const std::optional<DType> type = DTypeOf(text);
    if (!type) {
      return Refuse(Where() + " is " + Quoted(text) +
                    ": a V4.1 checkpoint has F32, BF16, I8, F8_E4M3 and F8_E8M0");
    }
    entries_.back().dtype = *type;
    has_dtype_ = true;
    return Enter(State::kFields);
  }

  bool start_array(size_t) override {
    if (state_ == State::kShape) return Enter(State::kShapeItems);
    if (state_ == State::kOffsets) return Enter(State::kOffsetItems);
    return Unexpected("a list");
  }

  bool end_array() override {
    if (state_ == State::kShapeItems) has_shape_ = true;
    return Enter(State::kFields);
  }

  bool number_unsigned(uint64_t value) override {
    SafetensorsEntry* entry = entries_.empty() ? nullptr : &entries_.back();
    if (state_ == State::kShapeItems) {
      if (entry->shape.size() == kRankMax) {
        return Refuse(Where() + " has more than " + std::to_string(kRankMax) + " dimensions");
      }
      entry->shape.push_back(value);
      return true;
    }
    if (state_ != State::kOffsetItems) return Unexpected("a number");
    if (offset_count_ == 2) return Refuse(Where() + " has more than two numbers");
    (offset_count_++ == 0 ? entry->begin : entry->end) = value;
    return true;
  }

 private:
  enum class State {
    kStart,
    kNames,
    kMetadataValue,
    kMetadata,
    kTensor,
    kFields,
    kDType,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kEnd,
  };

  bool Enter(State state) {
    state_ = state;
    return true;
  }

  bool Field(const std::string& name) {
    if (name == "dtype" && !has_dtype_) return Enter(State::kDType);
    if (name == "shape" && !has_shape_) return Enter(State::kShape);
    if (name == "data_offsets" && offset_count_ == 0) return Enter(State::kOffsets);
    return Refuse(Where() + ": field " + Quoted(name) + " is not known or is there twice");
  }

  std::string Where() const override {
    const std::string tensor =
        entries_.empty() ? std::string() : "tensor " + Quoted(entries_.back().name);
    switch (state_) {
      case State::kMetadataValue:
      case State::kMetadata:
        return "__metadata__";
      case State::kDType:
        return tensor + ": dtype";
      case State::kShape:
      case State::kShapeItems:
        return tensor + ": shape";
      case State::kOffsets:
      case State::kOffsetItems:
        return tensor + ": data_offsets";
      case State::kTensor:
      case State::kFields:
        return tensor;
      default:
        return "the header";
    }
  }

  State state_ = State::kStart;
  std::vector<SafetensorsEntry> entries_;
  // Of the last entry.
  bool has_dtype_ = false;
  bool has_shape_ = false;
  uint32_t offset_count_ = 0;
};

absl::Status Damaged(const SafetensorsEntry& entry, const std::string& what) {
  return DataLoss("tensor " + Quoted(entry.name) + ": " + what);
}

std::string OffsetsText(const SafetensorsEntry& entry) {
  return "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
}

absl::Status CheckSize(const SafetensorsEntry& entry, uint64_t data_bytes) {
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return Damaged(entry, OffsetsText(entry) + " do not lie in the file's " +
                              std::to_string(data_bytes) +
                              " bytes of tensors: it is truncated or its header is wrong");
  }
  uint64_t bytes = DTypeBytes(entry.dtype);
  bool fits = true;
  for (const uint64_t side : entry.shape)
    fits = fits && !__builtin_mul_overflow(bytes, side, &bytes);
  if (!fits || bytes != entry.end - entry.begin) {
    return Damaged(entry, OffsetsText(entry) + " are not what " +
                              TensorText(entry.dtype, entry.shape) + " takes");
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return DataLoss("tensor " + Quoted(*twice) + " is there twice");
}

// `entries` are sorted by offset.
absl::Status CheckCoverage(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < end) {
      return Damaged(entry, OffsetsText(entry) + " overlap the tensor before it, which ends at " +
                                std::to_string(end));
    }
    if (entry.begin > end) {
      return Damaged(entry, OffsetsText(entry) + " leave a gap after byte " + std::to_string(end));
    }
    end = entry.end;
  }
  if (end == data_bytes) return absl::OkStatus();
  return DataLoss("the tensors end at byte " + std::to_string(end) + " of " +
                  std::to_string(data_bytes) + ": the file is longer than its header says");
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                     uint64_t data_bytes) {
  HeaderReader reader;
  absl::Status status = reader.Read(json);
  if (!status.ok()) return DataLoss("header: " + Message(status));
  std::vector<SafetensorsEntry> entries = reader.Take();
  for (const SafetensorsEntry& entry : entries) RP_TRY(CheckSize(entry, data_bytes));
  RP_TRY(CheckNames(entries));
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  RP_TRY(CheckCoverage(entries, data_bytes));
  return entries;
}

}  // namespace reprise::engine
