// Loads that begin together, for kernels of which a multiprocessor has few blocks.
#pragma once

// 0 or 1: what is needed after a row's sums is loaded with the row, not after the sums. Few rows have no other blocks on
// their multiprocessors whose work would hide these loads; many rows need the registers.
#ifndef EARLY
#define EARLY 0
#endif

// The compiler puts a load where its result is used, behind the wait for the results of others. So that the load of
// `later` begins with the load of `now`, a part of the one is needed for the other: it is 0, which the compiler can't know.
// Both have at least 4 bytes, and are aligned to them.
template <typename Now, typename Later>
__device__ __forceinline__ void begin_together(Now& now, const Later& later) {
  static_assert(sizeof(Now) >= 4 && sizeof(Later) >= 4);
  reinterpret_cast<unsigned&>(now) |= reinterpret_cast<const unsigned&>(later) & blockIdx.z;
}
