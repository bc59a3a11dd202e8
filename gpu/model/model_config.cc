#include "gpu/model/model_config.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "gpu/model/config_fields.h"
#include "gpu/model/config_json.h"
#include "gpu/model/model_limits.h"

namespace reprise::engine {

absl::StatusOr<ModelConfig> ModelConfig::Parse(std::string_view json) {
  RP_ASSIGN(const Json root, ParseConfigObject(json));
  ModelConfig config;
  absl::Status status;
  ConfigReader top(&root, "", &status);
  TopFields(top, config);
  ConfigReader quantization = top.Object("quantization_config");
  QuantizationFields(quantization);
  ConfigReader text = top.Object("text_config");
  TextFields(text, config);
  ConfigReader yarn = text.Object("rope_scaling");
  YarnFields(yarn, config);
  if (ConfigReader vision = top.OptionalObject("vision_config"); vision.has_object()) {
    VisionFields(vision, config.vision.emplace());
  }
  RP_TRY(status);
  RP_TRY(Validate(config));
  return config;
}

absl::StatusOr<ModelConfig> ModelConfig::Load(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return InvalidArgument(path + ": cannot be opened: " + std::strerror(errno));
  std::string text(kConfigBytesMax + 1, '\0');  // One more, so that Parse sees what is too long.
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return InvalidArgument(path + ": cannot be read: " + std::strerror(errno));
  text.resize(static_cast<size_t>(file.gcount()));
  absl::StatusOr<ModelConfig> config = Parse(text);
  if (!config.ok()) return InvalidArgument(path + ": " + Message(config.status()));
  return config;
}

std::string ModelConfig::ToJson() const {
  ConfigWriter top, quantization, text, scaling;
  TopFields(top, *this);
  QuantizationFields(quantization);
  TextFields(text, *this);
  YarnFields(scaling, *this);
  text.object()["rope_scaling"] = std::move(scaling.object());
  top.object()["quantization_config"] = std::move(quantization.object());
  top.object()["text_config"] = std::move(text.object());
  if (vision) {
    ConfigWriter writer;
    VisionFields(writer, *vision);
    top.object()["vision_config"] = std::move(writer.object());
  }
  return top.object().dump(2) + "\n";
}

}  // namespace reprise::engine
