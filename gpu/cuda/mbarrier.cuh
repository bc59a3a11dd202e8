#pragma once

#include <cuda.h>

#include <cstdint>

// Barriers in shared memory, and what blocks of a cluster send each other.
namespace reprise::engine::cuda {

// Whether kernels are built for compute-sanitizer's racecheck, which sees less than there is.
#ifdef RP_RACECHECK
constexpr bool kForRacecheck = true;
#else
constexpr bool kForRacecheck = false;
#endif

// Arrivals that a barrier counts for a warp whose lanes have met: one lane's. racecheck orders what
// an arriving thread did, and does not see the others behind it: for it all lanes arrive.
constexpr uint32_t kWarpArrivals = kForRacecheck ? 32 : 1;
__device__ inline bool Arrives(uint32_t lane) { return lane < kWarpArrivals; }

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Barriers that this thread made are seen by the other block after the next cluster barrier.
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same at a barrier of the other block (PeerAddress).
__device__ inline void ArriveAtPeer(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// Where there is nothing to be seen by it: what was read before is in registers.
__device__ inline void ArriveAtPeerRelaxed(uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// The phase ends when so many bytes have come, too.
__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}
// Whether the phase of that parity is over, or has become so in a while; for parity 1 a new
// barrier's is.
__device__ inline bool PhaseIsOver(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Until it is.
__device__ inline void WaitPhase(uint32_t barrier, uint32_t parity) {
  while (!PhaseIsOver(barrier, parity)) {
  }
  __syncwarp();
}
// The same where the other block's bytes or arrivals end the phase.
__device__ inline void WaitReceived(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (done == 0);
  __syncwarp();
}

__device__ inline uint32_t ClusterBlocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Where `address` of this block's shared memory lies in block `rank`.
__device__ inline uint32_t PeerAddress(uint32_t address, uint32_t rank) {
  uint32_t peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
// What was seen of other threads' writes is seen by this thread's copies from here on.
__device__ inline void FenceForCopies() { asm volatile("fence.proxy.async;" ::: "memory"); }
// From global memory to this block's, whose barrier counts the bytes; all aligned to 16 bytes.
__device__ inline void CopyFromGlobal(uint32_t to, const void* from, uint32_t bytes,
                                      uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// A tensor map is fetched, so that its first box does not wait for it.
__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// The box of a tensor map (tensor_map.h) whose first column and row these are.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, uint32_t column, uint32_t row,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// To a peer's memory; seen there after the next cluster barrier.
__device__ inline void StoreToPeer(uint32_t to, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
// Into a peer's memory, whose barrier counts the bytes.
__device__ inline void StoreToPeer(uint32_t to, const uint32_t (&words)[4], uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(barrier)
      : "memory");
}
__device__ inline void StoreToPeer(uint32_t to, uint32_t word, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
      "r"(word), "r"(barrier)
      : "memory");
}
// Of all threads of both blocks.
__device__ inline void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Where there is nothing to be seen but barriers (FenceBarriers).
__device__ inline void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace reprise::engine::cuda
