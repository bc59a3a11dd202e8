#include "gpu/checkpoint/safetensors_index.h"

#include "gpu/checkpoint/strict_json.h"

namespace reprise::engine {
namespace {

constexpr size_t kFileNameMax = 255;

bool IsShardName(std::string_view file) {
  return file.size() <= kFileNameMax && file.ends_with(".safetensors") && !file.starts_with('.') &&
         file.find('/') == file.npos && file.find('\0') == file.npos;
}

// {"metadata": {"total_size": number, anything..}, "weight_map": {tensor: file..}}
class IndexReader final : public StrictJson {
 public:
  SafetensorsIndex Take() { return std::move(index_); }
  bool has_weight_map() const { return has_weight_map_; }

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a truth value"); }
  bool number_integer(int64_t) override { return Scalar("a negative number"); }
  bool number_float(double, const std::string&) override { return Scalar("a fraction"); }

  bool number_unsigned(uint64_t value) override {
    if (!at_total_size_) return Scalar("a number");
    index_.total_bytes = value;
    at_total_size_ = false;
    return true;
  }

  bool string(std::string& text) override {
    if (state_ != State::kMapValue) return Scalar("a string");
    if (!IsShardName(text)) {
      return Refuse(Where() + " lies in " + Quoted(text) +
                    ", which is not the name of a .safetensors file beside the index");
    }
    index_.files[name_] = std::move(text);
    return Enter(State::kMap);
  }

  bool start_object(size_t) override {
    if (state_ == State::kStart) return Enter(State::kTop);
    if (state_ == State::kMapStart) return Enter(State::kMap);
    return Open("an object");
  }
  bool start_array(size_t) override { return Open("a list"); }
  bool end_array() override { return Close(); }
  bool end_object() override {
    if (state_ == State::kTop) return Enter(State::kEnd);
    if (state_ == State::kMap) return Enter(State::kTop);
    return Close();
  }

  bool key(std::string& name) override {
    if (state_ == State::kMetadata) {
      at_total_size_ = depth_ == 1 && name == "total_size";
      return true;
    }
    if (state_ == State::kMap) {
      if (index_.files.contains(name)) return Refuse("tensor " + Quoted(name) + " is there twice");
      name_ = std::move(name);
      return Enter(State::kMapValue);
    }
    if (name == "metadata") return Enter(State::kMetadata);
    if (name != "weight_map" || has_weight_map_) {
      return Refuse("key " + Quoted(name) + ": an index has metadata and one weight_map");
    }
    has_weight_map_ = true;
    return Enter(State::kMapStart);
  }

 private:
  enum class State { kStart, kTop, kMetadata, kMapStart, kMap, kMapValue, kEnd };

  bool Enter(State state) {
    state_ = state;
    return true;
  }
  // Values of metadata other than total_size may be anything.
  bool Scalar(const char* kind) {
    return state_ == State::kMetadata && depth_ > 0 && !at_total_size_ ? true : Unexpected(kind);
  }
  bool Open(const char* kind) {
    if (state_ != State::kMetadata || at_total_size_) return Unexpected(kind);
    ++depth_;
    return true;
  }
  bool Close() { return --depth_ == 0 ? Enter(State::kTop) : true; }

  std::string Where() const override {
    if (state_ == State::kMetadata) return at_total_size_ ? "metadata.total_size" : "metadata";
    return state_ == State::kMapValue ? "tensor " + Quoted(name_) : "weight_map";
  }

  State state_ = State::kStart;
  SafetensorsIndex index_;
  std::string name_;  // Of the tensor whose file comes next.
  bool has_weight_map_ = false;
  bool at_total_size_ = false;
  uint64_t depth_ = 0;  // Objects and lists open inside metadata, itself included.
};

}  // namespace

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json) {
  IndexReader reader;
  RP_TRY(reader.Read(json));
  if (!reader.has_weight_map()) return DataLoss("weight_map is missing");
  return reader.Take();
}

}  // namespace reprise::engine
