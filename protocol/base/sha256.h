#pragma once

#include <initializer_list>

#include "protocol/base/types.h"

namespace reprise {

// SHA-256 of the concatenation of `parts` (OpenSSL).
Hash256 Sha256(std::initializer_list<ConstBytes> parts);

}  // namespace reprise
