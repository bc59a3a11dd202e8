#include "tests/integration/small_disk.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "protocol/base/types.h"

namespace reprise::test {

namespace fs = std::filesystem;

bool SmallDisk::EnterNamespace() {
  // Mounts are seen by this process and its children only, and go with the last of them.
  entered_ = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 &&
             mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered_;
}

bool SmallDisk::MountImage(const std::string& image, uint64_t bytes) {
  fs::create_directories(mount_point_);
  WriteText(image, "");
  fs::resize_file(image, bytes);
  const auto run = [this](std::vector<std::string> arguments) {
    return RunProgram(std::move(arguments), directory_ + "/mount").exit_code == 0;
  };
  return run({"/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", image}) &&
         run({"/usr/bin/mount", "-o", "loop,errors=continue", image, mount_point_});
}

bool SmallDisk::MountFailing() {
  fs::create_directories(backing());
  return mount("none", backing().c_str(), "tmpfs", 0, "size=40m") == 0 &&
         MountImage(backing() + "/image", 96_MiB);
}

void SmallDisk::FillUp(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const std::string piece(64 * 1024, 'f');
  for (size_t bytes = piece.size(); bytes >= 512; bytes /= 2) {
    while (write(fd, piece.data(), bytes) == static_cast<ssize_t>(bytes)) {
    }
  }
  (void)fsync(fd);
  close(fd);
}

void SmallDisk::Unmount() {
  if (!entered_) return;
  (void)umount2(mount_point_.c_str(), MNT_DETACH);
  (void)umount2(backing().c_str(), MNT_DETACH);
}

}  // namespace reprise::test
