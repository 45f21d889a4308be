// Quads: four neighbouring elements, which share one draw of the wide stream (philox.cuh).
#pragma once

#include "bitmask.cuh"

template <typename Element>
struct alignas(4 * sizeof(Element)) Quad {
  static constexpr unsigned SIZE = 4;
  Element at[SIZE];
};

// One access of 8 or 16 bytes; the address must be aligned to it.
template <typename Element>
__device__ __forceinline__ Quad<Element> load_quad(const Element* from) {
  return *reinterpret_cast<const Quad<Element>*>(from);
}
template <typename Element>
__device__ __forceinline__ void store_quad(Element* to, const Quad<Element>& quad) {
  *reinterpret_cast<Quad<Element>*>(to) = quad;
}

// The lowest `left` of the four `bits`; the other bits become 0. A quad at the end of a tensor has only `left` elements
// that exist: all four if left >= 4, none if left <= 0.
__device__ __forceinline__ unsigned within_quad(unsigned bits, long long left) {
  return left >= 4 ? bits : left > 0 ? bits & ((1u << left) - 1) : 0;
}

// The mask word of 32 elements from the four bits that each of eight neighbouring lanes holds. A tree of three shuffles
// gives it to all eight. Every lane of the warp must take part.
__device__ __forceinline__ unsigned word_of_quads(unsigned bits) {
  unsigned word = bits << (threadIdx.x % 8 * 4);
#pragma unroll
  for (unsigned step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(ALL_LANES, word, step);
  return word;
}
