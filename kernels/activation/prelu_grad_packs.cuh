// Packs of the backward of PReLU: what prelu_grad.cu and prelu_grad_whole.cu share. Macros: SCALAR.
#pragma once

#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

constexpr unsigned SIZE = Pack<T>::SIZE;
constexpr unsigned WORDS = PACK_BYTES / 4;   // registers of a pack
constexpr unsigned LANES = Lanes<T>::SIZE;   // elements of a register

// The alphas of a register's first and last element, in the type that backward_word takes.
__device__ __forceinline__ float alphas(float first, float) { return first; }
__device__ __forceinline__ __half2 alphas(__half first, __half last) { return __halves2half2(first, last); }
__device__ __forceinline__ __nv_bfloat162 alphas(__nv_bfloat16 first, __nv_bfloat16 last) {
  return __halves2bfloat162(first, last);
}
using Word = decltype(alphas(T{}, T{}));

__device__ __forceinline__ unsigned bits_of(__half2 pair) { return reinterpret_cast<const unsigned&>(pair); }
__device__ __forceinline__ unsigned bits_of(__nv_bfloat162 pair) { return reinterpret_cast<const unsigned&>(pair); }

// dx of a register's elements; their products are added to `sums`. Both factors of a pair become zero where x > 0,
// since zero times an infinity is NaN.
__device__ __forceinline__ unsigned backward_word(float x, float dy, float alpha, float* sums) {
  const bool positive = x > 0.0f;
  if (!positive) sums[0] = fmaf(x, dy, sums[0]);
  return __float_as_uint(positive ? dy : alpha * dy);
}
template <typename Two>
__device__ __forceinline__ unsigned backward_word(Two x, Two dy, Two alpha, float* sums) {
  const unsigned positive = __hgt2_mask(x, Two{});
  const Lanes<T> a(bits_of(x) & ~positive), b(bits_of(dy) & ~positive);
  sums[0] = fmaf(a.at[0], b.at[0], sums[0]);
  sums[1] = fmaf(a.at[1], b.at[1], sums[1]);
  return (bits_of(dy) & positive) | (bits_of(__hmul2(alpha, dy)) & ~positive);
}
// dx of a pack, in place of its dy.
__device__ __forceinline__ void backward_pack(const Pack<T>& x, Pack<T>& dy, const Word (&alpha)[WORDS],
                                              float (&sums)[SIZE]) {
  const Word(&x_words)[WORDS] = reinterpret_cast<const Word(&)[WORDS]>(x);
  Word(&words)[WORDS] = reinterpret_cast<Word(&)[WORDS]>(dy);
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    const unsigned result = backward_word(x_words[w], words[w], alpha[w], sums + w * LANES);
    words[w] = reinterpret_cast<const Word&>(result);
  }
}
