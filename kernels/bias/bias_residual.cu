// y = x + bias + residual, over rows of x and residual; bias has one element a column.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from 2^31 elements on); for
// halves PAIR (__half2, __nv_bfloat162). ROW_THREADS (threads of a block): bias_residual_words is compiled only with it.
//
// As two kernels, x + bias is written and read again: five passes over a tensor where one kernel needs three. What
// differs below is how many elements a thread moves at a time: an access takes the same address arithmetic whether it
// fetches 2 bytes or 16. Steps 1 to 3 are the text's kinds of element-wise kernels, and step 6 puts the widest into rows
// of any length; they add in float. Steps 4 and 5 are the text's packed halves, which add in halves, one and two at a
// time. Step 7 is what fusing saves.
//
// What each step gained on an NVIDIA H200 (reports/h200/bias), float16 R131072-C1024.
// At least 536.9 MB are read and 268.4 MB written. The ceiling is 185.1 us, by memory.
//   eager: PyTorch
//       498.9 us   37.1% of ceiling
//   scalar: one kernel, one element a thread
//       396.0 us   46.7% of ceiling  moves 805.3 MB  1.26x the speed of eager
//   unrolled: four elements a thread, each an access of its own
//       244.2 us   75.8% of ceiling  moves 805.3 MB  1.62x the speed of scalar
//   half1: one half a thread, added in halves
//       392.4 us   47.2% of ceiling  moves 805.3 MB  0.62x the speed of unrolled
//   half2: two halves a thread, added as a pair
//       236.8 us   78.1% of ceiling  moves 805.3 MB  1.66x the speed of half1
//   packed8: eight halves a thread, 16 bytes an access
//       185.0 us  100.0% of ceiling  moves 805.3 MB  1.28x the speed of half2
//   tuned: 16-byte packs for floats too, in rows of any length, at any address
//       185.0 us  100.0% of ceiling  moves 805.3 MB  1.00x the speed of packed8
//   unfused: tuned as two kernels: x + bias, then + residual
//       312.3 us   59.3% of ceiling  moves 1.342 GB  0.59x the speed of tuned
//   eight_launches: tuned, launched for an eighth of the rows at a time
//       200.3 us   92.4% of ceiling  moves 805.3 MB  1.56x the speed of unfused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "../include/bias.cuh"
#include "../include/number.cuh"
#include "../include/row_part.cuh"

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

// 2. Unrolled: four elements a thread, a block apart, so that the lanes of a warp are neighbours in each access. All
//    loads come before the first store, so four times as much is in flight. The number of accesses is the same as in
//    step 1.
constexpr unsigned UNROLL = 4;
extern "C" __global__ void bias_residual_unrolled(const T* __restrict__ x, const T* __restrict__ bias,
                                                  const T* __restrict__ residual, T* __restrict__ y, INDEX n,
                                                  INDEX columns, INDEX multiplier, unsigned shift) {
  const Columns<INDEX> row{columns, multiplier, shift};
  const INDEX first = static_cast<INDEX>(blockIdx.x) * (blockDim.x * UNROLL) + threadIdx.x;
  T a[UNROLL], b[UNROLL], c[UNROLL];
#pragma unroll
  for (unsigned k = 0; k < UNROLL; ++k) {
    const INDEX i = first + k * blockDim.x;
    if (i < n) a[k] = x[i], b[k] = bias[row.of(i)], c[k] = residual[i];
  }
#pragma unroll
  for (unsigned k = 0; k < UNROLL; ++k) {
    const INDEX i = first + k * blockDim.x;
    if (i < n) y[i] = sum(a[k], b[k], c[k]);
  }
}

// 3. Vectorised: 16 bytes an access, the most that a thread can ask for at once: eight halves, or four floats.
//    Rows must have whole packs, whose number is `columns`.
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

//    Where a tensor has few packs, 4 bytes an access, and a part of a row for each block (row_part.cuh): more threads
//    share the work, and each of them begins sooner.
#ifdef ROW_THREADS
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    bias_residual_words(const unsigned* __restrict__ x, const unsigned* __restrict__ bias,
                        const unsigned* __restrict__ residual, unsigned* __restrict__ y, unsigned row_units) {
  const RowPart part = RowPart::of<ROW_THREADS>(row_units);
  const Lanes<T> a(x[part.unit]), b(bias[part.column]), c(residual[part.unit]);
  Lanes<T> sums;
#pragma unroll
  for (unsigned j = 0; j < Lanes<T>::SIZE; ++j) sums.at[j] = a.at[j] + b.at[j] + c.at[j];
  y[part.unit] = sums.word();
}
#endif

// 4. and 5. One half an access, and two, added by one instruction: half the memory instructions and half the threads.
//    Both add in halves: each addition rounds, as it does in two kernels. Step 5 needs rows of whole pairs, whose number
//    is `columns`.
#ifdef PAIR
extern "C" __global__ void bias_residual_half1(const T* __restrict__ x, const T* __restrict__ bias,
                                               const T* __restrict__ residual, T* __restrict__ y, INDEX n,
                                               INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread();
  if (i < n) y[i] = __hadd(__hadd(x[i], bias[Columns<INDEX>{columns, multiplier, shift}.of(i)]), residual[i]);
}
extern "C" __global__ void bias_residual_half2(const PAIR* __restrict__ x, const PAIR* __restrict__ bias,
                                               const PAIR* __restrict__ residual, PAIR* __restrict__ y, INDEX pairs,
                                               INDEX columns, INDEX multiplier, unsigned shift) {
  const INDEX i = thread();
  if (i < pairs) {
    y[i] = __hadd2(__hadd2(x[i], bias[Columns<INDEX>{columns, multiplier, shift}.of(i)]), residual[i]);
  }
}
#endif

// 6. Step 3 for rows of any length, and at any address. aligned: x, residual and y begin on 16 bytes; if they don't,
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

// 7. What steps 3 and 6 do, as two kernels: x + bias, which is written, then read again to add the residual. Each
//    addition rounds to T. As there, rows of whole packs have a kernel of their own, which loads packs of biases; and
//    all loads of a thread come before it waits for one.
template <bool Whole>
__device__ __forceinline__ void add_bias(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                         INDEX n, int aligned, const Columns<INDEX>& row) {
  const INDEX first = thread() * SIZE;
  if (aligned && first + SIZE <= n) {
    Pack<T> pack = load_pack(x + first);
    const Pack<T> along = load_bias<Whole>(bias, first, row);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) pack.at[j] = T(to_float(pack.at[j]) + to_float(along.at[j]));
    store_pack(y + first, pack);
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i) y[i] = T(to_float(x[i]) + to_float(bias[row.of(i)]));
  }
}
extern "C" __global__ void bias_residual_first(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                               INDEX n, int aligned, INDEX columns, INDEX multiplier, unsigned shift) {
  add_bias<false>(x, bias, y, n, aligned, {columns, multiplier, shift});
}
extern "C" __global__ void bias_residual_first_whole(const T* __restrict__ x, const T* __restrict__ bias,
                                                     T* __restrict__ y, INDEX n, int aligned, INDEX columns,
                                                     INDEX multiplier, unsigned shift) {
  add_bias<true>(x, bias, y, n, aligned, {columns, multiplier, shift});
}
extern "C" __global__ void bias_residual_second(const T* __restrict__ residual, T* y, INDEX n, int aligned) {
  const INDEX first = thread() * SIZE;
  if (aligned && first + SIZE <= n) {
    Pack<T> pack = *reinterpret_cast<const Pack<T>*>(y + first);  // not load_pack: this kernel writes y
    const Pack<T> other = load_pack(residual + first);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) pack.at[j] = T(to_float(pack.at[j]) + to_float(other.at[j]));
    store_pack(y + first, pack);
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i) y[i] = T(to_float(y[i]) + to_float(residual[i]));
  }
}
