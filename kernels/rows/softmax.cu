// Softmax over the rows of a matrix: y = exp(x - max) / sum(exp(x - max)).
//
// No element of y is known before the whole row has been read, because the largest element and the sum come first. D is
// the bytes of x. Memory bounds the op: if the row stays on the chip meanwhile, 2 D move; if not, x is read again, and
// 3 D or more move. So the steps differ in where the row waits: in device memory (1, 2), in shared memory (3), in the
// registers of a block (4) or of a cluster (5). No place is the best for all lengths. A short row leaves most threads
// of a block idle, and a long row doesn't fit into one block. Step 6 takes a team of threads that suits the length.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/softmax), float32 M134217-N1000.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 250.7 us, by memory.
//   eager: PyTorch
//       260.0 us   96.4% of ceiling
//   unfused: max, subtract, exp, sum, divide: five kernels, floats between them
//       1.533 ms   16.4% of ceiling  moves 4.297 GB  0.17x the speed of eager
//   online: one read for maximum and sum, a second one for y; rows of any length
//       312.0 us   80.4% of ceiling  moves 1.611 GB  4.91x the speed of unfused
//   shared: one block a row, the row in shared memory, CUB's block reductions
//       585.3 us   42.8% of ceiling  moves 1.074 GB  0.53x the speed of online
//   registers: a warp or a block a row, the row in arrays of a constant size, which registers hold
//       253.8 us   98.8% of ceiling  moves 1.074 GB  2.31x the speed of shared
//   cluster: a row in such arrays of two to eight blocks, which meet in distributed shared memory
//       649.8 us   38.6% of ceiling  moves 1.074 GB  0.39x the speed of registers
//   tuned: a row in the registers of a warp, a block or a cluster, as its length asks
//       254.1 us   98.7% of ceiling  moves 1.074 GB  2.56x the speed of cluster

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#ifdef SHARED
#include <cub/block/block_reduce.cuh>
#endif

#include "../include/fastdiv.cuh"
#include "rows.cuh"

using T = SCALAR;

[[maybe_unused]] constexpr float LOG2_E = 1.44269504088896340736f;

// 2^x in one instruction; results below the smallest normal number are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^(x - most). The difference comes first: it is exact where x is near `most`, however large both are. x * log2(e) -
// most * log2(e) would cost one instruction less, but both products may be rounded by more than the numbers that 2^x
// takes: rows of numbers from 1e10 on would be NaN.
__device__ __forceinline__ float exp_below(float x, float most) { return exp2_fast((x - most) * LOG2_E); }

[[maybe_unused]] constexpr unsigned ANY_BLOCK = 512;  // threads; as in harness/collection/ops/rows/softmax.py

// Steps 4 to 6 have macros for the size of a row. A compilation with such macros has one step, so steps 1 to 3 are left
// out of it.
#if !(defined COUNT || defined ELEMENTS)
#if !defined SHARED
constexpr unsigned GROUP = 8;  // loads that a thread has under way

// A thread's next GROUP elements, `stride` apart. left: elements of the row from the first of them on.
template <typename Element>
__device__ __forceinline__ void load_group(const Element* x, unsigned stride, unsigned left, float missing,
                                           float (&values)[GROUP]) {
#pragma unroll
  for (unsigned e = 0; e < GROUP; ++e) values[e] = e * stride < left ? to_float(x[e * stride]) : missing;
}

// The number of elements of a row from `first` on, or `most` if there are more.
__device__ __forceinline__ unsigned left_of(long long columns, long long first, unsigned most) {
  return static_cast<unsigned>(min(columns - first, static_cast<long long>(most)));
}

// 1. A kernel for each step. Max and sum read a tensor once; subtract, exp and divide read one and write one. That is
//    8 D, where D is the size of x (the text says 7 D), and only 2 D have to move. The tensors between the steps are
//    floats, since halves would lose the last places of the result.
template <typename Op, typename Team, typename Element>
__device__ __forceinline__ void reduce_row(Team& team, const Element* x, float* result, long long columns) {
  const unsigned stride = team.size(), step = GROUP * stride;
  float all[1] = {Op::identity(0)}, values[GROUP];
  for (long long first = team.rank; first < columns; first += step) {
    load_group(x + first, stride, left_of(columns, first, step), Op::identity(0), values);
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) {
      const float value[1] = {values[e]};
      Op::merge(all, value);
    }
  }
  team.template all<Op>(all);
  if (team.rank == 0) *result = all[0];
}

// Short rows take a warp each, since most threads of a block would have nothing to do.
template <typename Op, typename Element>
__device__ __forceinline__ void reduce_rows(const Element* x, float* results, long long rows, long long columns,
                                            unsigned rows_a_block) {
  if (rows_a_block == 1) {
    BlockTeam<ANY_BLOCK> team;
    reduce_row<Op>(team, x + team.row() * columns, results + team.row(), columns);
  } else {
    WarpTeam<WARP> team;
    if (team.row() < rows) reduce_row<Op>(team, x + team.row() * columns, results + team.row(), columns);
  }
}

__device__ __forceinline__ long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ long long row_of(long long i, unsigned long long multiplier, unsigned shift) {
  return static_cast<long long>(fast_divide(static_cast<unsigned long long>(i), multiplier, shift));
}

extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    softmax_max(const T* __restrict__ x, float* __restrict__ most, long long rows, long long columns,
                unsigned rows_a_block) {
  reduce_rows<Max>(x, most, rows, columns, rows_a_block);
}
extern "C" __global__ void softmax_subtract(const T* __restrict__ x, const float* __restrict__ most,
                                            float* __restrict__ differences, long long n,
                                            unsigned long long multiplier, unsigned shift) {
  const long long i = thread_index();
  if (i < n) differences[i] = to_float(x[i]) - most[row_of(i, multiplier, shift)];
}
extern "C" __global__ void softmax_exp(float* values, long long n) {
  const long long i = thread_index();
  if (i < n) values[i] = exp2_fast(values[i] * LOG2_E);
}
extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    softmax_sum(const float* __restrict__ powers, float* __restrict__ sums, long long rows, long long columns,
                unsigned rows_a_block) {
  reduce_rows<Sum>(powers, sums, rows, columns, rows_a_block);
}
extern "C" __global__ void softmax_divide(const float* __restrict__ powers, const float* __restrict__ sums,
                                          T* __restrict__ y, long long n, unsigned long long multiplier,
                                          unsigned shift) {
  const long long i = thread_index();
  if (i < n) y[i] = T(powers[i] / sums[row_of(i, multiplier, shift)]);
}

// 2. One kernel that reads x twice, 3 D. It keeps nothing of a row, so a row may have any length. The sum is of exp(x -
//    highest), with the highest value so far. When a higher value comes, the sum is scaled down, which costs one more
//    exponential a GROUP. The search for the highest value starts from the lowest finite number, since -inf would lead
//    to -inf - (-inf). Where all of a row is -inf the sum stays zero, and 0 * (1 / 0) is NaN, as it should be.
constexpr float LOWEST = -3.402823466e38f;

template <typename Team>
__device__ __forceinline__ void online_row(Team& team, const T* __restrict__ x, T* __restrict__ y, long long columns) {
  const unsigned stride = team.size(), step = GROUP * stride;
  float most[1] = {LOWEST}, sum[1] = {0.0f}, values[GROUP];
  long long first = team.rank;
  for (; first < columns; first += step) {
    load_group(x + first, stride, left_of(columns, first, step), MINUS_INFINITY, values);
    float higher = most[0];
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) higher = fmaxf(higher, values[e]);
    sum[0] *= exp_below(most[0], higher);
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) sum[0] += exp_below(values[e], higher);
    most[0] = higher;
  }
  const float own = most[0];
  team.template all<Max>(most);
  sum[0] *= exp_below(own, most[0]);
  team.template all<Sum>(sum);
  const float scale = 1.0f / sum[0];
  // Backwards: the end of the row was read last, and may still be in a cache.
  for (first -= step; first >= 0; first -= step) {
    const unsigned left = left_of(columns, first, step);
    load_group(x + first, stride, left, MINUS_INFINITY, values);
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) {
      if (e * stride < left) y[first + e * stride] = T(exp_below(values[e], most[0]) * scale);
    }
  }
}

extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    softmax_online(const T* __restrict__ x, T* __restrict__ y, long long rows, long long columns,
                   unsigned rows_a_block) {
  if (rows_a_block == 1) {
    BlockTeam<ANY_BLOCK> team;
    online_row(team, x + team.row() * columns, y + team.row() * columns, columns);
  } else {
    WarpTeam<WARP> team;
    if (team.row() < rows) online_row(team, x + team.row() * columns, y + team.row() * columns, columns);
  }
}

// Rows of a single element, for `tuned`: y is 1, or NaN where x - x is NaN. packs: both tensors are aligned.
extern "C" __global__ void softmax_of_one(const T* __restrict__ x, T* __restrict__ y, long long n, int packs) {
  const long long first = thread_index() * Pack<T>::SIZE;
  const unsigned count = filled<T>(n, first);
  Pack<T> pack = load_filled(x + first, count, packs);
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned& word : words) {
    Lanes<T> lanes(word);
#pragma unroll
    for (float& value : lanes.at) value = value - value + 1.0f;
    word = lanes.word();
  }
  store_filled(y + first, pack, count, packs);
}
#else

// 3. One block a row, which is kept in shared memory between the passes: x is read once, 2 D. Rows shorter than a block
//    waste its threads. Rows that don't fit into shared memory can't be done.
//
// Macro: SHARED (the headers of CUB take seconds to compile).
constexpr unsigned STATIC_SHARED = 1024;  // bytes beside the row, at most; as in harness/collection/ops/rows/softmax.py

// x_packs, y_packs: rows are whole packs, and the tensor is aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    softmax_shared(const T* __restrict__ x, T* __restrict__ y, unsigned columns, unsigned x_packs,
                   unsigned y_packs) {
  extern __shared__ uint4 shared[];
  using Reduce = cub::BlockReduce<float, ANY_BLOCK>;
  __shared__ typename Reduce::TempStorage storage[2];
  __shared__ float results[2];
  static_assert(sizeof(storage) + sizeof(results) <= STATIC_SHARED);
  T* row = reinterpret_cast<T*>(shared);
  const long long begin = static_cast<long long>(blockIdx.x) * columns;
  fetch_tile(row, x + begin, columns, x_packs);
  wait_for_tiles();
  float own = MINUS_INFINITY;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < columns; i += ANY_BLOCK) own = fmaxf(own, to_float(row[i]));
  // CUB gives the result to the first thread.
  own = Reduce(storage[0]).Reduce(own, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) results[0] = own;
  __syncthreads();
  const float most = results[0];
  own = 0.0f;
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < columns; i += ANY_BLOCK) own += exp_below(to_float(row[i]), most);
  own = Reduce(storage[1]).Sum(own);
  if (threadIdx.x == 0) results[1] = own;
  __syncthreads();
  const float scale = 1.0f / results[1];
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < columns; i += ANY_BLOCK) {
    row[i] = T(exp_below(to_float(row[i]), most) * scale);
  }
  __syncthreads();
  put_tile(y + begin, row, columns, y_packs);
}
#endif
#endif

// Steps 4 to 6 share the code from here to softmax_row().
//
// Merges pairs of (most, sum): the largest of some values, and the sum of e^(value - most). Where all values are -inf the
// sum is zero: other threads may have larger ones.
__device__ __forceinline__ float base_of(float most) { return most == MINUS_INFINITY ? 0.0f : most; }
struct Exponentials {
  static __device__ __forceinline__ float identity(unsigned i) { return i == 0 ? MINUS_INFINITY : 0.0f; }
  static __device__ __forceinline__ void merge(float (&a)[2], const float (&b)[2]) {
    const float most = fmaxf(a[0], b[0]), base = base_of(most);
    a[1] = a[1] * exp_below(a[0], base) + b[1] * exp_below(b[0], base);
    a[0] = most;
  }
};

// The largest of a pack's elements, two halves at a time. NaN is ignored, as fmaxf does.
__device__ __forceinline__ float largest(const Pack<float>& pack) {
  return fmaxf(fmaxf(pack.at[0], pack.at[1]), fmaxf(pack.at[2], pack.at[3]));
}
template <typename Two>
__device__ __forceinline__ float largest_of_pairs(const Two (&pairs)[4]) {
  const Two most = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(to_float(most.x), to_float(most.y));
}
__device__ __forceinline__ float largest(const Pack<__half>& pack) {
  return largest_of_pairs(reinterpret_cast<const __half2(&)[4]>(pack));
}
__device__ __forceinline__ float largest(const Pack<__nv_bfloat16>& pack) {
  return largest_of_pairs(reinterpret_cast<const __nv_bfloat162(&)[4]>(pack));
}
template <typename Single>
__device__ __forceinline__ float largest(const Single& chunk) {
  return to_float(chunk.at[0]);
}

// The softmax of one row of any kind, held in registers. An element that a thread lacks is -inf, which adds nothing. A
// warp uses the maximum of its own elements, so that the warps of a team have to exchange values only once. Again: y's
// exponentials are computed a second time. So a thread keeps the row as halves, in half of the registers of floats.
template <bool Again = false, typename Row>
__device__ __forceinline__ void softmax_row(const Row& row, typename Row::Chunk (&chunks)[Row::CHUNKS], T* y) {
  float values[Again ? 1 : Row::CHUNKS][Row::CHUNK], most[1] = {MINUS_INFINITY}, sum[1] = {0.0f};
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) most[0] = fmaxf(most[0], largest(chunks[j]));
  row.team.template in_warp<Max>(most);
  const float base = base_of(most[0]);
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    float(&own)[Row::CHUNK] = values[Again ? 0 : j];
    widen(chunks[j], own);
#pragma unroll
    for (unsigned e = 0; e < Row::elements(j); ++e) {
      own[e] = exp_below(own[e], base);
      sum[0] += own[e];
    }
  }
  row.team.template in_warp<Sum>(sum);
  float both[2] = {most[0], sum[0]};
  row.team.template across_warps<Exponentials>(both);
  const float scale = __fdividef(exp_below(most[0], base_of(both[0])), both[1]);
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    float(&own)[Row::CHUNK] = values[Again ? 0 : j];
    if constexpr (Again) {
      // The sum isn't negative, which the compiler doesn't know.
      forget_floats(chunks[j], __float_as_uint(both[1]) >> 31);
      widen(chunks[j], own);
#pragma unroll
      for (unsigned e = 0; e < Row::elements(j); ++e) own[e] = exp_below(own[e], base);
    }
#pragma unroll
    for (unsigned e = 0; e < Row::elements(j); ++e) own[e] *= scale;
    narrow(own, chunks[j]);
    row.store(y, j, chunks[j]);
  }
}

// 4. The row is kept in registers, so the later passes need no accesses and no shared memory. An array is in registers
//    only if all its indices are constants, so the number of elements that a thread has is a macro, and the loops over
//    them are unrolled. Accesses are single elements, so a row may have any address. Short rows have a warp each and long
//    rows a block, as in step 2, so that the two steps differ in where the row waits.
//
// Macros: ELEMENTS (of a row that a thread has), THREADS (that share a row; blocks of warps have ANY_BLOCK).
#ifdef ELEMENTS
template <typename Team>
__device__ __forceinline__ void softmax_elements(Team& team, const T* x, T* y, long long rows, unsigned columns) {
  using Row = ElementRow<T, ELEMENTS, Team>;
  const Row row{team, columns, rows, team.row(), team.row() * columns};
  typename Row::Chunk chunks[Row::CHUNKS];
  row.load(x, chunks, MINUS_INFINITY);
  softmax_row(row, chunks, y);
}
template <unsigned Threads>
struct Sharing : BlockTeam<Threads> {};
template <>
struct Sharing<WARP> : WarpTeam<WARP> {};

extern "C" __global__ void __launch_bounds__(THREADS == WARP ? ANY_BLOCK : THREADS)
    softmax_registers(const T* __restrict__ x, T* __restrict__ y, long long rows, unsigned columns) {
  Sharing<THREADS> team;
  softmax_elements(team, x, y, rows, columns);
}

// 5. The registers of up to eight blocks, which exchange their maxima and sums through distributed shared memory.
extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_cluster(const T* __restrict__ x, T* __restrict__ y, long long rows, unsigned columns) {
#if __CUDA_ARCH__ >= 900
  ClusterTeam<THREADS> team;
  softmax_elements(team, x, y, rows, columns);
#endif
}
#endif

// 6. Packs of 16 bytes. The number of threads of a row suits its length: a few lanes, a warp, a block, or a cluster of
//    blocks. A thread has so little of the row that a multiprocessor has room for other rows. Short rows that aren't
//    whole packs come through shared memory.
//
// Macros: as at the end of rows.cuh.
#ifdef COUNT
// Eight packs of halves are 64 floats. With so many floats in registers, one block of more than 384 threads fits on a
// multiprocessor; with halves, two blocks fit.
constexpr bool AGAIN = COUNT >= 8 && !TILE && LANES == 0 && sizeof(T) == 2 && THREADS > 384 && THREADS <= 512;
extern "C" __global__ void __launch_bounds__(THREADS, (AGAIN ? 1024 : RESIDENT) / THREADS)
    softmax_tuned(const T* __restrict__ x, T* __restrict__ y, long long rows, unsigned columns, unsigned tile_rows,
                  unsigned aligned) {
#if TILE
  extern __shared__ uint4 shared[];
  T* tile = reinterpret_cast<T*>(shared);
  on_tiles<Row>(tile, {x}, y, rows, columns, tile_rows, aligned, [&](Row& row, unsigned) {
    Row::Chunk chunks[Row::CHUNKS];
    row.load(tile, chunks, MINUS_INFINITY);
    softmax_row(row, chunks, tile);
  });
#elif !CLUSTER || __CUDA_ARCH__ >= 900
  Team team;
  Row row(team, rows, columns);
  Row::Chunk chunks[Row::CHUNKS];
  row.load(x, chunks, MINUS_INFINITY);
  softmax_row<AGAIN>(row, chunks, y);
#endif
}
#endif
