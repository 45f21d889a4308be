// Rotation of each group of 8 neighbours by `places`, 0 to 7: y[(j + places) % 8] = x[j] within the group. It moves
// bits, so types differ by their size alone.
//
// Macros: SCALAR (unsigned, unsigned short); RUNTIME_INDEX compiles the kernel that uses local memory, and no other.
//
// Every kernel reads x once and writes y once, in accesses of 16 bytes. What differs is where a group lies in between.
// Registers have no addresses: an array can live in them only if every index is known when the kernel is compiled.
//
// What each step gained on an NVIDIA H200 (reports/h200/compiler), float32 G16777216-K3.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 251.0 us, by memory.
//   eager: PyTorch
//       609.1 us   41.2% of ceiling
//   runtime_index: a thread's array of 8, indexed by numbers known only at run time
//       491.4 us   51.1% of ceiling  moves 1.074 GB  1.24x the speed of eager
//   constant_index: the same array in registers: constant indices, three steps of selections
//       272.0 us   92.3% of ceiling  moves 1.074 GB  1.81x the speed of runtime_index
//   tuned: one pack a thread, cut out of two by shifts of whole words
//       251.7 us   99.7% of ceiling  moves 1.074 GB  1.08x the speed of constant_index

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR unsigned
#endif

#include "../include/pack.cuh"

using T = SCALAR;

constexpr unsigned GROUP = 8;
constexpr unsigned PACKS = GROUP / Pack<T>::SIZE;  // packs of a group: 1 of halves, 2 of floats

struct alignas(PACK_BYTES) Group {
  T at[GROUP];
};

// A group from any address and to any address; in packs if all tensors are `aligned` to 16 bytes.
__device__ __forceinline__ Group load_group(const T* __restrict__ from, bool aligned) {
  Group group;
#pragma unroll
  for (unsigned k = 0; k < PACKS; ++k) {
    const Pack<T> pack = load_filled(from + k * Pack<T>::SIZE, Pack<T>::SIZE, aligned);
#pragma unroll
    for (unsigned j = 0; j < Pack<T>::SIZE; ++j) group.at[k * Pack<T>::SIZE + j] = pack.at[j];
  }
  return group;
}
__device__ __forceinline__ void store_group(T* __restrict__ to, const Group& group, bool aligned) {
#pragma unroll
  for (unsigned k = 0; k < PACKS; ++k) {
    Pack<T> pack;
#pragma unroll
    for (unsigned j = 0; j < Pack<T>::SIZE; ++j) pack.at[j] = group.at[k * Pack<T>::SIZE + j];
    store_filled(to + k * Pack<T>::SIZE, pack, Pack<T>::SIZE, aligned);
  }
}

#ifdef RUNTIME_INDEX

// 1. One group a thread, in two loops whose bounds are known only at run time. Even unrolled, their indices are numbers
//    in registers, and no instruction takes a register by number: both arrays lie in local memory, device memory that
//    each thread has for itself, behind the L1. A group is stored there, moved element by element, and read back, each
//    step waiting for the one before.
//    (One loop of 8 turns over turned.at[(j + places) % 8] wouldn't show it: the compiler of today unrolls it and
//    selects each element among all 8. No memory, but 130 instructions more. Of 16 elements it doesn't.)
extern "C" __global__ void local_array_runtime_index(const T* __restrict__ x, T* __restrict__ y, long long groups,
                                                     unsigned places, int aligned) {
  const long long g = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (g < groups) {
    const Group group = load_group(x + g * GROUP, aligned);
    Group turned;
    for (unsigned j = 0; j < places; ++j) turned.at[j] = group.at[GROUP - places + j];
    for (unsigned j = places; j < GROUP; ++j) turned.at[j] = group.at[j - places];
    store_group(y + g * GROUP, turned, aligned);
  }
}

#else

// 2. The same with constants for indices. A rotation by any number of places is one by 1, one by 2 and one by 4, each
//    done or not, as the bits of `places` say. Once the loops are unrolled each element is a register, and a step
//    selects between two of them: 24 selections for a group, and no memory.
extern "C" __global__ void local_array_constant_index(const T* __restrict__ x, T* __restrict__ y, long long groups,
                                                      unsigned places, int aligned) {
  const long long g = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (g < groups) {
    Group group = load_group(x + g * GROUP, aligned);
#pragma unroll
    for (unsigned step = 1; step < GROUP; step *= 2) {
      Group turned;
#pragma unroll
      for (unsigned j = 0; j < GROUP; ++j) {
        turned.at[(j + step) % GROUP] = places & step ? group.at[j] : group.at[(j + step) % GROUP];
      }
      group = turned;
    }
    store_group(y + g * GROUP, group, aligned);
  }
}

// 3. One pack a thread, so that a warp's packs of floats lie side by side too, and words in place of elements. A pack
//    of y is cut out of two packs of x, `before` and `here`, that follow each other around the group; of halves there
//    is one, and it follows itself. The rotation's whole packs say which two, and the rest of it shifts their words.
//    Both packs are this thread's or its neighbour's, so memory sees each once.
extern "C" __global__ void local_array_tuned(const T* __restrict__ x, T* __restrict__ y, long long groups,
                                             unsigned places, int aligned) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long g = i / PACKS;
  if (g >= groups) return;
  const unsigned k = static_cast<unsigned>(i) % PACKS;
  x += g * GROUP;
  y += g * GROUP;
  if (!aligned) {
    for (unsigned j = k * Pack<T>::SIZE; j < (k + 1) * Pack<T>::SIZE; ++j) y[j] = x[(j - places) % GROUP];
    return;
  }
  const unsigned from = k - places / Pack<T>::SIZE;
  const uint4* packs = reinterpret_cast<const uint4*>(x);
  const uint4 before = __ldg(packs + (from - 1) % PACKS), here = __ldg(packs + from % PACKS);
  unsigned word[] = {before.x, before.y, before.z, before.w, here.x, here.y, here.z, here.w};
  constexpr unsigned LANES = 4 / sizeof(T);  // elements of a word
  if constexpr (LANES == 2) {
#pragma unroll
    for (unsigned j = 7; j >= 1; --j) word[j] = __funnelshift_l(word[j - 1], word[j], places % LANES * 16);
  }
#pragma unroll
  for (unsigned step = 1; step < 4; step *= 2) {
#pragma unroll
    for (unsigned j = 7; j >= 2 * step; --j) word[j] = places & step * LANES ? word[j - step] : word[j];
  }
  reinterpret_cast<uint4*>(y)[k] = make_uint4(word[4], word[5], word[6], word[7]);
}

#endif  // RUNTIME_INDEX
