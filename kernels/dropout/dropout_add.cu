// Dropout and an addition in one kernel: y = x * scale + addend where an element is kept, y = addend elsewhere. The
// mask of the kept elements is written too, since the backward needs it.
//
// Macro: SCALAR (float, __half, __nv_bfloat16).
//
// As two kernels, dropout writes a tensor that the addition reads again: 2 of the 5 tensors that pass through memory.
// In one kernel it stays in registers. What differs below is the size of the mask, and how many instructions the random
// numbers take: memory feeds a multiprocessor about 16 bytes a clock, so arithmetic that seems free may not be.
//
// What each step gained on an NVIDIA H200 (reports/h200/dropout_fused), float32 N134217728 p=0.1.
// At least 1.074 GB are read and 553.6 MB written. The ceiling is 372.9 us, by memory.
//   eager: PyTorch
//       736.4 us   50.6% of ceiling
//   fused_bytes: one kernel, four elements a thread, byte mask
//       404.6 us   92.2% of ceiling  moves 1.745 GB  1.82x the speed of eager
//   fused_bitmask: the same with a bit an element, eight lanes a word
//       374.3 us   99.6% of ceiling  moves 1.627 GB  1.08x the speed of fused_bytes
//   tuned: eight elements a draw, 16-byte packs, a mask byte a lane
//       375.3 us   99.4% of ceiling  moves 1.627 GB  1.00x the speed of fused_bitmask

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "philox.cuh"
#include "../include/quad.cuh"

using T = SCALAR;

// Rounds once, before the result is stored. A dropped element counts as 0, whatever it was (keep.cuh).
__device__ __forceinline__ float dropout_add(float x, float addend, bool keep, float scale) {
  return fmaf(keep ? x : 0.0f, scale, addend);
}

// The same for elements; bits stand lowest first, here and below.
__device__ __forceinline__ T dropout_add_one(T x, T addend, unsigned bits, float scale) {
  return T(dropout_add(to_float(x), to_float(addend), bits & 1, scale));
}
__device__ __forceinline__ Quad<T> dropout_add_quad(const Quad<T>& x, const Quad<T>& addend, unsigned bits,
                                                    float scale) {
  Quad<T> y;
#pragma unroll
  for (unsigned j = 0; j < Quad<T>::SIZE; ++j) y.at[j] = dropout_add_one(x.at[j], addend.at[j], bits >> j, scale);
  return y;
}

// Elements `begin` to `end` one by one, where a whole access isn't possible.
__device__ __forceinline__ void dropout_add_each(const T* __restrict__ x, const T* __restrict__ addend,
                                                 T* __restrict__ y, long long begin, long long end, unsigned bits,
                                                 float scale) {
#pragma unroll 1
  for (long long i = begin; i < end; ++i, bits >>= 1) y[i] = dropout_add_one(x[i], addend[i], bits, scale);
}

// 1. Four elements a thread: one Philox call gives their numbers, one load each their values, and their four mask bytes
//    leave in one store. n: elements. whole: quads that may move as one access: all full ones, or none if a tensor
//    isn't aligned to 16 bytes.
extern "C" __global__ void dropout_add_bytes(const T* __restrict__ x, const T* __restrict__ addend,
                                             const unsigned long long* __restrict__ call, T* __restrict__ y,
                                             bool* __restrict__ mask, long long n, long long whole,
                                             unsigned long long seed, unsigned threshold, float scale) {
  const long long quad = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long begin = quad * Quad<T>::SIZE;
  const unsigned bits = keep_4({seed, *call}, quad, threshold);
  if (quad < whole) {
    store_quad(y + begin, dropout_add_quad(load_quad(x + begin), load_quad(addend + begin), bits, scale));
    store_quad(mask + begin, Quad<bool>{bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8)});
  } else {
    const long long end = min(begin + Quad<T>::SIZE, n);
    dropout_add_each(x, addend, y, begin, end, bits, scale);
    for (long long i = begin; i < end; ++i) mask[i] = bits >> (i - begin) & 1;
  }
}

// 2. A bit an element: of 7 bytes that an element of half precision moved, 6 1/8 are left. Eight lanes make a word of
//    their four bits each, and one of them writes it.
extern "C" __global__ void dropout_add_bitmask(const T* __restrict__ x, const T* __restrict__ addend,
                                               const unsigned long long* __restrict__ call, T* __restrict__ y,
                                               unsigned* __restrict__ mask, long long n, long long whole,
                                               unsigned long long seed, unsigned threshold, float scale) {
  const long long quad = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long begin = quad * Quad<T>::SIZE;
  unsigned bits = keep_4({seed, *call}, quad, threshold);
  if (quad < whole) {
    store_quad(y + begin, dropout_add_quad(load_quad(x + begin), load_quad(addend + begin), bits, scale));
  } else {
    bits = within_quad(bits, n - begin);
    dropout_add_each(x, addend, y, begin, min(begin + Quad<T>::SIZE, n), bits, scale);
  }
  const unsigned word = word_of_quads(bits);
  if (threadIdx.x % 8 == 0 && begin < n) mask[begin / 32] = word;
}

// Sixteen bytes, as words.
__device__ __forceinline__ uint4 dropout_add_words(const uint4& x, const uint4& addend, unsigned bits, float scale) {
  constexpr unsigned WORDS = PACK_BYTES / 4;
  uint4 y;
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    Lanes<T> lanes(reinterpret_cast<const unsigned(&)[WORDS]>(x)[w]);
    const Lanes<T> addends(reinterpret_cast<const unsigned(&)[WORDS]>(addend)[w]);
#pragma unroll
    for (unsigned l = 0; l < Lanes<T>::SIZE; ++l, bits >>= 1) {
      lanes.at[l] = dropout_add(lanes.at[l], addends.at[l], bits & 1, scale);
    }
    reinterpret_cast<unsigned(&)[WORDS]>(y)[w] = lanes.word();
  }
  return y;
}

// 3. Eight elements a Philox call, 16 bits each, so half the arithmetic for an element, and 16 bytes an access in
//    halves too. The loads are issued before the numbers are drawn: ten rounds of multiplications pass while memory
//    answers. A lane holds the mask byte of its own eight elements, and a warp's 32 bytes are one transaction without a
//    shuffle. Only floats, whose eight elements are two packs, trade bits between lanes.
//    The two branches keep the compiler from moving the loads down to their use. Between them packs are held as words:
//    it would take halves apart, and so wait for them, where they are loaded.
//    whole: groups whose whole warp moves packs, a multiple of 32; the elements of the other groups go one by one.
extern "C" __global__ void dropout_add_tuned(const T* __restrict__ x, const T* __restrict__ addend,
                                             const unsigned long long* __restrict__ call, T* __restrict__ y,
                                             unsigned char* __restrict__ mask, long long n, long long whole,
                                             unsigned long long seed, unsigned threshold, float scale) {
  const Tile<T> tile;
  uint4 from_x[Tile<T>::PACKS], from_addend[Tile<T>::PACKS];
  if (tile.group < whole) {
#pragma unroll
    for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
      from_x[k] = __ldg(reinterpret_cast<const uint4*>(x + tile.element(k)));
      from_addend[k] = __ldg(reinterpret_cast<const uint4*>(addend + tile.element(k)));
    }
  }
  unsigned byte = keep_8({seed, *call}, tile.group, threshold);
  if (tile.group < whole) {
#pragma unroll
    for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
      *reinterpret_cast<uint4*>(y + tile.element(k)) =
          dropout_add_words(from_x[k], from_addend[k], tile.to_pack(byte, k), scale);
    }
    mask[tile.group] = byte;
  } else {
    const long long begin = tile.group * GROUP;
    byte = tile.within(byte, n);
    dropout_add_each(x, addend, y, begin, min(begin + GROUP, n), byte, scale);
    // The last word's bytes are written also where they stand for no element.
    if (begin < (n + 31) / 32 * 32) mask[tile.group] = byte;
  }
}
