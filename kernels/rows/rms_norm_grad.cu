// The backward of RMSNorm over the rows of a matrix: dx and dgamma. There is no mean and no dbeta, so a row has one sum
// in place of two, and a column, too. layer_norm_grad.cu tells what each step gains; norm_grad.cuh has the formulas.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/counters_rows), float32 M131072-N1024.
// At least 1.074 GB are read and 536.9 MB written. The ceiling is 366.8 us, by memory.
//   eager: PyTorch
//       632.4 us   58.0% of ceiling
//   separate: a kernel each for dx and dgamma
//       675.8 us   54.3% of ceiling  moves 2.684 GB  0.94x the speed of eager
//   fused: one read of dy and x, by blocks that add up columns row after row
//       1.119 ms   32.8% of ceiling  moves 1.611 GB  0.60x the speed of separate
//   tuned: tiles of rows in shared memory, ahead of the work; teams that fit the row
//       399.3 us   91.9% of ceiling  moves 1.611 GB  2.80x the speed of fused

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

// 1. A kernel for dx and one for dgamma: dy and x are read twice, 5 D in all, an element an access.
#if !defined(KEPT) && !defined(SINGLES) && !defined(WIDE)
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    rms_norm_grad_dx(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                     const float* __restrict__ rstd, T* __restrict__ dx, long long rows, unsigned columns) {
  row_gradients<false>(dy, x, gamma, nullptr, rstd, dx, rows, columns);
}
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    rms_norm_grad_dgamma(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ rstd,
                         T* __restrict__ dgamma, float* __restrict__ partial, long long rows, unsigned columns) {
  sum_dgamma<false>(dy, x, nullptr, rstd, rows, ColumnSums<T>::of_groups(dgamma, nullptr, partial, columns));
}
// The last step of all kernels here.
extern "C" __global__ void __launch_bounds__(TOTAL_BLOCK, TOTAL_RESIDENT)
    rms_norm_grad_total(const float* __restrict__ partial, T* __restrict__ dgamma, unsigned parts, unsigned columns,
                        unsigned team) {
  column_total(partial, dgamma, 0, parts, columns, team);
}
#endif

// 2. One read of dy and x: a block keeps a row, and the sums of its columns, in registers. Macros: THREADS (of a
//    block), KEPT (elements of a row that a thread has).
#if defined(KEPT) && !defined(STAGES)
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_WITH_SUMS / THREADS)
    rms_norm_grad_fused(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                        const float* __restrict__ rstd, T* __restrict__ dx, T* __restrict__ dgamma,
                        float* __restrict__ partial, long long rows, unsigned columns) {
  fused_gradients<false, THREADS, KEPT>(dy, x, gamma, nullptr, rstd, dx, rows,
                                        ColumnSums<T>::of_blocks(dgamma, nullptr, partial, columns));
}
#endif

// 3. Tiles of rows in shared memory, ahead of the work. Macros: as in norm_grad_tiles.cuh.
#ifdef STAGES
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    rms_norm_grad_tuned(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                        const float* __restrict__ rstd, T* __restrict__ dx, T* __restrict__ dgamma,
                        float* __restrict__ partial, long long rows, unsigned columns, unsigned tile_rows,
                        unsigned piece, unsigned tile_bytes, unsigned row_bytes) {
  tile_gradients<false, T>(dy, x, gamma, nullptr, rstd, dx, dgamma, nullptr, partial, rows, columns,
                           Tiling{tile_rows, piece, tile_bytes, row_bytes});
}
#endif

// 4. Few rows, or very long ones: the sums of rows, then the rest. Macro: SINGLES (0 or 1: elements in place of packs).
#if defined(SINGLES) && !defined(STAGES)
extern "C" __global__ void __launch_bounds__(SUM_BLOCK)
    rms_norm_grad_rows(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                       const float* __restrict__ rstd, float* __restrict__ row_sums, long long rows, unsigned columns,
                       unsigned parts) {
  sum_rows<false, SINGLES>(dy, x, gamma, nullptr, rstd, row_sums, rows, columns, parts);
}
extern "C" __global__ void __launch_bounds__(SPREAD_BLOCK)
    rms_norm_grad_spread(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                         const float* __restrict__ rstd, const float* __restrict__ row_sums, T* __restrict__ dx,
                         T* __restrict__ dgamma, float* __restrict__ partial, long long rows, unsigned columns,
                         unsigned parts) {
  spread_gradients<false, SINGLES>(dy, x, gamma, nullptr, rstd, row_sums, dx, rows, parts,
                                   ColumnSums<T>::of_groups(dgamma, nullptr, partial, columns));
}
#endif

// 5. Few rows on the whole GPU: rows and columns beside each other, in one kernel. Macros: as in norm_grad_beside.cuh.
#ifdef WIDE
extern "C" __global__ void __launch_bounds__(THREADS, BESIDE_BLOCKS)
    rms_norm_grad_beside(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ gamma,
                         const float* __restrict__ rstd, T* __restrict__ dx, T* __restrict__ dgamma, unsigned rows,
                         unsigned columns) {
  beside_gradients<false, T>(dy, x, gamma, nullptr, rstd, dx, dgamma, nullptr, rows, columns);
}
#endif
