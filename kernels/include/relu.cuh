// ReLU of an element or a pack, and the bits of what it lets through. A pack's halves are compared and cut off in
// pairs, as they lie in a register. NaN stays NaN, and its bit is 0.
#pragma once

#include "number.cuh"
#include "pack.cuh"

// The comparison is the one that NaN fails.
template <typename Element>
__device__ __forceinline__ Element relu(Element x) {
  return to_float(x) <= 0.0f ? Element(0.0f) : x;
}
template <typename Element>
__device__ __forceinline__ bool positive(Element x) {
  return to_float(x) > 0.0f;
}

__device__ __forceinline__ unsigned positive_lanes(float x) { return positive(x) ? ~0u : 0u; }
template <typename Two>
__device__ __forceinline__ unsigned positive_lanes(Two x) {
  return __hgt2_mask(x, Two{});
}
__device__ __forceinline__ float relu_lanes(float x) { return relu(x); }
template <typename Two>
__device__ __forceinline__ Two relu_lanes(Two x) {
  return __hmax2_nan(x, Two{});
}

__device__ float lanes_of(float);
__device__ __half2 lanes_of(__half);
__device__ __nv_bfloat162 lanes_of(__nv_bfloat16);

// Apply relu to a pack and return the bits, the first element's lowest.
template <typename Element>
__device__ __forceinline__ unsigned relu_pack(Pack<Element>& pack) {
  using Word = decltype(lanes_of(Element{}));
  // One bit of each element that a register holds: of a pair, the second one's lies 16 further up than it should.
  constexpr unsigned WORDS = PACK_BYTES / 4, LANES = 4 / sizeof(Element), PICK = LANES == 2 ? 0x00020001u : 1u;
  Word(&word)[WORDS] = reinterpret_cast<Word(&)[WORDS]>(pack);
  unsigned bits = 0;
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    bits |= positive_lanes(word[w]) & PICK << (w * LANES);
    word[w] = relu_lanes(word[w]);
  }
  return (bits | bits >> 16) & 0xffu;
}
