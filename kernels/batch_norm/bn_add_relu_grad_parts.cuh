// What the kernels of bn_add_relu_grad share: the sums of a channel, and packs of dz and dx.
//
// Macros: SCALAR; RESIDUAL (1; 0: there is no z, and dz isn't written).
#pragma once

#include "bn_packs.cuh"
#include "../include/bitmask.cuh"

// Register w of a pack, with 0 in place of each element whose bit is 0, even if it isn't finite.
__device__ __forceinline__ unsigned kept_word(const unsigned (&words)[WORDS], unsigned bits, unsigned w) {
  if constexpr (LANES == 1) {
    return bits >> w & 1u ? words[w] : 0u;
  } else {
    return words[w] & kept_halves(bits, w);
  }
}
__device__ __forceinline__ const unsigned (&words_of(const Pack<T>& pack))[WORDS] {
  return reinterpret_cast<const unsigned(&)[WORDS]>(pack);
}
__device__ __forceinline__ unsigned (&words_of(Pack<T>& pack))[WORDS] {
  return reinterpret_cast<unsigned(&)[WORDS]>(pack);
}

// The two sums of a channel, or of some of its elements.
struct Sums {
  float dz, product;  // of dz, and of dz * (x - mean)

  __device__ __forceinline__ void add(const Sums& other) {
    dz += other.dz;
    product += other.product;
  }
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) {
      dz += __shfl_down_sync(ALL_LANES, dz, step, lanes);
      product += __shfl_down_sync(ALL_LANES, product, step, lanes);
    }
  }
};

// `gradient` has dy and becomes dz. `value` has x and becomes dx. coefficients(j): k1, k2 and k3 for element j of both
// packs.
template <typename Coefficients>
__device__ __forceinline__ void apply_pack(Pack<T>& gradient, Pack<T>& value, unsigned bits,
                                           Coefficients coefficients) {
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    const unsigned kept = kept_word(words_of(gradient), bits, w);
    const Lanes<T> dz(kept), x(words_of(value)[w]);
    Lanes<T> dx;
#pragma unroll
    for (unsigned l = 0; l < LANES; ++l) {
      const float4 k = coefficients(w * LANES + l);
      dx.at[l] = fmaf(k.x, dz.at[l], fmaf(k.y, x.at[l], k.z));
    }
    words_of(gradient)[w] = kept;
    words_of(value)[w] = dx.word();
  }
}
