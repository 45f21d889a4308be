// What all kernels of attention over windows share: sizes, where a window and a head lie, and what is added to a score.
//
// Macros: SCALAR (__half or __nv_bfloat16), TOKENS (of a window), HEAD (size of a head),
// BIAS and MASK (1 if there is one), PACKED (1: the tensors of window_attention_packed, 0: the tensors of
// window_attention).
#pragma once

#include "../include/mma.cuh"
#include "../include/number.cuh"
#include "../include/warp.cuh"

extern __shared__ uint4 shared_memory[];

using Element = SCALAR;

// Position of the first token of a window and a head, and from one token to the next, in elements.
struct Rows {
  long long first;
  unsigned step;
};

// Packed, q, k and v of a token are neighbours, (W, T, 3, H, D), and the heads of the output are: (W, T, H, D).
// Otherwise all four are (W, H, T, D).
__device__ __forceinline__ Rows input_rows(unsigned window, unsigned head, unsigned heads) {
  if constexpr (PACKED) {
    return {(static_cast<long long>(window) * (TOKENS * 3) * heads + head) * HEAD, 3 * heads * HEAD};
  } else {
    return {(static_cast<long long>(window) * heads + head) * (TOKENS * HEAD), HEAD};
  }
}
__device__ __forceinline__ Rows output_rows(unsigned window, unsigned head, unsigned heads) {
  if constexpr (PACKED) {
    return {(static_cast<long long>(window) * TOKENS * heads + head) * HEAD, heads * HEAD};
  } else {
    return input_rows(window, head, heads);
  }
}

// The tensors of a call. bias: (H, T, T). mask: (G, T, T).
struct Operands {
  const Element *__restrict__ q, *__restrict__ k, *__restrict__ v, *__restrict__ bias, *__restrict__ mask;
  Element* __restrict__ out;
};

// Bias and mask of a query and a key.
__device__ __forceinline__ float added(const Operands& t, unsigned head, unsigned mask, unsigned query, unsigned key) {
  float sum = 0.0f;
  if constexpr (BIAS) sum += to_float(t.bias[(static_cast<long long>(head) * TOKENS + query) * TOKENS + key]);
  if constexpr (MASK) sum += to_float(t.mask[(static_cast<long long>(mask) * TOKENS + query) * TOKENS + key]);
  return sum;
}

constexpr float LARGEST = 3.402823466e38f, LOG2_E = 1.442695041f;

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }

// 2^x in one instruction; 0 for -infinity.
__device__ __forceinline__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 1 / x in one instruction; infinity for 0.
__device__ __forceinline__ float one_over(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
