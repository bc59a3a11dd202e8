#pragma once

#include <cstdint>

// Hopper's asynchronous matrix product, and what surrounds it. Operand A [64 outputs, 16] comes
// from registers, B [N, 16] from shared memory in rows of 64 bf16 (128 bytes), swizzled by 128
// bytes; the sums [64, N] stay in registers: thread t of the warpgroup holds, for every eight
// columns, rows 16 (t / 32) + t % 32 / 4 and eight below, columns 2 (t % 4) and the next.
namespace reprise::engine::cuda {

__device__ inline void WgmmaFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Registers that a product takes or gives have their values here, not later: they must not change
// between WgmmaFence and the product, nor be read before WgmmaWait, and the compiler does not know.
template <int kCount>
__device__ inline void Hold(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}
template <int kCount>
__device__ inline void Hold(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
// What a product does not add to: nothing of it need be kept.
template <int kCount>
__device__ inline void Forget(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(values[i]));
}
// These stay where they are until here: a product that is under way still reads them.
template <int kSteps>
__device__ inline void Keep(const uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
  }
}
template <int kPending>
__device__ inline void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// By all warps of a warpgroup: how many registers a thread has from here on.
template <int kRegisters>
__device__ inline void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Of the first of eight rows or more; `at` is aligned to 1024 bytes but for steps along a row.
__device__ inline uint64_t SwizzledRows(uint32_t at) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{1} << 16 | (at >> 4 & 0x3fff);
}
// What lies so many bytes after `rows`, without a carry into the upper half: one addition.
__device__ inline uint64_t FurtherOn(uint64_t rows, uint32_t bytes) {
  return (rows & 0xffffffff00000000) | (static_cast<uint32_t>(rows) + bytes / 16);
}
// Byte of 16-byte piece `piece` (0 to 7) of row `row`.
__device__ inline uint32_t SwizzledOffset(uint32_t row, uint32_t piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void CopyAsync16(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}
__device__ inline void PrefetchL2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
// A load for the L1 alone; nobody waits for it.
__device__ inline void TouchL1(const void* from) {
  [[maybe_unused]] uint32_t unused;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(unused) : "l"(from) : "memory");
}
// So many bytes, by one thread; both aligned to 16.
__device__ inline void PrefetchBulk(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ inline void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// What this thread wrote to shared memory is seen by the matrix units after the next barrier.
__device__ inline void FenceForMatrixUnits() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
template <int kBarrier>
__device__ inline void GroupBarrier(uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "r"(threads) : "memory");
}
// Whether it is so for any of the threads.
__device__ inline bool AnyAtBarrier(uint32_t barrier, uint32_t threads, bool so) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n"
      "barrier.cta.red.or.pred.aligned p, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<uint32_t>(so))
      : "memory");
  return any != 0;
}

// The product of one warp, 16 outputs x 16 inputs x 8 rows, which is there at once: sums += A B.
// Its registers are those that the warp would hold of the asynchronous one.
__device__ inline void Multiply16x8(float* sums, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Operand B of it for two steps of 16 inputs: four pieces of 16 bytes of eight rows, of which each
// lane gives one's address.
__device__ inline void LoadMatrices(uint32_t at, uint32_t (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at)
               : "memory");
}

// Four matrices of 8 x 8 that lie as sums do, two columns of a row in a lane's word, each column to
// 16 bytes of its own, whose address a lane gives.
__device__ inline void StoreMatrices(uint32_t at, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}
// Two of them, whose addresses the first half of the warp gives.
__device__ inline void StoreTwoMatrices(uint32_t at, uint32_t first, uint32_t second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at),
               "r"(first), "r"(second)
               : "memory");
}

// sums = (add ? sums : 0) + A B, for N columns.
template <int kColumns>
struct Wgmma;

// What Wgmma and WgmmaAcross are for so many columns: inline PTX numbers its operands, first so
// many sums, then those of A, of B, and whether to add. kAcross: 1 for B with its columns side by
// side.
// clang-format off
#define RP_NAMES_4 \
  "%0, %1, %2, %3"
#define RP_NAMES_8 \
  RP_NAMES_4 ", %4, %5, %6, %7"
#define RP_NAMES_16 \
  RP_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RP_NAMES_32 \
  RP_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RP_NAMES_40 \
  RP_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RP_NAMES_44 \
  RP_NAMES_40 ", %40, %41, %42, %43"
#define RP_NAMES_48 \
  RP_NAMES_44 ", %44, %45, %46, %47"
#define RP_NAMES_52 \
  RP_NAMES_48 ", %48, %49, %50, %51"
#define RP_NAMES_56 \
  RP_NAMES_52 ", %52, %53, %54, %55"
#define RP_NAMES_64 \
  RP_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define RP_SUMS_4 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define RP_SUMS_8 \
  RP_SUMS_4, \
  "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define RP_SUMS_16 \
  RP_SUMS_8, \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
  "+f"(d[14]), "+f"(d[15])
#define RP_SUMS_32 \
  RP_SUMS_16, \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
  "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
  "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define RP_SUMS_40 \
  RP_SUMS_32, \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
  "+f"(d[38]), "+f"(d[39])
#define RP_SUMS_44 \
  RP_SUMS_40, \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define RP_SUMS_48 \
  RP_SUMS_44, \
  "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define RP_SUMS_52 \
  RP_SUMS_48, \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define RP_SUMS_56 \
  RP_SUMS_52, \
  "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define RP_SUMS_64 \
  RP_SUMS_56, \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), \
  "+f"(d[62]), "+f"(d[63])
// clang-format on
#define RP_WGMMA(Name, kAcross, kColumns, kSums, A0, A1, A2, A3, B, ADD)                       \
  template <>                                                                                  \
  struct Name<kColumns> {                                                                      \
    __device__ static void Run(float (&d)[kSums], const uint32_t (&a)[4], uint64_t b,          \
                               uint32_t add) {                                                 \
      asm volatile(                                                                            \
          "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                            \
          ", 0;\n"                                                                             \
          "wgmma.mma_async.sync.aligned.m64n" #kColumns "k16.f32.bf16.bf16 {" RP_NAMES_##kSums \
          "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, " #kAcross ";\n}\n"  \
          : RP_SUMS_##kSums                                                                    \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                     \
    }                                                                                          \
  }

RP_WGMMA(Wgmma, 0, 8, 4, 4, 5, 6, 7, 8, 9);
RP_WGMMA(Wgmma, 0, 16, 8, 8, 9, 10, 11, 12, 13);
RP_WGMMA(Wgmma, 0, 32, 16, 16, 17, 18, 19, 20, 21);
RP_WGMMA(Wgmma, 0, 64, 32, 32, 33, 34, 35, 36, 37);
RP_WGMMA(Wgmma, 0, 80, 40, 40, 41, 42, 43, 44, 45);
RP_WGMMA(Wgmma, 0, 88, 44, 44, 45, 46, 47, 48, 49);
RP_WGMMA(Wgmma, 0, 96, 48, 48, 49, 50, 51, 52, 53);
RP_WGMMA(Wgmma, 0, 104, 52, 52, 53, 54, 55, 56, 57);
RP_WGMMA(Wgmma, 0, 112, 56, 56, 57, 58, 59, 60, 61);
RP_WGMMA(Wgmma, 0, 128, 64, 64, 65, 66, 67, 68, 69);

// The same of 8-bit integers: A [64, 32] without signs, B [N, 32] with them, in rows of 128.
template <int kColumns>
struct WgmmaBytes;

template <>
struct WgmmaBytes<32> {
  __device__ static void Run(uint32_t (&d)[16], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {" RP_NAMES_16
        "}, {%16, %17, %18, %19}, %20, p;\n}\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
          "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]),
          "+r"(d[14]), "+r"(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};

// The same with A [64, 16] in shared memory too, in rows as B's.
template <int kColumns>
struct WgmmaShared;

template <>
struct WgmmaShared<72> {
  __device__ static void Run(float (&d)[36], uint64_t a, uint64_t b, uint32_t add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35"
        "}, %36, %37, p, 1, 1, 0, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35])
        : "l"(a), "l"(b), "r"(add));
  }
};

// B with its columns side by side, 64 of them (128 bytes) to a row of input: every 64 columns lie
// `block` bytes after the ones before.
__device__ inline uint64_t SwizzledColumns(uint32_t at, uint32_t block) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightInputs = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightInputs | uint64_t{block >> 4} << 16 | (at >> 4 & 0x3fff);
}

// A from registers, B so.
template <int kColumns>
struct WgmmaAcross;
RP_WGMMA(WgmmaAcross, 1, 64, 32, 32, 33, 34, 35, 36, 37);
RP_WGMMA(WgmmaAcross, 1, 128, 64, 64, 65, 66, 67, 68, 69);
#undef RP_WGMMA

}  // namespace reprise::engine::cuda
