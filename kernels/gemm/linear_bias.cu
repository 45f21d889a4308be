// The bias of a linear layer, added after the product by a kernel of its own: y[i] += bias[i % columns], in place.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned for fewer than 2^31 elements, else unsigned long long).
//
// The product is cuBLASLt's. If it leaves the bias to this kernel, y is written, read and written again: three passes
// where one is enough. At K = 128 in halves y is three quarters of all bytes, so the layer takes more than twice as
// long. An epilogue adds the bias to the sums while they are in registers. This kernel is the best that can be done
// without one, so that the difference to `epilogue` is the extra passes and nothing else.
//
// What each step gained on an NVIDIA H200 (reports/h200/gemm), float16 M100352-K256-N768.
// At least 51.77 MB are read and 154.1 MB written. The ceiling is 51.02 us, by the arithmetic.
//   eager: PyTorch
//       96.95 us   52.6% of ceiling
//   separate: cuBLASLt's product, then a kernel of ours that adds the bias
//       155.0 us   32.9% of ceiling  moves 514.2 MB  0.63x the speed of eager
//   epilogue: cuBLASLt's product, which adds the bias before it writes y
//       96.14 us   53.1% of ceiling  moves 205.9 MB  1.61x the speed of separate
//   laid_out: the same with the weight laid out ahead as (K, N)
//       108.2 us   47.2% of ceiling  moves 205.9 MB  0.89x the speed of epilogue
//   tuned: as epilogue, by the fastest of the 24 algorithms that cuBLASLt proposes
//       90.49 us   56.4% of ceiling  moves 205.9 MB  1.20x the speed of laid_out

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "../include/bias.cuh"
#include "../include/number.cuh"

using T = SCALAR;
constexpr unsigned SIZE = Pack<T>::SIZE;

// A half's sum is made in float and rounded once.
__device__ __forceinline__ Pack<T> sum(const Pack<T>& y, const Pack<T>& bias) {
  Pack<T> result;
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) result.at[j] = T(to_float(y.at[j]) + to_float(bias.at[j]));
  return result;
}

__device__ __forceinline__ INDEX first_element() {
  return (static_cast<INDEX>(blockIdx.x) * blockDim.x + threadIdx.x) * SIZE;
}

// 1. Rows of any length, y and bias at any address: one pack a thread, whose biases are read one by one, since it may
//    begin anywhere in a row and go on in the next. y is read past the read-only cache, which must not see data that
//    the kernel writes.
// aligned: y begins on 16 bytes; otherwise, and in the last pack, elements go one by one.
extern "C" __global__ void add_bias(T* y, const T* __restrict__ bias, INDEX n, int aligned, INDEX columns,
                                    INDEX multiplier, unsigned shift) {
  const Columns<INDEX> of{columns, multiplier, shift};
  const INDEX first = first_element();
  if (first >= n) return;
  if (aligned && first + SIZE <= n) {
    const Pack<T> before = load_pack<true>(y + first);
    store_pack(y + first, sum(before, load_bias<false>(bias, first, of)));
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i) y[i] = T(to_float(y[i]) + to_float(bias[of.of(i)]));
  }
}

// 2. Rows of whole packs, y and bias on 16 bytes: one load brings a pack's biases, from L1 or L2.
extern "C" __global__ void add_bias_whole(T* y, const T* __restrict__ bias, INDEX n, INDEX columns, INDEX multiplier,
                                          unsigned shift) {
  const Columns<INDEX> of{columns, multiplier, shift};
  const INDEX first = first_element();
  if (first >= n) return;
  const Pack<T> before = load_pack<true>(y + first);
  store_pack(y + first, sum(before, load_bias<true>(bias, first, of)));
}
