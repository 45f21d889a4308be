// A residual connection, RMSNorm, and the norm as numbers of 8 bits, which the next matrix product takes: sum = x +
// residual; q = (sum * rstd * gamma) / scale, as e4m3 (largest number 448) or as integers (largest 127). The scale is one
// number, known before, or made for each row: the row's largest number over the largest of the type, at least 1e-12 over
// it, which is an output then. e4m3 and integers are rounded to the nearest, halves to even, and saturate. NaN gives NaN
// in e4m3 and 0 as an integer; the scale of a row with NaN is NaN.
//
// Memory bounds it: x and residual are read, the sum is written, and q is half the bytes of halves: 3.5 D, where D is the
// bytes of x. Torch writes and reads the sum, the norm, its largest numbers and its quotients one after the other. A
// scale of a row needs the whole row before its first number, as rstd does. Both come from one pass: the largest number
// is that of |sum * gamma|, times rstd, which isn't known yet. So one reduction is enough (1); the row stays in registers
// (2), as in add_rms_norm.cu.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), EPS (epsilon, 1e-5f unless told), INTEGERS (0 or 1: 8-bit integers
// rather than e4m3), OF_ROW (0 or 1: a scale for each row), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-N8192 to=e4m3,scales=row.
// At least 268.5 MB are read and 201.4 MB written. The ceiling is 110.4 us, by memory.
//   two_pass: a block a row, which reads the sum again for q; any length and address
//   tuned: 16 bytes an access; the sum stays in a warp, a block or a cluster, as the row asks for
//       115.0 us   96.0% of ceiling  moves 469.8 MB

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef INTEGERS
#define INTEGERS 0
#endif
#ifndef OF_ROW
#define OF_ROW 1
#endif

#include <cuda_fp8.h>

#include "../quantise/few.cuh"
#include "add_norm.cuh"

using T = SCALAR;

[[maybe_unused]] constexpr float LARGEST = INTEGERS ? 127.0f : 448.0f, LEAST = 1e-12f;
// Products of an element and gamma are scaled down, so that the largest of them is finite. What this loses is far below
// the least scale.
[[maybe_unused]] constexpr float DOWN = 0x1p-16f, UP = 0x1p16f;

// A row's sum of squares, and its largest number. As numbers without a sign, floats are ordered as their bits are, and NaN
// is above all of them.
__device__ __forceinline__ float larger(float a, float b) {
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}
struct SquaresAndLargest {
  static __device__ __forceinline__ float identity(unsigned) { return 0.0f; }
  template <unsigned Count>
  static __device__ __forceinline__ void merge(float (&a)[Count], const float (&b)[Count]) {
    a[0] += b[0];
    if constexpr (Count > 1) a[1] = larger(a[1], b[1]);
  }
};
constexpr unsigned FOUND = 1 + OF_ROW;

// What a row's elements are multiplied by besides gamma; the row's scale is written.
__device__ __forceinline__ float row_factor(Normaliser<false>& normalised, const float (&found)[FOUND],
                                            float static_scale, float* __restrict__ scale, bool writes) {
  const float squares[1] = {found[0]};
  normalised.again(squares);
  const float rstd = normalised.rstd();
#if OF_ROW
  float most = found[1] * rstd * UP;
  if (most < LEAST) most = LEAST;
  if (writes) *scale = most * (1.0f / LARGEST);
  // The quotient comes last: a product with rstd would be too large where all numbers are small.
  return LARGEST / most;
#else
  return 1.0f / static_scale;
#endif
}

// Four numbers of 8 bits, the first one in the lowest byte.
__device__ __forceinline__ unsigned four_of(const float* values) {
#if INTEGERS
  return saturated(__float2int_rn(values[0]), __float2int_rn(values[1]),
                   saturated(__float2int_rn(values[2]), __float2int_rn(values[3]), 0));
#else
  const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, __NV_E4M3);
  return low | static_cast<unsigned>(
                   __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, __NV_E4M3)) << 16;
#endif
}
__device__ __forceinline__ float quantised_value(float x, float gamma, const Normaliser<false>& normalised,
                                                 float factor) {
  return normalised(x) * gamma * factor;
}

#ifndef COUNT

// 1. A block a row, of any length and at any address. Macro: THREADS (of a block).
extern "C" __global__ void __launch_bounds__(THREADS)
    add_rms_norm_quantize_two_pass(const T* __restrict__ x, const T* __restrict__ residual,
                                   const T* __restrict__ gamma, const float* __restrict__ static_scale, T* sum,
                                   unsigned char* __restrict__ q, float* __restrict__ scale, long long rows,
                                   long long columns) {
  BlockTeam<THREADS> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const long long begin = row * columns;
    Normaliser<false> normalised(columns, 0.0f);
    float found[FOUND] = {}, squares[1];
    add_and_measure<THREADS>(x + begin, residual + begin, sum + begin, columns, normalised, squares);
    found[0] = squares[0];
#if OF_ROW
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
      found[1] = larger(found[1], fabsf(to_float(sum[begin + i]) * DOWN * to_float(gamma[i])));
    }
#endif
    team.template all<SquaresAndLargest>(found);
    const float factor =
        row_factor(normalised, found, OF_ROW ? 0.0f : *static_scale, scale + row, threadIdx.x == 0);
#pragma unroll 1
    for (long long i = threadIdx.x; i < columns; i += THREADS) {
      const float value[4] = {quantised_value(to_float(sum[begin + i]), to_float(gamma[i]), normalised, factor)};
      q[begin + i] = static_cast<unsigned char>(four_of(value));
    }
  }
}

#else

// 2. 16 bytes of x an access, and a number of threads a row that suits its length. Rows are whole packs, and tensors are
//    aligned. Macros: as at the end of rows.cuh, WHOLE (0 or 1: no thread lacks a pack), and EARLY (as in together.cuh).
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_SUMMED / THREADS)
    add_rms_norm_quantize_tuned(const T* __restrict__ x, const T* __restrict__ residual, const T* __restrict__ gamma,
                                const float* __restrict__ static_scale, T* __restrict__ sum,
                                unsigned char* __restrict__ q, float* __restrict__ scale, long long rows,
                                unsigned columns, unsigned, unsigned) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  constexpr unsigned SIZE = SummedPacks::CHUNK;
  Team team;
  SummedPacks row(team, rows, columns, team.row(), residual, sum, gamma);
  const float given = OF_ROW ? 0.0f : *static_scale;
  if constexpr (EARLY && !OF_ROW) begin_together(row.gammas[0], given);
  Normaliser<false> normalised(columns, 0.0f);
  SummedPacks::Chunk chunks[SummedPacks::CHUNKS];
  row.load(x, chunks, 0.0f);
  float found[FOUND] = {}, values[SIZE], scales[SIZE];
#pragma unroll
  for (unsigned j = 0; j < COUNT; ++j) {
    widen(chunks[j], values);
    float(&squares)[1] = reinterpret_cast<float(&)[1]>(found[0]);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) normalised.add(values[e], squares);
#if OF_ROW
    widen(row.column(gamma, j), scales);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) found[1] = larger(found[1], fabsf(values[e] * DOWN * scales[e]));
#endif
  }
  team.template all<SquaresAndLargest>(found);
  const bool writes = team.rank == 0 && row.row < rows;
  const float factor = row_factor(normalised, found, given, scale + row.row, writes);
#pragma unroll
  for (unsigned j = 0; j < COUNT; ++j) {
    forget_floats(chunks[j], normalised.zero());
    widen(chunks[j], values);
    widen(row.column(gamma, j), scales);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) values[e] = quantised_value(values[e], scales[e], normalised, factor);
    if (!row.has(j, 0)) continue;
    unsigned char* to = q + row.begin + row.column_of(j);
    if constexpr (SIZE == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(four_of(values), four_of(values + 4));
    } else {
      *reinterpret_cast<unsigned*>(to) = four_of(values);
    }
  }
#endif
}
#endif
