#pragma once

#include <memory>

#include "protocol/rdma/verbs.h"

namespace reprise::rdma {

// Verbs by libibverbs. Where the product was built without it, Ports() is an error that says so.
std::unique_ptr<Verbs> MakeLibVerbs();

}  // namespace reprise::rdma
