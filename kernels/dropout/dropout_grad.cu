// The gradient of dropout: dx = dy * scale where an element was kept, else 0.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// Next to no arithmetic, but in kernel 4: what differs is how many bytes say what was kept, and how wide the accesses are.
//
// What each step gained on an NVIDIA H200 (reports/h200/dropout), float32 N134217728 p=0.1.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 251.0 us, by memory.
//   eager: PyTorch
//       282.2 us   88.9% of ceiling
//   bytes: four elements and four mask bytes a thread
//       280.9 us   89.3% of ceiling  moves 1.208 GB  1.00x the speed of eager
//   bitmask: four elements a thread, four bits of a mask word
//       255.3 us   98.3% of ceiling  moves 1.091 GB  1.10x the speed of bytes
//   tuned: 16-byte packs and their bits, a byte's or half a byte's
//       255.2 us   98.3% of ceiling  moves 1.091 GB  1.00x the speed of bitmask
//   replay: no mask in memory: draws the forward's numbers again
//       257.7 us   97.4% of ceiling  moves 1.074 GB  0.99x the speed of tuned

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bitmask.cuh"
#include "keep.cuh"
#include "philox.cuh"
#include "../include/quad.cuh"

using T = SCALAR;

__device__ __forceinline__ long long thread() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// 1. A byte of mask an element, four elements a thread. Of float's 9 bytes an element the mask is one; of half's 5 too.
//    whole: quads that move in one access; the elements of the other quads go one by one.
extern "C" __global__ void dropout_grad_bytes(const T* __restrict__ dy, const bool* __restrict__ mask,
                                              T* __restrict__ dx, long long n, long long whole, float scale) {
  const long long quad = thread(), begin = quad * Quad<T>::SIZE;
  if (quad < whole) {
    Quad<T> values = load_quad(dy + begin);
    const Quad<bool> kept = load_quad(mask + begin);
#pragma unroll
    for (unsigned j = 0; j < Quad<T>::SIZE; ++j) values.at[j] = keep(values.at[j], kept.at[j], scale);
    store_quad(dx + begin, values);
  } else {
#pragma unroll 1
    for (long long i = begin; i < min(begin + Quad<T>::SIZE, n); ++i) dx[i] = keep(dy[i], mask[i], scale);
  }
}

// 2. A bit an element: eight threads read the same word, and each takes its four bits. Each path loads the word for
//    itself, behind dy: one load in front of both paths, with its shift, would have to end before the load of dy
//    begins. It did once, and in halves the bits lost more time than their bytes save (186.7 against 172.4 us for 2^27
//    float16 elements on an H200).
extern "C" __global__ void dropout_grad_bitmask(const T* __restrict__ dy, const unsigned* __restrict__ mask,
                                                T* __restrict__ dx, long long n, long long whole, float scale) {
  const long long quad = thread(), begin = quad * Quad<T>::SIZE;
  const auto bits = [&] { return mask[quad / 8] >> (quad % 8 * Quad<T>::SIZE) & 0xfu; };
  if (quad < whole) {
    Quad<T> values = load_quad(dy + begin);
    keep_all(values.at, bits(), scale);
    store_quad(dx + begin, values);
  } else if (begin < n) {
    keep_each(dy, dx, begin, min(begin + Quad<T>::SIZE, n), bits(), scale);
  }
}

// 3. One pack of 16 bytes a thread: with halves its bits are a byte, with floats half of one. Halves are masked in
//    pairs. whole: packs that move in one access; the elements of the other packs go one by one.
extern "C" __global__ void dropout_grad_tuned(const T* __restrict__ dy, const unsigned char* __restrict__ mask,
                                              T* __restrict__ dx, long long n, long long whole, float scale) {
  const long long i = thread(), begin = i * Pack<T>::SIZE;
  if (i < whole) {
    Pack<T> pack = load_pack(dy + begin);
    keep_all(pack.at, bits_of_pack<T>(mask, i), scale);
    store_pack(dx + begin, pack);
  } else if (begin < n) {
    keep_each(dy, dx, begin, min(begin + Pack<T>::SIZE, n), bits_of_pack<T>(mask, i), scale);
  }
}

// 4. No mask in memory: the numbers of the forward's call are drawn again (dropout.cu, kernel 5), which costs what the
//    forward paid and saves the mask's bytes, here and there. whole: groups whose whole warp moves packs, a multiple of
//    32.
extern "C" __global__ void dropout_grad_replay(const T* __restrict__ dy, const unsigned long long* __restrict__ call,
                                               T* __restrict__ dx, long long n, long long whole,
                                               unsigned long long seed, unsigned threshold, float scale) {
  const Tile<T> tile;
  if (tile.group >= whole) {
    const long long begin = tile.group * GROUP;
    keep_each(dy, dx, begin, min(begin + GROUP, n), keep_8({seed, *call}, tile.group, threshold), scale);
    return;
  }
  Pack<T> packs[Tile<T>::PACKS];
#pragma unroll
  for (unsigned k = 0; k < Tile<T>::PACKS; ++k) packs[k] = load_pack(dy + tile.element(k));
  const unsigned byte = keep_8({seed, *call}, tile.group, threshold);
#pragma unroll
  for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
    keep_all(packs[k].at, tile.to_pack(byte, k), scale);
    store_pack(dx + tile.element(k), packs[k]);
  }
}
