#pragma once

#include <functional>
#include <initializer_list>

#include "protocol/base/types.h"

namespace reprise {

// SHA-256 of the concatenation of `parts` (OpenSSL).
Hash256 Sha256(std::initializer_list<ConstBytes> parts);
// The same of what `next` gives until it gives nothing.
Hash256 Sha256Of(const std::function<ConstBytes()>& next);

}  // namespace reprise
