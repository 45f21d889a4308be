// What dropout and its backward make of elements: scaled where they are kept, 0 where they aren't, whatever they were
// (torch multiplies by 0 instead, so that a dropped infinity becomes NaN there). Every product rounds once.
#pragma once

#include "../include/bitmask.cuh"
#include "../include/number.cuh"
#include "../include/pack.cuh"

template <typename Element>
__device__ __forceinline__ Element keep(Element value, bool kept, float scale) {
  return kept ? Element(to_float(value) * scale) : Element(0.0f);
}

// One by one: elements `begin` to `end`, which hold the tensor's last one or aren't aligned. Bits stand lowest first.
template <typename Element>
__device__ __forceinline__ void keep_each(const Element* __restrict__ from, Element* __restrict__ to, long long begin,
                                          long long end, unsigned bits, float scale) {
#pragma unroll 1
  for (long long i = begin; i < end; ++i, bits >>= 1) to[i] = keep(from[i], bits & 1u, scale);
}

__device__ __forceinline__ __half2 scaled(__half2 pair, float scale) {
  const float2 values = __half22float2(pair);
  return __floats2half2_rn(values.x * scale, values.y * scale);
}
__device__ __forceinline__ __nv_bfloat162 scaled(__nv_bfloat162 pair, float scale) {
  const float2 values = __bfloat1622float2(pair);
  return __floats2bfloat162_rn(values.x * scale, values.y * scale);
}

// A quad's or a pack's elements by their bits, lowest first, with none set beyond. Halves are masked two at a time, as
// they lie in registers.
template <unsigned SIZE>
__device__ __forceinline__ void keep_all(float (&at)[SIZE], unsigned bits, float scale) {
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) at[j] = keep(at[j], bits >> j & 1u, scale);
}
template <typename Two, typename Half, unsigned SIZE>
__device__ __forceinline__ void keep_pairs(Half (&at)[SIZE], unsigned bits, float scale) {
  Two(&pairs)[SIZE / 2] = reinterpret_cast<Two(&)[SIZE / 2]>(at);
#pragma unroll
  for (unsigned j = 0; j < SIZE / 2; ++j) {
    const Two product = scaled(pairs[j], scale);
    reinterpret_cast<unsigned&>(pairs[j]) = reinterpret_cast<const unsigned&>(product) & kept_halves(bits, j);
  }
}
template <unsigned SIZE>
__device__ __forceinline__ void keep_all(__half (&at)[SIZE], unsigned bits, float scale) {
  keep_pairs<__half2>(at, bits, scale);
}
template <unsigned SIZE>
__device__ __forceinline__ void keep_all(__nv_bfloat16 (&at)[SIZE], unsigned bits, float scale) {
  keep_pairs<__nv_bfloat162>(at, bits, scale);
}
