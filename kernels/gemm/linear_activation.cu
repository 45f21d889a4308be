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
//
// What each step gained on an NVIDIA H200 (reports/h200/linear_activation), float16 M25088-K512-N2048 activation=relu.
// At least 27.79 MB are read and 102.8 MB written. The ceiling is 67.24 us, by the arithmetic.
//   eager: PyTorch
//       144.5 us   46.5% of ceiling
//   separate: cuBLASLt's product, then a kernel of ours that adds the bias and applies the activation
//       138.5 us   48.6% of ceiling  moves 336.1 MB  1.04x the speed of eager
//   epilogue: cuBLASLt's product, which adds the bias and applies the activation before it writes y
//       99.30 us   67.7% of ceiling  moves 130.6 MB  1.39x the speed of separate
//   tuned: as epilogue, by the fastest of the 24 algorithms that cuBLASLt proposes
//       94.22 us   71.4% of ceiling  moves 130.6 MB  1.05x the speed of epilogue

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
