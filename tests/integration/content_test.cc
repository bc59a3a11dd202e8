// What a record must be to be stored, and who may find it.
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "protocol/base/prng.h"
#include "protocol/record/record.h"
#include "tests/integration/chain.h"
#include "tests/integration/daemon_process.h"

namespace reprise::test {
namespace {

class ContentTest : public DaemonTest {
 protected:
  Outcome PutRecord(Client* client, const Manifest& manifest, ConstBytes record) {
    Outcome outcome = Outcome::kClosed;
    const absl::Status status = client->Put(*client->OpenNamespace(manifest), {&record, 1},
                                            wire::Durability::kRelaxed, {&outcome, 1});
    EXPECT_TRUE(status.ok()) << Message(status);
    return outcome;
  }
};

Manifest WithAdapter(const std::string& adapter) {
  Manifest manifest = NanoManifest();
  manifest.adapter = adapter;
  return manifest;
}

TEST_F(ContentTest, ABlockIsFoundInItsNamespaceOnly) {
  ASSERT_TRUE(Start({.tcp = true}));
  const Chain chain(NanoManifest(), 1, 4);
  const Chain same_tokens(WithAdapter("lora"), 1, 4);
  for (const std::string& address : {this->address(), tcp_address()}) {
    const auto client = ConnectTo(address);
    ASSERT_NE(client, nullptr);
    ASSERT_TRUE(PutChain(client.get(), chain));
    EXPECT_EQ(GetRun(client.get(), same_tokens), 0u);
    const uint32_t wrong = *client->OpenNamespace(WithAdapter("lora"));
    EXPECT_EQ(client->Lookup(wrong, same_tokens.keys())->hit_blocks, 0u);
    // Who guesses the keys of another namespace must not learn that they are stored, nor remove
    // what they name.
    const auto verdict = client->Lookup(wrong, chain.keys());
    ASSERT_TRUE(verdict.ok()) << Message(verdict.status());
    EXPECT_EQ(verdict->hit_blocks, 0u);
    const auto lease = client->Acquire(wrong, chain.keys());
    ASSERT_TRUE(lease.ok()) << Message(lease.status());
    EXPECT_EQ(lease->size(), 0u);
    EXPECT_EQ(lease->stopped_by(), Outcome::kNotFound) << OutcomeName(lease->stopped_by());
    EXPECT_EQ(client->Verify(wrong, chain.keys())->checked, 0u);
    EXPECT_EQ(client->Evict(wrong, chain.keys()).value(), 0u);
    EXPECT_EQ(PutRecord(client.get(), WithAdapter("lora"), chain.Record(0)),
              Outcome::kWrongNamespace);
    EXPECT_EQ(GetRun(client.get(), chain), 4u);
  }
}

TEST_F(ContentTest, RecordsThatAreNotWhatTheySayAreNotStored) {
  ASSERT_TRUE(Start({.tcp = true}));
  const Chain chain(NanoManifest(), 2, 3);
  const std::vector<std::byte> good = chain.Record(1);
  const size_t tail = good.size() - kRecordTailBytes;
  const auto resealed = [&](auto change) {
    std::vector<std::byte> record = good;
    RecordHeader header = LoadRecordHeader(record);
    change(record, &header);
    SealRecord(record, header);
    return record;
  };
  const auto flipped = [&](size_t at) {
    std::vector<std::byte> record = good;
    record[at] ^= std::byte{4};
    return record;
  };
  const auto token = good.size() - kRecordTokenBytes;
  const struct {
    const char* name;
    std::vector<std::byte> record;
    Outcome outcome;
  } cases[] = {
      {"other tokens", resealed([&](auto& r, auto*) { r[token] ^= std::byte{1}; }),
       Outcome::kHashMismatch},
      {"other parent",
       resealed([](auto&, RecordHeader* h) { h->parent_hash.bytes[0] ^= std::byte{1}; }),
       Outcome::kHashMismatch},
      {"other hash",
       resealed([](auto&, RecordHeader* h) { h->block_hash.bytes[5] ^= std::byte{1}; }),
       Outcome::kHashMismatch},
      {"altered payload, first byte", flipped(0), Outcome::kCorrupt},
      {"altered payload, last byte", flipped(chain.manifest().payload_bytes - 1),
       Outcome::kCorrupt},
      {"altered padding", flipped(tail - 1), Outcome::kCorrupt},
      {"altered header", flipped(tail + 112), Outcome::kCorrupt},
      {"altered reserved", flipped(tail + 200), Outcome::kCorrupt},
      {"altered token", flipped(token), Outcome::kCorrupt},
      {"no magic", std::vector<std::byte>(good.size()), Outcome::kCorrupt},
  };
  for (const std::string& address : {this->address(), tcp_address()}) {
    const auto client = ConnectTo(address);
    ASSERT_NE(client, nullptr);
    for (const auto& bad : cases) {
      const Outcome outcome = PutRecord(client.get(), chain.manifest(), bad.record);
      EXPECT_EQ(outcome, bad.outcome) << bad.name << ": " << OutcomeName(outcome);
      EXPECT_EQ(GetBlock(client.get(), chain, 1), Outcome::kNotFound) << bad.name;
    }
  }
  EXPECT_EQ(Status()["traffic"]["puts_invalid"], 2 * std::size(cases));
  EXPECT_EQ(PutRecord(Connect().get(), chain.manifest(), good), Outcome::kOk);
  EXPECT_EQ(GetBlock(Connect().get(), chain, 1), Outcome::kOk);
}

// Flips words of a staging slot back and forth while it is being put.
class Scribbler {
 public:
  explicit Scribbler(Bytes slot)
      : words_(reinterpret_cast<uint64_t*>(slot.data())),
        word_count_(slot.size() / sizeof(uint64_t)),
        thread_([this] { Run(); }) {}
  ~Scribbler() {
    Set(State::kStop);
    thread_.join();
  }
  void Begin() { Set(State::kScribble); }
  void End() { Set(State::kRest); }  // Returns when no word is being changed any more.

 private:
  enum class State : uint8_t { kRest, kScribble, kStop };

  void Set(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
  }
  void Run() {
    for (Prng prng(7);; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kStop) return;
      if (state_ == State::kScribble) Flip(&prng);
    }
  }
  void Flip(Prng* prng) {
    const std::atomic_ref<uint64_t> word(words_[prng->Below(word_count_)]);
    const uint64_t flip = uint64_t{1} << prng->Below(64);
    word.fetch_xor(flip);
    if (prng->Chance(500)) SleepFor(20 * kMicrosecond);
    word.fetch_xor(flip);
  }

  uint64_t* words_;
  size_t word_count_;
  std::mutex mutex_;
  State state_ = State::kRest;
  std::thread thread_;
};

TEST_F(ContentTest, ARecordThatChangesWhileItIsPutIsWholeOrRefused) {
  ASSERT_TRUE(Start({}));
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const Chain chain(NanoManifest(), 3, 500);
  const uint32_t id = *client->OpenNamespace(chain.manifest());
  uint32_t stored = 0, refused = 0;
  {
    Scribbler scribbler(client->staging(0));
    for (uint32_t i = 0; i < chain.size(); ++i) {
      const Bytes slot = client->staging(0);
      chain.WriteRecord(i, slot);
      const ConstBytes record = slot;
      Outcome outcome = Outcome::kClosed;
      scribbler.Begin();
      const absl::Status status =
          client->Put(id, {&record, 1}, wire::Durability::kRelaxed, {&outcome, 1});
      scribbler.End();
      ASSERT_TRUE(status.ok()) << Message(status);
      if (outcome == Outcome::kOk) {
        ++stored;
        ASSERT_EQ(GetBlock(client.get(), chain, i), Outcome::kOk);  // Compares every byte.
      } else {
        ++refused;
        ASSERT_TRUE(outcome == Outcome::kCorrupt || outcome == Outcome::kHashMismatch ||
                    outcome == Outcome::kWrongNamespace || outcome == Outcome::kInvalid)
            << OutcomeName(outcome);
        ASSERT_EQ(GetBlock(client.get(), chain, i), Outcome::kNotFound);
      }
    }
  }
  std::printf("%u stored whole, %u refused\n", stored, refused);
  EXPECT_GT(refused, 0u) << "nothing was ever caught in the act: this test proves nothing";
  Stop();
  ASSERT_TRUE(Start({}));
  EXPECT_EQ(CountHeld(Connect().get(), chain), stored) << "and from SSD the same";
}

TEST_F(ContentTest, AWindowThatFailsItsChecksumIsNotStored) {
  ASSERT_TRUE(Start({}));
  const auto client = Connect();
  const Chain chain(NanoManifest(), 4, 2);
  const uint32_t id = *client->OpenNamespace(chain.manifest());
  const wire::WindowKey key{.prefix = chain.keys()[1], .position = 256};
  const std::vector<std::byte> snapshot = chain.Record(0);
  EXPECT_EQ(client->PutWindow(id, key, 1, snapshot).value(), Outcome::kOk);
  EXPECT_EQ(client->GetWindow(id, key)->bytes, snapshot);
  const uint32_t other = *client->OpenNamespace(WithAdapter("lora"));
  EXPECT_EQ(client->GetWindow(other, key).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace reprise::test
