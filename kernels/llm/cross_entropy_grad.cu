// The backward of cross-entropy: dlogits = (e^(x - lse) - 1 at the target) * dloss / valid, and 0 in rows that don't count.
// lse and valid are what the forward gave; dloss is the gradient of the loss, one number. All of them stay on the device.
//
// Memory bounds it: logits are read once and dlogits are written once. Torch keeps the logarithms of the softmax in float32
// in place of lse, and its two kernels move a tensor of the gradient of the logarithms besides. With lse an element needs
// nothing of its row but this one number, so any thread may have any part of a row: an element a thread (1), or some packs
// of 16 bytes, of which all loads are under way before anything is computed (2). A block has a part of one row, so lse,
// the target and the factor are loaded once for 256 threads. Rows of an odd vocabulary begin inside of packs; the few
// elements before the first pack and behind the last one are single.
//
// Macros: as in cross_entropy.cuh, and UNITS (packs that a thread of `tuned` has).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-V151936.
// At least 2.489 GB are read and 2.489 GB written. The ceiling is 1.165 ms, by memory.
//   fused: one kernel, an element a thread; any length and address
//   tuned: 16 bytes an access, four of them a thread; a block has a part of one row
//       1.193 ms   97.6% of ceiling  moves 4.979 GB

#include "../include/fastdiv.cuh"
#include "cross_entropy.cuh"

constexpr unsigned BLOCK = 256;  // threads; as in harness/collection/ops/elementwise.py

// What the elements of a row have in common.
struct OfRow {
  float lse, factor;
  long long target;

  __device__ __forceinline__ OfRow(const long long* targets, const float* lse, const float* valid, const float* dloss,
                                   long long row)
      : lse(lse[row]), factor(*dloss / *valid), target(targets[row]) {}
  // dlogits of a logit in a column. A row that doesn't count may have numbers of any kind.
  __device__ __forceinline__ float gradient(float x, long long column) const {
    const float share = exp_below(x, lse) - (column == target ? 1.0f : 0.0f);
    return counts(target) ? share * factor : 0.0f;
  }
};

#ifndef UNITS

// 1. An element a thread, at any address.
extern "C" __global__ void __launch_bounds__(BLOCK)
    cross_entropy_grad_fused(const T* __restrict__ logits, const long long* __restrict__ targets,
                             const float* __restrict__ lse, const float* __restrict__ valid,
                             const float* __restrict__ dloss, T* __restrict__ dlogits, long long elements,
                             long long columns, unsigned long long multiplier, unsigned shift) {
  const long long i = thread_index();
  if (i >= elements) return;
  const long long row = fast_divide<unsigned long long>(i, multiplier, shift);
  dlogits[i] = T(OfRow(targets, lse, valid, dloss, row).gradient(to_float(logits[i]), i - row * columns));
}

#else

// 2. Packs. A block has BLOCK * UNITS packs of a row, and `parts` blocks share a row. Tensors are aligned to 16 bytes.
extern "C" __global__ void __launch_bounds__(BLOCK)
    cross_entropy_grad_tuned(const T* __restrict__ logits, const long long* __restrict__ targets,
                             const float* __restrict__ lse, const float* __restrict__ valid,
                             const float* __restrict__ dloss, T* __restrict__ dlogits, unsigned columns, unsigned parts,
                             unsigned multiplier, unsigned shift) {
  constexpr unsigned SIZE = Pack<T>::SIZE;
  const unsigned row = fast_divide<unsigned>(blockIdx.x, multiplier, shift), part = blockIdx.x - row * parts;
  const long long begin = static_cast<long long>(row) * columns;
  const unsigned head = min(columns, static_cast<unsigned>(-begin) % SIZE), packs = (columns - head) / SIZE;
  const unsigned first = part * (BLOCK * UNITS) + threadIdx.x;
  const T* from = logits + begin + head;
  Pack<T> loaded[UNITS];
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    if (first + u * BLOCK < packs) loaded[u] = load_pack(from + (first + u * BLOCK) * SIZE);
  }
  const OfRow of(targets, lse, valid, dloss, row);
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    const unsigned pack = first + u * BLOCK;
    if (pack >= packs) break;
    float values[SIZE];
    widen(loaded[u], values);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) values[e] = of.gradient(values[e], head + pack * SIZE + e);
    Pack<T> result;
    narrow(values, result);
    store_pack(dlogits + begin + head + pack * SIZE, result);
  }
  // The single elements of the row: those before the first pack, then those behind the last one.
  if (part > 0 || threadIdx.x >= columns - packs * SIZE) return;
  const unsigned column = threadIdx.x + (threadIdx.x < head ? 0 : packs * SIZE);
  dlogits[begin + column] = T(of.gradient(to_float(logits[begin + column]), column));
}
#endif
