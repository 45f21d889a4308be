// A bias along the rows of a contiguous (rows, columns) tensor.
#pragma once

#include "fastdiv.cuh"
#include "pack.cuh"

// The row length, and its division as a multiplication (harness/cuda/divide.py). Index: unsigned for tensors below 2^31
// elements, else unsigned long long.
template <typename Index>
struct Columns {
  Index count, multiplier;
  unsigned shift;

  __device__ __forceinline__ Index of(Index element) const {
    return element - fast_divide<Index>(element, multiplier, shift) * count;
  }
};

// The biases of the pack that begins at `element`. Whole: rows are a multiple of the pack and bias is aligned to 16
// bytes, so that one load fetches them; otherwise a pack may begin anywhere in a row and go on in the next.
template <bool Whole, typename Element, typename Index>
__device__ __forceinline__ Pack<Element> load_bias(const Element* __restrict__ bias, Index element,
                                                   const Columns<Index>& columns) {
  Index column = columns.of(element);
  if constexpr (Whole) {
    return load_pack(bias + column);
  } else {
    Pack<Element> pack;
#pragma unroll
    for (unsigned j = 0; j < Pack<Element>::SIZE; ++j) {
      pack.at[j] = bias[column];
      column = column + 1 == columns.count ? 0 : column + 1;
    }
    return pack;
  }
}
