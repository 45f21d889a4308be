// Barriers in shared memory that count the bytes of copies under way, and copies that go straight to shared memory.
// An `address` is one in shared memory, as shared_address() gives it.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global memory, past the L1, without waiting for them. Both addresses are aligned to 16.
__device__ __forceinline__ void copy_async_16(unsigned address, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

#if __CUDA_ARCH__ >= 900
namespace mbarrier {
constexpr unsigned BYTES = 8;  // of one barrier, and its alignment

// Makes a barrier on which one thread announces bytes. Other threads, and the units that copy, see it only after a
// fence.
__device__ __forceinline__ void init(unsigned address) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address) : "memory");
}

// Announces how many bytes will come in this phase. The phase ends when they have come.
__device__ __forceinline__ void expect(unsigned address, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}

// Waits for the end of a phase; phases count from 0. Then the bytes from units that copy, and from this block, are
// visible.
__device__ __forceinline__ void wait(unsigned address, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address), "r"(phase % 2)
        : "memory");
  }
}

// The same for bytes that other blocks of the cluster sent to this block's shared memory. try_wait.acquire.cluster
// would acquire more than these bytes, and would empty the L1.
__device__ __forceinline__ void wait_for_cluster(unsigned address, unsigned phase) {
  unsigned done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address), "r"(phase % 2)
        : "memory");
  }
  asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}
}  // namespace mbarrier
#endif  // they count bytes since sm_90
