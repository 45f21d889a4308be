// Padding: rows of `narrow` elements become rows of whole packs, with zeros at their ends.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), SHIFTED (whether rows that are read begin at any element; otherwise all
// begin on 16 bytes, if the tensor does).
//
// A product of matrices with rows of 49 halves moves one element at a time: a row begins on 16 bytes only once in eight
// rows, and the library's kernels know one alignment for all. Rows of 56 begin on 16 bytes always. The padded product
// writes a seventh more. What it costs to pad is this kernel, unless what comes before writes padded rows at once.
//
// A thread writes one pack of 16 bytes, always aligned. What it reads begins anywhere. Both aligned words around the
// pack are loaded and shifted together; a neighbour's loads hit the same lines in L1, so that memory sees each byte once.
// Where a word would lie outside of the tensor, and in the last pack of a row, elements are read one by one.
//
// What each step gained on an NVIDIA H200 (reports/h200/gemm), float16 B32768-n49-D32 product=context,pad=8.
// At least 260.1 MB are read and 102.8 MB written. The ceiling is 83.38 us, by memory.
//   eager: PyTorch
//       304.8 us   27.4% of ceiling
//   odd: cuBLASLt's batched product at n tokens
//       304.8 us   27.4% of ceiling  moves 362.9 MB  1.00x the speed of eager
//   padded: the same at P tokens; what made the factors padded them
//       123.9 us   67.3% of ceiling  moves 400.0 MB  2.46x the speed of odd
//   padded_counted: the same, but the factors come without padding, and a kernel of ours copies them first
//       277.3 us   30.1% of ceiling  moves 957.4 MB  0.45x the speed of padded
//   tuned: as padded, by the fastest of the 24 algorithms that cuBLASLt proposes
//       123.9 us   67.3% of ceiling  moves 400.0 MB  2.24x the speed of padded_counted

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef SHIFTED
#define SHIFTED 0
#endif

#include "../include/fastdiv.cuh"
#include "../include/pack.cuh"

using T = SCALAR;
constexpr unsigned SIZE = Pack<T>::SIZE;

// The pack at `from`, any element of a tensor that begins at `begin` and ends before `end`; all of it is inside a row.
__device__ __forceinline__ Pack<T> load_any(const T* from, const T* begin, const T* end, bool aligned) {
  if constexpr (SHIFTED) {
    const unsigned misaligned = reinterpret_cast<unsigned long long>(from) % PACK_BYTES;
    const T* words = from - misaligned / sizeof(T);
    if (words >= begin && words + 2 * SIZE <= end) return load_pack_shifted(from, misaligned);
  }
  return load_filled(from, SIZE, !SHIFTED && aligned);
}

// packs: of the result, in all and in a row; fewer than 2^31. rows, narrow: of the given tensor. aligned: whether that
// begins on 16 bytes.
extern "C" __global__ void widen_rows(const T* __restrict__ given, T* __restrict__ result, unsigned packs,
                                      unsigned packs_in_a_row, unsigned multiplier, unsigned shift, long long rows,
                                      long long narrow, int aligned) {
  const unsigned pack = blockIdx.x * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const Divisor<unsigned> of{packs_in_a_row, multiplier, shift};
  const unsigned row = of.quotient(pack);
  const long long column = static_cast<long long>(pack - row * packs_in_a_row) * SIZE;
  const T* from = given + row * narrow + column;
  Pack<T> moved{};
  if (column + SIZE <= narrow) {
    moved = load_any(from, given, given + rows * narrow, aligned);
  } else if (column < narrow) {
    moved = load_filled(from, static_cast<unsigned>(narrow - column), false);
  }
  store_pack(result + static_cast<long long>(pack) * SIZE, moved);
}
