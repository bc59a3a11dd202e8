#include <memory>

#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "gpu/checkpoint/checkpoint_verifier.h"
#include "gpu/model/model_description.h"
#include "gpu/model/text_table.h"

// `reprise model`: what a model costs, and whether its checkpoint is whole. Asks no daemon.
namespace reprise::cli {
namespace {

using engine::Checkpoint;
using engine::CheckpointReport;
using engine::Grouped;
using engine::ModelConfig;
using engine::ModelGeometry;

constexpr const char* kInspectFooter =
    R"(Layers, global KV, windows and parameters, and how each number comes about. MODEL is v4.1-flash,
nano, or a folder with a config.json (./nano for a folder of that name).

Exit codes: 0 described, 2 the name or the config.json is wrong.)";

constexpr const char* kVerifyFooter =
    R"(DIR holds config.json, and the shards beside it or in DIR/checkpoint. Compares names, types,
shapes, places and sizes of all tensors with what the configuration asks for, from the shards'
headers; --scales reads the tensors too.

Exit codes: 0 the checkpoint is whole, 1 it is not (JSON: ok, damage, missing, unexpected, wrong),
2 no checkpoint there or config.json is wrong, 4 a file could not be read.)";

std::string ConfigPath(const std::string& folder) { return folder + "/config.json"; }

absl::StatusOr<Result> RunInspect(const std::string& model) {
  absl::StatusOr<ModelConfig> config = ModelConfig::Preset(model);
  if (!config.ok()) config = ModelConfig::Load(ConfigPath(model));
  if (!config.ok()) {
    return InvalidArgument(Message(config.status()) +
                           " (MODEL is v4.1-flash, nano, or a folder with a config.json)");
  }
  RP_ASSIGN(const ModelGeometry geometry, ModelGeometry::For(*config));
  return Result{.json = Json::parse(engine::DescribeModelJson(geometry), nullptr, false),
                .text = engine::DescribeModelText(geometry)};
}

struct VerifyOptions {
  std::string folder;
  bool scales = false;
};

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& folder) {
  auto checkpoint = Checkpoint::Open(folder);
  if (!absl::IsNotFound(checkpoint.status())) return checkpoint;
  auto below = Checkpoint::Open(folder + "/checkpoint");
  if (!absl::IsNotFound(below.status())) return below;
  return InvalidArgument(Message(checkpoint.status()) + ", and there is none in its checkpoint/");
}

absl::Status ReadScales(const Checkpoint& checkpoint) {
  const SystemClock clock;
  Progress progress("scales", engine::ScaleCheckBytes(checkpoint), Progress::Unit::kBytes, clock);
  return engine::CheckScales(checkpoint, [&progress](uint64_t bytes) { progress.Update(bytes); });
}

// The checkpoint could not be opened, or a scale is not a number.
void AddDamage(const std::string& damage, Result* result) {
  result->json["ok"] = false;
  result->json["damage"] = damage;
  result->text += "damaged: " + damage + "\n";
  result->exit_code = kExitMiss;
}

void AddNames(const char* kind, const std::vector<std::string>& names, uint64_t count,
              Result* result) {
  result->json[std::string(kind) + "_count"] = count;
  result->json[kind] = names;
  for (const std::string& name : names) result->text += std::string(kind) + "  " + name + "\n";
  if (count > names.size()) {
    result->text += std::string(kind) + "  .. and " + Grouped(count - names.size()) + " more\n";
  }
}

void AddReport(const CheckpointReport& report, const Checkpoint& checkpoint, Result* result) {
  const std::string digest = ToHex(checkpoint.Digest());
  result->json["ok"] = report.ok();
  result->json["digest"] = digest;
  result->json["tensors"] = report.tensors;
  result->json["tensors_expected"] = report.tensors_expected;
  result->json["bytes"] = report.bytes;
  result->json["bytes_expected"] = report.bytes_expected;
  engine::TextTable table("lrlr");
  table.Row({"tensors", Grouped(report.tensors), "of", Grouped(report.tensors_expected)});
  table.Row({"bytes", Grouped(report.bytes), "of", Grouped(report.bytes_expected)});
  result->text += table.Text() + "  digest   " + digest + "\n";
  AddNames("missing", report.missing, report.missing_count, result);
  AddNames("unexpected", report.unexpected, report.unexpected_count, result);
  AddNames("wrong", report.wrong, report.wrong_count, result);
  if (!report.ok()) result->exit_code = kExitMiss;
}

absl::StatusOr<Result> RunVerify(const VerifyOptions& options) {
  RP_ASSIGN(const ModelConfig config, ModelConfig::Load(ConfigPath(options.folder)));
  RP_ASSIGN(const ModelGeometry geometry, ModelGeometry::For(config));
  Result result;
  result.json = {{"folder", options.folder}, {"model", geometry.kv.model}};
  result.text = options.folder + ": a checkpoint of " + geometry.kv.model + "\n";
  const auto checkpoint = OpenCheckpoint(options.folder);
  if (absl::IsDataLoss(checkpoint.status())) {
    AddDamage(Message(checkpoint.status()), &result);
    return result;
  }
  RP_TRY(checkpoint.status());
  AddReport(engine::VerifyCheckpoint(geometry, **checkpoint), **checkpoint, &result);
  result.json["scales_checked"] = options.scales;
  if (options.scales) {
    const absl::Status scales = ReadScales(**checkpoint);
    if (!scales.ok()) AddDamage(Message(scales), &result);
  }
  if (result.exit_code == kExitOk) {
    result.text += options.scales ? "whole, and every scale and FP8 weight is a number\n"
                                  : "whole by its headers; --scales reads the tensors too\n";
  }
  return result;
}

}  // namespace

void AddModel(CLI::App* app, Globals* globals) {
  CLI::App* model =
      app->add_subcommand("model", "What a model costs; whether a checkpoint is whole");
  model->require_subcommand(1);

  CLI::App* inspect =
      model->add_subcommand("inspect", "A model's bytes and parameters, term by term");
  const auto name = std::make_shared<std::string>();
  inspect->footer(kInspectFooter);
  inspect->add_option("MODEL", *name, "v4.1-flash, nano, or a folder with config.json")->required();
  OnRun(inspect, globals, [name] { return RunInspect(*name); });

  CLI::App* verify = model->add_subcommand("verify", "Compare a checkpoint with its configuration");
  const auto options = std::make_shared<VerifyOptions>();
  verify->footer(kVerifyFooter);
  verify->add_option("DIR", options->folder, "The folder with config.json and the shards")
      ->required();
  verify->add_flag("--scales", options->scales,
                   "Read every scale and FP8 weight, and refuse what is not a number");
  OnRun(verify, globals, [options] { return RunVerify(*options); });
}

}  // namespace reprise::cli
