// The steps of `separate`: a kernel for each, one element a thread, or a block a row. Each writes its result in the
// type of the case, and the next one reads it.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), CHANNEL
// (0 or 1: a scale has a number for each column).
#pragma once

#include "../include/fastdiv.cuh"
#include "few.cuh"
#include "gelu.cuh"
#include "plain_norm.cuh"

using T = SCALAR;

extern "C" __global__ void quantise_step_dequantise(const int* __restrict__ acc, const float* __restrict__ sx,
                                                    const float* __restrict__ sw, T* __restrict__ y, INDEX elements,
                                                    INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const Divisor<INDEX> row{columns, multiplier, shift};
  y[i] = T(to_float(acc[i]) * (*sx * sw[CHANNEL ? row.remainder(i) : 0]));
}

extern "C" __global__ void quantise_step_bias(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                              INDEX elements, INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const Divisor<INDEX> row{columns, multiplier, shift};
  y[i] = T(to_float(x[i]) + to_float(bias[row.remainder(i)]));
}

extern "C" __global__ void quantise_step_residual(const T* __restrict__ x, const T* __restrict__ residual,
                                                  T* __restrict__ y, INDEX elements) {
  const INDEX i = thread_index<INDEX>();
  if (i < elements) y[i] = T(to_float(x[i]) + to_float(residual[i]));
}

extern "C" __global__ void quantise_step_gelu(const T* __restrict__ x, T* __restrict__ y, INDEX elements) {
  const INDEX i = thread_index<INDEX>();
  if (i < elements) y[i] = T(gelu(to_float(x[i])));
}

extern "C" __global__ void quantise_step_layer_norm(const T* __restrict__ x, const T* __restrict__ gamma,
                                                    const T* __restrict__ beta, T* __restrict__ y, long long rows,
                                                    long long columns) {
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * columns;
    float sum = 0.0f;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) sum += to_float(from[c]);
    normalise(from, sum, gamma, beta, 1.0f, y + row * columns, columns);
  }
}

extern "C" __global__ void quantise_step_quantise(const T* __restrict__ x, const float* __restrict__ scale,
                                                  signed char* __restrict__ y, INDEX elements, INDEX columns,
                                                  INDEX multiplier, unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const Divisor<INDEX> row{columns, multiplier, shift};
  y[i] = quantised(to_float(x[i]) * inverse(scale[CHANNEL ? row.remainder(i) : 0]));
}
