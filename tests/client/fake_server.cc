#include "tests/client/fake_server.h"

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "protocol/identity/manifest.h"
#include "protocol/record/record.h"

namespace reprise::test {
namespace {

constexpr uint64_t kFirstNamespaceId = 7;  // Not 0: a client must translate its own ids.

int MakeMemory(const char* name, uint64_t bytes, std::byte** out) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  RP_CHECK(fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  RP_CHECK(memory != MAP_FAILED);
  *out = static_cast<std::byte*>(memory);
  return fd;
}

template <typename T>
std::string BodyOf(const T& fixed) {
  std::string body;
  wire::Append(&body, fixed);
  return body;
}

}  // namespace

FakeServer::FakeServer() : FakeServer(Options()) {}

FakeServer::FakeServer(const Options& options) : options_(options) {
  char pattern[] = "/tmp/reprise-fake-XXXXXX";
  directory_ = mkdtemp(pattern);
  arena_bytes_ = uint64_t{options_.arena_slots} * (options_.record_bytes + sizeof(uint32_t));
  arena_fd_ = MakeMemory("arena", arena_bytes_, &arena_);
  for (uint32_t i = 0; i < options_.arena_slots; ++i) generation(i) = 100 + i;
  if (options_.tcp) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t address_bytes = sizeof(address);
    RP_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    RP_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &address_bytes) == 0);
    address_ = "tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  } else {
    listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/socket";
    std::memcpy(address.sun_path, path.data(), path.size());
    RP_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    address_ = "unix:" + path;
  }
  RP_CHECK(listen(listener_, 16) == 0);
  thread_ = std::thread([this] { Serve(); });
}

FakeServer::~FakeServer() {
  stop_ = true;
  shutdown(listener_, SHUT_RDWR);
  if (const int fd = connection_.load(); fd >= 0) shutdown(fd, SHUT_RDWR);
  thread_.join();
  close(listener_);
  munmap(arena_, arena_bytes_);
  close(arena_fd_);
  std::filesystem::remove_all(directory_);
}

size_t FakeServer::stored() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

void FakeServer::BumpGeneration(const BlockKey& key) {
  const std::lock_guard lock(mutex_);
  generation(blocks_.at(key)).fetch_add(1, std::memory_order_release);
}

void FakeServer::Serve() {
  while (!stop_) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    connection_ = fd;
    if (!stop_) ServeConnection();
    connection_ = -1;
    close(fd);
    if (staging_ != nullptr) {
      munmap(staging_, uint64_t{staging_slots_} * options_.record_bytes);
      close(staging_fd_);
      staging_ = nullptr;
      staging_slots_ = 0;
    }
    namespaces_.clear();
  }
}

void FakeServer::ServeConnection() {
  Request request;
  while (ReadRequest(&request) && Handle(request)) {
  }
}

bool FakeServer::Handle(const Request& request) {
  ++requests;
  last_deadline_ms = request.header.deadline_ms;
  if (faults_.refuse && faults_.opcode == request.header.opcode) return Refuse();
  if (faults_.outcome != 0 && faults_.opcode == request.header.opcode) {
    return Reply(request, static_cast<Outcome>(faults_.outcome.load()), "");
  }
  switch (static_cast<wire::Opcode>(request.header.opcode)) {
    case wire::Opcode::kHello:
      return OnHello(request);
    case wire::Opcode::kOpenNamespace:
      return OnOpenNamespace(request);
    case wire::Opcode::kLookup:
      return OnLookup(request);
    case wire::Opcode::kAcquire:
      return OnAcquire(request);
    case wire::Opcode::kSlotAcquire:
      return OnSlotAcquire(request);
    case wire::Opcode::kGet:
      return OnGet(request);
    case wire::Opcode::kPut:
      return OnPut(request);
    case wire::Opcode::kWindowPut:
      return OnWindowPut(request);
    case wire::Opcode::kWindowAcquire:
      return OnWindow(request, false);
    case wire::Opcode::kWindowGet:
      return OnWindow(request, true);
    case wire::Opcode::kControl:
      return OnControl(request);
    case wire::Opcode::kRelease: {
      wire::ReleaseView view;
      RP_CHECK(wire::Decode(AsBytes(request.body), &view));
      RP_CHECK(request.header.request_id == 0);
      ++release_frames;
      released_leases += view.fixed.lease_count;
      return true;
    }
    default:
      return false;  // Decoders of the client's own tests never send anything else.
  }
}

bool FakeServer::OnHello(const Request& request) {
  wire::HelloRequest hello;
  RP_CHECK(hello.ParseFromString(request.body));
  wire::HelloReply reply;
  reply.set_protocol_version(wire::kProtocolVersion);
  reply.set_server_version("0.0-fake");
  reply.set_store_uuid(kStoreUuid, 16);
  reply.set_record_bytes(options_.record_bytes);
  reply.set_payload_bytes_max(options_.record_bytes - kRecordTailBytes);
  reply.set_model(options_.model);
  reply.set_shards(1);
  const bool local = options_.local_memory && hello.local_memory();
  if (!local) return Reply(request, Outcome::kOk, reply.SerializeAsString());
  staging_slots_ = std::max<uint32_t>(hello.staging_slots(), 1);
  staging_fd_ = MakeMemory("staging", uint64_t{staging_slots_} * options_.record_bytes, &staging_);
  reply.set_local_memory(true);
  reply.set_arena_bytes(arena_bytes_ + (options_.arena_too_small ? kPageBytes : 0));
  reply.set_arena_slots(options_.arena_slots);
  reply.set_generations_offset(uint64_t{options_.arena_slots} * options_.record_bytes);
  reply.set_staging_slots(staging_slots_);
  return Reply(request, Outcome::kOk, reply.SerializeAsString(), {}, false,
               {arena_fd_, staging_fd_});
}

bool FakeServer::OnOpenNamespace(const Request& request) {
  wire::OpenNamespaceRequest open;
  RP_CHECK(open.ParseFromString(request.body));
  wire::OpenNamespaceReply reply;
  const auto manifest = DecodeManifest(open.manifest());
  if (!manifest.ok()) {
    reply.set_error(Message(manifest.status()));
    return Reply(request, Outcome::kInvalid, reply.SerializeAsString());
  }
  if (RecordBytesFor(manifest->payload_bytes) != options_.record_bytes) {
    reply.set_error("this store keeps other records; start a daemon for this model");
    return Reply(request, Outcome::kRejected, reply.SerializeAsString());
  }
  const Hash256 hash = NamespaceOf(*manifest);
  reply.set_namespace_id(static_cast<uint32_t>(kFirstNamespaceId + namespaces_.size()));
  reply.set_name_space(hash.bytes.data(), hash.bytes.size());
  namespaces_.push_back(hash);
  return Reply(request, Outcome::kOk, reply.SerializeAsString());
}

bool FakeServer::OnLookup(const Request& request) {
  wire::LookupView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  if (view.fixed.namespace_id < kFirstNamespaceId) return Reply(request, Outcome::kInvalid, "");
  wire::LookupReply reply;
  std::string tiers;
  for (uint32_t i = 0; i < view.fixed.key_count; ++i) {
    const std::lock_guard lock(mutex_);
    if (!blocks_.contains(wire::At<BlockKey>(view.keys, i))) break;
    ++reply.hit_blocks;
    tiers.push_back(static_cast<char>(Tier::kDram));
  }
  reply.hit_tokens = uint64_t{reply.hit_blocks} * kBlockTokens;
  if (reply.hit_blocks < view.fixed.key_count) reply.stop_reason = wire::StopReason::kNotStored;
  for (uint32_t i = 0; i < view.fixed.window_count; ++i) {
    const auto window = wire::At<wire::WindowKey>(view.windows, i);
    const auto found = snapshots_.find({window.prefix, window.position});
    if (found == snapshots_.end() || window.position / kBlockTokens != reply.hit_blocks) continue;
    reply.hit_tokens = window.position;
    reply.window_state = wire::WindowState::kExact;
    reply.window_index = i;
    reply.window_bytes = found->second.bytes;
  }
  return Reply(request, Outcome::kOk, BodyOf(reply) + tiers);
}

bool FakeServer::OnAcquire(const Request& request) {
  wire::KeysView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  std::vector<wire::SlotRef> slots;
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < view.fixed.key_count; ++i) {
    const auto found = blocks_.find(wire::At<BlockKey>(view.keys, i));
    if (found == blocks_.end()) break;
    slots.push_back({.slot = found->second, .generation = generation(found->second)});
  }
  if (const int i = faults_.swap_record; i >= 0 && static_cast<size_t>(i) < slots.size()) {
    slots[static_cast<size_t>(i)] = {.slot = 0, .generation = generation(0)};
  }
  if (faults_.stale_generation && !slots.empty()) ++slots.back().generation;
  const wire::AcquireReply reply{.lease_id = slots.empty() ? 0 : next_lease_++,
                                 .slot_count = static_cast<uint32_t>(slots.size()),
                                 .from_ssd = slots.empty() ? 0u : 1u};
  std::string body = BodyOf(reply);
  wire::AppendArray<wire::SlotRef>(&body, slots);
  return Reply(request, slots.size() < view.fixed.key_count ? Outcome::kNotFound : Outcome::kOk,
               body);
}

// Its HBM is as its arena: block i of it in slot i, generation 5; every second one in HBM already.
bool FakeServer::OnSlotAcquire(const Request& request) {
  wire::SlotAcquireView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  std::vector<wire::HbmSlot> slots;
  const std::lock_guard lock(mutex_);
  wire::SlotAcquireReply reply;
  for (uint32_t i = 0; i < view.fixed.key_count; ++i) {
    const auto found = blocks_.find(wire::At<BlockKey>(view.keys, i));
    if (found == blocks_.end() || (view.fixed.held_only != 0 && i % 2 == 1)) break;
    slots.push_back({.slot = found->second, .generation = 5, .flags = i == 1 ? 1u : 0u});
    reply.from_dram += i % 2;
  }
  if (faults_.slot_outside && !slots.empty()) slots.back().slot = options_.hbm_slots;
  reply.slot_count = static_cast<uint32_t>(slots.size());
  if (!slots.empty()) reply.lease_id = next_lease_++;
  std::string body = BodyOf(reply);
  wire::AppendArray<wire::HbmSlot>(&body, slots);
  return Reply(request, slots.size() < view.fixed.key_count ? Outcome::kNotFound : Outcome::kOk,
               body);
}

bool FakeServer::OnGet(const Request& request) {
  wire::KeysView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  const std::lock_guard lock(mutex_);
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < view.fixed.key_count; ++i) {
    const auto it = blocks_.find(wire::At<BlockKey>(view.keys, i));
    if (it == blocks_.end()) break;
    found.push_back(it->second);
  }
  uint32_t first = 0;
  while (true) {
    const auto count = std::min<uint32_t>(options_.get_records_per_frame,
                                          static_cast<uint32_t>(found.size()) - first);
    std::string data;
    for (uint32_t i = first; i < first + count; ++i) {
      const size_t at = data.size();
      const bool swap = faults_.swap_record == static_cast<int>(i);
      data += AsText(slot(swap ? found[0] : found[i]));
      if (faults_.damage_record == static_cast<int>(i)) data[at + 11] ^= 1;
    }
    const wire::GetReply reply{.first_index = first, .record_count = count, .from_ssd = count};
    first += count;
    const bool more = first < found.size();
    const bool all = found.size() == view.fixed.key_count;
    const Outcome outcome = more || all ? Outcome::kOk : Outcome::kNotFound;
    if (!Reply(request, outcome, BodyOf(reply), AsBytes(data), more)) return false;
    if (!more) return true;
  }
}

Outcome FakeServer::Store(ConstBytes record) {
  const RecordHeader header = LoadRecordHeader(record);
  const BlockKey key = KeyOf(header.block_hash);
  if (const Outcome outcome = VerifyRecord(record, key); outcome != Outcome::kOk) return outcome;
  const std::lock_guard lock(mutex_);
  if (blocks_.contains(key)) return Outcome::kExists;
  if (next_slot_ == options_.arena_slots) return Outcome::kBusy;
  std::memcpy(slot(next_slot_).data(), record.data(), record.size());
  blocks_[key] = next_slot_++;
  return Outcome::kOk;
}

bool FakeServer::OnPut(const Request& request) {
  wire::PutView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  ++put_frames;
  if (view.fixed.durability == wire::Durability::kDurable) ++durable_puts;
  std::string body = BodyOf(wire::PutReply{.record_count = view.fixed.record_count});
  for (uint32_t i = 0; i < view.fixed.record_count; ++i) {
    ConstBytes record;
    if (view.fixed.inline_data != 0) {
      ++inline_records;
      record = ConstBytes(request.data).subspan(i * options_.record_bytes, options_.record_bytes);
    } else {
      ++staged_records;
      const auto staged = wire::At<uint32_t>(view.staging_slots, i);
      RP_CHECK(staged < staging_slots_);
      record = {staging_ + uint64_t{staged} * options_.record_bytes, options_.record_bytes};
    }
    body.push_back(static_cast<char>(Store(record)));
  }
  return Reply(request, Outcome::kOk, body);
}

bool FakeServer::OnWindowPut(const Request& request) {
  wire::WindowPutView view;
  RP_CHECK(wire::Decode(AsBytes(request.body), &view));
  std::string snapshot;
  if (view.fixed.inline_data != 0) {
    snapshot = AsText(ConstBytes(request.data));
  } else {
    for (size_t i = 0; i < view.staging_slots.size() / sizeof(uint32_t); ++i) {
      const auto staged = wire::At<uint32_t>(view.staging_slots, i);
      RP_CHECK(staged < staging_slots_);
      snapshot +=
          AsText({staging_ + uint64_t{staged} * options_.record_bytes, options_.record_bytes});
    }
    RP_CHECK(snapshot.size() >= view.fixed.snapshot_bytes);
    snapshot.resize(view.fixed.snapshot_bytes);
  }
  if (Crc32c(AsBytes(snapshot)) != view.fixed.snapshot_crc) {
    return Reply(request, Outcome::kCorrupt, "");
  }
  const auto slots = static_cast<uint32_t>(DivideUp(snapshot.size(), options_.record_bytes));
  if (next_slot_ + slots > options_.arena_slots) return Reply(request, Outcome::kBusy, "");
  std::memcpy(slot(next_slot_).data(), snapshot.data(), snapshot.size());
  const wire::WindowKey& key = view.fixed.window;
  snapshots_[{key.prefix, key.position}] = {next_slot_, view.fixed.snapshot_bytes,
                                            view.fixed.snapshot_crc};
  next_slot_ += slots;
  return Reply(request, Outcome::kOk, "");
}

bool FakeServer::OnWindow(const Request& request, bool get) {
  wire::WindowRequest window;
  RP_CHECK(wire::Decode(AsBytes(request.body), &window));
  const auto found = snapshots_.find({window.window.prefix, window.window.position});
  if (found == snapshots_.end()) return Reply(request, Outcome::kNotFound, "");
  const Snapshot& snapshot = found->second;
  wire::WindowReply reply{.snapshot_bytes = snapshot.bytes, .snapshot_crc = snapshot.crc};
  if (faults_.damage_snapshot) reply.snapshot_crc ^= 1;
  if (get) {
    return Reply(request, Outcome::kOk, BodyOf(reply),
                 ConstBytes(slot(snapshot.first_slot).data(), snapshot.bytes));
  }
  reply.lease_id = next_lease_++;
  reply.slot_count = static_cast<uint32_t>(DivideUp(snapshot.bytes, options_.record_bytes));
  std::string body = BodyOf(reply);
  for (uint32_t i = 0; i < reply.slot_count; ++i) {
    const uint32_t index = snapshot.first_slot + i;
    const uint32_t stale = faults_.stale_generation ? 1 : 0;
    wire::Append(&body, wire::SlotRef{.slot = index, .generation = generation(index) + stale});
  }
  return Reply(request, Outcome::kOk, body);
}

bool FakeServer::OnControl(const Request& request) {
  wire::ControlRequest control;
  RP_CHECK(control.ParseFromString(request.body));
  wire::ControlReply reply;
  FillControl(control, &reply);
  return Reply(request, reply.error().empty() ? Outcome::kOk : Outcome::kUnsupported,
               reply.SerializeAsString());
}

void FakeServer::FillControl(const wire::ControlRequest& request, wire::ControlReply* reply) {
  const std::lock_guard lock(mutex_);
  if (request.has_status()) {
    reply->mutable_status()->set_json(
        R"({"version":"0.0-fake","uptime_seconds":12,"tiers":{"dram":{"used_bytes":)" +
        std::to_string(blocks_.size() * options_.record_bytes) +
        R"(,"budget_bytes":1048576,"blocks":)" + std::to_string(blocks_.size()) + "}}}");
  } else if (request.has_slot_pool() && options_.hbm_slots == 0) {
    reply->set_error("the fake lends no slots");
  } else if (request.has_slot_pool()) {
    wire::SlotPoolReply* pool = reply->mutable_slot_pool();
    pool->set_handle_kind(wire::SLOT_HANDLE_CUDA_IPC);
    pool->set_slots(options_.hbm_slots);
    pool->set_slot_bytes(options_.payload_bytes);
    pool->set_stride_bytes(options_.payload_bytes + 256);
    pool->set_record_layout(1);
    pool->set_leased_slots_max(options_.hbm_slots / 2);
    wire::SlotPoolDevice* device = pool->add_devices();
    device->set_uuid(std::string(16, 'u'));
    device->set_pci_bus_id("0000:1b:00.0");
    device->set_handle(std::string(64, 'h'));
  } else if (request.has_explain()) {
    wire::ExplainReply* explain = reply->mutable_explain();
    explain->set_tokens(request.explain().token_count());
    explain->set_asked_blocks(static_cast<uint32_t>(request.explain().keys_size()));
    explain->set_reason("never_stored");
    explain->set_detail("Block 0 was never stored here.");
    explain->set_window("none");
  } else if (request.has_evict()) {
    uint64_t evicted = 0;
    if (request.evict().whole_namespace()) {
      evicted = blocks_.size();
      blocks_.clear();
    }
    for (const std::string& key : request.evict().keys()) {
      evicted += blocks_.erase(LoadLe<BlockKey>(key.data()));
    }
    reply->mutable_evict()->set_evicted_blocks(evicted);
  } else if (request.has_verify()) {
    wire::VerifyReply* verify = reply->mutable_verify();
    for (const auto& [key, index] : blocks_) {
      verify->set_checked_blocks(verify->checked_blocks() + 1);
      if (VerifyRecord(slot(index), key) == Outcome::kOk) continue;
      verify->set_failed_blocks(verify->failed_blocks() + 1);
      verify->add_failed(ToHex(key));
    }
    if (faults_.damage_record >= 0) {
      verify->set_failed_blocks(1);
      verify->add_failed("00");
    }
  }
}

}  // namespace reprise::test
