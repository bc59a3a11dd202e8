#pragma once

#include <cstddef>

namespace reprise::storage {

// Bytes asked of operator new by this process so far. Linked into single-threaded tests only.
size_t AllocatedBytes();

}  // namespace reprise::storage
