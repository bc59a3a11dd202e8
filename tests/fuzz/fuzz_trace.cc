#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "client/trace/trace.h"
#include "protocol/base/check.h"
#include "tests/fuzz/fuzz_input.h"

// The first byte picks the format and whether broken lines are left out; the rest is the file,
// plain or compressed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("trace", 0);
  RP_CHECK(fd >= 0);
  constexpr const char* kFormats[] = {"", "mooncake", "qwen", "delta", "azure", "tokens", "", ""};
  constexpr int kRequestsMax = 2'000;

  reprise::fuzz::Input input(data, size);
  const auto choice = input.Take<uint8_t>();
  const reprise::ConstBytes file = input.rest();
  RP_CHECK(ftruncate(fd, 0) == 0);
  RP_CHECK(pwrite(fd, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  const auto reader =
      reprise::OpenTrace("/proc/self/fd/" + std::to_string(fd),
                         {.format = kFormats[choice & 7], .lenient = (choice & 8) != 0});
  if (!reader.ok()) {
    RP_CHECK(!reprise::Message(reader.status()).empty());
    return 0;
  }
  reprise::TraceRequest request;
  reprise::Nanos last_ns = 0;
  for (int i = 0; i < kRequestsMax; ++i) {
    const auto more = (*reader)->Next(&request);
    if (!more.ok()) RP_CHECK(!reprise::Message(more.status()).empty());
    if (!more.ok() || !*more) return 0;
    RP_CHECK(request.time_ns >= last_ns);
    RP_CHECK(request.input_tokens <= reprise::kInputTokensMax);
    last_ns = request.time_ns;
    uint64_t sum = 0;  // Every id and token is read, so that a bad span is seen.
    for (const uint64_t id : request.hash_ids) sum += id;
    for (const reprise::TokenId token : request.tokens) sum += static_cast<uint64_t>(token);
    static volatile uint64_t sink;
    sink = sum;
    (void)sink;
  }
  return 0;
}
