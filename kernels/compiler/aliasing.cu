// Sum and difference of two tensors: sum = x + w, difference = x - w.
//
// Macros: SCALAR (float, __half, __nv_bfloat16) and BLOCK (threads).
//
// Every kernel has to read x and w once and to write each result once. Whether it gets by with that depends on what the
// compiler knows: any pointer may point into the same memory as any other, unless something says otherwise.
//
// What each step gained on an NVIDIA H200 (reports/h200/compiler), float32 N134217728.
// At least 1.074 GB are read and 1.074 GB written. The ceiling is 500.4 us, by memory.
//   eager: PyTorch
//       738.9 us   67.7% of ceiling
//   may_alias: four elements a thread; each write might change what is read next
//       567.9 us   88.1% of ceiling  moves 2.147 GB  1.30x the speed of eager
//   restrict: the same body, its pointers promised not to overlap
//       512.9 us   97.6% of ceiling  moves 2.147 GB  1.11x the speed of may_alias
//   load_first: plain pointers, but all reads written before the first write
//       512.8 us   97.6% of ceiling  moves 2.147 GB  1.00x the speed of restrict
//   tuned: one pack of x and one of w a thread
//       508.4 us   98.4% of ceiling  moves 2.147 GB  1.01x the speed of load_first

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef BLOCK
#define BLOCK 256
#endif

#include "../include/number.cuh"
#include "../include/pack.cuh"

using T = SCALAR;

constexpr unsigned ITEMS = 4;  // elements a thread of the first three kernels, BLOCK apart

__device__ __forceinline__ T sum_of(T a, T b) { return T(to_float(a) + to_float(b)); }
__device__ __forceinline__ T difference_of(T a, T b) { return T(to_float(a) - to_float(b)); }

// The last elements: every `step`-th from `begin` to `end`.
__device__ __forceinline__ void one_by_one(const T* x, const T* w, T* sum, T* difference, long long begin,
                                           long long end, unsigned step) {
#pragma unroll 1
  for (long long i = begin; i < end; i += step) {
    const T a = x[i], b = w[i];
    sum[i] = sum_of(a, b);
    difference[i] = difference_of(a, b);
  }
}

// The body of the first two kernels.
__device__ __forceinline__ void as_written(const T* x, const T* w, T* sum, T* difference, long long n) {
  const long long begin = static_cast<long long>(blockIdx.x) * (BLOCK * ITEMS) + threadIdx.x;
  if (begin + (ITEMS - 1) * BLOCK < n) {
#pragma unroll
    for (unsigned k = 0; k < ITEMS; ++k) {
      const long long i = begin + k * BLOCK;
      sum[i] = sum_of(x[i], w[i]);
      difference[i] = difference_of(x[i], w[i]);
    }
  } else {
    one_by_one(x, w, sum, difference, begin, n, BLOCK);
  }
}

// 1. Nothing is known of the pointers, so the write to sum[i] might have changed x[i] and w[i]: they are read again for
//    the difference, 16 reads in place of 8. The second ones hit the L1 and cost little. What costs more is the order:
//    the next element, too, can't be read until this one's results are written, so a thread waits for memory four
//    times, once after the other.
extern "C" __global__ void __launch_bounds__(BLOCK)
    aliasing_may_alias(const T* x, const T* w, T* sum, T* difference, long long n) {
  as_written(x, w, sum, difference, n);
}

// 2. __restrict__ promises that what is written through one pointer isn't read through another. Now the compiler reads
//    each element once, and all four elements before the first write: one wait.
extern "C" __global__ void __launch_bounds__(BLOCK)
    aliasing_restrict(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ sum, T* __restrict__ difference,
                      long long n) {
  as_written(x, w, sum, difference, n);
}

// 3. The same without a promise: what is read before the first write lies in registers, where no write can change it.
extern "C" __global__ void __launch_bounds__(BLOCK)
    aliasing_load_first(const T* x, const T* w, T* sum, T* difference, long long n) {
  const long long begin = static_cast<long long>(blockIdx.x) * (BLOCK * ITEMS) + threadIdx.x;
  if (begin + (ITEMS - 1) * BLOCK < n) {
    T a[ITEMS], b[ITEMS];
#pragma unroll
    for (unsigned k = 0; k < ITEMS; ++k) {
      a[k] = x[begin + k * BLOCK];
      b[k] = w[begin + k * BLOCK];
    }
#pragma unroll
    for (unsigned k = 0; k < ITEMS; ++k) {
      sum[begin + k * BLOCK] = sum_of(a[k], b[k]);
      difference[begin + k * BLOCK] = difference_of(a[k], b[k]);
    }
  } else {
    one_by_one(x, w, sum, difference, begin, n, BLOCK);
  }
}

// 4. One pack of x and one of w a thread: two instructions read all that it needs, before there is anything to write.
//    aligned: whether every tensor begins on 16 bytes.
extern "C" __global__ void __launch_bounds__(BLOCK)
    aliasing_tuned(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ sum, T* __restrict__ difference,
                   long long n, int aligned) {
  const long long begin = (static_cast<long long>(blockIdx.x) * BLOCK + threadIdx.x) * Pack<T>::SIZE;
  const long long end = begin + Pack<T>::SIZE;
  if (aligned && end <= n) {
    const Pack<T> a = load_pack(x + begin), b = load_pack(w + begin);
    Pack<T> sums, differences;
#pragma unroll
    for (unsigned j = 0; j < Pack<T>::SIZE; ++j) {
      sums.at[j] = sum_of(a.at[j], b.at[j]);
      differences.at[j] = difference_of(a.at[j], b.at[j]);
    }
    store_pack(sum + begin, sums);
    store_pack(difference + begin, differences);
  } else {
    one_by_one(x, w, sum, difference, begin, end < n ? end : n, 1);
  }
}
