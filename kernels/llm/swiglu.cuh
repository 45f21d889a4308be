// What swiglu and its gradient share: the sigmoid, and where gate and up lie.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), PACKED
// (0 or 1: up lies behind the gate in each row of one tensor, and a null pointer is passed for up).
#pragma once

#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef PACKED
#define PACKED 0
#endif

#include "../include/fastdiv.cuh"
#include "../rows/rows.cuh"

using T = SCALAR;

[[maybe_unused]] constexpr unsigned BLOCK = 256;  // threads; as in harness/collection/ops/elementwise.py
constexpr unsigned SIZE = Pack<T>::SIZE;

// 1 / (1 + e^-x). e^-x is an infinity where x is far below 0; then the result is 0.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// Where element or pack i of a result of rows of `columns` elements or packs lies in the tensor of the gate. Its up lies
// `columns` further on, or at i of a tensor of its own.
struct Places {
  INDEX columns, multiplier;
  unsigned shift;

  __device__ __forceinline__ INDEX gate(INDEX i) const {
    return PACKED ? i + fast_divide<INDEX>(i, multiplier, shift) * columns : i;
  }
};

// A thread's element of the result; false behind the last one.
__device__ __forceinline__ bool own_element(INDEX elements, INDEX& i) {
  i = thread_index<INDEX>();
  return i < elements;
}
