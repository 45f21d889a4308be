// The backward of LayerNorm over the rows of a matrix: dx, dgamma and dbeta. Its formulas are in norm_grad.cuh, with
// all that RMSNorm's backward shares.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and the macros of each kernel.
//
// dx needs sums over a row; dgamma and dbeta are sums over a column. D is the size of x. Memory has to move dy, x and
// dx once each, 3 D. Sums of columns come on top: each block, or each group of rows, writes them as floats, which
// _total adds. Blocks that have all rows of some columns (step 5) write the results.
//
// What each step gained on an NVIDIA H200 (reports/h200/norm_grads), float32 M681308-N197.
// At least 1.079 GB are read and 536.9 MB written. The ceiling is 369.8 us, by memory.
//   eager: PyTorch
//       1.016 ms   36.4% of ceiling
//   separate: a kernel each for dx, dgamma and dbeta
//       1.522 ms   24.3% of ceiling  moves 3.221 GB  0.67x the speed of eager
//   fused: one read of dy and x, by blocks that add up columns row after row
//       595.6 us   62.1% of ceiling  moves 1.616 GB  2.56x the speed of separate
//   tuned: tiles of rows in shared memory, ahead of the work; teams that fit the row
//       418.8 us   88.3% of ceiling  moves 1.611 GB  1.42x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "norm_grad.cuh"
#include "norm_grad_beside.cuh"
#include "norm_grad_spread.cuh"
#include "norm_grad_tiles.cuh"
#include "norm_grad_total.cuh"

using T = SCALAR;

// 1. A kernel for each result. For dx a block makes the sums of a row, and then reads the row again. For dgamma and for
//    dbeta a block has 32 columns. This is straightforward, and works at any address. But dy is read three times and x
//    twice, 6 D in all (more where a row is too long for the caches), and each access is one element.
#if !defined(KEPT) && !defined(SINGLES) && !defined(WIDE)
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    layer_norm_grad_dx(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                       const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx,
                       long long rows, unsigned columns) {
  row_gradients<true>(dy, x, gamma, mean, rstd, dx, rows, columns);
}
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    layer_norm_grad_dgamma(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ mean,
                           const float* __restrict__ rstd, T* __restrict__ dgamma, float* __restrict__ partial,
                           long long rows, unsigned columns) {
  sum_dgamma<true>(dy, x, mean, rstd, rows, ColumnSums<T>::of_groups(dgamma, nullptr, partial, columns));
}
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    layer_norm_grad_dbeta(const T* __restrict__ dy, T* __restrict__ dbeta, float* __restrict__ partial, long long rows,
                          unsigned columns) {
  // Only dbeta's sums are in `partial` here, so they lie where dgamma's would.
  sum_columns(rows, ColumnSums<T>::of_groups(dbeta, nullptr, partial, columns),
              [&](long long row, unsigned column) { return to_float(dy[row * columns + column]); });
}
// The last step of all kernels here; blockIdx.y tells dgamma from dbeta.
extern "C" __global__ void __launch_bounds__(TOTAL_BLOCK, TOTAL_RESIDENT)
    layer_norm_grad_total(const float* __restrict__ partial, T* __restrict__ dgamma, T* __restrict__ dbeta,
                          unsigned parts, unsigned columns, unsigned team) {
  column_total(partial, blockIdx.y ? dbeta : dgamma, blockIdx.y, parts, columns, team);
}
#endif

// 2. dx and the sums of columns need the same products, so one kernel makes them all. A block works on many rows, one
//    after the other. It keeps a row in registers between the row's sums and dx; and it keeps the sums of its columns,
//    which it writes once, at the end. dy and x are read once. But a block starts to load a row only when it is done
//    with the row before, and each access is one element. Macros: THREADS (of a block), KEPT (elements of a row that a
//    thread has).
#if defined(KEPT) && !defined(STAGES)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WITH_SUMS / THREADS)
    layer_norm_grad_fused(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                          const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx,
                          T* __restrict__ dgamma, T* __restrict__ dbeta, float* __restrict__ partial, long long rows,
                          unsigned columns) {
  fused_gradients<true, THREADS, KEPT>(dy, x, gamma, mean, rstd, dx, rows,
                                       ColumnSums<T>::of_blocks(dgamma, dbeta, partial, columns));
}
#endif

// 3. Tiles of rows come to shared memory in packs of 16 bytes, ahead of the work, so that memory is busy while rows are
//    reduced. That leaves registers for the sums of columns. A row has a few lanes, a warp, a block or a cluster of
//    blocks, whichever suits its length. Lanes of a warp keep rows as floats until they are reduced. A block reads the
//    next row before it writes dx of this one, so that it needn't wait for this one's sums. Rows that aren't whole
//    packs are read from shared memory by elements, so that a thread still has the same columns of each row. All blocks
//    run at the same time, so they are few and the sums of columns that they write are little beside 3 D. Macros: as in
//    norm_grad_tiles.cuh.
#ifdef STAGES
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    layer_norm_grad_tuned(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                          const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx,
                          T* __restrict__ dgamma, T* __restrict__ dbeta, float* __restrict__ partial, long long rows,
                          unsigned columns, unsigned tile_rows, unsigned piece, unsigned tile_bytes,
                          unsigned row_bytes) {
  tile_gradients<true>(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, partial, rows, columns,
                       Tiling{tile_rows, piece, tile_bytes, row_bytes});
}
#endif

// 4. Step 3 is slow where there are few rows, and impossible where a row is too long for the chip. There one kernel
//    makes the sums of each row, with many warps a row. Another one makes dx together with the sums of columns, of many
//    rows or many columns at a time. They move 5 D; of few rows, 2 D come from the L2. Macro: SINGLES (0 or 1: elements
//    in place of packs).
#if defined(SINGLES) && !defined(STAGES)
extern "C" __global__ void __launch_bounds__(SUM_BLOCK)
    layer_norm_grad_rows(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                         const float* __restrict__ mean, const float* __restrict__ rstd, float* __restrict__ row_sums,
                         long long rows, unsigned columns, unsigned parts) {
  sum_rows<true, SINGLES>(dy, x, gamma, mean, rstd, row_sums, rows, columns, parts);
}
extern "C" __global__ void __launch_bounds__(SPREAD_BLOCK)
    layer_norm_grad_spread(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                           const float* __restrict__ mean, const float* __restrict__ rstd,
                           const float* __restrict__ row_sums, T* __restrict__ dx, T* __restrict__ dgamma,
                           T* __restrict__ dbeta, float* __restrict__ partial, long long rows, unsigned columns,
                           unsigned parts) {
  spread_gradients<true, SINGLES>(dy, x, gamma, mean, rstd, row_sums, dx, rows, parts,
                                  ColumnSums<T>::of_groups(dgamma, dbeta, partial, columns));
}
#endif

// 5. Few rows on the whole GPU: rows and columns beside each other, in one kernel. Macros: as in norm_grad_beside.cuh.
#ifdef WIDE
extern "C" __global__ void __launch_bounds__(THREADS, BESIDE_BLOCKS)
    layer_norm_grad_beside(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                           const float* __restrict__ mean, const float* __restrict__ rstd, T* __restrict__ dx,
                           T* __restrict__ dgamma, T* __restrict__ dbeta, unsigned rows, unsigned columns) {
  beside_gradients<true>(dy, x, gamma, mean, rstd, dx, dgamma, dbeta, rows, columns);
}
#endif
