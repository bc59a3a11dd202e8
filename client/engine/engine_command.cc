#include <cstdio>
#include <memory>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/engine/engine_bench.h"
#include "client/engine/replay_bench.h"
#include "client/engine/sequence_memory.h"
#include "gpu/engine/generator.h"
#include "protocol/base/clock.h"

// `reprise generate` and `reprise bench engine`: the engine by itself. Ask no daemon.
namespace reprise::cli {
namespace {

using engine::LoadedModel;

constexpr const char* kGenerateFooter =
    R"(Text goes to stdout as it is made; with --json one object at the end. For nano the prompt is put
into its chat format; --raw takes it as it is, special tokens like <user> included.

Exit codes: 0 generated, 2 the model or an option is wrong, 4 the model could not be run.)";

// The system text that nano was trained with.
constexpr const char* kNanoSystem =
    "You are nano, a small agent. Tools: read FILE, calc EXPR, find WORD.";

constexpr const char* kDeviceHelp =
    "cpu, cuda, cuda:N (a GPU of compute capability 9.0), cuda:0,1 (GPUs that share the model) or "
    "auto: a GPU where there is one";

absl::StatusOr<LoadedModel> Load(const std::string& name, const std::string& device,
                                 uint32_t threads) {
  RP_ASSIGN(const std::string folder, engine::FindModelFolder(name));
  return engine::LoadModel(folder, {.device = device, .threads = threads, .kernels = {}});
}

// To whoever named a device. On stderr: stdout is for text, or for one JSON object.
void Tell(const CLI::App& verb, const std::string& note) {
  if (note.empty() || verb.count("--device") == 0) return;
  std::fprintf(stderr, "reprise: %s\n", note.c_str());
}

struct GenerateCommand {
  std::string model = "nano";
  std::string device = "auto";
  std::string prompt;
  bool raw = false;
  uint32_t threads = 0;
  bool no_draft = false;
  engine::GenerateOptions options;
};

std::vector<TokenId> PromptTokens(const GenerateCommand& command, const LoadedModel& model) {
  const engine::Tokenizer& tokenizer = *model.tokenizer;
  if (command.raw || tokenizer.Special("<assistant>") < 0) {
    return tokenizer.Encode(command.prompt, true);
  }
  std::vector<TokenId> tokens =
      tokenizer.Encode("<bos><system>" + std::string(kNanoSystem) + "<user>", true);
  for (const TokenId token : tokenizer.Encode(command.prompt, false)) tokens.push_back(token);
  for (const TokenId token : tokenizer.Encode("<assistant></think>", true)) tokens.push_back(token);
  return tokens;
}

absl::StatusOr<Result> RunGenerate(const Globals& globals, const CLI::App& verb,
                                   GenerateCommand* command) {
  RP_ASSIGN(const LoadedModel model, Load(command->model, command->device, command->threads));
  Tell(verb, model.note);
  const std::vector<TokenId> prompt = PromptTokens(*command, model);
  if (prompt.empty()) return InvalidArgument("the prompt is empty; give --prompt a text");
  const uint32_t positions = model.geometry.config.max_positions;
  if (prompt.size() + command->options.tokens_max > positions) {
    return InvalidArgument("the prompt's " + std::to_string(prompt.size()) +
                           " tokens and --max-tokens exceed the model's " +
                           std::to_string(positions) + " positions");
  }
  RP_ASSIGN(const auto memory,
            bench::SequenceBuffers::Make(
                *model.engine, static_cast<uint32_t>(prompt.size()) + command->options.tokens_max));
  engine::Sequence sequence(model.engine.get(), memory.lent());
  std::vector<float> logits(model.geometry.config.vocab_size);

  const SystemClock clock;
  const Instant begin = clock.Now();
  RP_TRY(sequence.Prefill(prompt, engine::PrefillMode::kBounded, logits));
  const double prefill_seconds = static_cast<double>(clock.Now() - begin) / kSecond;
  command->options.stop_tokens = {model.geometry.config.eos_token};
  command->options.draft = !command->no_draft;
  std::string text;
  RP_ASSIGN(const engine::GenerateReport report,
            engine::Generate(&sequence, logits, command->options, clock,
                             [&](TokenId token, std::span<const float>) {
                               const std::string piece = model.tokenizer->Piece(token, false);
                               text += piece;
                               if (globals.json) return true;
                               std::fwrite(piece.data(), 1, piece.size(), stdout);
                               return std::fflush(stdout) == 0;
                             }));
  const double seconds = static_cast<double>(report.elapsed_ns) / kSecond;
  Result result;
  result.json = {{"model", command->model},
                 {"backend", model.engine->backend()},
                 {"text", text},
                 {"prompt_tokens", prompt.size()},
                 {"tokens", report.tokens},
                 {"stopped", report.stopped},
                 {"steps", report.steps},
                 {"drafted", report.drafted},
                 {"accepted", report.accepted},
                 {"prefill_seconds", prefill_seconds},
                 {"seconds", seconds}};
  result.text = "\n";
  return result;
}

void AddGenerateVerb(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("generate", "Text from a model, without a daemon");
  const auto command = std::make_shared<GenerateCommand>();
  verb->add_option("--model", command->model, "nano, or a model's folder")->capture_default_str();
  verb->add_option("--prompt", command->prompt, "What to go on from")->required();
  verb->add_flag("--raw", command->raw, "The prompt is not put into a chat format");
  verb->add_option("--max-tokens", command->options.tokens_max, "Tokens at most")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  verb->add_option("--temperature", command->options.sampling.temperature,
                   "0: always the likeliest token")
      ->capture_default_str();
  verb->add_option("--top-p", command->options.sampling.top_p, "Share of probability kept")
      ->capture_default_str();
  verb->add_option("--seed", command->options.sampling.seed, "Decides what is drawn")
      ->capture_default_str();
  verb->add_option("--device", command->device, kDeviceHelp)->capture_default_str();
  verb->add_option("--threads", command->threads, "0: one per core")->capture_default_str();
  verb->add_flag("--no-draft", command->no_draft, "Do not draft: slower, the same text");
  verb->footer(kGenerateFooter);
  OnRun(verb, globals,
        [globals, verb, command] { return RunGenerate(*globals, *verb, command.get()); });
}

std::string Line(const char* name, double value, const char* unit) {
  char line[128];
  std::snprintf(line, sizeof(line), "%-34s %12.4g %s\n", name, value, unit);
  return line;
}

absl::StatusOr<Result> RunBench(const CLI::App& verb, const bench::EngineBenchOptions& options) {
  const SystemClock clock;
  RP_ASSIGN(const bench::EngineBenchFigures f, bench::RunEngineBench(options, clock));
  Tell(verb, f.note);
  Result result;
  result.json = {{"model", options.model},
                 {"backend", f.backend},
                 {"prefill_tokens", options.prefill_tokens},
                 {"prefill_tokens_per_second", f.prefill_tokens_per_second},
                 {"decode_tokens_per_second", f.decode_tokens_per_second},
                 {"draft_decode_tokens_per_second", f.draft_decode_tokens_per_second},
                 {"accepted_drafts_per_step", f.accepted_drafts_per_step},
                 {"long_tokens", options.long_tokens},
                 {"cold_seconds", f.cold_seconds},
                 {"encoder_replay_seconds", f.encoder_replay_seconds},
                 {"decoder_seconds_2048", f.decoder_short_seconds},
                 {"decoder_seconds_long", f.decoder_long_seconds}};
  result.text = "model " + options.model + ", " + f.backend + "\n" +
                Line("prefill", f.prefill_tokens_per_second, "tokens/s") +
                Line("decode, one sequence", f.decode_tokens_per_second, "tokens/s") +
                Line("decode with drafts", f.draft_decode_tokens_per_second, "tokens/s") +
                Line("accepted drafts a step", f.accepted_drafts_per_step, "") +
                Line("cold prefill, long", f.cold_seconds, "s") +
                Line("encoder replay of its end", f.encoder_replay_seconds, "s") +
                Line("decoder half after 2,048", f.decoder_short_seconds, "s") +
                Line("decoder half after the long one", f.decoder_long_seconds, "s");
  return result;
}

struct ReplayCommand {
  std::string model = "nano";
  std::string samples;
  std::string device = "auto";
  uint32_t threads = 0;
};

absl::StatusOr<Result> RunReplay(const CLI::App& verb, const ReplayCommand& command) {
  RP_ASSIGN(const std::vector<bench::ReplaySample> samples,
            bench::ReadReplaySamples(command.samples));
  RP_ASSIGN(const LoadedModel model, Load(command.model, command.device, command.threads));
  Tell(verb, model.note);
  const SystemClock clock;
  Progress progress("samples", samples.size(), Progress::Unit::kCount, clock);
  RP_ASSIGN(const bench::ReplayReport report,
            bench::RunReplayBench(*model.engine, samples,
                                  [&progress](uint64_t done) { progress.Update(done); }));
  Result result;
  result.json = {{"model", command.model}, {"kinds", Json::object()}};
  result.text =
      "kind         mode     samples     bits         KL     KL max  agreement      exact\n";
  for (const auto& [kind, modes] : report) {
    for (size_t mode = 0; mode < modes.size(); ++mode) {
      const bench::ReplayFigures& f = modes[mode];
      result.json["kinds"][kind][bench::kReplayModes[mode]] = {
          {"samples", f.samples}, {"bits", f.bits},           {"kl_nats", f.kl_nats},
          {"kl_max", f.kl_max},   {"agreement", f.agreement}, {"exact_match", f.exact_match}};
      char line[160];
      std::snprintf(line, sizeof(line), "%-12s %-8s %7lu %8.4f %10.5f %10.4f %10.4f %10.4f\n",
                    kind.c_str(), bench::kReplayModes[mode], static_cast<unsigned long>(f.samples),
                    f.bits, f.kl_nats, f.kl_max, f.agreement, f.exact_match);
      result.text += line;
    }
  }
  return result;
}

}  // namespace

void AddGenerate(CLI::App* app, Globals* globals) { AddGenerateVerb(app, globals); }

void AddBenchEngine(CLI::App* bench_verb, Globals* globals) {
  CLI::App* verb =
      bench_verb->add_subcommand("engine", "The engine by itself: prefill, decode, drafts, replay");
  const auto options = std::make_shared<bench::EngineBenchOptions>();
  verb->add_option("--model", options->model, "nano, or a model's folder")->capture_default_str();
  verb->add_option("--device", options->device, kDeviceHelp)->capture_default_str();
  verb->add_option("--threads", options->threads, "0: one per core")->capture_default_str();
  verb->add_option("--prefill-tokens", options->prefill_tokens, "Length of the prefill")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  verb->add_option("--decode-tokens", options->decode_tokens, "Tokens decoded one by one")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  verb->add_option("--long-tokens", options->long_tokens, "Length of the prefix that is replayed")
      ->check(CLI::Range(2048u, 1u << 20))
      ->capture_default_str();
  verb->add_option("--rounds", options->rounds, "The best of so many counts")
      ->check(CLI::Range(1u, 100u))
      ->capture_default_str();
  OnRun(verb, globals, [verb, options] { return RunBench(*verb, *options); });

  CLI::App* replay = bench_verb->add_subcommand(
      "replay", "What bounded replay costs in quality, on texts that replay_samples.py wrote");
  const auto command = std::make_shared<ReplayCommand>();
  replay->add_option("--model", command->model, "nano, or a model's folder")->capture_default_str();
  replay->add_option("--samples", command->samples, "JSON lines: kind, prefix, suffix, ids")
      ->required();
  replay->add_option("--device", command->device, kDeviceHelp)->capture_default_str();
  replay->add_option("--threads", command->threads, "0: one per core")->capture_default_str();
  OnRun(replay, globals, [replay, command] { return RunReplay(*replay, *command); });
}

}  // namespace reprise::cli
