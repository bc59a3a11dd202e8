#pragma once

#include <cstdint>
#include <string>

#include "tests/integration/program.h"

namespace reprise::test {

// A small file system of a test's own, that can be filled and can fail: a loop device over an
// image, mounted in a mount namespace that ends with the test's process.
class SmallDisk {
 public:
  // `directory`: for the image; `mount_point`: made where it is missing.
  SmallDisk(std::string directory, std::string mount_point)
      : directory_(std::move(directory)), mount_point_(std::move(mount_point)) {}
  ~SmallDisk() { Unmount(); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // False where this process may not: it needs root.
  [[nodiscard]] bool EnterNamespace();

  // An ext4 of `bytes`. False where there are no loop devices.
  [[nodiscard]] bool Mount(uint64_t bytes) { return MountImage(directory_ + "/image", bytes); }
  // An ext4 of 96 MiB over an image on a tmpfs that has room for 40: the loop device fails writes
  // with EIO beyond, as a dying disk does.
  [[nodiscard]] bool MountFailing();
  // Takes what is left of the tmpfs: from here on writes to fresh places fail.
  void FailWrites() const { FillUp(backing() + "/filler"); }
  std::string backing() const { return directory_ + "/backing"; }

  // Writes a file until its file system is full.
  static void FillUp(const std::string& path);
  void Unmount();

 private:
  bool MountImage(const std::string& image, uint64_t bytes);

  std::string directory_;
  std::string mount_point_;
  bool entered_ = false;
};

}  // namespace reprise::test
