#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/reactor/ring.h"
#include "storage/device.h"

namespace reprise::storage {

// A Device on one file, through a Ring, with O_DIRECT where the file system takes it.
//
// Opened on any thread, then attached to the ring of the shard that uses it; from there on confined
// to that shard's thread. The file's whole space is reserved at opening, so a full disk is an error
// at start and not of some later write.
class FileDevice final : public Device {
 public:
  struct Options {
    std::string path;
    uint64_t size_bytes = 0;  // A multiple of 4 KiB. The file is created, extended or cut to it.
    bool direct = true;       // O_DIRECT, if the file system takes it.
  };

  // Blocks. A full disk is named with the sizes asked, free and already held.
  static absl::StatusOr<std::unique_ptr<FileDevice>> Open(const Options& options);
  ~FileDevice() override;  // REQUIRES: nothing in flight.
  FileDevice(const FileDevice&) = delete;
  FileDevice& operator=(const FileDevice&) = delete;

  // `file_index` is where fd() is registered with `ring`. Before the first Submit.
  void Attach(Ring* ring, int file_index);
  int fd() const { return fd_; }

  void Submit(DeviceOp* op) override;
  uint64_t size_bytes() const override { return size_bytes_; }

  bool direct() const { return direct_; }
  // Why the page cache is in the way, or the space could not be reserved; empty when all is well.
  // For the start-up log.
  const std::string& remark() const { return remark_; }
  uint32_t in_flight() const { return in_flight_; }

  // How the file system erases; found out by the first erase.
  enum class EraseBy : uint8_t { kZeroRange, kPunchHole, kWriteZeros };
  EraseBy erase_by() const { return erase_by_; }
  void set_erase_by(EraseBy erase_by) { erase_by_ = erase_by; }  // For tests.

 private:
  // The ring's view of a DeviceOp: one or more transfers until it is whole.
  struct Transfer : Completion {
    FileDevice* device = nullptr;
    DeviceOp* op = nullptr;
    uint64_t moved_bytes = 0;
    EraseBy erased_by = EraseBy::kZeroRange;  // How the erase in flight was asked for.
  };

  FileDevice() = default;

  absl::Status OpenFile(const Options& options);
  absl::Status SetSize(const Options& options);
  void Continue(Transfer* transfer);
  void ContinueErase(Transfer* transfer);
  void OnDone(Transfer* transfer, int32_t result);
  // True when the operation ended with `*result`, false when it was submitted again.
  bool Ended(Transfer* transfer, int32_t* result);
  bool EraseEnded(Transfer* transfer, int32_t* result);
  Transfer* TakeTransfer();

  int fd_ = -1;
  uint64_t size_bytes_ = 0;
  bool direct_ = false;
  std::string remark_;
  Ring* ring_ = nullptr;
  int file_index_ = -1;
  EraseBy erase_by_ = EraseBy::kZeroRange;
  uint32_t in_flight_ = 0;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  FifoList<Transfer> free_transfers_;
};

}  // namespace reprise::storage
