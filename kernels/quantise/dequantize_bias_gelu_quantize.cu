// y = gelu(acc * sx * sw + bias) / sy as integers of 8 bits (few.cuh), with the exact GELU: what stands between the two
// int8 matrix products of an MLP. The next product reads a byte an element.
//
// Memory bounds it: an element takes 4 bytes of acc and 1 byte of y. Four kernels write three tensors between them and
// read them again. One kernel keeps all in registers. Since only 5 bytes move for an element, instructions count next:
// the error function takes about 25, the GELU of step 3 about 12.
//
// Macros: SCALAR (float, __half, __nv_bfloat16: of the bias), INDEX (unsigned, or unsigned long long from 2^31 elements
// on), CHANNEL (0 or 1: sw has a scale for each column, not one for all).
//
// What each step gained on an NVIDIA H200 (reports/h200/quantise), float16 M131072-C1024 scales=channel.
// At least 536.9 MB are read and 134.2 MB written. The ceiling is 149.9 us, by memory.
//   eager: PyTorch
//       2.570 ms    5.8% of ceiling
//   separate: four kernels, one element a thread: dequantise, add the bias, gelu, quantise
//       1.533 ms    9.8% of ceiling  moves 2.282 GB  1.68x the speed of eager
//   fused: one kernel, one element a thread
//       462.0 us   32.4% of ceiling  moves 671.1 MB  3.32x the speed of separate
//   tuned: 16 bytes of acc an access, four of them a thread, less where there is little; GELU in 12 instructions
//       152.7 us   98.1% of ceiling  moves 671.1 MB  3.03x the speed of fused

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

// 1. The text before: four kernels, which dequantise, add the bias, apply GELU, and quantise. With halves 17 bytes an
//    element move, where 5 have to.
#ifdef STEPS
#include "steps.cuh"
#endif

// 2. The text after: one kernel, one element a thread. erff takes about 25 instructions.
#if !(defined STEPS || defined WHOLE)
#include "../include/fastdiv.cuh"
#include "few.cuh"
#include "gelu.cuh"

using T = SCALAR;

extern "C" __global__ void dequantize_bias_gelu_quantize_fused(const int* __restrict__ acc,
                                                               const float* __restrict__ sx,
                                                               const float* __restrict__ sw,
                                                               const T* __restrict__ bias, const float* __restrict__ sy,
                                                               signed char* __restrict__ y, INDEX elements,
                                                               INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const INDEX c = Divisor<INDEX>{columns, multiplier, shift}.remainder(i);
  const float x = fmaf(to_float(acc[i]), *sx * sw[CHANNEL ? c : 0], to_float(bias[c]));
  y[i] = quantised(gelu(x) * inverse(*sy));
}
#endif

// 3. 16 bytes of acc an access, four of them a thread, in the same columns (tiles.cuh). Only 5 bytes move for an
//    element, so that instructions count: GELU takes about 12 (gelu.cuh), the division is made once a thread, and four
//    results are packed into a register by two conversions.
//
// Macro: WHOLE (0 or 1: rows are whole units of four elements).
#ifdef WHOLE
#include "dequantise.cuh"
#include "gelu.cuh"

struct GeluQuantise {
  const float* sy;
  float factor;

  __device__ __forceinline__ void load() { factor = straight_inverse(*sy); }
  __device__ __forceinline__ float operator()(float x) const { return fast_gelu(x) * factor; }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT + 1)
    dequantize_bias_gelu_quantize_tuned(const int* __restrict__ acc, const float* __restrict__ sx,
                                        const float* __restrict__ sw, const T* __restrict__ bias,
                                        const float* __restrict__ sy, signed char* __restrict__ y, TILE_PARAMETERS) {
  in_tiles<SIZE, false>(acc, static_cast<const T*>(nullptr), y, TILES,
                        Dequantise<GeluQuantise>{sx, sw, bias, {sy}});
}
#endif
