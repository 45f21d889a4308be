// RMSNorm of the rows of a matrix, y = x * rstd * gamma with rstd = 1 / sqrt(mean(x * x) + epsilon). rstd is an output,
// too, since the backward needs it. Compared with LayerNorm there is no mean and no beta. The steps to full bandwidth
// are the same, and layer_norm.cu tells why each of them helps.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), EPS (epsilon, 1e-5f unless told), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/counters_rows), float32 M131072-N1024.
// At least 536.9 MB are read and 537.4 MB written. The ceiling is 252.4 us, by memory.
//   eager: PyTorch
//       273.2 us   92.4% of ceiling
//   two_pass: a block a row, which reads x for rstd and again for y; any length and address
//       327.2 us   77.1% of ceiling  moves 1.611 GB  0.83x the speed of eager
//   registers: x read once, into a register array of constant size
//       264.7 us   95.3% of ceiling  moves 1.074 GB  1.24x the speed of two_pass
//   half2: the same, with two halves an access and a conversion
//   tuned: 16 bytes an access; a warp, a block or a cluster a row, as it asks for
//       255.6 us   98.7% of ceiling  moves 1.074 GB  1.04x the speed of registers

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "norm.cuh"

using T = SCALAR;

#if !(defined COUNT || defined ELEMENTS || defined PAIRS)
#include "norm_ones.cuh"

// 1. x is read for the statistic and again for y. Macro: THREADS (of a block).
extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_two_pass(const T* __restrict__ x, const T* __restrict__ gamma, T* __restrict__ y,
                      float* __restrict__ rstd, long long rows, long long columns) {
  normalise_in_two_passes<false, THREADS, T>(x, gamma, nullptr, y, nullptr, rstd, rows, columns);
}

// Rows of one element, for `tuned`. Macro: THREADS.
extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_of_one(const T* __restrict__ x, const T* __restrict__ gamma, T* __restrict__ y, float* __restrict__ rstd,
                    long long rows, int aligned) {
  normalise_ones<false, T>(x, gamma, nullptr, y, nullptr, rstd, rows, aligned);
}
#endif

// 2. A block keeps its row in registers, so that x is read once. Macros: THREADS, ELEMENTS (that a thread keeps).
#ifdef ELEMENTS
extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_registers(const T* __restrict__ x, const T* __restrict__ gamma, T* __restrict__ y,
                       float* __restrict__ rstd, long long rows, unsigned columns) {
  using Elements = ElementRow<T, ELEMENTS, BlockTeam<THREADS>>;
  normalise_in_registers<false, Elements, T>(x, gamma, nullptr, y, nullptr, rstd, rows, columns);
}
#endif

// 3. Two halves an access. Macros: THREADS, PAIRS (that a thread keeps).
#ifdef PAIRS
extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm_half2(const T* __restrict__ x, const T* __restrict__ gamma, T* __restrict__ y, float* __restrict__ rstd,
                   long long rows, unsigned columns) {
  using Pairs = PairRow<T, PAIRS, BlockTeam<THREADS>>;
  normalise_in_registers<false, Pairs, T>(x, gamma, nullptr, y, nullptr, rstd, rows, columns);
}
#endif

// 4. 16 bytes an access, and a number of threads a row that suits its length. Few rows load gamma with the row (EARLY):
//    nothing else on their multiprocessors hides a second wait for memory. Macros: as in norm_planned.cuh.
#ifdef COUNT
#include "norm_planned.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_OF_SM)
    rms_norm_tuned(const T* __restrict__ x, const T* __restrict__ gamma, T* __restrict__ y, float* __restrict__ rstd,
                   long long rows, unsigned columns, unsigned tile_rows, unsigned aligned) {
  normalise_as_planned<false, T>(x, gamma, nullptr, y, nullptr, rstd, rows, columns, tile_rows, aligned);
}
#endif
