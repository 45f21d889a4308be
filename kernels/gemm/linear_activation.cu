// The bias and the activation of a linear layer, after the product by a kernel of its own and in place:
// y[i] = activation(y[i] + bias[i % columns]).
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned for fewer than 2^31 elements, else unsigned long long),
// ACTIVATION (1 for ReLU, 2 for GELU).
//
// The product is cuBLASLt's, which can add the bias and apply the activation to the sums while they are in registers. If
// it doesn't, y is written, read and written again: three passes where one is enough, as in linear_bias.cu. An activation
// that no library has in its epilogue must go here, into the next element-wise kernel, together with all else that is
// done to each element.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef ACTIVATION
#define ACTIVATION 2
#endif

#include "add_bias.cuh"

using T = SCALAR;

// GELU by the formula that cuBLASLt has: x / 2 * (1 + tanh(u)), with u = sqrt(2 / pi) * (x + 0.044715 x^3). That is x
// times the logistic function of 2 u, x / (1 + e^(-2 u)), in which nothing cancels where x is negative: one exponential
// and one division, both approximate. e^(-2 u) is 2^(x * (LINEAR + CUBIC x^2)).
__device__ __forceinline__ float gelu(float x) {
  constexpr float LINEAR = -2.302208198f, CUBIC = -0.1029432396f;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * fmaf(CUBIC, x * x, LINEAR)));
  return __fdividef(x, 1.0f + power);  // where the power is infinite: 0, or NaN for an infinite x, as in the formula
}

// NaN stays NaN.
__device__ __forceinline__ float activated(float x) { return ACTIVATION == 2 ? gelu(x) : x <= 0.0f ? 0.0f : x; }

// 1. Rows of any length, y and bias at any address, as in linear_bias.cu.
extern "C" __global__ void activate(T* y, const T* __restrict__ bias, INDEX n, int aligned, INDEX columns,
                                    INDEX multiplier, unsigned shift) {
  add_bias_anywhere(y, bias, n, aligned, Columns<INDEX>{columns, multiplier, shift}, activated);
}

// 2. Rows of whole packs, y and bias on 16 bytes.
extern "C" __global__ void activate_whole(T* y, const T* __restrict__ bias, INDEX n, INDEX columns, INDEX multiplier,
                                          unsigned shift) {
  add_bias_to_packs(y, bias, n, Columns<INDEX>{columns, multiplier, shift}, activated);
}
