// Rows that aren't whole units of SIZE elements, in tiles. A tile is one or more neighbouring rows, so one run of
// elements. Units, which begin at multiples of SIZE in the tensor, cover the run:
//
//     elements   . . . . | . . . . | . . . . | . . . . | . . . .
//     a tile           a   a a a a   b b b b   b c c c   c        rows a, b and c; here two elements are skipped
//
// Each access moves a whole unit, but where a unit is at an end of the tile. It has elements of two rows at most, so a
// row must have two elements. A block takes tiles in turn. All of its tiles begin at the same place of a unit, so a
// thread's units have the same columns in each tile, and the thread keeps the numbers of its columns. The elements of
// the next tile are on their way while a block works on this one. harness/collection/ops/quantise/_row_runs.py makes
// the plan.
//
// Macros: SCALAR, CHANNEL, UNITS (of a tile that a thread has at most), THREADS (of a block), ROWS (of a tile), LANES
// (threads of a warp that share the statistics of a row: then a tile is whole units; 0 where the block does: then a
// tile is one row), PARTS (elements of a row that such a lane has at most, or 1), RESIDENT
// (threads that a multiprocessor is to hold at least).
#pragma once

#include "plain_norm.cuh"

constexpr unsigned SIZE = 4;
constexpr unsigned SHARING = LANES ? LANES : WARP;

class Runs {
 public:
  __device__ __forceinline__ Runs(long long rows, unsigned columns)
      : rows(rows),
        columns(columns),
        skipped(LANES ? 0 : blockIdx.x * columns % SIZE),
        used((skipped + ROWS * columns + SIZE - 1) / SIZE),
        row(static_cast<long long>(blockIdx.x) * ROWS) {}
  __device__ __forceinline__ bool exist() const { return row < rows; }
  __device__ __forceinline__ void advance() { row += step(); }

  __device__ __forceinline__ void load_columns(const float* __restrict__ sx, const float* __restrict__ sw,
                                               const T* __restrict__ bias, const T* __restrict__ gamma,
                                               const T* __restrict__ beta) {
    common = *sx * (CHANNEL ? 1.0f : *sw);
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      // The first unit of a tile may begin in the row before.
      const unsigned from = (has(j) ? position(j) : 0) + columns - skipped, column = from % columns;
      row_and_rest[j] = (from / columns - 1) * 8 + min(columns - column, SIZE);
      load_unit(bias, column, biases[j]);
      load_unit(gamma, column, gammas[j]);
      load_unit(beta, column, betas[j]);
      if constexpr (CHANNEL) load_unit(sw, column, scales[j]);
    }
  }

  __device__ __forceinline__ void load(const int* __restrict__ acc, const T* __restrict__ residual) {
    load_tile(acc, residual, row);
  }
  __device__ __forceinline__ void load_next(const int* __restrict__ acc, const T* __restrict__ residual) {
    load_tile(acc, residual, row + step());
  }

  // h, which also goes to shared memory.
  __device__ __forceinline__ void make(T* __restrict__ h) {
    h += begin(row);
    const unsigned end = this->end();
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      float values[SIZE], added[SIZE], shift[SIZE], scale[SIZE];
      products[j].widen(values);
      residuals[j].widen(added);
      keep_packed(biases[j]);
      biases[j].widen(shift);
      if constexpr (CHANNEL) scales[j].widen(scale);
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        values[e] = fmaf(values[e], CHANNEL ? common * scale[e] : common, shift[e]) + added[e];
      }
      Few<T, SIZE> rounded;
      rounded.narrow(values);
      rounded.widen(values);
      store(h, j, rounded, values, end);
      tile()[place(j)] = make_float4(values[0], values[1], values[2], values[3]);
    }
  }

  __device__ __forceinline__ void measure() {
    if constexpr (LANES == 0) {
      measure_by_block();
    } else {
      __syncthreads();
      measure_by_lanes();
      __syncthreads();
    }
  }

  __device__ __forceinline__ void write(float factor, signed char* __restrict__ y) {
    y += begin(row);
    const unsigned end = this->end();
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      float values[SIZE], scale[SIZE], shift[SIZE];
      values_of(j, values);
      keep_packed(gammas[j]), keep_packed(betas[j]);
      gammas[j].widen(scale);
      betas[j].widen(shift);
      const unsigned row_of = row_and_rest[j] / 8, rest = row_and_rest[j] % 8;
      const float2 own = LANES ? statistics()[row_of] : block;
      const float2 next = LANES ? statistics()[min(row_of + 1, ROWS - 1)] : block;
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        const float rstd = e < rest ? own.x : next.x, offset = e < rest ? own.y : next.y;
        values[e] = fmaf(fmaf(values[e], rstd, offset), scale[e], shift[e]) * factor;
      }
      Few<signed char, SIZE> integers;
      integers.narrow(values);
      store(y, j, integers, values, end);
    }
  }

 private:
  // Shared memory: the tile's h in float, and rstd and minus the mean times rstd of each row.
  static __device__ __forceinline__ float4* tile() {
    __shared__ float4 memory[UNITS * THREADS];
    return memory;
  }
  static __device__ __forceinline__ float2* statistics() {
    __shared__ float2 memory[ROWS];
    return memory;
  }

  static __device__ __forceinline__ unsigned place(unsigned j) { return threadIdx.x + j * THREADS; }
  // The first element of a thread's unit, from the beginning of the tile's first unit on.
  static __device__ __forceinline__ unsigned position(unsigned j) { return place(j) * SIZE; }
  // Whether the thread's unit j exists. Only the last one may not.
  __device__ __forceinline__ bool has(unsigned j) const { return j + 1 < UNITS || place(j) < used; }
  static __device__ __forceinline__ long long step() { return static_cast<long long>(gridDim.x) * ROWS; }
  // Where the first unit of a tile begins in the tensor.
  __device__ __forceinline__ long long begin(long long row) const { return row * columns - skipped; }
  // Where the tile's last row ends.
  __device__ __forceinline__ unsigned end() const {
    return skipped + static_cast<unsigned>(min(rows - row, static_cast<long long>(ROWS))) * columns;
  }

  // Hides from the compiler that the numbers of columns are the same for each tile. Otherwise it keeps halves as floats,
  // in twice the registers.
  static __device__ __forceinline__ void keep_packed(Few<T, SIZE>& unit) {
#pragma unroll
    for (unsigned& word : unit.word) asm("" : "+r"(word));
  }

  // The numbers of SIZE columns; after the last column comes the first one.
  template <typename Element>
  __device__ __forceinline__ void load_unit(const Element* __restrict__ from, unsigned column,
                                            Few<Element, SIZE>& unit) const {
    float values[SIZE];
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) {
      values[e] = to_float(from[column]);
      column = column + 1 == columns ? 0 : column + 1;
    }
    unit.narrow(values);
  }

  // Starts to load the tile from `row` on, if there is one. A unit that the tile lacks is loaded from the tile's
  // beginning, so that no load needs a condition.
  __device__ __forceinline__ void load_tile(const int* __restrict__ acc, const T* __restrict__ residual,
                                            long long row) {
    if (row >= rows) return;
    const long long first = begin(row), left = rows * columns - first;
    acc += first, residual += first;
    if (used * SIZE <= left) {
#pragma unroll
      for (unsigned j = 0; j < UNITS; ++j) {
        const unsigned from = has(j) ? position(j) : 0;
        products[j].load(acc + from);
        residuals[j].load(residual + from);
      }
      return;
    }
    // The tensor ends in this tile: element by element.
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      float added[SIZE];
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        const unsigned from = position(j) + e;
        products[j].word[e] = from < left ? static_cast<unsigned>(acc[from]) : 0;
        added[e] = from < left ? to_float(residual[from]) : 0.0f;
      }
      residuals[j].narrow(added);
    }
  }

  // Stores a unit by one instruction. Plain assignments don't do, because the compiler makes a store a word of them where
  // the first unit may have elements of the row before.
  template <unsigned WORDS>
  static __device__ __forceinline__ void store_whole(void* to, const unsigned (&word)[WORDS]) {
    const size_t at = __cvta_generic_to_global(to);
    if constexpr (WORDS == 4) {
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                   "r"(word[3]));
    } else if constexpr (WORDS == 2) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(word[0]), "r"(word[1]));
    } else {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(at), "r"(word[0]));
    }
  }

  // Stores the elements of a unit that belong to the tile. to: where the tile's first unit begins.
  template <typename Element>
  __device__ __forceinline__ void store(Element* __restrict__ to, unsigned j, const Few<Element, SIZE>& unit,
                                        const float (&values)[SIZE], unsigned end) const {
    const unsigned first = position(j);
    if (first >= skipped && first + SIZE <= end) {
      store_whole(to + first, unit.word);
      return;
    }
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) {
      if (first + e >= skipped && first + e < end) to[first + e] = narrowed<Element>(values[e]);
    }
  }

  __device__ __forceinline__ void values_of(unsigned j, float (&values)[SIZE]) const {
    const float4 raw = tile()[place(j)];
    values[0] = raw.x, values[1] = raw.y, values[2] = raw.z, values[3] = raw.w;
  }
  __device__ __forceinline__ float2 statistics_of(float mean, float squares, float share) const {
    const float rstd = rsqrtf(fmaf(squares, share, EPSILON));
    return make_float2(rstd, -mean * rstd);
  }

  // As sum_of_block, but sums of few warps are simply added: that is less work than to pass them on between lanes.
  static __device__ __forceinline__ float sum_of_warps(float value, float (&partial)[WARP]) {
    constexpr unsigned WARPS = THREADS / WARP;
    if constexpr (WARPS > 8) {
      return sum_of_block(value, partial);
    } else {
      value = sum_of_lanes<WARP>(value);
      if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
      __syncthreads();
      float sum = partial[0];
#pragma unroll
      for (unsigned w = 1; w < WARPS; ++w) sum += partial[w];
      return sum;
    }
  }

  // Makes elements of the thread's units that aren't in the row this number. Few warps have any, so this costs less than
  // a condition for each element.
  __device__ __forceinline__ void fill(float other) const {
    float* values = reinterpret_cast<float*>(tile());
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      const unsigned first = position(j);
      if (first >= skipped && first + SIZE <= skipped + columns) continue;
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        if (first + e < skipped || first + e >= skipped + columns) values[first + e] = other;
      }
    }
  }

  // The thread reads what it has written itself.
  __device__ __forceinline__ void measure_by_block() {
    __shared__ float partial[2][WARP];
    const float share = __fdividef(1.0f, columns);
    float values[SIZE], sum = 0.0f, squares = 0.0f;
    fill(0.0f);
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      values_of(j, values);
#pragma unroll
      for (float value : values) sum += value;
    }
    const float mean = sum_of_warps(sum, partial[0]) * share;
    fill(mean);
#pragma unroll
    for (unsigned j = 0; j < UNITS; ++j) {
      values_of(j, values);
#pragma unroll
      for (float value : values) squares = fmaf(value - mean, value - mean, squares);
    }
    block = statistics_of(mean, sum_of_warps(squares, partial[1]), share);
  }

  // use(value) for the lane's elements of a row, and for `other` in place of one that it lacks. All loads from shared
  // memory are under way at once.
  template <typename Use>
  __device__ __forceinline__ void each(const float* row, unsigned rank, float other, Use use) const {
    float values[PARTS];
#pragma unroll
    for (unsigned k = 0; k < PARTS; ++k) {
      values[k] = k + 1 < PARTS || rank + k * SHARING < columns ? row[rank + k * SHARING] : other;
    }
#pragma unroll
    for (float value : values) use(value);
  }

  // All lanes of a warp go through the same number of rows, since a shuffle needs all lanes: the last row stands for
  // rows behind it.
  __device__ __forceinline__ void measure_by_lanes() const {
    constexpr unsigned TEAMS = THREADS / SHARING;
    const unsigned team = threadIdx.x / SHARING, rank = threadIdx.x % SHARING;
    const float share = __fdividef(1.0f, columns);
#pragma unroll 1
    for (unsigned first = 0; first < ROWS; first += TEAMS) {
      const unsigned r = min(first + team, ROWS - 1);
      const float* values = reinterpret_cast<const float*>(tile()) + r * columns;
      float mean = 0.0f, squares = 0.0f;
      each(values, rank, 0.0f, [&](float value) { mean += value; });
      mean = sum_of_lanes<SHARING>(mean) * share;
      each(values, rank, mean, [&](float value) { squares = fmaf(value - mean, value - mean, squares); });
      squares = sum_of_lanes<SHARING>(squares);
      if (rank == 0 && first + team < ROWS) statistics()[r] = statistics_of(mean, squares, share);
    }
  }

  const long long rows;
  const unsigned columns, skipped, used;  // skipped: elements of the first unit before the tile; used: units of a tile
  long long row;                          // the tile's first one
  unsigned row_and_rest[UNITS];           // 8 times the row of a unit's first element, plus the unit's elements in it
  float common;
  float2 block;  // statistics of the tile's row, where it has only one
  Few<T, SIZE> biases[UNITS], gammas[UNITS], betas[UNITS];
  Few<float, SIZE> scales[CHANNEL ? UNITS : 1];
  Few<int, SIZE> products[UNITS];
  Few<T, SIZE> residuals[UNITS];
};
