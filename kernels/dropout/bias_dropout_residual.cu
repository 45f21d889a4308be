// Bias, dropout and a residual in one kernel, over contiguous (rows, columns) tensors:
// y = (x + bias[column]) * scale + residual where an element is kept, y = residual elsewhere. The mask of the kept
// elements is written too, since the backward needs it.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on: what
// finds an element's column) and WHOLE (1 where rows are a multiple of a pack and bias is aligned to 16 bytes; kernels
// 1 and 2 make no use of it).
//
// As three kernels, two tensors are written only to be read again: 4 of the 7 that pass through memory. The bias is
// small and stays in L1 and L2. What differs below is the size of the mask, and how many instructions an element takes.
//
// What each step gained on an NVIDIA H200 (reports/h200/dropout_fused), float32 R174762-C768 p=0.1.
// At least 1.074 GB are read and 553.6 MB written. The ceiling is 372.9 us, by memory.
//   eager: PyTorch
//       1.114 ms   33.5% of ceiling
//   fused_bytes: one kernel, four elements a thread, biases one by one, byte mask
//       404.6 us   92.2% of ceiling  moves 1.745 GB  2.75x the speed of eager
//   fused_bitmask: the same with a bit an element, eight lanes a word
//       385.1 us   96.8% of ceiling  moves 1.627 GB  1.05x the speed of fused_bytes
//   tuned: eight elements a draw, packs of 16 bytes, of biases too where rows allow, a mask byte a lane
//       375.3 us   99.4% of ceiling  moves 1.627 GB  1.03x the speed of fused_bitmask

// Defaults for compiling this file alone.
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "../include/bias.cuh"
#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "philox.cuh"
#include "../include/quad.cuh"

using T = SCALAR;

// Rounds twice, before the result is stored. A dropped element counts as 0, whatever it was (keep.cuh).
__device__ __forceinline__ float bias_dropout_residual(float x, float bias, float residual, bool keep, float scale) {
  return fmaf(keep ? x + bias : 0.0f, scale, residual);
}

// The same for elements; bits stand lowest first, here and below.
__device__ __forceinline__ T element_of(T x, T bias, T residual, unsigned bits, float scale) {
  return T(bias_dropout_residual(to_float(x), to_float(bias), to_float(residual), bits & 1, scale));
}

struct Tensors {
  const T* __restrict__ x;
  const T* __restrict__ bias;
  const T* __restrict__ residual;
  T* __restrict__ y;
  Columns<INDEX> columns;

  // Elements `begin` to `end` one by one, where a whole access isn't possible.
  __device__ __forceinline__ void each(long long begin, long long end, unsigned bits, float scale) const {
    if (begin >= end) return;
    INDEX column = columns.of(static_cast<INDEX>(begin));
#pragma unroll 1
    for (long long i = begin; i < end; ++i, bits >>= 1) {
      y[i] = element_of(x[i], bias[column], residual[i], bits, scale);
      column = column + 1 == columns.count ? 0 : column + 1;
    }
  }
};

// What kernels 1 and 2 share: four elements a thread. One Philox call gives their numbers, one load each x and
// residual; a multiplication in place of a division finds the first one's column, and the biases come one by one. Gives
// the bits of what was kept, none for elements that don't exist.
__device__ __forceinline__ unsigned quad_of(const Tensors& t, const Stream& stream, long long quad, long long n,
                                            long long whole, unsigned threshold, float scale) {
  const long long begin = quad * Quad<T>::SIZE;
  unsigned bits = keep_4(stream, quad, threshold);
  if (quad < whole) {
    const Quad<T> x = load_quad(t.x + begin), residual = load_quad(t.residual + begin);
    INDEX column = t.columns.of(static_cast<INDEX>(begin));
    Quad<T> y;
#pragma unroll
    for (unsigned j = 0; j < Quad<T>::SIZE; ++j) {
      y.at[j] = element_of(x.at[j], t.bias[column], residual.at[j], bits >> j, scale);
      column = column + 1 == t.columns.count ? 0 : column + 1;
    }
    store_quad(t.y + begin, y);
  } else {
    bits = within_quad(bits, n - begin);
    t.each(begin, min(begin + Quad<T>::SIZE, n), bits, scale);
  }
  return bits;
}

// 1. Four mask bytes a thread in one store. n: elements. whole: quads that may move as one access: all full ones, or
//    none if a tensor isn't aligned to 16 bytes. multiplier, shift: of the division by `columns`.
extern "C" __global__ void bias_dropout_residual_bytes(const T* __restrict__ x, const T* __restrict__ bias,
                                                       const T* __restrict__ residual,
                                                       const unsigned long long* __restrict__ call, T* __restrict__ y,
                                                       bool* __restrict__ mask, long long n, long long whole,
                                                       INDEX columns, INDEX multiplier, unsigned shift,
                                                       unsigned long long seed, unsigned threshold, float scale) {
  const Tensors tensors{x, bias, residual, y, {columns, multiplier, shift}};
  const long long quad = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const long long begin = quad * Quad<T>::SIZE;
  const unsigned bits = quad_of(tensors, {seed, *call}, quad, n, whole, threshold, scale);
  if (quad < whole) {
    store_quad(mask + begin, Quad<bool>{bool(bits & 1), bool(bits & 2), bool(bits & 4), bool(bits & 8)});
  } else {
    for (long long i = begin; i < min(begin + Quad<T>::SIZE, n); ++i) mask[i] = bits >> (i - begin) & 1;
  }
}

// 2. A bit an element: of 7 bytes that an element of half precision moved, 6 1/8 are left. Eight lanes make a word of
//    their four bits each, and one of them writes it.
extern "C" __global__ void bias_dropout_residual_bitmask(const T* __restrict__ x, const T* __restrict__ bias,
                                                         const T* __restrict__ residual,
                                                         const unsigned long long* __restrict__ call, T* __restrict__ y,
                                                         unsigned* __restrict__ mask, long long n, long long whole,
                                                         INDEX columns, INDEX multiplier, unsigned shift,
                                                         unsigned long long seed, unsigned threshold, float scale) {
  const Tensors tensors{x, bias, residual, y, {columns, multiplier, shift}};
  const long long quad = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const unsigned word = word_of_quads(quad_of(tensors, {seed, *call}, quad, n, whole, threshold, scale));
  const long long begin = quad * Quad<T>::SIZE;
  if (threadIdx.x % 8 == 0 && begin < n) mask[begin / 32] = word;
}

// Sixteen bytes, x and residual as words.
__device__ __forceinline__ uint4 words_of(const uint4& x, const Pack<T>& bias, const uint4& residual, unsigned bits,
                                          float scale) {
  constexpr unsigned WORDS = PACK_BYTES / 4;
  uint4 y;
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    Lanes<T> lanes(reinterpret_cast<const unsigned(&)[WORDS]>(x)[w]);
    const Lanes<T> residuals(reinterpret_cast<const unsigned(&)[WORDS]>(residual)[w]);
#pragma unroll
    for (unsigned l = 0; l < Lanes<T>::SIZE; ++l, bits >>= 1) {
      const float biased_by = to_float(bias.at[w * Lanes<T>::SIZE + l]);
      lanes.at[l] = bias_dropout_residual(lanes.at[l], biased_by, residuals.at[l], bits & 1, scale);
    }
    reinterpret_cast<unsigned(&)[WORDS]>(y)[w] = lanes.word();
  }
  return y;
}

// 3. Eight elements a Philox call, 16 bits each, so half the arithmetic for an element, and 16 bytes an access in
//    halves too. The loads are issued before the numbers are drawn: ten rounds of multiplications pass while memory
//    answers. The biases, which L1 has, come after them, in one load a pack where rows are a multiple of it. A lane
//    holds the mask byte of its own eight elements, and a warp's 32 bytes are one transaction without a shuffle. Only
//    floats, whose eight elements are two packs, trade bits between lanes.
//    The two branches keep the compiler from moving the loads down to their use. Between them packs are held as words:
//    it would take halves apart, and so wait for them, where they are loaded.
//    whole: groups whose whole warp moves packs, a multiple of 32; the elements of the other groups go one by one.
extern "C" __global__ void bias_dropout_residual_tuned(const T* __restrict__ x, const T* __restrict__ bias,
                                                       const T* __restrict__ residual,
                                                       const unsigned long long* __restrict__ call, T* __restrict__ y,
                                                       unsigned char* __restrict__ mask, long long n, long long whole,
                                                       INDEX columns, INDEX multiplier, unsigned shift,
                                                       unsigned long long seed, unsigned threshold, float scale) {
  const Tensors tensors{x, bias, residual, y, {columns, multiplier, shift}};
  const Tile<T> tile;
  uint4 from_x[Tile<T>::PACKS], from_residual[Tile<T>::PACKS];
  if (tile.group < whole) {
#pragma unroll
    for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
      from_x[k] = __ldg(reinterpret_cast<const uint4*>(x + tile.element(k)));
      from_residual[k] = __ldg(reinterpret_cast<const uint4*>(residual + tile.element(k)));
    }
  }
  unsigned byte = keep_8({seed, *call}, tile.group, threshold);
  if (tile.group < whole) {
#pragma unroll
    for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
      const Pack<T> biases = load_bias<WHOLE>(bias, static_cast<INDEX>(tile.element(k)), tensors.columns);
      *reinterpret_cast<uint4*>(y + tile.element(k)) =
          words_of(from_x[k], biases, from_residual[k], tile.to_pack(byte, k), scale);
    }
    mask[tile.group] = byte;
  } else {
    const long long begin = tile.group * GROUP;
    byte = tile.within(byte, n);
    tensors.each(begin, min(begin + GROUP, n), byte, scale);
    // The last word's bytes are written also where they stand for no element.
    if (begin < (n + 31) / 32 * 32) mask[tile.group] = byte;
  }
}
