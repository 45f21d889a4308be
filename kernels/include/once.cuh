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
