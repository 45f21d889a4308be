// Eight neighbours as floats: 16 bytes of halves, 8 bytes of int8, or twice 16 bytes of int32. Addresses are aligned to
// these.
//
// Macro: SCALAR (__half or __nv_bfloat16).
#pragma once

#include "../include/number.cuh"
#include "../include/warp.cuh"

using T = SCALAR;
constexpr unsigned EIGHT = 8;

__device__ __forceinline__ void load_eight(const T* from, float (&values)[EIGHT]) {
  const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const Lanes<T> lanes(words[w]);
    values[2 * w] = lanes.at[0], values[2 * w + 1] = lanes.at[1];
  }
}
__device__ __forceinline__ void load_eight(const signed char* from, float (&values)[EIGHT]) {
  const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
#pragma unroll
  for (unsigned e = 0; e < 4; ++e) {
    values[e] = static_cast<signed char>(raw.x >> 8 * e);
    values[4 + e] = static_cast<signed char>(raw.y >> 8 * e);
  }
}
__device__ __forceinline__ void load_eight(const int* from, float (&values)[EIGHT]) {
  const int4* fours = reinterpret_cast<const int4*>(from);
  const int4 low = __ldg(fours), high = __ldg(fours + 1);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ __forceinline__ uint4 halves_of(const float (&values)[EIGHT]) {
  unsigned words[4];
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    Lanes<T> lanes;
    lanes.at[0] = values[2 * w], lanes.at[1] = values[2 * w + 1];
    words[w] = lanes.word();
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
// Rounds the values to T.
__device__ __forceinline__ void round_eight(float (&values)[EIGHT]) {
#pragma unroll
  for (float& value : values) value = to_float(T(value));
}
__device__ __forceinline__ void store_eight(T* to, const float (&values)[EIGHT]) {
  *reinterpret_cast<uint4*>(to) = halves_of(values);
}

// The nearest integer, of two equally near ones the even one; what int8 can't hold saturates.
__device__ __forceinline__ unsigned byte_of(float value) {
  return static_cast<unsigned>(__float2int_rn(fminf(fmaxf(value, -128.0f), 127.0f))) & 0xffu;
}
__device__ __forceinline__ uint2 bytes_of(const float (&values)[EIGHT]) {
  uint2 raw = make_uint2(0, 0);
#pragma unroll
  for (unsigned e = 0; e < 4; ++e) {
    raw.x |= byte_of(values[e]) << 8 * e;
    raw.y |= byte_of(values[4 + e]) << 8 * e;
  }
  return raw;
}
__device__ __forceinline__ void store_eight(signed char* to, const float (&values)[EIGHT]) {
  *reinterpret_cast<uint2*>(to) = bytes_of(values);
}
