// h = acc * sx * sw + bias + residual, which the next residual is, and y = LayerNorm(h) / sy as integers of 8 bits
// (few.cuh), which the next matrix product reads. LayerNorm works on h as it is written, so rounded to T; gamma and
// beta have a number for each column. All sums are float.
//
// Memory bounds it: an element takes 4 bytes of acc, one T of the residual, one T of h and 1 byte of y. Five kernels
// write three tensors more between them and read them again. One kernel reads a row, keeps it on the chip until its
// statistics are known, and writes h and y.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), CHANNEL (0 or 1: sw has a scale for each column, not one for all), and
// the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/quantise), float16 M131072-C1024 scales=channel.
// At least 805.3 MB are read and 402.7 MB written. The ceiling is 275.4 us, by memory.
//   eager: PyTorch
//       3.383 ms    8.1% of ceiling
//   separate: five kernels: dequantise, add the bias, add the residual, normalise a row a block, quantise
//       2.054 ms   13.4% of ceiling  moves 3.087 GB  1.65x the speed of eager
//   fused: one kernel, a block a row, one element a thread at a time
//       631.2 us   43.6% of ceiling  moves 1.208 GB  3.25x the speed of separate
//   tuned: rows in registers, up to 16 bytes of acc an access, several rows a warp or block
//       277.1 us   99.4% of ceiling  moves 1.208 GB  2.28x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef CHANNEL
#define CHANNEL 0
#endif

// 1. The text before: five kernels, which dequantise, add the bias, add the residual, normalise, and quantise. With
//    int32 and halves 23 bytes an element move, where 9 have to.
#ifdef STEPS
#include "steps.cuh"
#else

#include "plain_norm.cuh"

using T = SCALAR;

// 2. The text after: one kernel, a block a row, one element a thread at a time. Each thread reads the elements of h
//    again that it has written itself, for the variance and for y; they are in the L1, if the row isn't very long. Any
//    number of columns at any address.
#if !(defined COUNT || defined UNITS)
extern "C" __global__ void dequantize_bias_residual_layer_norm_quantize_fused(
    const int* __restrict__ acc, const float* __restrict__ sx, const float* __restrict__ sw, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gamma, const T* __restrict__ beta,
    const float* __restrict__ sy, T* h, signed char* __restrict__ y, long long rows, long long columns) {
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const long long first = row * columns;
    float sum = 0.0f;
    for (long long c = threadIdx.x; c < columns; c += blockDim.x) {
      const float value = fmaf(to_float(acc[first + c]), *sx * sw[CHANNEL ? c : 0], to_float(bias[c]));
      const T rounded = T(value + to_float(residual[first + c]));
      h[first + c] = rounded;
      sum += to_float(rounded);
    }
    normalise(h + first, sum, gamma, beta, inverse(*sy), y + first, columns);
  }
}
#endif

// 3. A row is read once and stays in registers. A few lanes of a warp, a whole warp or a block share it, as suits its
//    length; lanes with few elements work on TOGETHER rows at once, which share the loads of the columns' numbers. A
//    unit is 4, 2 or 1 elements, so up to 16 bytes of acc an access. A unit that a row lacks is loaded from the row's
//    beginning, so that no load needs a condition, and counts as nothing.
//
// Macros: WIDTH (elements of a unit), COUNT (units of a row that a thread has), LANES (threads of a warp that share a
// row; 0 where the block does), THREADS (of a block), TOGETHER, FULL (0 or 1: no thread lacks a unit), RESIDENT
// (threads that a multiprocessor is to hold at least: so the compiler knows how many registers it may take, and puts
// all loads first), EARLY (as in together.cuh).
#ifdef COUNT
#include "../include/together.cuh"

constexpr unsigned TEAM = LANES ? LANES : THREADS;
constexpr unsigned TEAMS = LANES ? WARP / LANES : 1;  // of a warp

template <typename Element>
__device__ __forceinline__ void load_values(const Element* __restrict__ from, float (&values)[WIDTH]) {
  Few<Element, WIDTH> raw;
  raw.load(from);
  raw.widen(values);
}

__device__ __forceinline__ void sum_of_team(float (&sums)[TOGETHER], float (&partial)[WARP]) {
  if constexpr (LANES == 0) {
    sums[0] = sum_of_block(sums[0], partial);
  } else {
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) sums[r] = sum_of_lanes<LANES>(sums[r]);
  }
}

// Some rows of a team, which lie TEAMS apart, so that each access of a warp has neighbouring rows.
struct Rows {
  const unsigned rank = threadIdx.x % TEAM, columns;
  const long long rows;
  long long first;
  float values[TOGETHER][COUNT][WIDTH];
  float rstd[TOGETHER], offset[TOGETHER];  // offset: minus the mean, times rstd
  Few<T, WIDTH> gammas[COUNT], betas[COUNT];
  Few<float, 1> y_scale;

  __device__ __forceinline__ Rows(long long rows, unsigned columns) : columns(columns), rows(rows) {
    const long long warp = static_cast<long long>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    first = LANES ? warp * (TEAMS * TOGETHER) + threadIdx.x % WARP / TEAM : blockIdx.x;
  }
  __device__ __forceinline__ bool exists(unsigned r) const { return first + r * TEAMS < rows; }
  // Where a row begins. The last row stands for rows behind it.
  __device__ __forceinline__ long long begin(unsigned r) const { return min(first + r * TEAMS, rows - 1) * columns; }
  // Whether the thread's unit j exists. Only the last one may not.
  __device__ __forceinline__ bool has(unsigned j) const {
    return FULL || j + 1 < COUNT || (rank + j * TEAM) * WIDTH < columns;
  }
  __device__ __forceinline__ unsigned column(unsigned j) const { return has(j) ? (rank + j * TEAM) * WIDTH : 0; }

  __device__ __forceinline__ void load_last(const T* __restrict__ gamma, const T* __restrict__ beta,
                                            const float* __restrict__ sy) {
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) gammas[j].load(gamma + column(j)), betas[j].load(beta + column(j));
    y_scale.load(sy);
  }

  __device__ __forceinline__ void make(const int* __restrict__ acc, const float* __restrict__ sx,
                                       const float* __restrict__ sw, const T* __restrict__ bias,
                                       const T* __restrict__ residual, T* __restrict__ h) {
    Few<int, WIDTH> products[TOGETHER][COUNT];
    Few<T, WIDTH> residuals[TOGETHER][COUNT];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        products[r][j].load(acc + begin(r) + column(j));
        residuals[r][j].load(residual + begin(r) + column(j));
      }
    }
    if constexpr (EARLY) {
      begin_together(products[0][0], y_scale);
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        begin_together(products[0][j], gammas[j]), begin_together(products[0][j], betas[j]);
      }
    }
    const float common = *sx * (CHANNEL ? 1.0f : *sw);
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      float scale[WIDTH], shift[WIDTH], added[WIDTH];
      if constexpr (CHANNEL) load_values(sw + column(j), scale);
      load_values(bias + column(j), shift);
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) {
        products[r][j].widen(values[r][j]);
        residuals[r][j].widen(added);
#pragma unroll
        for (unsigned e = 0; e < WIDTH; ++e) {
          values[r][j][e] = fmaf(values[r][j][e], CHANNEL ? common * scale[e] : common, shift[e]) + added[e];
        }
        Few<T, WIDTH> rounded;
        rounded.narrow(values[r][j]);
        if (has(j) && exists(r)) rounded.store(h + begin(r) + column(j));
        rounded.widen(values[r][j]);
      }
    }
  }

  __device__ __forceinline__ void measure() {
    __shared__ float partial[2][WARP];
    const float share = __fdividef(1.0f, columns);
    float mean[TOGETHER];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      mean[r] = 0.0f;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
#pragma unroll
        for (unsigned e = 0; e < WIDTH; ++e) mean[r] += has(j) ? values[r][j][e] : 0.0f;
      }
    }
    sum_of_team(mean, partial[0]);
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      mean[r] *= share;
      rstd[r] = 0.0f;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
#pragma unroll
        for (unsigned e = 0; e < WIDTH; ++e) {
          const float distance = has(j) ? values[r][j][e] - mean[r] : 0.0f;
          rstd[r] = fmaf(distance, distance, rstd[r]);
        }
      }
    }
    sum_of_team(rstd, partial[1]);
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      rstd[r] = rsqrtf(fmaf(rstd[r], share, EPSILON));
      offset[r] = -mean[r] * rstd[r];
    }
  }

  __device__ __forceinline__ void write(signed char* __restrict__ y) const {
    const float factor = straight_inverse(__uint_as_float(y_scale.word[0]));
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      float scale[WIDTH], shift[WIDTH], result[WIDTH];
      gammas[j].widen(scale), betas[j].widen(shift);
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) {
#pragma unroll
        for (unsigned e = 0; e < WIDTH; ++e) {
          result[e] = fmaf(fmaf(values[r][j][e], rstd[r], offset[r]), scale[e], shift[e]) * factor;
        }
        Few<signed char, WIDTH> integers;
        integers.narrow(result);
        if (has(j) && exists(r)) integers.store(y + begin(r) + column(j));
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    dequantize_bias_residual_layer_norm_quantize_tuned(
    const int* __restrict__ acc, const float* __restrict__ sx, const float* __restrict__ sw, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gamma, const T* __restrict__ beta,
    const float* __restrict__ sy, T* __restrict__ h, signed char* __restrict__ y, long long rows, unsigned columns) {
  Rows team(rows, columns);
  if constexpr (EARLY) team.load_last(gamma, beta, sy);
  team.make(acc, sx, sw, bias, residual, h);
  team.measure();
  if constexpr (!EARLY) team.load_last(gamma, beta, sy);
  team.write(y);
}
#endif

// 4. Rows that aren't whole units of four elements. Step 3 would have units of two elements or one; then each access
//    moves few bytes. But rows follow each other in memory, so a tile of rows is one run of elements, which whole units
//    cover. Step 3 keeps rows of a single element, and rows that are too long for a tile.
//
// Macros: as in row_runs.cuh.
#ifdef UNITS
#include "row_runs.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    dequantize_bias_residual_layer_norm_quantize_runs(
    const int* __restrict__ acc, const float* __restrict__ sx, const float* __restrict__ sw, const T* __restrict__ bias,
    const T* __restrict__ residual, const T* __restrict__ gamma, const T* __restrict__ beta,
    const float* __restrict__ sy, T* __restrict__ h, signed char* __restrict__ y, long long rows, unsigned columns) {
  Runs runs(rows, columns);
  runs.load(acc, residual);
  runs.load_columns(sx, sw, bias, gamma, beta);
  const float factor = inverse(*sy);
  for (; runs.exist(); runs.advance()) {
    runs.make(h);
    runs.load_next(acc, residual);
    runs.measure();
    runs.write(factor, y);
  }
}
#endif
#endif
