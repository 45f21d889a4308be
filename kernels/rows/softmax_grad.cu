// The backward of softmax over the rows of a matrix: dx = y * (dy - sum(dy * y)), where y is softmax's result.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and the macros of each kernel.
//
// The first dx of a row needs the sum over the whole row. So dy and y are either read twice, five passes over a matrix
// in all, or kept on the chip in between, three passes. Products and sums are floats, and dx is rounded once.
//
// What each step gained on an NVIDIA H200 (reports/h200/softmax_grad), float32 M524288-N256.
// At least 1.074 GB are read and 536.9 MB written. The ceiling is 368.6 us, by memory.
//   eager: PyTorch
//       739.5 us   49.8% of ceiling
//   two_pass: one block a row: the sum, then dy and y are read again
//       699.7 us   52.7% of ceiling  moves 2.684 GB  1.06x the speed of eager
//   registers: one block a row: both rows are kept in register arrays of compile-time size
//       618.7 us   59.6% of ceiling  moves 1.611 GB  1.13x the speed of two_pass
//   tuned: both rows on the chip: in registers of a warp, a block or a cluster; of longer rows one in shared memory
//       369.1 us   99.9% of ceiling  moves 1.611 GB  1.68x the speed of registers

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "rows.cuh"

using T = SCALAR;

[[maybe_unused]] constexpr unsigned BLOCK = 256;  // threads, where no macro gives them

// dx of an element. The product y * (dy - sum) would cost as much, but dy - sum may overflow where neither product
// does.
__device__ __forceinline__ float gradient(float dy, float y, float sum) { return fmaf(-y, sum, y * dy); }

#if !(defined COUNT || defined ELEMENTS)  // steps 2 and 3, which have the size of a row as a macro, are compiled alone

// 1. One block a row, one element an access: first the sum, then dy and y are read again, at best from the L2. Rows may
//    have any length and any address. A short row leaves most of the block idle.
extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_grad_two_pass(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx, long long rows,
                          long long columns) {
  BlockTeam<BLOCK> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const long long begin = row * columns, end = begin + columns;
    float sum[1] = {0.0f};
    for (long long i = begin + threadIdx.x; i < end; i += BLOCK) {
      sum[0] = fmaf(to_float(y[i]), to_float(dy[i]), sum[0]);
    }
    team.all<Sum>(sum);
    for (long long i = begin + threadIdx.x; i < end; i += BLOCK) {
      dx[i] = T(gradient(to_float(dy[i]), to_float(y[i]), sum[0]));
    }
  }
}

// Rows of a single element, for `tuned`: the sum is that element's product. packs: all tensors are aligned.
extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_grad_of_one(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx, long long n, int packs) {
  const long long first = thread_index() * Pack<T>::SIZE;
  const unsigned count = filled<T>(n, first);
  Pack<T> pack = load_filled(dy + first, count, packs);
  const Pack<T> results = load_filled(y + first, count, packs);
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
  const unsigned(&others)[PACK_BYTES / 4] = reinterpret_cast<const unsigned(&)[PACK_BYTES / 4]>(results);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) {
    Lanes<T> lanes(words[w]);
    const Lanes<T> result(others[w]);
#pragma unroll
    for (unsigned l = 0; l < Lanes<T>::SIZE; ++l) {
      lanes.at[l] = gradient(lanes.at[l], result.at[l], result.at[l] * lanes.at[l]);
    }
    words[w] = lanes.word();
  }
  store_filled(dx + first, pack, count, packs);
}
#endif

// One row of any kind, from memory or from tiles. Both matrices' rows are held in registers. An element that a thread
// lacks is zero, which adds nothing.
template <typename Row>
__device__ __forceinline__ void softmax_grad_row(const Row& row, const T* dy, const T* y, T* dx) {
  typename Row::Chunk gradients[Row::CHUNKS], results[Row::CHUNKS];
  row.load(dy, gradients, 0.0f);
  row.load(y, results, 0.0f);
  float a[Row::CHUNK], b[Row::CHUNK], sum[1] = {0.0f};
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    widen(gradients[j], a);
    widen(results[j], b);
#pragma unroll
    for (unsigned e = 0; e < Row::elements(j); ++e) sum[0] = fmaf(b[e], a[e], sum[0]);
  }
  row.team.template all<Sum>(sum);
  const unsigned zero = row.columns >> 31;  // rows that fit into registers are shorter
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    forget_floats(gradients[j], zero);
    forget_floats(results[j], zero);
    widen(gradients[j], a);
    widen(results[j], b);
#pragma unroll
    for (unsigned e = 0; e < Row::elements(j); ++e) a[e] = gradient(a[e], b[e], sum[0]);
    narrow(a, gradients[j]);
    row.store(dx, j, gradients[j]);
  }
}

// 2. dy and y are read once: each thread has its elements in two register arrays. Their size must be known when the
//    kernel is compiled, since registers can't be indexed at run time. There is still one block a row, and each access
//    is one element. Macro: ELEMENTS (of a row that a thread has).
#ifdef ELEMENTS
extern "C" __global__ void __launch_bounds__(BLOCK)
    softmax_grad_registers(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx, long long rows,
                           unsigned columns) {
  BlockTeam<BLOCK> team;
  ElementRow<T, ELEMENTS, BlockTeam<BLOCK>> row{team, columns, rows, team.row(), team.row() * columns};
  softmax_grad_row(row, dy, y, dx);
}
#endif

// 3. Packs of 16 bytes. The number of threads of a row suits its length: a few lanes, a warp, a block, or a cluster of
//    blocks. Short rows that aren't whole packs come through shared memory. Macros: as at the end of rows.cuh.
#ifdef COUNT
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    softmax_grad_tuned(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx, long long rows,
                       unsigned columns, unsigned tile_rows, unsigned aligned) {
#if TILE
  extern __shared__ uint4 shared[];
  T* tiles = reinterpret_cast<T*>(shared);
  on_tiles<Row>(tiles, {dy, y}, dx, rows, columns, tile_rows, aligned,
                [&](Row& row, unsigned stride) { softmax_grad_row(row, tiles, tiles + stride, tiles); });
#elif !CLUSTER || __CUDA_ARCH__ >= 900
  Team team;
  Row row(team, rows, columns);
  softmax_grad_row(row, dy, y, dx);
#endif
}
#endif
