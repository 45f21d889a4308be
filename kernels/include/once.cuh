// Loads of what is read once, such as weights in decoding.
#pragma once

// 16 bytes from an aligned address, or zeros if they aren't `there`: by a predicate, without a branch between loads. They
// take no place in the L1.
template <typename Element>
__device__ __forceinline__ uint4 load_once(const Element* from, bool there) {
  uint4 to;
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
      "@p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(to.x), "=&r"(to.y), "=&r"(to.z), "=&r"(to.w)
      : "l"(from), "r"(static_cast<unsigned>(there)));
  return to;
}

// Asks for a range of memory to come to the L2: whole 16 bytes from an aligned address. Before compute capability 9.0
// nothing does that for a range.
__device__ __forceinline__ void fetch_to_l2(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}
