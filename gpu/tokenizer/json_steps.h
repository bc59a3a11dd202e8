#pragma once

#include "gpu/tokenizer/json_field.h"
#include "gpu/tokenizer/normalizer.h"
#include "gpu/tokenizer/pre_tokenizer.h"

namespace reprise::engine {

// The "normalizer" of a tokenizer.json; nothing to do when it is null or missing.
absl::StatusOr<Normalizer> ReadNormalizer(const JsonField& file);
// Its "pre_tokenizer", which must end in ByteLevel.
absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonField& file);

}  // namespace reprise::engine
