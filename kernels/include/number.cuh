// The three floating-point types, worked on in float: every product and sum of two halves rounds once, when it is stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// The elements of a register as floats, and back: one float, or two halves, the lower one first. With it a kernel takes
// words apart only where it works on them.
template <typename Element>
struct Lanes {
  static constexpr unsigned SIZE = 4 / sizeof(Element);
  float at[SIZE];

  __device__ __forceinline__ Lanes() {}
  __device__ __forceinline__ explicit Lanes(unsigned word);
  __device__ __forceinline__ unsigned word() const;
};
template <>
__device__ __forceinline__ Lanes<float>::Lanes(unsigned word) : at{__uint_as_float(word)} {}
template <>
__device__ __forceinline__ unsigned Lanes<float>::word() const {
  return __float_as_uint(at[0]);
}
template <>
__device__ __forceinline__ Lanes<__half>::Lanes(unsigned word) {
  const float2 both = __half22float2(reinterpret_cast<const __half2&>(word));
  at[0] = both.x, at[1] = both.y;
}
template <>
__device__ __forceinline__ unsigned Lanes<__half>::word() const {
  const __half2 both = __floats2half2_rn(at[0], at[1]);
  return reinterpret_cast<const unsigned&>(both);
}
template <>
__device__ __forceinline__ Lanes<__nv_bfloat16>::Lanes(unsigned word)
    : at{__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)} {}
template <>
__device__ __forceinline__ unsigned Lanes<__nv_bfloat16>::word() const {
  const __nv_bfloat162 both = __floats2bfloat162_rn(at[0], at[1]);
  return reinterpret_cast<const unsigned&>(both);
}
