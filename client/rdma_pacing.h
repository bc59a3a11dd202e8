#pragma once

#include <map>
#include <mutex>
#include <string>

#include "protocol/base/clock.h"

namespace reprise {

// When a daemon may be tried by RDMA again after it failed: a second later, then two, up to a
// minute, so that a peer which cannot be reached costs every client one wait and not one a
// connection. Of the process; any thread.
class RdmaPacing {
 public:
  static RdmaPacing& Global();

  bool Allowed(const std::string& address, Instant now);
  void Failed(const std::string& address, Instant now);
  void Worked(const std::string& address);

 private:
  struct Trouble {
    Nanos pause_ns = 0;
    Instant until = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Trouble> troubles_;
};

}  // namespace reprise
