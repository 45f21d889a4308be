// Division by a number known at launch: a multiplication, an addition and a shift in place of the 20 to 100
// instructions of a real one. The host computes multiplier and shift (harness/cuda/divide.py).
#pragma once

__device__ __forceinline__ unsigned multiply_high(unsigned a, unsigned b) { return __umulhi(a, b); }
__device__ __forceinline__ unsigned long long multiply_high(unsigned long long a, unsigned long long b) {
  return __umul64hi(a, b);
}

// n / divisor for n below half of Index's range, which leaves room for the addition.
template <typename Index>
__device__ __forceinline__ Index fast_divide(Index n, Index multiplier, unsigned shift) {
  return (multiply_high(n, multiplier) + n) >> shift;
}

// A number to divide by, with what stands in for the division.
template <typename Index>
struct Divisor {
  Index size, multiplier;
  unsigned shift;

  __device__ __forceinline__ Index quotient(Index n) const { return fast_divide<Index>(n, multiplier, shift); }
  __device__ __forceinline__ Index remainder(Index n) const { return n - quotient(n) * size; }
};
