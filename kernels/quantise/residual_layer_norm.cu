// What lies between two products of Swin Transformer in inference: h = residual + x, and y = LayerNorm(h). x is what the
// last product made, y is what the next one takes. Each step reads x and the residual, and writes h and y: four times
// the size of h, where separate kernels for the windows, the sum and LayerNorm move seven.
//
// Rows are pixels, CHANNELS long. The residual and h are in the order of the images. x may be in the same order or in
// the order of windows, and so may y. So joining windows and cutting images into windows are a matter of addresses, and
// need no kernels.
//
// x may be int8 or int32: then x * x_scale + bias is added. y may be int8: then it is y / y_scale, rounded and saturated.
// h is rounded to SCALAR, and LayerNorm works on what was rounded, as it does where h is written and read again. Behind a
// product between two stages there is no residual: then h = x.
//
// Macros: SCALAR (__half or __nv_bfloat16). CHANNELS. LANES: of a warp, which share a row, a power of two. THREADS: of
// a block. SIDE: pixels of an image's side. WINDOW: pixels of a window's side. X, Y: 0 if there is none, 1 for SCALAR,
// 2 for int8, 3 for int32 (X). RESIDUAL: 0 if there is none, 1 unless told. SHIFT_X, SHIFT_Y: pixels by which the
// windows were shifted, or -1 for the order of the images. EPS: the norm's epsilon, 1e-5 unless told.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif
#ifndef CHANNELS
#define CHANNELS 96
#endif
#ifndef LANES
#define LANES 4
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef SIDE
#define SIDE 56
#endif
#ifndef WINDOW
#define WINDOW 7
#endif
#ifndef X
#define X 1
#endif
#ifndef Y
#define Y 1
#endif
#ifndef RESIDUAL
#define RESIDUAL 1
#endif
#ifndef SHIFT_X
#define SHIFT_X 0
#endif
#ifndef SHIFT_Y
#define SHIFT_Y 0
#endif

#include "eights.cuh"

#ifndef EPS
#define EPS 1e-5f
#endif

constexpr unsigned COUNT = CHANNELS / EIGHT / LANES;  // eights of a row that a lane has
static_assert(COUNT * LANES * EIGHT == CHANNELS, "lanes share a row evenly");

// The row that a pixel has in an order.
template <int Shift>
__device__ __forceinline__ unsigned row_of(unsigned pixel) {
  if constexpr (Shift < 0) {
    return pixel;
  } else {
    constexpr unsigned ACROSS = SIDE / WINDOW;  // windows of a row of an image
    const unsigned image = pixel / (SIDE * SIDE), place = pixel % (SIDE * SIDE);
    const unsigned down = (place / SIDE + SIDE - Shift) % SIDE, across = (place % SIDE + SIDE - Shift) % SIDE;
    const unsigned window = (image * ACROSS + down / WINDOW) * ACROSS + across / WINDOW;
    return (window * WINDOW + down % WINDOW) * WINDOW + across % WINDOW;
  }
}

// The sum over the lanes that share a row, for each of them. The whole warp takes part.
__device__ __forceinline__ float sum_of_row(float value) {
#pragma unroll
  for (unsigned step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    residual_layer_norm(const void* __restrict__ x, const float* __restrict__ x_scale, const T* __restrict__ bias,
                        const T* __restrict__ residual, const T* __restrict__ gamma, const T* __restrict__ beta,
                        const float* __restrict__ y_scale, T* __restrict__ h, void* __restrict__ y, unsigned rows) {
  const unsigned lane = threadIdx.x % LANES, own = thread_index<unsigned>() / LANES;
  // Lanes without a row work on the last row, since all lanes take part in the sums; they write nothing.
  const unsigned pixel = min(own, rows - 1);
  const size_t image_row = static_cast<size_t>(pixel) * CHANNELS;
  float values[COUNT][EIGHT] = {};
  if constexpr (RESIDUAL) {
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) load_eight(residual + image_row + (j * LANES + lane) * EIGHT, values[j]);
  }

  if constexpr (X > 0) {
    const size_t x_row = static_cast<size_t>(row_of<SHIFT_X>(pixel)) * CHANNELS;
    float added[COUNT][EIGHT];
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      const unsigned column = (j * LANES + lane) * EIGHT;
      if constexpr (X == 1) {
        load_eight(static_cast<const T*>(x) + x_row + column, added[j]);
      } else if constexpr (X == 2) {
        load_eight(static_cast<const signed char*>(x) + x_row + column, added[j]);
      } else {
        load_eight(static_cast<const int*>(x) + x_row + column, added[j]);
      }
    }
    const float scale = X > 1 ? *x_scale : 1.0f;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      float shift[EIGHT] = {};
      if constexpr (X > 1) load_eight(bias + (j * LANES + lane) * EIGHT, shift);
#pragma unroll
      for (unsigned e = 0; e < EIGHT; ++e) values[j][e] += X > 1 ? fmaf(added[j][e], scale, shift[e]) : added[j][e];
      round_eight(values[j]);
      if (own < rows) store_eight(h + image_row + (j * LANES + lane) * EIGHT, values[j]);
    }
  }

  if constexpr (Y > 0) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
#pragma unroll
      for (unsigned e = 0; e < EIGHT; ++e) sum += values[j][e];
    }
    const float mean = sum_of_row(sum) / CHANNELS;
    // The row is in registers, so a second pass over it costs little, and loses no places to a large mean.
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
#pragma unroll
      for (unsigned e = 0; e < EIGHT; ++e) squares = fmaf(values[j][e] - mean, values[j][e] - mean, squares);
    }
    const float rstd = rsqrtf(sum_of_row(squares) / CHANNELS + EPS);
    const float inverse = Y == 2 ? 1.0f / *y_scale : 1.0f;
    const size_t y_row = static_cast<size_t>(row_of<SHIFT_Y>(pixel)) * CHANNELS;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      const unsigned column = (j * LANES + lane) * EIGHT;
      float scale[EIGHT], shift[EIGHT];
      load_eight(gamma + column, scale);
      load_eight(beta + column, shift);
#pragma unroll
      for (unsigned e = 0; e < EIGHT; ++e) {
        values[j][e] = fmaf((values[j][e] - mean) * rstd, scale[e], shift[e]) * inverse;
      }
      if (own >= rows) continue;
      if constexpr (Y == 1) {
        store_eight(static_cast<T*>(y) + y_row + column, values[j]);
      } else {
        store_eight(static_cast<signed char*>(y) + y_row + column, values[j]);
      }
    }
  }
}
