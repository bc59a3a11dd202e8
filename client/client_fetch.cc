// Records that the daemon's device writes straight into this process's memory (RDMA).
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/client_impl.h"
#include "protocol/record/record.h"

namespace reprise {
namespace {

// Keys in one request of Acquire: what it needs of registered memory at a time.
constexpr size_t kKeysPerFetch = 512;

std::string FetchBody(uint32_t daemon_id, std::span<const BlockKey> keys,
                      const wire::Landing& landing) {
  std::string body;
  body.reserve(sizeof(wire::FetchRequest) + keys.size_bytes());
  wire::Append(&body, wire::FetchRequest{.namespace_id = daemon_id,
                                         .key_count = static_cast<uint32_t>(keys.size()),
                                         .landing = landing});
  wire::AppendArray<BlockKey>(&body, keys);
  return body;
}

}  // namespace

absl::StatusOr<Landed> Client::Impl::FetchOnce(const OpenedNamespace& name_space,
                                               std::span<const BlockKey> keys,
                                               const wire::Landing& landing, const Check& check,
                                               Instant deadline) {
  RP_TRY(channel.Send(wire::Opcode::kFetch, FetchBody(name_space.daemon_id, keys, landing), {},
                      deadline));
  Landed landed;
  uint32_t arrived = 0;
  for (bool more = true; more;) {
    RP_ASSIGN(const Reply reply, channel.Receive(sizeof(wire::GetReply), deadline));
    more = reply.more();
    if (!EndsRun(reply.outcome()) && !more) return StatusOf(reply.outcome(), "fetch");
    if (!more && landed.stopped_by == Outcome::kOk) landed.stopped_by = reply.outcome();
    if (reply.body.empty() && reply.outcome() != Outcome::kOk) break;
    wire::GetReply part;
    if (!wire::Decode(reply.body, &part) || part.first_index != arrived ||
        part.record_count > keys.size() - arrived || reply.header.data_bytes != 0) {
      return channel.Break(DataLoss("fetch: a reply makes no sense; connect again"));
    }
    if (part.record_count == 0) continue;
    if (!rdma()->Landed(static_cast<uint32_t>(channel.request_id()))) {
      return channel.Break(DataLoss("fetch: a reply came before its records; connect again"));
    }
    landed.from_ssd += part.from_ssd;
    for (uint32_t i = 0; i < part.record_count; ++i, ++arrived) {
      if (landed.records != arrived) continue;  // The run ended before.
      if (check(arrived)) {
        ++landed.records;
      } else {
        landed.stopped_by = Outcome::kCorrupt;
      }
    }
  }
  return landed;
}

absl::StatusOr<Landed> Client::Impl::FetchInto(const OpenedNamespace& name_space,
                                               std::span<const BlockKey> keys, Bytes whole,
                                               Bytes part, const Check& check, Instant deadline) {
  RP_TRY(rdma()->Register(whole));
  const absl::StatusOr<wire::Landing> landing = rdma()->OpenLanding(whole, part, deadline);
  if (!landing.ok()) return channel.Break(landing.status());
  return CloseLanding(FetchOnce(name_space, keys, *landing, check, deadline), deadline);
}

absl::StatusOr<Lease> Client::Impl::AcquireByRdma(Client* client, const OpenedNamespace& name_space,
                                                  std::span<const BlockKey> keys) {
  const Instant deadline = Deadline();
  const uint64_t record_bytes = hello.record_bytes();
  Lease lease;
  lease.client_ = client;
  while (!keys.empty() && lease.stopped_by_ == Outcome::kOk) {
    const auto chunk = keys.first(std::min(keys.size(), kKeysPerFetch));
    keys = keys.subspan(chunk.size());
    const uint64_t bytes = chunk.size() * record_bytes;
    const Bytes buffer = buffers.Take(bytes);
    if (buffer.empty()) return ResourceExhausted("get: no memory for the records; ask for fewer");
    lease.buffers_.push_back(buffer);
    const auto check = [&](uint32_t i) {
      const ConstBytes record = buffer.subspan(i * record_bytes, record_bytes);
      if (!IsTheBlock(record, chunk[i], name_space.hash) ||
          VerifyRecord(record, chunk[i]) != Outcome::kOk) {
        return false;
      }
      lease.records_.push_back(record);
      return true;
    };
    RP_ASSIGN(const Landed landed,
              FetchInto(name_space, chunk, buffer, buffer.first(bytes), check, deadline));
    lease.from_ssd_ += landed.from_ssd;
    lease.stopped_by_ = landed.stopped_by;
    if (landed.records < chunk.size()) break;
  }
  return lease;
}

// ---- Into the caller's memory ------------------------------------------------------------------

LandingZone::~LandingZone() {
  if (!host_.empty() && client_->impl_->rdma() != nullptr) client_->impl_->rdma()->Forget(host_);
}

absl::StatusOr<std::unique_ptr<LandingZone>> Client::RegisterLanding(Bytes memory) {
  if (memory.empty()) return InvalidArgument("a landing zone of no bytes");
  std::unique_ptr<LandingZone> zone(new LandingZone);
  zone->client_ = this;
  zone->host_ = memory;
  zone->bytes_ = memory.size();
  if (impl_->rdma() != nullptr) RP_TRY(impl_->rdma()->Register(memory));
  return zone;
}

absl::StatusOr<std::unique_ptr<LandingZone>> Client::RegisterDeviceLanding(int fd, uint64_t offset,
                                                                           uint64_t bytes) {
  if (impl_->rdma() == nullptr) {
    return FailedPrecondition("records reach device memory by RDMA alone; this connection is " +
                              transport());
  }
  std::unique_ptr<LandingZone> zone(new LandingZone);
  zone->client_ = this;
  zone->bytes_ = bytes;
  RP_ASSIGN(zone->device_, impl_->rdma()->RegisterDmabuf(fd, offset, bytes, zone->address_));
  return zone;
}

absl::StatusOr<Landed> Client::Fetch(uint32_t namespace_id, std::span<const BlockKey> keys,
                                     LandingZone* zone, uint64_t offset) {
  RP_ASSIGN(const auto* name_space, impl_->Find(namespace_id));
  RP_TRY(CheckKeyCount(keys.size(), "fetch"));
  const uint64_t needed = keys.size() * uint64_t{record_bytes()};
  if (offset > zone->bytes() || needed > zone->bytes() - offset) {
    return InvalidArgument("fetch: " + std::to_string(needed) + " bytes at " +
                           std::to_string(offset) + " do not fit a landing zone of " +
                           std::to_string(zone->bytes()));
  }
  const bool host = !zone->host_.empty();
  const Bytes memory = host ? zone->host_.subspan(offset, needed) : Bytes();
  if (impl_->rdma() == nullptr) {
    if (!host) return Unavailable("fetch: the connection to the device memory was closed");
    RP_ASSIGN(const Lease lease, Acquire(namespace_id, keys));
    Landed landed{.from_ssd = lease.from_ssd(), .stopped_by = lease.stopped_by()};
    for (; landed.records < lease.size(); ++landed.records) {
      const uint32_t i = landed.records;
      landed.stopped_by =
          lease.CopyTo(i, memory.subspan(i * uint64_t{record_bytes()}, record_bytes()));
      if (landed.stopped_by != Outcome::kOk) return landed;
    }
    landed.stopped_by = lease.stopped_by();
    return landed;
  }
  const Instant deadline = impl_->Deadline();
  if (!host) {
    return impl_->FetchOnce(
        *name_space, keys,
        {.address = zone->address_ + offset, .bytes = needed, .key = zone->device_->remote_key()},
        [](uint32_t) { return true; }, deadline);
  }
  Landed all;
  while (all.records < keys.size() && all.stopped_by == Outcome::kOk) {
    const auto chunk = keys.subspan(
        all.records,
        std::min<size_t>(keys.size() - all.records, rdma::kWindowBytesMax / record_bytes()));
    const Bytes part = memory.subspan(all.records * uint64_t{record_bytes()},
                                      chunk.size() * uint64_t{record_bytes()});
    const auto check = [&](uint32_t i) {
      const ConstBytes record = part.subspan(i * uint64_t{record_bytes()}, record_bytes());
      return IsTheBlock(record, chunk[i], name_space->hash) &&
             VerifyRecord(record, chunk[i]) == Outcome::kOk;
    };
    RP_ASSIGN(const Landed landed,
              impl_->FetchInto(*name_space, chunk, zone->host_, part, check, deadline));
    all.records += landed.records;
    all.from_ssd += landed.from_ssd;
    all.stopped_by = landed.stopped_by;
    if (landed.records < chunk.size()) break;
  }
  return all;
}

}  // namespace reprise
