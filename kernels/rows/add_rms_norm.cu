// A residual connection and the RMSNorm behind it: sum = x + residual, y = sum * rstd * gamma with rstd =
// 1 / sqrt(mean(sum * sum) + epsilon). The sum goes on as the next residual, so it is an output, too; rstd is one for the
// backward. A decoder of Llama's kind has two of them in each layer.
//
// Memory bounds it: x and residual are read, sum and y are written, 4 D, where D is the bytes of x. Two kernels, as torch
// has them, write the sum and read it again: 5 D. The kernels here are those of rms_norm.cu, whose rows are made of two
// as they are loaded: a block reads its row twice, the second time from the sum that it has just written (1); a team
// keeps the sum in registers, in packs of 16 bytes, as halves if memory has halves (2).
//
// Macros: SCALAR (float, __half, __nv_bfloat16), EPS (epsilon, 1e-5f unless told), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-N4096.
// At least 134.2 MB are read and 134.3 MB written. The ceiling is 64.53 us, by memory.
//   two_pass: a block a row, which reads the sum again for y; any length and address
//   tuned: 16 bytes an access; the sum stays in a warp, a block or a cluster, as the row asks for
//       67.60 us   95.5% of ceiling  moves 268.5 MB

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "add_norm.cuh"

using T = SCALAR;

#ifndef COUNT

// 1. A block a row, of any length and at any address. Macro: THREADS (of a block).
extern "C" __global__ void __launch_bounds__(THREADS)
    add_rms_norm_two_pass(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ gamma, T* sum,
                          T* __restrict__ y, float* __restrict__ rstd, long long rows, long long columns) {
  BlockTeam<THREADS> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const long long begin = row * columns;
    Normaliser<false> normalised(columns, 0.0f);
    float squares[1];
    add_and_measure<THREADS>(x + begin, residual + begin, sum + begin, columns, normalised, squares);
    team.template all<Sum>(squares);
    normalised.again(squares);
    if (threadIdx.x == 0) rstd[row] = normalised.rstd();
#pragma unroll 1
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
      y[begin + i] = T(normalised(to_float(sum[begin + i])) * to_float(gamma[i]));
    }
  }
}

#else

// 2. 16 bytes an access, and a number of threads a row that suits its length. Rows are whole packs, tensors are aligned.
//    Macros: as at the end of rows.cuh, WHOLE (0 or 1: no thread lacks a pack), and EARLY (as in together.cuh).
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_SUMMED / THREADS)
    add_rms_norm_tuned(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ gamma,
                       T* __restrict__ sum, T* __restrict__ y, float* __restrict__ rstd, long long rows,
                       unsigned columns, unsigned, unsigned) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  Team team;
  const long long first = team.row() * TOGETHER;
#if TOGETHER == 2
  const SummedPacks some[] = {{team, rows, columns, first, residual, sum, gamma},
                              {team, rows, columns, first + 1, residual, sum, gamma}};
#else
  const SummedPacks some[] = {{team, rows, columns, first, residual, sum, gamma}};
#endif
  normalise_from<false>(some, x, gamma, static_cast<const T*>(nullptr), y, static_cast<float*>(nullptr), rstd);
#endif
}
#endif
