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
// Macros of `tuned`: ROWS: of x, rounded up to 8 or 16. WARPS: of a block, which share the columns. AHEAD: units of
// columns that a warp has under way. FETCH: tiles of a block whose weights come to the L2 while it waits for the kernel
// before.
#pragma once

#include "../include/dependent.cuh"
#include "../include/mma.cuh"
#include "../include/number.cuh"
#include "../include/once.cuh"
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

// 2. The tensor cores multiply 16 rows of weights, a tile of eight pairs, with eight or 16 rows of x.
#ifndef EARLY
#define EARLY 0
#endif
constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned BLOCKS = 512 / THREADS;  // that registers are enough for: this kernel's, and the next one's
constexpr unsigned EIGHTS = ROWS / 8;
constexpr unsigned PAIRS = 8;                       // of a tile
constexpr unsigned SIZE = Pack<T>::SIZE;            // elements that a lane loads at a time
constexpr unsigned STEP = 4 * SIZE, UNIT = 2 * STEP;  // columns that four lanes load at a time; a unit is 128 bytes of a row
constexpr unsigned PITCH = 2 * PAIRS + 4;           // of a row of sums in shared memory, so that lanes have all banks

// Elements from a row of x in shared memory to the next. Rows are whole units and half a unit, so that the rows that a
// quarter of a warp reads lie in different banks.
__device__ __forceinline__ unsigned units_of(unsigned columns) { return (columns + UNIT - 1) / UNIT; }
__device__ __forceinline__ unsigned pitch_of_x(unsigned columns) { return units_of(columns) * UNIT + STEP; }

// A lane's part of a unit: of the first and of the second row of a pair. The order of columns in a product doesn't matter
// if both operands have the same. So lane l takes 16 bytes from 16 * (l % 4) on as columns of two products, and loads
// them from memory as they are: neither shared memory nor a shuffle comes between.
struct Unit {
  uint4 at[2][2];  // [step][row of the pair]
};

// What a warp loads, one unit after the other: its parts of the columns of a tile, then of the block's next tile.
template <typename Layer>
struct Stream {
  const Layer& layer;
  const unsigned columns, tiles, turns;
  unsigned tile = blockIdx.x, turn = 0;
  const T* rows[2];

  __device__ __forceinline__ Stream(const Layer& layer, unsigned columns, unsigned tiles, unsigned turns)
      : layer(layer), columns(columns), tiles(tiles), turns(turns) {
    find_rows();
  }
  __device__ __forceinline__ void find_rows() {
    const unsigned lane = threadIdx.x % WARP, pair = tile * PAIRS + lane / 4;
#pragma unroll
    for (unsigned which = 0; which < 2; ++which) rows[which] = layer.row(pair, which) + lane % 4 * SIZE;
  }
  // The unit `ahead` turns from here.
  __device__ __forceinline__ void load(Unit& unit, unsigned ahead) const {
    const unsigned begin = ((turn + ahead) * WARPS + threadIdx.x / WARP) * UNIT;
#pragma unroll
    for (unsigned s = 0; s < 2; ++s) {
      const unsigned k = begin + s * STEP;
      const bool there = tile < tiles && k + threadIdx.x % 4 * SIZE < columns;
#pragma unroll
      for (unsigned which = 0; which < 2; ++which) unit.at[s][which] = load_once(rows[which] + k, there);
    }
  }
  __device__ __forceinline__ void go_on() {
    turn += AHEAD;
    if (turn >= turns) {
      turn = 0, tile += gridDim.x;
      if (tile < tiles) find_rows();
    }
    if (EARLY || tile >= tiles) let_next_begin();
  }
  // Asks for what comes next to come to the L2: a warp for the rows of a tile each.
  __device__ __forceinline__ void fetch() const {
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const unsigned from = warp ? 0 : turn * WARPS * UNIT, ahead = tile + warp * gridDim.x;
    if (warp >= FETCH || lane >= 2 * PAIRS || ahead >= tiles || from >= columns) return;
    fetch_to_l2(layer.row(ahead * PAIRS + lane % PAIRS, lane / PAIRS) + from, (columns - from) * sizeof(T));
  }
};

// Begins to copy a row of x or gamma to shared memory, and zeros behind it. Each thread has packs of its own.
__device__ __forceinline__ void copy_row(T* to, const T* from, unsigned columns) {
#pragma unroll 1
  for (unsigned k = threadIdx.x * SIZE; k < units_of(columns) * UNIT; k += THREADS * SIZE) {
    const unsigned bytes = k < columns ? 16 : 0;
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to + k));
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from + (bytes ? k : 0)), "n"(16),
                 "r"(bytes)
                 : "memory");
  }
}

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
  const unsigned pitch = pitch_of_x(input.columns), end = units_of(input.columns) * UNIT;
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

using Sums = float[EIGHTS][4];

// Adds the products of a unit with the same columns of x, which begin at `x`. rows: offsets of the lane's rows of x.
__device__ __forceinline__ void multiply(Sums& sums, const Unit& unit, const T* x, const unsigned (&rows)[EIGHTS]) {
#pragma unroll
  for (unsigned s = 0; s < 2; ++s) {
    const uint4 &first = unit.at[s][0], &second = unit.at[s][1];
    const unsigned low[] = {first.x, second.x, first.y, second.y}, high[] = {first.z, second.z, first.w, second.w};
#pragma unroll
    for (unsigned e = 0; e < EIGHTS; ++e) {
      const uint4 columns = *reinterpret_cast<const uint4*>(x + rows[e] + s * STEP);
      multiply_add<T>(sums[e], low, {columns.x, columns.y});
      multiply_add<T>(sums[e], high, {columns.z, columns.w});
    }
  }
}

// The sums of a warp, [row of x][row of weights]: the first rows of all pairs, then the second ones.
__device__ __forceinline__ void keep(float (&to)[ROWS][PITCH], const Sums& sums, unsigned rows) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned e = 0; e < EIGHTS; ++e) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned n = e * 8 + lane % 4 * 2 + i % 2;
      if (n < rows) to[n][lane / 4 + i / 2 * PAIRS] = sums[e][i];
    }
  }
}

template <bool NORM, typename Layer>
__device__ __forceinline__ void multiply_few(const Layer& layer, const Input& input) {
  extern __shared__ uint4 dynamic[];
  __shared__ float parts[2][WARPS][ROWS][PITCH];
  T* const x = reinterpret_cast<T*>(dynamic);
  const unsigned begin = blockIdx.y * ROWS, rows = min(ROWS, input.rows - begin);
  const unsigned pitch = pitch_of_x(input.columns), units = units_of(input.columns);
  const unsigned tiles = (layer.pairs() + PAIRS - 1) / PAIRS;
  const unsigned turns = (units + WARPS - 1) / WARPS;
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  T* const gamma = x + rows * pitch;

  Stream<Layer> ahead(layer, input.columns, tiles, turns);
  Unit ring[AHEAD];
#pragma unroll
  for (unsigned r = 0; r < AHEAD; ++r) ahead.load(ring[r], r);
  ahead.go_on();
  ahead.fetch();
  if constexpr (NORM) copy_row(gamma, input.gamma, input.columns);
  wait_for_before();

#pragma unroll 1
  for (unsigned n = 0; n < rows; ++n) {
    copy_row(x + n * pitch, input.x + static_cast<long long>(begin + n) * input.columns, input.columns);
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  if constexpr (NORM) normalise(x, gamma, rows, input);
  __syncthreads();

  // Rows that don't exist are other rows, whose sums nobody reads.
  unsigned own[EIGHTS];
#pragma unroll
  for (unsigned e = 0; e < EIGHTS; ++e) own[e] = min(lane / 4 + e * 8, rows - 1) * pitch + lane % 4 * SIZE;
  unsigned half = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x, half ^= 1) {
    const unsigned n = threadIdx.x / PAIRS, pair = tile * PAIRS + threadIdx.x % PAIRS;
    typename Layer::Ready ready{};
    if (n < rows) ready = layer.ready(begin + n, pair);
    Sums sums = {};
#pragma unroll 1
    for (unsigned turn = 0; turn < turns; turn += AHEAD) {
#pragma unroll
      for (unsigned r = 0; r < AHEAD; ++r) {
        const unsigned unit = (turn + r) * WARPS + warp;
        if (unit < units) multiply(sums, ring[r], x + unit * UNIT, own);
        ahead.load(ring[r], r);
      }
      ahead.go_on();
    }
    keep(parts[half][warp], sums, rows);
    __syncthreads();
    if (n < rows) {
      float pair_of_sums[2] = {};
#pragma unroll
      for (unsigned w = 0; w < WARPS; ++w) {
        pair_of_sums[0] += parts[half][w][n][threadIdx.x % PAIRS];
        pair_of_sums[1] += parts[half][w][n][threadIdx.x % PAIRS + PAIRS];
      }
      layer.store(begin + n, pair, pair_of_sums, ready);
    }
  }
}
#endif
