#include "tests/storage/counting_new.h"

#include <cstdlib>
#include <new>

namespace {
size_t allocated_bytes = 0;
}  // namespace

size_t reprise::storage::AllocatedBytes() { return allocated_bytes; }

void* operator new(size_t size) {
  allocated_bytes += size;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
