// PReLU with a slope of its own for every element: y = x > 0 ? x : w * x.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// Every kernel reads x and w and writes y. Where signs are mixed none gets by with less, though half of w isn't needed:
// memory moves 32 bytes at a time, and of 8 or 16 neighbours some are nearly always negative.
//
// What each step gained on an NVIDIA H200 (reports/h200/compiler), float32 N134217728.
// At least 1.074 GB are read and 536.9 MB written. The ceiling is 368.7 us, by memory.
//   eager: PyTorch
//       921.9 us   40.0% of ceiling
//   branch: one element a thread; w is read only where x isn't positive
//       619.7 us   59.5% of ceiling  moves 1.611 GB  1.49x the speed of eager
//   select: one element a thread; both are read, then one value is selected
//       463.4 us   79.6% of ceiling  moves 1.611 GB  1.34x the speed of branch
//   tuned: one pack of x and one of w a thread, then selections
//       368.5 us  100.1% of ceiling  moves 1.611 GB  1.26x the speed of select

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/number.cuh"
#include "../include/pack.cuh"

using T = SCALAR;

__device__ __forceinline__ bool positive(T x) { return to_float(x) > 0.0f; }
// The product of two halves is exact in float, so this rounds once, like a half-precision multiplication.
__device__ __forceinline__ T product_of(T x, T w) { return T(to_float(w) * to_float(x)); }

// 1. w is read only where it is needed. The branch asks for x, so the read of w can't begin before x has come: two
//    trips to memory, one after the other. (From sm_90 on the branch is a predicate of the load, which waits as long.)
extern "C" __global__ void branches_branch(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y,
                                           long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    T value = x[i];
    if (!positive(value)) value = product_of(value, w[i]);
    y[i] = value;
  }
}

// 2. Both are read, then one of two finished values is selected: the two trips overlap. The product must stand in a
//    statement of its own: in positive(x) ? x : product_of(x, w) the compiler sees that only one arm uses w, and moves
//    the read into a branch again.
__device__ __forceinline__ T prelu(T x, T w) {
  const T product = product_of(x, w);
  return positive(x) ? x : product;
}
extern "C" __global__ void branches_select(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y,
                                           long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = prelu(x[i], w[i]);
}

// 3. The same in packs of 16 bytes: a trip brings 4 or 8 elements a thread.
//    aligned: whether every tensor begins on 16 bytes; if not, and at the end, elements go one by one.
extern "C" __global__ void branches_tuned(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y,
                                          long long n, int aligned) {
  const long long begin = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<T>::SIZE;
  const long long end = begin + Pack<T>::SIZE;
  if (aligned && end <= n) {
    const Pack<T> pack = load_pack(x + begin), slopes = load_pack(w + begin);
    Pack<T> result;
#pragma unroll
    for (unsigned j = 0; j < Pack<T>::SIZE; ++j) result.at[j] = prelu(pack.at[j], slopes.at[j]);
    store_pack(y + begin, result);
  } else {
#pragma unroll 1
    for (long long i = begin; i < end && i < n; ++i) y[i] = prelu(x[i], w[i]);
  }
}
