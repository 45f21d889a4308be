// y = acc * sx * sw + bias: the int32 result of a product of 8-bit integers, as numbers of the type T, with a bias for
// each column. The arithmetic is in float, which has 24 bits: a larger acc is rounded.
//
// Memory bounds it: an element takes 4 bytes of acc and the bytes of one T. Two kernels write x = acc * sx * sw and
// read it again, which is more than the result itself. One kernel keeps x in a register. With one element a thread, few
// bytes are under way, and each element has its own index arithmetic; packs share it.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), CHANNEL
// (0 or 1: sw has a scale for each column, not one for all).
//
// What each step gained on an NVIDIA H200 (reports/h200/quantise), float16 M131072-C1024 scales=channel.
// At least 536.9 MB are read and 268.4 MB written. The ceiling is 184.3 us, by memory.
//   eager: PyTorch
//       1.253 ms   14.7% of ceiling
//   separate: two kernels, one element a thread: dequantise, then add the bias
//       759.5 us   24.3% of ceiling  moves 1.342 GB  1.65x the speed of eager
//   fused: one kernel, one element a thread
//       393.3 us   46.9% of ceiling  moves 805.3 MB  1.93x the speed of separate
//   tuned: 16 bytes of acc an access, four of them a thread; less where there is little
//       185.2 us   99.5% of ceiling  moves 805.3 MB  2.12x the speed of fused

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

// 1. The text before: a kernel that dequantises, and one that adds the bias. What the first one writes, the second
//    reads: with int32 and halves 10 bytes an element move, where 6 have to.
#ifdef STEPS
#include "steps.cuh"
#endif

// 2. The text after: one kernel, one element a thread.
#if !(defined STEPS || defined WHOLE)
#include "../include/fastdiv.cuh"
#include "few.cuh"

using T = SCALAR;

extern "C" __global__ void dequantize_bias_fused(const int* __restrict__ acc, const float* __restrict__ sx,
                                                 const float* __restrict__ sw, const T* __restrict__ bias,
                                                 T* __restrict__ y, INDEX elements, INDEX columns, INDEX multiplier,
                                                 unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const INDEX c = Divisor<INDEX>{columns, multiplier, shift}.remainder(i);
  y[i] = T(fmaf(to_float(acc[i]), *sx * sw[CHANNEL ? c : 0], to_float(bias[c])));
}
#endif

// 3. 16 bytes of acc an access, four of them a thread, in the same columns (tiles.cuh): four times as much is in
//    flight, and the scales and biases of a thread, which take more bytes than its elements do, are fetched once for
//    all.
//
// Macro: WHOLE (0 or 1: rows are whole units of four elements).
#ifdef WHOLE
#include "dequantise.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    dequantize_bias_tuned(const int* __restrict__ acc, const float* __restrict__ sx, const float* __restrict__ sw,
                          const T* __restrict__ bias, T* __restrict__ y, TILE_PARAMETERS) {
  in_tiles<SIZE, false>(acc, static_cast<const T*>(nullptr), y, TILES, Dequantise<Plain>{sx, sw, bias});
}
#endif
