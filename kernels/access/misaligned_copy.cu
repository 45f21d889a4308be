// Copy between addresses that aren't aligned: y[to + i] = x[from + i] for i < n.
//
// Memory bounds it, and each byte has to be read and written once. But an access of 16 bytes must begin at a multiple
// of 16. Where x and y begin at different distances from such multiples, no pack of x is a pack of y. The steps differ
// in what a thread does then: it moves a single element, or it makes one pack of y of two packs of x.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element), BLOCK (threads). Nothing is computed, so all types of
// one width share a kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/access), float32 N134217728-F15-G0.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 250.7 us, by memory.
//   eager: PyTorch
//       260.6 us   96.2% of ceiling
//   scalar: one element a thread
//       407.9 us   61.5% of ceiling  moves 1.074 GB  0.64x the speed of eager
//   packed: 16-byte packs where both sides are aligned to them, else scalar
//       407.9 us   61.5% of ceiling  moves 1.074 GB  1.00x the speed of scalar
//   tuned: whole stores at any offset: packs, shifted where need be, or single words
//       254.5 us   98.5% of ceiling  moves 1.074 GB  1.60x the speed of packed

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR unsigned
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

#include "../include/pack.cuh"

using T = SCALAR;

// 1. One element a thread. A warp of floats asks for 128 bytes, which lie in 4 sectors of 32 bytes if they are aligned,
//    else in 5. The fifth is the first one of the next warp, so where an L1 lies before the memory, it is fetched once.
extern "C" __global__ void misaligned_scalar(const T* __restrict__ x, T* __restrict__ y, long long n, long long from,
                                             long long to) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[to + i] = x[from + i];
}

// 2. One pack of 16 bytes a thread, if both sides are aligned to 16 bytes; anything else would fault. Threads of their
//    own at the grid's end take the elements after the last pack.
extern "C" __global__ void misaligned_packed(const T* __restrict__ x, T* __restrict__ y, long long n, long long from,
                                             long long to, long long packs) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < packs) {
    store_pack(y + to + i * Pack<T>::SIZE, load_pack(x + from + i * Pack<T>::SIZE));
  } else {
    const long long element = i - packs + packs * Pack<T>::SIZE;
    if (element < n) y[to + element] = x[from + element];
  }
}

// 3. Packs at any address. The first one begins at y's first 16-byte boundary, so that every store is whole. x's packs
//    are then off by `misaligned` bytes: two aligned loads, shifted together. Neighbouring threads load the same words,
//    so memory sees each byte once. head: elements before the first pack.
extern "C" __global__ void misaligned_tuned(const T* __restrict__ x, T* __restrict__ y, long long n, long long from,
                                            long long to, long long head, long long packs, unsigned misaligned) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < packs) {
    const long long element = head + i * Pack<T>::SIZE;
    const T* source = x + from + element;
    // The same for the whole grid.
    store_pack(y + to + element, misaligned ? load_pack_shifted(source, misaligned) : load_pack(source));
  } else {
    const long long edge = i - packs;
    const long long element = edge < head ? edge : edge + packs * Pack<T>::SIZE;
    if (element < n) y[to + element] = x[from + element];
  }
}

// 4. Elements of four bytes need no shifting, and no second load: four a thread, a block apart, so that four loads are
//    under way. Stores cover whole sectors, since they begin at y's first one. head: elements before it.
constexpr unsigned WORDS_EACH = 4;
extern "C" __global__ void __launch_bounds__(BLOCK)
    misaligned_words(const T* __restrict__ x, T* __restrict__ y, long long n, long long from, long long to,
                     unsigned head) {
  const long long first = head + static_cast<long long>(blockIdx.x) * (BLOCK * WORDS_EACH) + threadIdx.x;
  T value[WORDS_EACH];
#pragma unroll
  for (unsigned k = 0; k < WORDS_EACH; ++k) {
    const long long i = first + k * BLOCK;
    if (i < n) value[k] = x[from + i];
  }
#pragma unroll
  for (unsigned k = 0; k < WORDS_EACH; ++k) {
    const long long i = first + k * BLOCK;
    if (i < n) y[to + i] = value[k];
  }
  if (blockIdx.x == 0 && threadIdx.x < head && threadIdx.x < n) y[to + threadIdx.x] = x[from + threadIdx.x];
}
