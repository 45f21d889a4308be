// Plain streams: READS arrays read and WRITES arrays written, all of the same size, with next to no arithmetic. What a
// memory can do is measured with them, and every other kernel is held against that. As an op they are the copy.
//
// Macros: READS (0 to 3), WRITES (0 or 1), UNROLL (16-byte packs a thread), EVICT_FIRST (0 or 1), BLOCK (threads).
// A block covers BLOCK * UNROLL consecutive packs; a thread's packs lie BLOCK apart, so that each access of a warp is
// one contiguous 512 bytes and a thread has READS * UNROLL loads in flight.
#ifndef READS
#define READS 1
#define WRITES 1
#define UNROLL 1
#define EVICT_FIRST 0
#define BLOCK 256
#endif

// With EVICT_FIRST the cache gives these lines up before other lines; otherwise the load takes the read-only path and
// the store is plain.
__device__ __forceinline__ uint4 load(const uint4* from) { return EVICT_FIRST ? __ldcs(from) : __ldg(from); }
__device__ __forceinline__ void store(uint4* to, uint4 value) {
  if (EVICT_FIRST) {
    __stcs(to, value);
  } else {
    *to = value;
  }
}

__device__ __forceinline__ uint4 combine(uint4 a, uint4 b) {
  return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    stream(const uint4* __restrict__ a, const uint4* __restrict__ b, const uint4* __restrict__ c, uint4* __restrict__ out,
           long long packs) {
  const long long first = static_cast<long long>(blockIdx.x) * (BLOCK * UNROLL) + threadIdx.x;
  uint4 value[UNROLL];
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    const long long i = first + k * BLOCK;
    value[k] = make_uint4(1, 2, 3, 4);
    if (i < packs) {
      if (READS >= 1) value[k] = load(a + i);
      if (READS >= 2) value[k] = combine(value[k], load(b + i));
      if (READS >= 3) value[k] = combine(value[k], load(c + i));
    }
  }
#pragma unroll
  for (int k = 0; k < UNROLL; ++k) {
    const long long i = first + k * BLOCK;
    // A read-only stream must use what it read, or the compiler drops the loads; this value never comes in practice.
    const bool used = WRITES == 1 || (value[k].x == 0x9e3779b9u && value[k].y == 0x7f4a7c15u && value[k].z == 0xf39cc060u);
    if (i < packs && used) store(out + i, value[k]);
  }
}
