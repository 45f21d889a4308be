// A permutation of dimensions by coordinates: the index of an element of y becomes its coordinates, and these give its
// place in x. This is the way that works for every permutation, and the text's first kernel.
#pragma once

#include "../include/warp.cuh"

// What an element's number in y says of its place in x. sizes: of the dimensions of y without the outermost one, outer
// dimensions first. strides: what a step along each of all these dimensions is in x, in elements.
template <typename Index, unsigned DIMENSIONS>
struct Coordinates {
  Index sizes[DIMENSIONS - 1], strides[DIMENSIONS];

  // A division for each dimension but the outermost one. The compiler takes the remainder from the quotient.
  __device__ __forceinline__ Index source(Index i) const {
    Index from = 0;
#pragma unroll
    for (unsigned d = DIMENSIONS - 1; d > 0; --d) {
      const Index above = i / sizes[d - 1];
      from += (i - above * sizes[d - 1]) * strides[d];
      i = above;
    }
    return from + i * strides[0];
  }
};

// One element a thread, in the order of y. An element may be a pack of several, which counts as one in sizes and
// strides.
template <typename Element, typename Index, unsigned DIMENSIONS>
__device__ __forceinline__ void move_one(const Element* __restrict__ x, Element* __restrict__ y, Index n,
                                         const Coordinates<Index, DIMENSIONS>& coordinates) {
  const Index i = thread_index<Index>();
  if (i < n) y[i] = x[coordinates.source(i)];
}
