// The one-shot EVP interface allocates a context per call, which costs more than hashing a block;
// the SHA256_* functions of OpenSSL 3 do not, and use the same assembly.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "protocol/base/sha256.h"

#include <openssl/sha.h>

#include "protocol/base/check.h"

namespace reprise {

Hash256 Sha256(std::initializer_list<ConstBytes> parts) {
  SHA256_CTX context;
  RP_CHECK(SHA256_Init(&context) == 1);
  for (const ConstBytes part : parts) {
    RP_CHECK(SHA256_Update(&context, part.data(), part.size()) == 1);
  }
  Hash256 hash;
  RP_CHECK(SHA256_Final(reinterpret_cast<unsigned char*>(hash.bytes.data()), &context) == 1);
  return hash;
}

Hash256 Sha256Of(const std::function<ConstBytes()>& next) {
  SHA256_CTX context;
  RP_CHECK(SHA256_Init(&context) == 1);
  for (ConstBytes part = next(); !part.empty(); part = next()) {
    RP_CHECK(SHA256_Update(&context, part.data(), part.size()) == 1);
  }
  Hash256 hash;
  RP_CHECK(SHA256_Final(reinterpret_cast<unsigned char*>(hash.bytes.data()), &context) == 1);
  return hash;
}

}  // namespace reprise
