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
//   laid_out_tuned: as laid_out, by the fastest of the 24 algorithms that cuBLASLt proposes

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "add_bias.cuh"

using T = SCALAR;

// 1. Rows of any length, y and bias at any address: one pack a thread, whose biases are read one by one, since it may
//    begin anywhere in a row and go on in the next.
extern "C" __global__ void add_bias(T* y, const T* __restrict__ bias, INDEX n, int aligned, INDEX columns,
                                    INDEX multiplier, unsigned shift) {
  add_bias_anywhere(y, bias, n, aligned, Columns<INDEX>{columns, multiplier, shift}, [](float sum) { return sum; });
}

// 2. Rows of whole packs, y and bias on 16 bytes: one load brings a pack's biases, from L1 or L2.
extern "C" __global__ void add_bias_whole(T* y, const T* __restrict__ bias, INDEX n, INDEX columns, INDEX multiplier,
                                          unsigned shift) {
  add_bias_to_packs(y, bias, n, Columns<INDEX>{columns, multiplier, shift}, [](float sum) { return sum; });
}
