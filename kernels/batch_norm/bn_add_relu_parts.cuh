// What the kernels of bn_add_relu share: sums about a shift, and a pack of y.
//
// Macros: SCALAR; RESIDUAL (1; 0: there is no z).
#pragma once

#include "bn_packs.cuh"
#include "../include/relu.cuh"

constexpr double EPSILON = 1e-5, MOMENTUM = 0.1;

// The median of three, which is no outlier if one of them is. A NaN is passed over, unless all are NaN.
__device__ __forceinline__ float median(float a, float b, float c) {
  return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
}

struct Sums {
  float sum, squares;

  __device__ __forceinline__ void add(const Sums& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ void add_value(float value, float shift) {
    const float distance = value - shift;
    sum += distance;
    squares = fmaf(distance, distance, squares);
  }
  // Leaves in the first of `lanes` neighbouring lanes, a power of two, the sums of all of them.
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) {
      sum += __shfl_down_sync(ALL_LANES, sum, step, lanes);
      squares += __shfl_down_sync(ALL_LANES, squares, step, lanes);
    }
  }
};

// Replaces a pack of x by y, and returns the bits of y > 0.
template <typename Rows>
__device__ __forceinline__ unsigned apply_pack(Pack<T>& x, const Pack<T>& z, const Rows& rows) {
  unsigned(&words)[WORDS] = reinterpret_cast<unsigned(&)[WORDS]>(x);
  const unsigned(&z_words)[WORDS] = reinterpret_cast<const unsigned(&)[WORDS]>(z);
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    Lanes<T> values(words[w]);
    const Lanes<T> residual(z_words[w]);
#pragma unroll
    for (unsigned l = 0; l < LANES; ++l) {
      const float2 with = rows.at(w * LANES + l);
      values.at[l] = fmaf(values.at[l], with.x, with.y);
      if constexpr (RESIDUAL) values.at[l] += residual.at[l];
    }
    words[w] = values.word();
  }
  return relu_pack(x);
}
