// y = acc * sx * sw + bias + residual: the int32 result of a product of 8-bit integers, as numbers of the type T, with
// a bias for each column and a residual. Sums are made in float and rounded once.
//
// Memory bounds it: an element takes 4 bytes of acc, one T of the residual and one T of y. Three kernels write two
// tensors between them and read them again. One kernel keeps both in registers. With one element a thread, few bytes
// are under way, and each element has its own index arithmetic; packs share it.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), CHANNEL
// (0 or 1: sw has a scale for each column, not one for all).
//
// What each step gained on an NVIDIA H200 (reports/h200/quantise), float16 M131072-C1024 scales=channel.
// At least 805.3 MB are read and 268.4 MB written. The ceiling is 240.7 us, by memory.
//   eager: PyTorch
//       1.721 ms   14.0% of ceiling
//   separate: three kernels, one element a thread: dequantise, add the bias, add the residual
//       1.157 ms   20.8% of ceiling  moves 2.147 GB  1.49x the speed of eager
//   fused: one kernel, one element a thread
//       428.9 us   56.1% of ceiling  moves 1.074 GB  2.70x the speed of separate
//   tuned: 16 bytes of acc an access, four of them and of the residual a thread; less where there is little
//       241.1 us   99.8% of ceiling  moves 1.074 GB  1.78x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef CHANNEL
#define CHANNEL 0
#endif

// 1. The text before: three kernels, which dequantise, add the bias, and add the residual. With int32 and halves 16
//    bytes an element move, where 8 have to.
#ifdef STEPS
#include "steps.cuh"
#endif

// 2. The text after: one kernel, one element a thread.
#if !(defined STEPS || defined WHOLE)
#include "../include/fastdiv.cuh"
#include "few.cuh"

using T = SCALAR;

extern "C" __global__ void dequantize_bias_residual_fused(const int* __restrict__ acc, const float* __restrict__ sx,
                                                          const float* __restrict__ sw, const T* __restrict__ bias,
                                                          const T* __restrict__ residual, T* __restrict__ y,
                                                          INDEX elements, INDEX columns, INDEX multiplier,
                                                          unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const INDEX c = Divisor<INDEX>{columns, multiplier, shift}.remainder(i);
  y[i] = T(fmaf(to_float(acc[i]), *sx * sw[CHANNEL ? c : 0], to_float(bias[c])) + to_float(residual[i]));
}
#endif

// 3. 16 bytes of acc an access, four of them a thread, in the same columns (tiles.cuh). All loads of acc and residual
//    are under way at once.
//
// Macro: WHOLE (0 or 1: rows are whole units of four elements).
#ifdef WHOLE
#include "dequantise.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    dequantize_bias_residual_tuned(const int* __restrict__ acc, const float* __restrict__ sx,
                                   const float* __restrict__ sw, const T* __restrict__ bias,
                                   const T* __restrict__ residual, T* __restrict__ y, TILE_PARAMETERS) {
  in_tiles<SIZE, true>(acc, residual, y, TILES, Dequantise<Plain>{sx, sw, bias});
}
#endif
