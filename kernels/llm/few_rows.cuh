// Products of few rows of x with the rows of weights, as fast as the weights come from memory. The story is in
// linear_few_rows.cu.
//
// A Layer says which rows of weights there are and what becomes of the sums. Rows come in pairs: a gate and its up, two
// elements that RoPE turns together, or any two. The two sums of a pair end up in one thread. A Layer has
//
//     pairs()                     how many pairs there are
//     row(pair, which)            the address of the first (0) or second (1) row; of a row that exists for any pair
//     Ready ready(n, pair)        what storing needs from memory beside the sums, asked for before the sums are there
//     store(n, pair, sums, ready) rounds and writes the two sums of row n of x
//
// Macros of `tuned`: ROWS: of x, rounded up to 8 or 16, or to 1, 2 or 4 for threads with columns of their own
// (few_rows_apart.cuh). WARPS: of a block, which share the columns. COLUMNS and STAGES: of the ring of weights
// (weight_ring.cuh).
#pragma once

#include "../include/dependent.cuh"
#include "../include/mma.cuh"
#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

// x: (rows, columns). gamma: the weights of its RMSNorm, if `NORM`, which adds `epsilon` to mean squares.
struct Input {
  const T* x;
  const T* gamma;
  unsigned rows, columns;
  float epsilon;
};

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

__device__ __forceinline__ float norm_scale(float squares, const Input& input) {
  return rsqrtf(squares / static_cast<float>(input.columns) + input.epsilon);
}

#ifndef ROWS

// 1. A warp makes the two sums of a pair, for one row of x after the other; any number of columns, any address.
template <bool NORM, typename Layer>
__device__ __forceinline__ void multiply_plainly(const Layer& layer, const Input& input) {
  const unsigned lane = threadIdx.x % WARP, pair = thread_index<unsigned>() / WARP;
  let_next_begin();
  wait_for_before();
  if (pair >= layer.pairs()) return;
  const T *first = layer.row(pair, 0), *second = layer.row(pair, 1);
#pragma unroll 1
  for (unsigned n = 0; n < input.rows; ++n) {
    const T* x = input.x + static_cast<long long>(n) * input.columns;
    float scale = 1.0f, sums[2] = {};
    if constexpr (NORM) {
      float squares = 0.0f;
      for (unsigned k = lane; k < input.columns; k += WARP) {
        const float value = to_float(load_fresh(x + k));
        squares = fmaf(value, value, squares);
      }
      scale = norm_scale(sum_of_warp(squares), input);
    }
    for (unsigned k = lane; k < input.columns; k += WARP) {
      float value = to_float(load_fresh(x + k));
      if constexpr (NORM) value = to_float(T(value * scale * to_float(input.gamma[k])));
      sums[0] = fmaf(value, to_float(first[k]), sums[0]);
      sums[1] = fmaf(value, to_float(second[k]), sums[1]);
    }
    sums[0] = sum_of_warp(sums[0]), sums[1] = sum_of_warp(sums[1]);
    if (lane == 0) layer.store(n, pair, sums, layer.ready(n, pair));
  }
}

#else

constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned PAIRS = 4, TILE = 2 * PAIRS;                    // pairs and rows of weights of a tile
constexpr unsigned SIZE = Pack<T>::SIZE;                           // elements that a lane loads at a time
constexpr unsigned STEP = 4 * SIZE;                                // columns that four lanes load at a time
// Blocks that registers are enough for: of this kernel and of the next ones.
constexpr unsigned BLOCKS = ROWS == 4 ? (WARPS + 15) / WARPS : WARPS > 8 ? 2 : 24 / WARPS;

// Elements from a row of x in shared memory to the next. A row has zeros behind it until its length is a multiple of
// UNIT, and half a unit, so that the rows that a quarter of a warp reads lie in different banks.
constexpr unsigned UNIT = 2 * STEP;
__device__ __forceinline__ unsigned padded(unsigned columns) { return (columns + UNIT - 1) / UNIT * UNIT; }
__device__ __forceinline__ unsigned pitch_of_x(unsigned columns) { return padded(columns) + STEP; }

__device__ __forceinline__ void widen_pack(const T* from, float (&values)[SIZE]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const unsigned words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const Lanes<T> lanes(words[w]);
    values[2 * w] = lanes.at[0], values[2 * w + 1] = lanes.at[1];
  }
}

// Normalises the rows of x in shared memory, in place. Each thread reads what it copied itself.
__device__ __forceinline__ void normalise(T* x, const T* gamma, unsigned rows, const Input& input) {
  __shared__ float squares[ROWS][WARPS];
  const unsigned pitch = pitch_of_x(input.columns), end = padded(input.columns);
#pragma unroll 1
  for (unsigned n = 0; n < rows; ++n) {
    float sum = 0.0f;
    for (unsigned k = threadIdx.x * SIZE; k < end; k += THREADS * SIZE) {
      float values[SIZE];
      widen_pack(x + n * pitch + k, values);
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) sum = fmaf(values[e], values[e], sum);
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % WARP == 0) squares[n][threadIdx.x / WARP] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned n = 0; n < rows; ++n) {
    float sum = 0.0f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) sum += squares[n][w];
    const float scale = norm_scale(sum, input);
    for (unsigned k = threadIdx.x * SIZE; k < end; k += THREADS * SIZE) {
      float values[SIZE], factors[SIZE];
      widen_pack(x + n * pitch + k, values);
      widen_pack(gamma + k, factors);
      unsigned words[4];
#pragma unroll
      for (unsigned w = 0; w < 4; ++w) {
        words[w] = rounded_pair<T>(values[2 * w] * scale * factors[2 * w],
                                   values[2 * w + 1] * scale * factors[2 * w + 1]);
      }
      *reinterpret_cast<uint4*>(x + n * pitch + k) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

#if ROWS < 8
#include "few_rows_apart.cuh"
#else

// 2. The tensor cores multiply eight or 16 rows of x with a tile of eight rows of weights.
#include "weight_ring.cuh"

constexpr unsigned EIGHTS = ROWS / 8;

// Begins to copy a row of x or gamma to shared memory, and zeros behind it. Each thread has packs of its own.
__device__ __forceinline__ void copy_row(T* to, const T* from, unsigned columns) {
#pragma unroll 1
  for (unsigned k = threadIdx.x * SIZE; k < padded(columns); k += THREADS * SIZE) {
    const unsigned bytes = k < columns ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to + k)),
                 "l"(from + (bytes ? k : 0)), "n"(16), "r"(bytes)
                 : "memory");
  }
}

// Two sums of each product, so that a product needn't wait for the one before.
using Sums = float[2][4];

__device__ __forceinline__ uint4 load_shared_16(const T* from) { return *reinterpret_cast<const uint4*>(from); }

// Adds the products of 32 columns of weights and of x. The order of columns in a product doesn't matter if both operands
// have the same. So a lane takes 16 bytes of each row that is its own as columns of two products.
__device__ __forceinline__ void multiply_step(Sums& sums, const uint4& weights, const T* x,
                                              const unsigned (&rows)[EIGHTS]) {
  const uint4 first = load_shared_16(x + rows[0]), second = EIGHTS > 1 ? load_shared_16(x + rows[EIGHTS - 1]) : uint4{};
  multiply_add<T>(sums[0], {first.x, second.x, first.y, second.y}, {weights.x, weights.y});
  multiply_add<T>(sums[1], {first.z, second.z, first.w, second.w}, {weights.z, weights.w});
}

// The same of a warp's part of a stage with `here` columns. x: of the stage's first column. rows: offsets of the lane's
// rows of x.
__device__ __forceinline__ void multiply_stage(Sums& sums, const T* stage, const T* x, const unsigned (&rows)[EIGHTS],
                                               unsigned here) {
  const unsigned lane = threadIdx.x % WARP, first = threadIdx.x / WARP * STEP;
  const T* const own = stage + lane / 4 * PITCH + lane % 4 * SIZE;
  if (here == COLUMNS && COLUMNS % (WARPS * STEP) == 0) {
#pragma unroll
    for (unsigned k = 0; k < COLUMNS; k += WARPS * STEP) {
      multiply_step(sums, load_shared_16(own + first + k), x + first + k, rows);
    }
  } else {
#pragma unroll 1
    for (unsigned k = first; k < here; k += WARPS * STEP) {
      const bool there = k + lane % 4 * SIZE < here;
      multiply_step(sums, there ? load_shared_16(own + k) : uint4{}, x + k, rows);
    }
  }
}

template <bool NORM, typename Layer>
__device__ __forceinline__ void multiply_few(const Layer& layer, const Input& input) {
  extern __shared__ uint4 dynamic[];
  __shared__ float2 parts[2][WARPS][ROWS][PAIRS];
  const unsigned first_row = blockIdx.y * ROWS, rows = min(ROWS, input.rows - first_row);
  const unsigned pitch = pitch_of_x(input.columns), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  T* const x = reinterpret_cast<T*>(dynamic) + STAGES * STAGE;
  T* const gamma = x + rows * pitch;

  let_next_begin();
  Ring<Layer> ring(layer, reinterpret_cast<T*>(dynamic), input.columns);
  if constexpr (NORM) copy_row(gamma, input.gamma, input.columns);
  wait_for_before();

#pragma unroll 1
  for (unsigned n = 0; n < rows; ++n) {
    copy_row(x + n * pitch, input.x + static_cast<long long>(first_row + n) * input.columns, input.columns);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  if constexpr (NORM) normalise(x, gamma, rows, input);
  __syncthreads();

  // Rows that don't exist are other rows, whose sums nobody reads.
  unsigned own[EIGHTS];
#pragma unroll
  for (unsigned e = 0; e < EIGHTS; ++e) own[e] = min(lane / 4 + e * 8, rows - 1) * pitch + lane % 4 * SIZE;
  // The last threads add up sums of warps, and store: the first warp has copies to begin.
  const unsigned n = (threadIdx.x - (THREADS - ROWS * PAIRS)) / PAIRS, of_tile = threadIdx.x % PAIRS;
  unsigned half = 0, slot = 0, phase = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < ring.tiles(); tile += gridDim.x, half ^= 1) {
    const unsigned pair = tile * PAIRS + of_tile;
    typename Layer::Ready ready{};
    if (n < rows) ready = layer.ready(first_row + n, pair);
    Sums sums = {};
#pragma unroll 1
    for (unsigned begin = 0; begin < input.columns; begin += COLUMNS) {
      ring.wait(slot, phase);
      multiply_stage(sums, ring.stage(slot), x + begin, own, min(COLUMNS, input.columns - begin));
      if (begin + COLUMNS >= input.columns) {
#pragma unroll
        for (unsigned e = 0; e < EIGHTS; ++e) {
          parts[half][warp][lane / 4 + e * 8][lane % 4] =
              make_float2(sums[0][2 * e] + sums[1][2 * e], sums[0][2 * e + 1] + sums[1][2 * e + 1]);
        }
      }
      __syncthreads();
      ring.refill(slot);
      if (++slot == STAGES) slot = 0, phase ^= 1;
    }
    if (n < rows) {
      float pair_of_sums[2] = {};
#pragma unroll
      for (unsigned w = 0; w < WARPS; ++w) {
        const float2 part = parts[half][w][n][of_tile];
        pair_of_sums[0] += part.x, pair_of_sums[1] += part.y;
      }
      layer.store(first_row + n, pair, pair_of_sums, ready);
    }
  }
}
#endif
#endif
