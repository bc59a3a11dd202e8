#include "protocol/rdma/lib_verbs.h"

namespace reprise::rdma {
namespace {

class NoVerbs final : public Verbs {
 public:
  absl::StatusOr<std::vector<Port>> Ports() override { return Missing(); }
  absl::StatusOr<std::unique_ptr<Device>> Open(const Port&) override { return Missing(); }

 private:
  static absl::Status Missing() {
    return FailedPrecondition("built without libibverbs: install libibverbs-dev and build again");
  }
};

}  // namespace

std::unique_ptr<Verbs> MakeLibVerbs() { return std::make_unique<NoVerbs>(); }

}  // namespace reprise::rdma
