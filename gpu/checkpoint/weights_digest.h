#pragma once

#include "gpu/checkpoint/checkpoint.h"

namespace reprise::engine {

// What names the weights in a namespace (Manifest::weights_digest): SHA-256 over the headers'
// digest and, for every tensor in order of name, bytes of it: all of them in a checkpoint of up to
// 1 GiB, else 64 at its beginning, middle and end, so that hundreds of gigabytes take seconds.
// Weights that were trained on differ in nearly every tensor; a checkpoint in which single elements
// were changed by hand may not be told apart.
Hash256 WeightsDigest(const Checkpoint& checkpoint);

}  // namespace reprise::engine
