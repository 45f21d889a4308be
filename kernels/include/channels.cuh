// Tensors (outer, channels, inner), in which element i is of channel i / inner % channels.
#pragma once

#include "fastdiv.cuh"

// A number to divide by, with the multiplication in place of the division (harness/cuda/divide.py).
template <typename Index>
struct Divisor {
  Index size, multiplier;
  unsigned shift;

  __device__ __forceinline__ Index quotient(Index n) const { return fast_divide<Index>(n, multiplier, shift); }
  __device__ __forceinline__ Index remainder(Index n) const { return n - quotient(n) * size; }
};
