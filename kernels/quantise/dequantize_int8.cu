// What follows an int8 product whose result is int8 as well, x * x_scale + bias, and GELU if the next step is a product
// again. _tuned writes SCALAR; _gelu_tuned writes int8, y / y_scale rounded and saturated. Sums in int32 would be four
// times the bytes of x.
//
// Memory bounds it: an element takes 1 byte of x and one SCALAR, or 1 byte, of y.
//
// A thread takes 16 neighbours: 16 bytes of x an access. Rows are whole multiples of 16, so no thread has two rows.
//
// Macros: SCALAR (__half or __nv_bfloat16), COLUMNS (of a row), THREADS (of a block).

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif
#ifndef COLUMNS
#define COLUMNS 384
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "eights.cuh"
#include "gelu.cuh"

constexpr unsigned UNIT = 2 * EIGHT;
static_assert(COLUMNS % UNIT == 0, "rows are whole units");

// The unit's numbers, before anything else is done to them.
__device__ __forceinline__ void load_unit(const signed char* __restrict__ x, const float* __restrict__ x_scale,
                                          const T* __restrict__ bias, unsigned unit, float (&values)[2][EIGHT]) {
  const uint4 raw = __ldg(reinterpret_cast<const uint4*>(x) + unit);
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  const float scale = *x_scale;
  const unsigned column = unit % (COLUMNS / UNIT) * UNIT;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    float shift[EIGHT];
    load_eight(bias + column + half * EIGHT, shift);
#pragma unroll
    for (unsigned e = 0; e < EIGHT; ++e) {
      const float number = static_cast<signed char>(words[2 * half + e / 4] >> 8 * (e % 4));
      values[half][e] = fmaf(number, scale, shift[e]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    dequantize_int8_tuned(const signed char* __restrict__ x, const float* __restrict__ x_scale,
                          const T* __restrict__ bias, T* __restrict__ y, unsigned units) {
  const unsigned unit = thread_index<unsigned>();
  if (unit >= units) return;
  float values[2][EIGHT];
  load_unit(x, x_scale, bias, unit, values);
  T* to = y + static_cast<size_t>(unit) * UNIT;
  store_eight(to, values[0]);
  store_eight(to + EIGHT, values[1]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    dequantize_int8_gelu_tuned(const signed char* __restrict__ x, const float* __restrict__ x_scale,
                               const T* __restrict__ bias, const float* __restrict__ y_scale,
                               signed char* __restrict__ y, unsigned units) {
  const unsigned unit = thread_index<unsigned>();
  if (unit >= units) return;
  float values[2][EIGHT];
  load_unit(x, x_scale, bias, unit, values);
  const float inverse = 1.0f / *y_scale;
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
#pragma unroll
    for (float& value : values[half]) value = fast_gelu(value) * inverse;
  }
  const uint2 low = bytes_of(values[0]), high = bytes_of(values[1]);
  reinterpret_cast<uint4*>(y)[unit] = make_uint4(low.x, low.y, high.x, high.y);
}
