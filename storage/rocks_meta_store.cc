#include "storage/rocks_meta_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <condition_variable>
#include <cstdarg>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"

namespace reprise::storage {
namespace {

constexpr char kRegionPrefix = 'r';
constexpr char kNamespacePrefix = 'n';
constexpr char kLedgerPrefix = 'l';
constexpr char kRowPrefix = 'x';

rocksdb::Slice AsSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view AsView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Big-endian, so that keys sort by number.
void AppendKeyNumber(std::string* key, uint32_t number) {
  for (const int shift : {24, 16, 8, 0}) key->push_back(static_cast<char>(number >> shift));
}
uint32_t KeyNumber(std::string_view key, size_t at) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(key[at + i]);
  return number;
}
std::string RegionKey(uint32_t shard, uint32_t region) {
  std::string key(1, kRegionPrefix);
  AppendKeyNumber(&key, shard);
  AppendKeyNumber(&key, region);
  return key;
}
constexpr size_t kRegionKeyBytes = 9;

std::string Number(uint64_t value) { return std::string(AsText(AsBytes(value))); }

absl::Status FromRocks(const rocksdb::Status& status, const std::string& what) {
  const std::string message = what + ": " + status.ToString();
  if (status.IsNoSpace()) return ResourceExhausted(message + "; free some space on that disk");
  return Unavailable(message + "; check that the directory is writable and not in use");
}

// The database itself is unusable, as opposed to its surroundings.
bool IsDamage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsInvalidArgument() || status.IsNotSupported() ||
         status.IsPathNotFound() || status.IsNotFound();
}

// RocksDB's own log file, left out: what matters comes back as a status, and a log on the disk that
// fails would stop the process (Debian's build asserts that nobody writes to a file whose last
// write failed).
class NoLog final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options SmallOptions(bool create) {
  rocksdb::Options options;
  options.info_log = std::make_shared<NoLog>();
  options.stats_dump_period_sec = 0;  // Nor the thread that writes to it.
  options.stats_persist_period_sec = 0;
  options.create_if_missing = create;
  options.error_if_exists = create;
  options.write_buffer_size = 8 << 20;
  options.max_write_buffer_number = 2;
  options.max_background_jobs = 2;
  options.max_open_files = 64;
  options.max_total_wal_size = 32 << 20;
  options.compression = rocksdb::kNoCompression;  // Rows are hashes and checksums.
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(8 << 20);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

absl::Status MoveAside(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path + ".damaged", error);
  if (!error) std::filesystem::rename(path, path + ".damaged", error);
  if (!error) return absl::OkStatus();
  return ErrnoStatus(error.value(), "moving the damaged database " + path + " aside");
}

}  // namespace

class RocksMetaStore::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {}
  ~Impl() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    thread_.join();
  }

  absl::Status Open() {
    std::error_code error;
    const bool there = std::filesystem::exists(options_.path, error) &&
                       !std::filesystem::is_empty(options_.path, error);
    rocksdb::Status status;
    if (there) {
      status = OpenDatabase(false);
      if (!status.ok() && !IsDamage(status)) {
        return FromRocks(status, "opening the database " + options_.path);
      }
      if (!status.ok()) {
        reason_ = options_.path + " was damaged (" + status.ToString() + ") and is now " +
                  options_.path + ".damaged; the index is rebuilt from the regions";
        RP_TRY(MoveAside(options_.path));
      }
    } else {
      reason_ = options_.path + " did not exist";
    }
    if (!reason_.empty()) {
      rebuilt_ = true;
      status = OpenDatabase(true);
      if (!status.ok()) return FromRocks(status, "creating the database " + options_.path);
    }
    LoadLedger();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  // `bytes` is what the write keeps in memory while it waits.
  void Queue(std::string key, std::string value, bool erase) {
    const uint64_t bytes = key.size() + value.size();
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= options_.queue_writes_max ||
          queue_bytes_ + bytes > options_.queue_bytes_max) {
        ++dropped_;
        return;
      }
      queue_.push_back({std::move(key), std::move(value), erase});
      queue_bytes_ += bytes;
      ++queued_;
    }
    work_.notify_one();
  }

  void AddLedger(const std::vector<std::pair<std::string, uint64_t>>& counters) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [name, value] : counters) {
        ledger_[name] += value;
        ledger_changed_[name] = ledger_[name];
      }
      ++queued_;
    }
    work_.notify_one();
  }

  std::vector<std::pair<std::string, uint64_t>> Ledger() {
    const std::lock_guard lock(mutex_);
    return {ledger_.begin(), ledger_.end()};
  }

  void Flush() {
    std::unique_lock lock(mutex_);
    const uint64_t wanted = queued_;
    if (synced_ >= wanted) return;
    sync_wanted_ = true;
    work_.notify_one();
    idle_.wait(lock, [&] { return synced_ >= wanted; });
  }

  // Calls `visit(key, value)` for each row with the prefix.
  template <typename Visit>
  void ForEach(const std::string& prefix, Visit visit) {
    const std::unique_ptr<rocksdb::Iterator> rows(database_->NewIterator({}));
    for (rows->Seek(AsSlice(prefix)); rows->Valid(); rows->Next()) {
      const std::string_view key = AsView(rows->key());
      if (!key.starts_with(prefix)) break;
      visit(key, AsView(rows->value()));
    }
    if (rows->status().ok()) return;
    const std::lock_guard lock(mutex_);
    reason_ += (reason_.empty() ? "" : "; ") + options_.path +
               " could not be read to the end: " + rows->status().ToString();
  }

  uint64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }
  bool rebuilt() const { return rebuilt_; }
  std::string reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  struct Write {
    std::string key;
    std::string value;
    bool erase;
  };

  rocksdb::Status OpenDatabase(bool create) {
    rocksdb::DB* database = nullptr;
    const rocksdb::Status status =
        rocksdb::DB::Open(SmallOptions(create), options_.path, &database);
    database_.reset(database);
    return status;
  }

  void LoadLedger() {
    ForEach(std::string(1, kLedgerPrefix), [&](std::string_view key, std::string_view value) {
      if (value.size() == sizeof(uint64_t)) {
        ledger_[std::string(key.substr(1))] = LoadLe<uint64_t>(value.data());
      }
    });
  }

  // The thread: everything that waits goes into one batch.
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] {
        return stop_ || sync_wanted_ || !queue_.empty() || !ledger_changed_.empty();
      });
      std::deque<Write> writes;
      std::map<std::string, uint64_t> ledger;
      std::swap(writes, queue_);
      std::swap(ledger, ledger_changed_);
      queue_bytes_ = 0;
      const uint64_t upto = queued_;
      const bool sync = sync_wanted_ || stop_;
      const bool last = stop_;
      lock.unlock();
      const bool written = WriteBatch(writes, ledger, sync);
      lock.lock();
      if (!written) dropped_ += writes.size() + ledger.size();
      if (sync) {
        synced_ = upto;
        sync_wanted_ = queued_ != upto && sync_wanted_;
        idle_.notify_all();
      }
      if (last && queue_.empty() && ledger_changed_.empty()) return;
    }
  }

  bool WriteBatch(const std::deque<Write>& writes, const std::map<std::string, uint64_t>& ledger,
                  bool sync) {
    rocksdb::WriteBatch batch;
    for (const Write& write : writes) {
      const rocksdb::Status status =
          write.erase ? batch.Delete(write.key) : batch.Put(write.key, write.value);
      if (!status.ok()) return false;
    }
    for (const auto& [name, value] : ledger) {
      if (!batch.Put(kLedgerPrefix + name, Number(value)).ok()) return false;
    }
    rocksdb::WriteOptions options;
    if (batch.Count() == 0) {
      // RocksDB asserts that nobody syncs a log whose last write failed.
      if (sync && !write_failed_) write_failed_ = !database_->SyncWAL().ok();
      return true;
    }
    options.sync = sync;
    write_failed_ = !database_->Write(options, &batch).ok();
    return !write_failed_;
  }

  Options options_;
  std::unique_ptr<rocksdb::DB> database_;
  bool rebuilt_ = false;
  bool write_failed_ = false;  // The last one. The thread's.

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::deque<Write> queue_;
  uint64_t queue_bytes_ = 0;
  std::map<std::string, uint64_t> ledger_;  // Totals.
  std::map<std::string, uint64_t> ledger_changed_;
  uint64_t queued_ = 0;  // Calls so far, and how many of them the last sync covered.
  uint64_t synced_ = 0;
  uint64_t dropped_ = 0;
  bool sync_wanted_ = false;
  bool stop_ = false;
  std::string reason_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<RocksMetaStore>> RocksMetaStore::Open(const Options& options) {
  auto impl = std::make_unique<Impl>(options);
  RP_TRY(impl->Open());
  return std::unique_ptr<RocksMetaStore>(new RocksMetaStore(std::move(impl)));
}

RocksMetaStore::RocksMetaStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RocksMetaStore::~RocksMetaStore() = default;

void RocksMetaStore::PutRegion(RegionRow row) {
  impl_->Queue(RegionKey(row.shard, row.region), Number(row.sequence) + row.entries, false);
}

void RocksMetaStore::DeleteRegion(uint32_t shard, uint32_t region) {
  impl_->Queue(RegionKey(shard, region), {}, true);
}

void RocksMetaStore::PutNamespace(NamespaceRow row) {
  impl_->Queue(kNamespacePrefix + std::string(AsText(row.name_space.bytes)),
               Number(row.quota_bytes) + row.manifest, false);
}

void RocksMetaStore::AddLedger(std::vector<std::pair<std::string, uint64_t>> counters) {
  impl_->AddLedger(counters);
}

void RocksMetaStore::PutRow(std::string key, std::string value) {
  impl_->Queue(kRowPrefix + key, std::move(value), false);
}

void RocksMetaStore::DeleteRow(std::string key) { impl_->Queue(kRowPrefix + key, {}, true); }

std::vector<std::pair<std::string, std::string>> RocksMetaStore::LoadRows(
    const std::string& prefix) {
  std::vector<std::pair<std::string, std::string>> rows;
  impl_->ForEach(kRowPrefix + prefix, [&](std::string_view key, std::string_view value) {
    rows.emplace_back(key.substr(1), value);
  });
  return rows;
}

absl::StatusOr<std::vector<RegionRow>> RocksMetaStore::LoadRegions(uint32_t shard) {
  std::string prefix(1, kRegionPrefix);
  AppendKeyNumber(&prefix, shard);
  std::vector<RegionRow> rows;
  impl_->ForEach(prefix, [&](std::string_view key, std::string_view value) {
    if (key.size() != kRegionKeyBytes || value.size() < sizeof(uint64_t)) return;
    rows.push_back({shard, KeyNumber(key, 5), LoadLe<uint64_t>(value.data()),
                    std::string(value.substr(sizeof(uint64_t)))});
  });
  return rows;
}

absl::StatusOr<std::vector<NamespaceRow>> RocksMetaStore::LoadNamespaces() {
  std::vector<NamespaceRow> rows;
  impl_->ForEach(std::string(1, kNamespacePrefix), [&](std::string_view key,
                                                       std::string_view value) {
    if (key.size() != 1 + sizeof(Hash256) || value.size() < sizeof(uint64_t)) return;
    rows.push_back({LoadLe<Hash256>(key.data() + 1), std::string(value.substr(sizeof(uint64_t))),
                    LoadLe<uint64_t>(value.data())});
  });
  return rows;
}

std::vector<std::pair<std::string, uint64_t>> RocksMetaStore::Ledger() { return impl_->Ledger(); }
void RocksMetaStore::Flush() { impl_->Flush(); }
uint64_t RocksMetaStore::dropped_writes() const { return impl_->dropped(); }
bool RocksMetaStore::rebuilt() const { return impl_->rebuilt(); }
std::string RocksMetaStore::rebuilt_reason() const { return impl_->reason(); }

}  // namespace reprise::storage
