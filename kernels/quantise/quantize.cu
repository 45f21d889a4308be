// y = x / scale as integers of 8 bits: rounded to the nearest, halves to the even one, saturated at -128 and 127. NaN
// gives 0. Where the scale is 0, y saturates by the sign of x, and is 0 where x is 0 too.
//
// Memory bounds it: an element takes one T of x and 1 byte of y. Two kernels write x / scale as a tensor and read it
// again, which is more than x and y together. One kernel keeps it in a register. With one element a thread, a warp
// writes 32 bytes at a time; packs make accesses wide.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), CHANNEL
// (0 or 1: there is a scale for each column, not one for all).
//
// What each step gained on an NVIDIA H200 (reports/h200/quantise), float16 M131072-C1024 scales=channel.
// At least 268.4 MB are read and 134.2 MB written. The ceiling is 93.15 us, by memory.
//   eager: PyTorch
//       1.414 ms    6.6% of ceiling
//   separate: two kernels, one element a thread: divide, then round
//       753.8 us   12.4% of ceiling  moves 939.5 MB  1.88x the speed of eager
//   fused: one kernel, one element a thread
//       383.3 us   24.3% of ceiling  moves 402.7 MB  1.97x the speed of separate
//   tuned: 16 bytes of x an access, four of them a thread; less where there is little
//       93.88 us   99.2% of ceiling  moves 402.7 MB  4.08x the speed of fused

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

#ifndef WHOLE

// 1. One element a thread. The inverse of the scale is a real division, about ten instructions; the rounding and the
//    saturation are one conversion to 32 bits and one to 8. The column is found without a division.
#include "../include/fastdiv.cuh"
#include "few.cuh"

using T = SCALAR;

extern "C" __global__ void quantize_fused(const T* __restrict__ x, const float* __restrict__ scale,
                                          signed char* __restrict__ y, INDEX elements, INDEX columns, INDEX multiplier,
                                          unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const Divisor<INDEX> row{columns, multiplier, shift};
  y[i] = quantised(to_float(x[i]) * inverse(scale[CHANNEL ? row.remainder(i) : 0]));
}

// 2. Two kernels: first x / scale, which is written in the type of x and read again, and then the integers.
extern "C" __global__ void quantize_divide(const T* __restrict__ x, const float* __restrict__ scale, T* __restrict__ y,
                                           INDEX elements, INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread_index<INDEX>();
  if (i >= elements) return;
  const Divisor<INDEX> row{columns, multiplier, shift};
  y[i] = T(to_float(x[i]) * inverse(scale[CHANNEL ? row.remainder(i) : 0]));
}
extern "C" __global__ void quantize_round(const T* __restrict__ x, signed char* __restrict__ y, INDEX elements) {
  const INDEX i = thread_index<INDEX>();
  if (i < elements) y[i] = quantised(to_float(x[i]));
}

#else

// 3. 16 bytes of x an access, several of them a thread, in the same columns (tiles.cuh). The inverses of the scales are
//    made once a thread, for all of its rows. Four results are one register: two conversions saturate and pack them.
#include "tiles.cuh"

#ifdef UNIT_ELEMENTS
constexpr unsigned SIZE = UNIT_ELEMENTS;
#else
constexpr unsigned SIZE = 16 / sizeof(T);
#endif

struct Quantise {
  const float* scale;
  float factor[SIZE];

  __device__ __forceinline__ void load(INDEX column, INDEX columns) {
    if constexpr (CHANNEL) {
      load_columns(scale, column, columns, factor);
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) factor[j] = straight_inverse(factor[j]);
    } else {
      const float one = straight_inverse(*scale);
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) factor[j] = one;
    }
  }
  __device__ __forceinline__ float operator()(float x, float, unsigned j) const { return x * factor[j]; }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    quantize_tuned(const T* __restrict__ x, const float* __restrict__ scale, signed char* __restrict__ y,
                   TILE_PARAMETERS) {
  in_tiles<SIZE, false>(x, static_cast<const T*>(nullptr), y, TILES, Quantise{scale, {}});
}
#endif
