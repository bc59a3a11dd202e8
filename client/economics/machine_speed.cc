#include "client/economics/machine_speed.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "protocol/base/prng.h"
#include "protocol/reactor/ring.h"
#include "protocol/record/record_layout.h"
#include "storage/file_device.h"
#include "storage/page_buffer.h"

namespace reprise {
namespace {

constexpr uint32_t kDepth = 32;
constexpr uint64_t kRecordSize = kV41RecordBytes;

// Transfers of whole records, `kDepth` in flight, until the time is over or an error.
class DiskRun {
 public:
  DiskRun(storage::FileDevice* device, Ring* ring, storage::DeviceOp::Kind kind)
      : device_(*device), ring_(*ring), records_(device->size_bytes() / kRecordSize) {
    for (Op& op : ops_) {
      op.run = this;
      op.kind = kind;
      op.buffer = storage::PageBuffer(kRecordSize);
      for (std::byte& byte : op.buffer.bytes()) byte = static_cast<std::byte>(prng_.Next());
      op.bytes = op.buffer.bytes();
      op.done = [](Completion* self, int32_t result) {
        auto* done = static_cast<Op*>(self);
        done->run->OnDone(done, result);
      };
    }
  }

  absl::StatusOr<double> BytesPerSecond(Nanos duration_ns, const Clock& clock) {
    const Instant begin = clock.Now();
    until_ = begin + duration_ns;
    clock_ = &clock;
    for (Op& op : ops_) Submit(&op);
    while (in_flight_ > 0) RP_TRY(ring_.RunOnce(kSecond).status());
    if (error_ != 0) return ErrnoStatus(-error_, "the disk");
    return static_cast<double>(moved_) / (static_cast<double>(clock.Now() - begin) / kSecond);
  }

 private:
  struct Op : storage::DeviceOp {
    DiskRun* run = nullptr;
    storage::PageBuffer buffer;
  };

  void Submit(Op* op) {
    const bool read = op->kind == storage::DeviceOp::Kind::kRead;
    op->offset = (read ? prng_.Below(records_) : next_++ % records_) * kRecordSize;
    ++in_flight_;
    device_.Submit(op);
  }
  void OnDone(Op* op, int32_t result) {
    --in_flight_;
    if (result < 0) {
      error_ = result;
      return;
    }
    moved_ += kRecordSize;
    // All of the file is written once at least: holes would be read from memory.
    const bool fresh = op->kind == storage::DeviceOp::Kind::kWrite && next_ < records_;
    if (error_ == 0 && (fresh || clock_->Now() < until_)) Submit(op);
  }

  storage::FileDevice& device_;
  Ring& ring_;
  uint64_t records_;
  Prng prng_{1};
  std::array<Op, kDepth> ops_;
  const Clock* clock_ = nullptr;
  Instant until_ = 0;
  uint64_t next_ = 0, moved_ = 0;
  uint32_t in_flight_ = 0;
  int32_t error_ = 0;
};

struct RemovedFile {
  std::string path;
  ~RemovedFile() { ::unlink(path.c_str()); }
};

}  // namespace

absl::StatusOr<DiskSpeed> MeasureDisk(const std::string& folder, uint64_t bytes, Nanos duration_ns,
                                      const Clock& clock) {
  const RemovedFile file{folder + "/reprise-calibrate." + std::to_string(::getpid())};
  RP_ASSIGN(const auto device, storage::FileDevice::Open({.path = file.path, .size_bytes = bytes}));
  Ring ring;
  RP_TRY(ring.Open(2 * kDepth));
  const int fd = device->fd();
  RP_TRY(ring.RegisterFiles({&fd, 1}));
  device->Attach(&ring, 0);
  DiskSpeed speed{.direct = device->direct()};
  using Kind = storage::DeviceOp::Kind;
  RP_ASSIGN(speed.write_bytes_per_second,
            DiskRun(device.get(), &ring, Kind::kWrite).BytesPerSecond(duration_ns, clock));
  RP_ASSIGN(speed.read_bytes_per_second,
            DiskRun(device.get(), &ring, Kind::kRead).BytesPerSecond(duration_ns, clock));
  return speed;
}

double MeasureCopyBytesPerSecond(Nanos duration_ns, const Clock& clock) {
  constexpr uint64_t kRecords = 4096;  // 470 MB: no cache holds it.
  std::vector<std::byte> from(kRecords * kRecordSize, std::byte{1}), to(64 * kRecordSize);
  Prng prng(1);
  const Instant begin = clock.Now();
  uint64_t copied = 0;
  do {
    for (uint32_t i = 0; i < 64; ++i) {
      std::memcpy(to.data() + i * kRecordSize, from.data() + prng.Below(kRecords) * kRecordSize,
                  kRecordSize);
      copied += kRecordSize;
    }
  } while (clock.Now() < begin + duration_ns);
  return static_cast<double>(copied) / (static_cast<double>(clock.Now() - begin) / kSecond);
}

}  // namespace reprise
