#include <memory>

#include "protocol/base/check.h"
#include "protocol/wire/control.pb.h"
#include "server/log.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/sim/corpus.h"
#include "tests/sim/sim_stream.h"
#include "tests/sim/world.h"

// A whole connection of a one-shard daemon, after a good hello: the input is a row of steps, each
// raw bytes or a frame whose checksums are right and whose body is the input's. Whatever it is, the
// daemon must neither stop nor hang, and must be at rest when the client has gone.
namespace {

using reprise::sim::Corpus;
namespace wire = reprise::wire;

constexpr uint32_t kBlockSlots = 4;
constexpr uint32_t kWindowSlots = 3;
constexpr int kTurnsMax = 40'000;

struct Rig {
  reprise::ManualClock clock;
  reprise::sim::Daemon daemon;
  std::unique_ptr<reprise::sim::Link> link;

  Rig() {
    daemon.memory = std::make_unique<reprise::sim::PlainMemory>(kBlockSlots + kWindowSlots,
                                                                Corpus::kRecordBytes);
    daemon.namespaces =
        std::make_unique<reprise::server::NamespaceTable>(reprise::server::NamespaceTable::Options{
            .payload_bytes_max = Corpus::kRecordBytes - reprise::kRecordTailBytes,
            .record_bytes = Corpus::kRecordBytes});
    reprise::server::ServerFacts& facts = daemon.facts;
    facts.record_bytes = Corpus::kRecordBytes;
    facts.body_bytes_max = 2 * wire::kBodyBytesMax;
    facts.namespaces = daemon.namespaces.get();
    auto shard = reprise::server::Shard::Create(
        {.block_slots = kBlockSlots,
         .window_slots = kWindowSlots,
         .blocks = {.loads_max = 2, .appends_max = 2, .waiting_max = 2, .departed_rows = 16},
         .windows = {.snapshots_max = 4}},
        &facts, &clock, daemon.memory.get(), nullptr);
    RP_CHECK(shard.ok());
    daemon.shards.push_back(*std::move(shard));
    daemon.shards[0]->Connect({daemon.shards[0].get()});
    link = std::make_unique<reprise::sim::Link>(
        reprise::sim::Link::Options{.window_bytes = reprise::operator""_MiB(1)}, 1, 1);
    daemon.shards[0]->Adopt(link->MakeStream());
  }

  void Turn() {
    clock.Advance(reprise::kMillisecond);
    link->Tick();
    daemon.shards[0]->Turn(clock.Now());
    (void)link->Read(SIZE_MAX);
  }

  void SendFrame(wire::Opcode opcode, std::string_view body, reprise::ConstBytes data,
                 uint64_t request_id) {
    wire::FrameHeader header{.opcode = static_cast<uint8_t>(opcode),
                             .request_id = request_id,
                             .deadline_ms = 50,
                             .data_bytes = data.size()};
    wire::SealFrame(&header, reprise::AsBytes(body));
    link->Write(reprise::AsText(reprise::AsBytes(header)));
    link->Write(body);
    link->Write(reprise::AsText(data));
  }

  void Greet() {
    wire::HelloRequest hello;
    hello.set_protocol_version(wire::kProtocolVersion);
    SendFrame(wire::Opcode::kHello, hello.SerializeAsString(), {}, 1);
    wire::OpenNamespaceRequest open;
    open.set_manifest(reprise::EncodeManifest({.payload_bytes = Corpus::kPayloadBytes}));
    SendFrame(wire::Opcode::kOpenNamespace, open.SerializeAsString(), {}, 2);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    reprise::server::LogStart({.level = reprise::server::LogLevel::kError});
    return true;
  }();
  RP_CHECK(quiet);
  reprise::fuzz::Input input(data, size);
  Rig rig;
  rig.Greet();
  for (uint64_t id = 3; !input.empty() && id < 200; ++id) {
    const auto opcode = input.Take<uint8_t>();
    const auto body_bytes = input.Take<uint16_t>();
    if (opcode == 0) {
      rig.link->Write(reprise::AsText(input.TakeBytes(body_bytes)));
    } else {
      const auto data_bytes = input.Take<uint16_t>();
      const reprise::ConstBytes body = input.TakeBytes(body_bytes);
      const auto known = static_cast<wire::Opcode>(1 + opcode % wire::kOpcodeMax);
      rig.SendFrame(known, reprise::AsText(body), input.TakeBytes(data_bytes), id);
    }
    rig.Turn();
  }
  rig.link->Close();
  reprise::server::Shard& shard = *rig.daemon.shards[0];
  int turns = 0;
  for (; turns < kTurnsMax && !shard.drained(); ++turns) rig.Turn();
  RP_CHECK(shard.drained());
  RP_CHECK(shard.slots().pinned() == 0 && shard.windows().stats().leased == 0);
  RP_CHECK(shard.timers().size() == 0);
  RP_CHECK(rig.daemon.facts.body_bytes == 0 && rig.daemon.facts.connections == 0);
  return 0;
}
