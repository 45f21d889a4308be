// Products of one to four rows of x, for few_rows.cuh: each thread multiplies columns of its own.
//
// A thread copies 16 bytes of each row of a tile to shared memory, and nobody else reads them. So a stage needs no barrier:
// the threads of a block meet once a tile, when their sums do. Each weight is widened to float32 and multiplied with each
// row of x there; for more rows than four that takes longer than the weights do.
//
// Macros: ROWS (1, 2 or 4), WARPS, STAGES.
#pragma once

#include "../rows/mbarrier.cuh"

constexpr unsigned ACROSS = THREADS * SIZE;  // columns of a stage
constexpr unsigned SUMS = TILE * ROWS;       // of a tile

// A thread's own columns of the rows of weights: a ring of stages that are under way or there.
template <typename Layer>
class OwnColumns {
 public:
  __device__ __forceinline__ OwnColumns(const Layer& layer, T* stages, unsigned columns)
      : layer(layer), stages(stages + threadIdx.x * SIZE), columns(columns) {
#pragma unroll
    for (unsigned s = 0; s < STAGES; ++s) refill(s);
  }
  __device__ __forceinline__ unsigned tiles() const { return (layer.pairs() + PAIRS - 1) / PAIRS; }
  __device__ __forceinline__ T* stage(unsigned slot) const { return stages + slot * TILE * ACROSS; }

  // Begins to copy what comes next.
  __device__ __forceinline__ void refill(unsigned slot) {
    const unsigned k = begin + threadIdx.x * SIZE;
    if (tile < tiles() && k < columns) {
#pragma unroll
      for (unsigned r = 0; r < TILE; ++r) {
        copy_async_16(shared_address(stage(slot) + r * ACROSS), layer.row(tile * PAIRS + r / 2, r % 2) + k);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    begin += ACROSS;
    if (begin >= columns) begin = 0, tile += gridDim.x;
  }

  // Waits for the oldest stage that is under way.
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
  }

 private:
  const Layer& layer;
  T* const stages;
  const unsigned columns;
  unsigned tile = blockIdx.x, begin = 0;
};

// Brings the thread's own packs of a row of x or gamma to shared memory, and zeros behind the row.
__device__ __forceinline__ void load_row(T* to, const T* from, unsigned columns) {
#pragma unroll 4
  for (unsigned k = threadIdx.x * SIZE; k < padded(columns); k += ACROSS) {
    const uint4 none{};
    *reinterpret_cast<uint4*>(to + k) = k < columns ? load_fresh(reinterpret_cast<const uint4*>(from + k)) : none;
  }
}

// Adds each value up over the lanes of a warp. Each WARP / COUNT lanes get the sum of one value, in the order of values.
// LEFT: how many values a lane has afterwards; lanes APART from each other exchange the values that they don't keep.
template <unsigned COUNT, unsigned LEFT = COUNT / 2, unsigned APART = WARP / 2>
__device__ __forceinline__ float sum_over_lanes(float (&values)[COUNT]) {
  if constexpr (LEFT) {
    const bool upper = threadIdx.x & APART;
#pragma unroll
    for (unsigned i = 0; i < LEFT; ++i) {
      const float kept = upper ? values[i + LEFT] : values[i], sent = upper ? values[i] : values[i + LEFT];
      values[i] = kept + __shfl_xor_sync(ALL_LANES, sent, APART);
    }
  } else {
    values[0] += __shfl_xor_sync(ALL_LANES, values[0], APART);
  }
  if constexpr (APART > 1) return sum_over_lanes<COUNT, LEFT / 2, APART / 2>(values);
  return values[0];
}

// Adds the products of the thread's columns of a stage. x: of the thread's first column. rows: offsets of rows of x.
__device__ __forceinline__ void multiply_own(float (&sums)[SUMS], const T* stage, const T* x,
                                             const unsigned (&rows)[ROWS]) {
  float of_x[ROWS][SIZE];
#pragma unroll
  for (unsigned n = 0; n < ROWS; ++n) widen_pack(x + rows[n], of_x[n]);
#pragma unroll
  for (unsigned r = 0; r < TILE; ++r) {
    float weights[SIZE];
    widen_pack(stage + r * ACROSS, weights);
#pragma unroll
    for (unsigned n = 0; n < ROWS; ++n) {
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) sums[r * ROWS + n] = fmaf(weights[e], of_x[n][e], sums[r * ROWS + n]);
    }
  }
}

template <bool NORM, typename Layer>
__device__ __forceinline__ void multiply_few(const Layer& layer, const Input& input) {
  extern __shared__ uint4 dynamic[];
  __shared__ float parts[2][WARPS][SUMS];
  constexpr unsigned LANES = WARP / SUMS;  // that have the same sum
  const unsigned pitch = pitch_of_x(input.columns), lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  T* const x = reinterpret_cast<T*>(dynamic) + STAGES * TILE * ACROSS;
  T* const gamma = x + input.rows * pitch;

  let_next_begin();
  OwnColumns<Layer> own(layer, reinterpret_cast<T*>(dynamic), input.columns);
  if constexpr (NORM) load_row(gamma, input.gamma, input.columns);
  wait_for_before();
#pragma unroll 1
  for (unsigned n = 0; n < input.rows; ++n) {
    load_row(x + n * pitch, input.x + static_cast<long long>(n) * input.columns, input.columns);
  }
  if constexpr (NORM) normalise(x, gamma, input.rows, input);

  // Rows that don't exist are other rows, whose sums nobody reads.
  unsigned rows[ROWS];
#pragma unroll
  for (unsigned n = 0; n < ROWS; ++n) rows[n] = min(n, input.rows - 1) * pitch;
  // The last threads add up sums of warps, and store.
  const unsigned n = (threadIdx.x - (THREADS - ROWS * PAIRS)) / PAIRS, of_tile = threadIdx.x % PAIRS;
  unsigned half = 0, slot = 0;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < own.tiles(); tile += gridDim.x, half ^= 1) {
    const unsigned pair = tile * PAIRS + of_tile;
    typename Layer::Ready ready{};
    if (n < input.rows) ready = layer.ready(n, pair);
    float sums[SUMS] = {};
#pragma unroll 1
    for (unsigned k = threadIdx.x * SIZE; k < input.columns + threadIdx.x * SIZE; k += ACROSS) {
      own.wait();
      if (k < input.columns) multiply_own(sums, own.stage(slot), x + k, rows);
      own.refill(slot);
      if (++slot == STAGES) slot = 0;
    }
    const float sum = sum_over_lanes(sums);
    if (lane % LANES == 0) parts[half][warp][lane / LANES] = sum;
    __syncthreads();
    if (n < input.rows) {
      float pair_of_sums[2] = {};
#pragma unroll
      for (unsigned w = 0; w < WARPS; ++w) {
        pair_of_sums[0] += parts[half][w][2 * of_tile * ROWS + n];
        pair_of_sums[1] += parts[half][w][(2 * of_tile + 1) * ROWS + n];
      }
      layer.store(n, pair, pair_of_sums, ready);
    }
  }
}
