// Slots of the HBM tier leased to another process, against a daemon whose engine has memory of its
// own: what a local engine maps has the blocks' bytes, and keeps them while the daemon serves.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "client/session/api_client.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/data_files.h"
#include "tests/integration/raw_connection.h"

namespace reprise::test {
namespace {

using testing::HasSubstr;
using Body = ApiClient::Json;

constexpr uint32_t kSlots = 38, kLent = 18;  // Of 27,136 bytes: nano's payload.

// The pool as another process sees it: a file, where a GPU's would be a CUDA IPC handle.
class MappedPool {
 public:
  explicit MappedPool(const SlotPool& pool) : pool_(pool) {
    const std::string& handle = pool.devices.at(0).handle;
    const size_t at = handle.find('@');
    EXPECT_NE(at, std::string::npos);
    offset_ = std::stoull(handle.substr(at + 1));
    const int fd = open(handle.substr(0, at).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << handle;
    bytes_ = offset_ + pool.slots * pool.stride_bytes;
    void* memory = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<const std::byte*>(memory);
    close(fd);
  }
  ~MappedPool() { munmap(const_cast<std::byte*>(memory_), bytes_); }
  MappedPool(const MappedPool&) = delete;
  MappedPool& operator=(const MappedPool&) = delete;

  ConstBytes slot(uint32_t slot) const {
    return {memory_ + offset_ + slot * pool_.stride_bytes, pool_.slot_bytes};
  }

 private:
  SlotPool pool_;
  uint64_t offset_ = 0, bytes_ = 0;
  const std::byte* memory_ = nullptr;
};

class SlotsTest : public DaemonTest {
 protected:
  static DaemonConfig Config(const std::string& more = "") {
    return {.dram_bytes = "32MiB",
            .window_bytes = "32MiB",
            .tcp = true,
            .http = "127.0.0.1:0",
            .program = "reprised_arena",
            .engine = "nano",
            .more = "threads = 1\nload_gate = false\n" + more};
  }
  static DaemonConfig Lending() {
    return Config("hbm_bytes = \"1MiB\"\nhbm_lease_bytes = \"500KiB\"\n");
  }
  std::unique_ptr<ApiClient> Api() {
    auto api = ApiClient::Create(
        {.url = "http://127.0.0.1:" + std::to_string(daemon().http_port()), .key = {}});
    EXPECT_TRUE(api.ok());
    return *std::move(api);
  }
  void Complete(char letter) {
    std::string prompt;
    for (int i = 0; prompt.size() < 900; ++i) {
      prompt += std::string(1, letter) + " is item " + std::to_string(i * 7) + " of the list. ";
    }
    const auto answer = Api()->Post(
        "/v1/completions",
        {{"model", "nano"}, {"prompt", prompt}, {"max_tokens", 24}, {"temperature", 0}});
    EXPECT_TRUE(answer.ok()) << answer.status() << daemon().log();
  }
  Json Hbm() { return Status()["tiers"]["hbm"]; }
  bool NothingIsLent() {
    return Eventually([this] {
      const Json hbm = Hbm();
      return hbm["slots_lent"] == 0 && hbm["slots_reserved"] == 0;
    });
  }
  static bool IsPayload(const Chain& chain, uint32_t index, ConstBytes bytes) {
    const std::vector<std::byte> record = chain.Record(index);
    return std::memcmp(bytes.data(), record.data(), bytes.size()) == 0;
  }
  static uint32_t CountRight(const Chain& chain, const SlotLease& lease, const MappedPool& pool) {
    uint32_t right = 0;
    for (uint32_t i = 0; i < lease.size(); ++i) {
      right += IsPayload(chain, i, pool.slot(lease.slot(i).slot)) ? 1 : 0;
    }
    return right;
  }
};

TEST_F(SlotsTest, ALeaseHasTheBlocksBytes) {
  ASSERT_TRUE(Start(Lending()));
  const auto client = Connect();
  const Chain chain(NanoManifest(), 1, 12), other(NanoManifest(), 2, 3);
  ASSERT_TRUE(PutChain(client.get(), chain));
  ASSERT_TRUE(PutChain(client.get(), other));
  const uint32_t id = *client->OpenNamespace(NanoManifest());
  const auto pool = client->HbmPool();
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ((*pool)->kind, SlotPool::HandleKind::kHostTest);
  EXPECT_EQ((*pool)->slots, kSlots);
  EXPECT_EQ((*pool)->leased_slots_max, kLent);
  EXPECT_EQ((*pool)->slot_bytes, NanoManifest().payload_bytes);
  const MappedPool mapped(**pool);

  const auto none = client->AcquireSlots(id, chain.keys(), SlotsFrom::kHbmOnly);
  EXPECT_EQ(none->size(), 0u);
  EXPECT_EQ(none->stopped_by(), Outcome::kNotFound);
  auto first = client->AcquireSlots(id, chain.keys());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->size(), 12u);
  EXPECT_EQ(first->stopped_by(), Outcome::kOk);
  EXPECT_EQ(first->from_dram(), 12u);
  EXPECT_EQ(CountRight(chain, *first, mapped), 12u);
  EXPECT_EQ(Hbm()["slots_lent"], 12);
  EXPECT_EQ(Hbm()["slots_lent_max"], kLent);

  // What is left of the loans, and then nothing.
  auto second = client->AcquireSlots(id, chain.keys(), SlotsFrom::kHbmOnly);
  EXPECT_EQ(second->size(), 6u);
  EXPECT_EQ(second->stopped_by(), Outcome::kBusy);
  EXPECT_EQ(second->from_dram(), 0u);
  for (uint32_t i = 0; i < second->size(); ++i) {
    EXPECT_EQ(second->slot(i).slot, first->slot(i).slot);
    EXPECT_EQ(second->slot(i).generation, first->slot(i).generation);
  }
  EXPECT_EQ(client->AcquireSlots(id, other.keys())->stopped_by(), Outcome::kBusy);
  EXPECT_EQ(Status()["clients"]["leases"], 2);
  first->Release();
  EXPECT_EQ(client->AcquireSlots(id, other.keys())->size(), 3u);
  second->Release();
  EXPECT_TRUE(NothingIsLent()) << Hbm();

  // A run ends before the first block that is not stored.
  std::vector<BlockKey> keys = chain.keys();
  keys[4] = {99, 99};
  const auto cut = client->AcquireSlots(id, keys);
  EXPECT_EQ(cut->size(), 4u);
  EXPECT_EQ(cut->stopped_by(), Outcome::kNotFound);
  EXPECT_EQ(Status()["traffic"]["blocks_from_hbm"], 6 + 4);
}

// Everything that the engine computes and loads goes through the slots that are left.
TEST_F(SlotsTest, WhatIsLeasedStaysWhileOthersLeave) {
  ASSERT_TRUE(Start(Lending()));
  const auto client = Connect();
  const Chain chain(NanoManifest(), 3, kLent);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t id = *client->OpenNamespace(NanoManifest());
  auto lease = client->AcquireSlots(id, chain.keys());
  ASSERT_EQ(lease->size(), kLent);
  const MappedPool mapped(**client->HbmPool());
  const std::vector<wire::HbmSlot> before = [&] {
    std::vector<wire::HbmSlot> slots;
    for (uint32_t i = 0; i < lease->size(); ++i) slots.push_back(lease->slot(i));
    return slots;
  }();
  // How many leave in a round is a matter of how the requests fall together.
  constexpr int kRoundsLeast = 2, kRoundsMost = 10, kEvictionsLeast = 20;
  int evictions = 0;
  for (int round = 0; round < kRoundsLeast || (round < kRoundsMost && evictions <= kEvictionsLeast);
       ++round) {
    std::vector<std::thread> users;
    for (const char letter : {'a', 'b', 'c', 'd'}) {
      users.emplace_back([this, letter] { Complete(letter); });
    }
    for (std::thread& user : users) user.join();
    EXPECT_EQ(CountRight(chain, *lease, mapped), kLent);
    evictions = Hbm()["evictions"].get<int>();
  }
  EXPECT_GT(evictions, kEvictionsLeast);
  // Also what the store no longer has, until the lease ends.
  EXPECT_EQ(*client->EvictNamespace(id), kLent);
  Complete('f');
  EXPECT_EQ(CountRight(chain, *lease, mapped), kLent);
  lease->Release();
  EXPECT_TRUE(NothingIsLent());
  EXPECT_EQ(client->AcquireSlots(id, chain.keys())->stopped_by(), Outcome::kNotFound);
  ASSERT_TRUE(PutChain(client.get(), chain));
  for (const char letter : {'g', 'h', 'i'}) Complete(letter);
  lease = client->AcquireSlots(id, chain.keys());
  EXPECT_EQ(CountRight(chain, *lease, mapped), kLent);
  EXPECT_GT(lease->from_dram(), 0u);
  uint32_t same = 0;
  for (uint32_t i = 0; i < lease->size(); ++i) {
    same += std::memcmp(&before[i], &lease->slot(i), sizeof(wire::HbmSlot)) == 0 ? 1 : 0;
  }
  EXPECT_EQ(same, kLent - lease->from_dram()) << "a generation is of one block's stay";
}

TEST_F(SlotsTest, BlocksComeFromSsdAndFromTheEngine) {
  ASSERT_TRUE(Start(Lending()));
  const Chain chain(NanoManifest(), 4, 10);
  ASSERT_TRUE(PutChain(Connect().get(), chain, wire::Durability::kDurable));
  ASSERT_TRUE(Api()->Post("/v1/sessions", {{"name", "s"}}).ok());
  ASSERT_TRUE(Api()->Post("/v1/sessions/s/send", {{"content", std::string(900, 'x')}}).ok());
  const std::string http = "http://127.0.0.1:" + std::to_string(daemon().http_port());
  const std::string file = directory() + "/s.rpsession";
  ASSERT_EQ(RunReprise({"session", "export", "s", file, "--http", http}).exit_code, 0);
  const std::string text = ReadText(file);
  const Manifest manifest = ManifestOfSessionFile(text);
  const auto tokens = HeaderOfSessionFile(text)["tokens"].get<std::vector<TokenId>>();
  std::vector<BlockKey> keys;
  for (const Hash256& hash : PrefixChain(NamespaceOf(manifest), tokens)) {
    keys.push_back(KeyOf(hash));
  }
  ASSERT_GE(keys.size(), 7u);
  {
    // What the engine computed is in HBM, and is what it stored.
    const auto client = Connect();
    const uint32_t id = *client->OpenNamespace(manifest);
    const auto slots = client->AcquireSlots(id, keys, SlotsFrom::kHbmOnly);
    const auto records = client->Acquire(id, keys);
    ASSERT_GE(slots->size(), 7u) << OutcomeName(slots->stopped_by());
    const MappedPool mapped(**client->HbmPool());
    for (uint32_t i = 0; i < slots->size(); ++i) {
      const ConstBytes slot = mapped.slot(slots->slot(i).slot);
      EXPECT_EQ(std::memcmp(slot.data(), records->record(i).data(), slot.size()), 0) << i;
      const bool derived = (LoadRecordHeader(records->record(i)).flags & kReplayDerived) != 0;
      EXPECT_EQ(slots->slot(i).flags != 0, derived);
    }
  }
  Stop();
  ASSERT_TRUE(Start(Lending()));
  const auto client = Connect();
  const uint32_t id = *client->OpenNamespace(NanoManifest());
  const auto lease = client->AcquireSlots(id, chain.keys());
  EXPECT_EQ(lease->size(), 10u);
  EXPECT_EQ(lease->from_ssd(), 10u);
  EXPECT_EQ(CountRight(chain, *lease, MappedPool(**client->HbmPool())), 10u);
}

TEST_F(SlotsTest, ALeaseEndsWithItsConnection) {
  ASSERT_TRUE(Start(Lending()));
  const auto client = Connect();
  const Chain chain(NanoManifest(), 5, kLent);
  ASSERT_TRUE(PutChain(client.get(), chain));
  const uint32_t id = *client->OpenNamespace(NanoManifest());
  RawConnection raw(address());
  ASSERT_TRUE(raw.Hello());
  const uint32_t raw_id = raw.OpenNamespace(EncodeManifest(NanoManifest()));
  std::string body;
  wire::Append(&body, wire::SlotAcquireRequest{.namespace_id = raw_id, .key_count = kLent});
  wire::AppendArray<BlockKey>(&body, chain.keys());
  const auto granted = raw.Call(wire::Opcode::kSlotAcquire, body);
  ASSERT_TRUE(granted.has_value());
  EXPECT_EQ(granted->outcome(), Outcome::kOk);
  EXPECT_EQ(Hbm()["slots_lent"], kLent);
  raw.Close();  // Without a word.
  EXPECT_TRUE(NothingIsLent());
  EXPECT_GE(Status()["clients"]["leases_revoked"].get<int>(), 1);
  EXPECT_EQ(client->AcquireSlots(id, chain.keys())->size(), kLent);

  // A daemon that stops waits for nobody.
  const auto lease = client->AcquireSlots(id, chain.keys());
  Stop();
  EXPECT_FALSE(client->AcquireSlots(id, chain.keys()).ok());
}

TEST_F(SlotsTest, WhoDoesNotWaitKeepsNothing) {
  ASSERT_TRUE(Start(Lending()));
  const Chain chain(NanoManifest(), 6, 4);
  ASSERT_TRUE(PutChain(Connect().get(), chain));
  std::thread user([this] { Complete('a'); });
  for (int round = 0; round < 8; ++round) {
    RawConnection raw(address());
    ASSERT_TRUE(raw.Hello());
    const uint32_t id = raw.OpenNamespace(EncodeManifest(NanoManifest()));
    std::string body;
    wire::Append(&body, wire::SlotAcquireRequest{.namespace_id = id, .key_count = 4});
    wire::AppendArray<BlockKey>(&body, chain.keys());
    std::string frames;
    for (int i = 0; i < 40; ++i) {
      frames += raw.MakeFrame(wire::Opcode::kSlotAcquire, body, 0, [](wire::FrameHeader* header) {
        header->deadline_ms = 1;
        RawConnection::Reseal(header);
      });
    }
    ASSERT_TRUE(raw.Send(frames));
    for (int i = 0; i < 40 && round % 2 == 0; ++i) {
      const auto reply = raw.Receive(kPatience);
      ASSERT_TRUE(reply.has_value());
      EXPECT_THAT(reply->outcome(),
                  testing::AnyOf(Outcome::kOk, Outcome::kTimeout, Outcome::kBusy));
    }
  }
  user.join();
  EXPECT_TRUE(NothingIsLent()) << Hbm();
  EXPECT_TRUE(Eventually([this] { return Status()["clients"]["operations"] == 1; }));
}

// Leases come and go while requests run; all of them see right bytes.
TEST_F(SlotsTest, ManyEnginesBesideRequests) {
  ASSERT_TRUE(Start(Lending()));
  constexpr int kEngines = 4, kChains = 5;
  std::vector<Chain> chains;
  for (int i = 0; i < kChains; ++i) chains.emplace_back(NanoManifest(), 20 + i, 6);
  for (const Chain& chain : chains) ASSERT_TRUE(PutChain(Connect().get(), chain));
  std::vector<std::thread> threads;
  std::vector<uint32_t> looked(kEngines), wrong(kEngines);
  for (int engine = 0; engine < kEngines; ++engine) {
    threads.emplace_back([&, engine] {
      Prng prng(static_cast<uint64_t>(engine) + 1);
      const auto client = Connect();
      const uint32_t id = *client->OpenNamespace(NanoManifest());
      const MappedPool mapped(**client->HbmPool());
      std::vector<std::pair<const Chain*, SlotLease>> held;
      for (int step = 0; step < 150; ++step) {
        const Chain& chain = chains[prng.Below(kChains)];
        auto lease = client->AcquireSlots(id, chain.keys());
        ASSERT_TRUE(lease.ok()) << lease.status();
        held.emplace_back(&chain, *std::move(lease));
        for (const auto& [of, kept] : held) {
          looked[engine] += kept.size();
          wrong[engine] += kept.size() - CountRight(*of, kept, mapped);
        }
        if (held.size() > prng.Below(4)) held.erase(held.begin());
      }
    });
  }
  for (const char letter : {'a', 'b', 'c', 'd'}) Complete(letter);
  for (std::thread& thread : threads) thread.join();
  for (int engine = 0; engine < kEngines; ++engine) {
    EXPECT_GT(looked[engine], 100u);
    EXPECT_EQ(wrong[engine], 0u);
  }
  EXPECT_TRUE(NothingIsLent()) << Hbm();
}

TEST_F(SlotsTest, WhatCannotBeLentSaysWhy) {
  ASSERT_TRUE(Start(Lending()));
  const Chain chain(NanoManifest(), 7, 2);
  const auto tcp = ConnectTcp();
  EXPECT_THAT(Message(tcp->HbmPool().status()), HasSubstr("Unix socket"));
  RawConnection raw(tcp_address());
  ASSERT_TRUE(raw.Hello());
  const uint32_t id = raw.OpenNamespace(EncodeManifest(NanoManifest()));
  std::string body;
  wire::Append(&body, wire::SlotAcquireRequest{.namespace_id = id, .key_count = 2});
  wire::AppendArray<BlockKey>(&body, chain.keys());
  EXPECT_EQ(raw.Call(wire::Opcode::kSlotAcquire, body)->outcome(), Outcome::kUnsupported);
  // Another model's blocks do not fit the slots.
  Manifest small = NanoManifest();
  small.payload_bytes /= 2;
  const auto client = Connect();
  EXPECT_THAT(Message(client->AcquireSlots(*client->OpenNamespace(small), chain.keys()).status()),
              HasSubstr("another model"));
  RawConnection local(address());
  ASSERT_TRUE(local.Hello());
  EXPECT_EQ(local.Call(wire::Opcode::kSlotAcquire, body)->outcome(), Outcome::kWrongNamespace);
  ASSERT_EQ(local.OpenNamespace(EncodeManifest(small)), id);
  EXPECT_EQ(local.Call(wire::Opcode::kSlotAcquire, body)->outcome(), Outcome::kInvalid);
  // A request may never need what leases may hold.
  const auto refused =
      Api()->Post("/v1/completions",
                  {{"model", "nano"}, {"prompt", std::string(900, 'x')}, {"max_tokens", 2000}});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("beside those that may be lent"));
  Stop();

  ASSERT_TRUE(Start(Config()));
  EXPECT_THAT(Message(Connect()->HbmPool().status()), HasSubstr("hbm_lease_bytes"));
  Stop();
  EXPECT_THAT(StartRefused(Config("hbm_lease_bytes = \"1MiB\"\n")),
              HasSubstr("no HBM to lend"));  // reprised, whose engine takes the host's memory.
}

}  // namespace
}  // namespace reprise::test
