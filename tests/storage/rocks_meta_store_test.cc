#include "storage/rocks_meta_store.h"

#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "tests/storage/temp_directory.h"

namespace reprise::storage {
namespace {

using Counters = std::vector<std::pair<std::string, uint64_t>>;

std::unique_ptr<RocksMetaStore> Open(const std::string& path, uint32_t writes = 65'536) {
  auto store = RocksMetaStore::Open({.path = path, .queue_writes_max = writes});
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

Hash256 Name(uint8_t byte) {
  Hash256 hash;
  hash.bytes.fill(std::byte{byte});
  return hash;
}

TEST(RocksMetaStore, KeepsRowsAcrossOpenings) {
  TempDirectory directory;
  {
    auto store = Open(directory / "meta");
    EXPECT_TRUE(store->rebuilt());
    store->PutRegion({.shard = 1, .region = 300, .sequence = 7, .entries = std::string("a\0b", 3)});
    store->PutRegion({.shard = 1, .region = 2, .sequence = 8, .entries = ""});
    store->PutRegion({.shard = 2, .region = 2, .sequence = 9, .entries = "other shard"});
    store->PutRegion({.shard = 1, .region = 3, .sequence = 9, .entries = "gone"});
    store->DeleteRegion(1, 3);
    store->PutNamespace({Name(1), "manifest", 1 << 30});
    store->PutNamespace({Name(1), "manifest 2", 5});
    store->AddLedger({{"hits", 3}, {"bytes", 10}});
    store->AddLedger({{"hits", 4}});
    EXPECT_EQ(store->Ledger(), (Counters{{"bytes", 10}, {"hits", 7}}));
    store->Flush();
    EXPECT_EQ(store->LoadRegions(1)->size(), 2u);
  }
  auto store = Open(directory / "meta");
  EXPECT_FALSE(store->rebuilt());
  const auto rows = *store->LoadRegions(1);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].region, 2u);
  EXPECT_EQ(rows[1].region, 300u);
  EXPECT_EQ(rows[1].sequence, 7u);
  EXPECT_EQ(rows[1].entries, std::string("a\0b", 3));
  const auto namespaces = *store->LoadNamespaces();
  ASSERT_EQ(namespaces.size(), 1u);
  EXPECT_EQ(namespaces[0].name_space, Name(1));
  EXPECT_EQ(namespaces[0].manifest, "manifest 2");
  EXPECT_EQ(namespaces[0].quota_bytes, 5u);
  store->AddLedger({{"hits", 1}});
  EXPECT_EQ(store->Ledger(), (Counters{{"bytes", 10}, {"hits", 8}}));
  EXPECT_EQ(store->dropped_writes(), 0u);
}

TEST(RocksMetaStore, KeepsRowsOfOthersByPrefix) {
  const TempDirectory directory;
  {
    auto store = *RocksMetaStore::Open({.path = directory.path() + "/meta"});
    store->PutRow("session/a/one", "1");
    store->PutRow("session/b/two", "2");
    store->PutRow("other/three", "3");
    store->PutRow("session/a/one", "1b");
    store->PutRow("session/c/gone", "x");
    store->DeleteRow("session/c/gone");
    store->Flush();
  }
  auto store = *RocksMetaStore::Open({.path = directory.path() + "/meta"});
  using Rows = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(store->LoadRows("session/"), (Rows{{"session/a/one", "1b"}, {"session/b/two", "2"}}));
  EXPECT_EQ(store->LoadRows("session/b"), (Rows{{"session/b/two", "2"}}));
  EXPECT_TRUE(store->LoadRows("none").empty());
}

TEST(RocksMetaStore, DamagedDatabaseIsMovedAsideAndMadeAnew) {
  const struct {
    const char* name;
    void (*damage)(const std::string& path);
  } cases[] = {
      {"CURRENT is garbage", [](const std::string& p) { std::ofstream(p + "/CURRENT") << "junk"; }},
      {"CURRENT is empty", [](const std::string& p) { std::ofstream(p + "/CURRENT") << ""; }},
      {"CURRENT is gone", [](const std::string& p) { std::filesystem::remove(p + "/CURRENT"); }},
      {"the manifest is gone",
       [](const std::string& p) {
         for (const auto& file : std::filesystem::directory_iterator(p)) {
           if (file.path().filename().string().starts_with("MANIFEST")) remove(file.path());
         }
       }},
  };
  for (const auto& c : cases) {
    TempDirectory directory;
    const std::string path = directory / "meta";
    Open(path)->PutRegion({.shard = 0, .region = 1, .sequence = 1});
    c.damage(path);
    {
      auto store = Open(path);
      ASSERT_NE(store, nullptr) << c.name;
      EXPECT_TRUE(store->rebuilt()) << c.name;
      EXPECT_THAT(store->rebuilt_reason(), testing::HasSubstr(path + ".damaged")) << c.name;
      EXPECT_TRUE(std::filesystem::exists(path + ".damaged")) << c.name;
      EXPECT_TRUE(store->LoadRegions(0)->empty()) << c.name;
      store->PutRegion({.shard = 0, .region = 5, .sequence = 1});
    }
    EXPECT_EQ(Open(path)->LoadRegions(0)->size(), 1u) << c.name;
  }
}

TEST(RocksMetaStore, SecondOwnerAndBadPlaceAreErrors) {
  TempDirectory directory;
  auto store = Open(directory / "meta");
  const auto second = RocksMetaStore::Open({.path = directory / "meta"});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(Message(second.status()), testing::HasSubstr("in use"));
  EXPECT_FALSE(std::filesystem::exists(directory / "meta.damaged"));
  EXPECT_FALSE(RocksMetaStore::Open({.path = directory / "no/where/meta"}).ok());
}

TEST(RocksMetaStore, FullQueueDropsAndCounts) {
  TempDirectory directory;
  auto store = *RocksMetaStore::Open({.path = directory / "meta", .queue_bytes_max = 1'000});
  store->PutRegion({.shard = 0, .region = 1, .sequence = 1, .entries = std::string(2'000, 'x')});
  EXPECT_EQ(store->dropped_writes(), 1u);
  store->Flush();
  EXPECT_TRUE(store->LoadRegions(0)->empty());
}

TEST(RocksMetaStore, ManyThreads) {
  TempDirectory directory;
  auto store = Open(directory / "meta");
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 200; ++i) {
        store->PutRegion({.shard = t, .region = i, .sequence = i, .entries = "entries"});
        store->AddLedger({{"count", 1}});
        if (i % 50 == 0) store->Flush();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  store->Flush();
  for (uint32_t t = 0; t < 4; ++t) EXPECT_EQ(store->LoadRegions(t)->size(), 200u);
  EXPECT_EQ(store->Ledger(), (Counters{{"count", 800}}));
}

}  // namespace
}  // namespace reprise::storage
