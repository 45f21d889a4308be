// y = x + bias + residual, over rows of x and residual; bias has one element a column.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from 2^31 elements on); for
// halves PAIR (__half2, __nv_bfloat162).
//
// As two kernels, x + bias is written and read again: five passes over a tensor where one kernel needs three. What
// differs below is how many elements a thread moves at a time: an access takes the same address arithmetic whether it
// fetches 2 bytes or 16.

#include "bias.cuh"
#include "number.cuh"

using T = SCALAR;

constexpr unsigned SIZE = Pack<T>::SIZE;

// Rounds to T once.
__device__ __forceinline__ T sum(T x, T bias, T residual) {
  return T(to_float(x) + to_float(bias) + to_float(residual));
}
__device__ __forceinline__ Pack<T> sum(const Pack<T>& x, const Pack<T>& bias, const Pack<T>& residual) {
  Pack<T> y;
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) y.at[j] = sum(x.at[j], bias.at[j], residual.at[j]);
  return y;
}

__device__ __forceinline__ INDEX thread() { return static_cast<INDEX>(blockIdx.x) * blockDim.x + threadIdx.x; }

// 1. One element a thread. The column is found without a division.
extern "C" __global__ void bias_residual_scalar(const T* __restrict__ x, const T* __restrict__ bias,
                                                const T* __restrict__ residual, T* __restrict__ y, INDEX n,
                                                INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread();
  if (i < n) y[i] = sum(x[i], bias[Columns<INDEX>{columns, multiplier, shift}.of(i)], residual[i]);
}

// 2. Two halves an access, added by one instruction: half the memory instructions and half the threads. Each addition
//    rounds to half precision, as it does in two kernels. Rows must have whole pairs, whose number is `columns`.
#ifdef PAIR
extern "C" __global__ void bias_residual_half2(const PAIR* __restrict__ x, const PAIR* __restrict__ bias,
                                               const PAIR* __restrict__ residual, PAIR* __restrict__ y, INDEX pairs,
                                               INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread();
  if (i < pairs) {
    y[i] = __hadd2(__hadd2(x[i], bias[Columns<INDEX>{columns, multiplier, shift}.of(i)]), residual[i]);
  }
}
#endif

// 3. 16 bytes an access, the most that a thread can ask for at once: eight halves, or four floats. Added in float, so
//    that the sum is rounded once. Rows must have whole packs, whose number is `columns`.
extern "C" __global__ void bias_residual_packed(const T* __restrict__ x, const T* __restrict__ bias,
                                                const T* __restrict__ residual, T* __restrict__ y, INDEX packs,
                                                INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread();
  if (i < packs) {
    const INDEX column = Columns<INDEX>{columns, multiplier, shift}.of(i);
    const unsigned long long first = static_cast<unsigned long long>(i) * SIZE;
    store_pack(y + first, sum(load_pack(x + first), load_pack(bias + column * SIZE), load_pack(residual + first)));
  }
}

// 4. The same for rows of any length, and at any address. aligned: x, residual and y begin on 16 bytes; if they don't,
//    and in the tensor's last pack, elements go one by one. Biases are loaded one by one, but they are in L1.
extern "C" __global__ void bias_residual_any(const T* __restrict__ x, const T* __restrict__ bias,
                                             const T* __restrict__ residual, T* __restrict__ y, INDEX n, int aligned,
                                             INDEX columns, INDEX multiplier, unsigned shift) {
  const Columns<INDEX> row{columns, multiplier, shift};
  const INDEX first = thread() * SIZE;
  if (aligned && first + SIZE <= n) {
    const Pack<T> a = load_pack(x + first), b = load_pack(residual + first);
    store_pack(y + first, sum(a, load_bias<false>(bias, first, row), b));
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i) y[i] = sum(x[i], bias[row.of(i)], residual[i]);
  }
}
