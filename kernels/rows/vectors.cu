// One or two vectors in another type: gamma and beta of a norm, which a model keeps in float32, for rows in halves, and
// their gradients back. It belongs to harness.nn alone: the ops of the catalogue have vectors of the rows' type.
//
// Launches bound it: vectors are short, so a launch takes longer than their bytes. Torch takes one for each vector.
//
// Macros: SCALAR (__half or __nv_bfloat16).

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif

#include "../include/number.cuh"

using T = SCALAR;

template <typename From, typename To>
__device__ __forceinline__ void convert(const From* __restrict__ from, To* __restrict__ to, unsigned i) {
  if (from) to[i] = To(to_float(from[i]));
}

// The second vector may be missing: then its addresses are 0.
extern "C" __global__ void round_vectors(const float* first, const float* second, T* first_to, T* second_to,
                                         unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  convert(first, first_to, i);
  convert(second, second_to, i);
}
extern "C" __global__ void widen_vectors(const T* first, const T* second, float* first_to, float* second_to,
                                         unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  convert(first, first_to, i);
  convert(second, second_to, i);
}
