// The backward of ReLU: dx = y > 0 ? dy : 0, from y itself, or from the bits that relu_mask.cu keeps: dx = bit ? dy : 0.
// Where y isn't above 0, dx is zero for any dy, NaN included.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// PyTorch's backward reads y to find the sign: three tensors of D bytes move. The bits take D / 32 in floats, D / 16 in
// halves, so two tensors and little more move. Steps 1 and 2 are one kernel with either, and so are steps 4 and 5: what
// the bits save is their difference. What differs otherwise is how much a thread has in flight.
//
// What each step gained on an NVIDIA H200 (reports/h200/masks), float32 N134217728.
// At least 553.6 MB are read and 536.9 MB written. The ceiling is 254.6 us, by memory.
//   eager: PyTorch
//       369.6 us   68.9% of ceiling
//   from_y: one element of dy and of y a thread
//       463.2 us   55.0% of ceiling  moves 1.611 GB  0.80x the speed of eager
//   from_y_packed: one pack of dy and one of y a thread
//       368.4 us   69.1% of ceiling  moves 1.611 GB  1.26x the speed of from_y
//   bitset: one element and its bit a thread
//       422.5 us   60.3% of ceiling  moves 1.091 GB  0.87x the speed of from_y_packed
//   bitset_strided: a byte of relu_mask/strided and its 8 elements a thread
//       266.1 us   95.7% of ceiling  moves 1.091 GB  1.59x the speed of bitset
//   tuned: packs of 16 bytes and their bits, a byte's or half a byte's
//       255.5 us   99.7% of ceiling  moves 1.091 GB  1.04x the speed of bitset_strided

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bitmask.cuh"
#include "../include/relu.cuh"

using T = SCALAR;

// 1. The text before: one element a thread, which reads dy and y. dy is read before its fate is known, so that the two
//    reads don't wait for each other.
extern "C" __global__ void relu_grad_from_y(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx,
                                            long long n) {
  const long long i = thread_index();
  if (i < n) {
    const T value = dy[i];
    dx[i] = positive(y[i]) ? value : T(0.0f);
  }
}

// 2. The text after, in its plainest form: step 1 with bits, in the natural order. The 32 elements of a warp have their
//    bits in one word, which the warp loads once.
extern "C" __global__ void relu_grad_bitset(const T* __restrict__ dy, const unsigned* __restrict__ mask,
                                            T* __restrict__ dx, long long n) {
  const long long i = thread_index();
  if (i < n) {
    const T value = dy[i];
    dx[i] = mask[i / WARP] >> (i % WARP) & 1u ? value : T(0.0f);
  }
}

// 3. The order of relu_mask_strided: bit k of byte i is element i + k * mask_bytes. A thread takes a byte and its eight
//    elements, so that the lanes of a warp are neighbours in each access and eight loads a thread are in flight.
extern "C" __global__ void relu_grad_bitset_strided(const T* __restrict__ dy, const unsigned char* __restrict__ mask,
                                                    T* __restrict__ dx, long long n, long long mask_bytes) {
  const long long i = thread_index();
  if (i >= mask_bytes) return;
  const unsigned byte = mask[i];
  T value[GROUP];
#pragma unroll
  for (unsigned k = 0; k < GROUP; ++k) {
    const long long element = i + k * mask_bytes;
    if (element < n) value[k] = dy[element];
  }
#pragma unroll
  for (unsigned k = 0; k < GROUP; ++k) {
    const long long element = i + k * mask_bytes;
    if (element < n) dx[element] = byte >> k & 1u ? value[k] : T(0.0f);
  }
}

constexpr unsigned WORDS = PACK_BYTES / 4;  // registers of a pack

// 4. One pack of 16 bytes of dy and one of y a thread. Both loads are under way before either is used. A register's
//    elements are kept by an AND, a pair of halves at once.
// aligned: all tensors begin on 16 bytes; otherwise, and in the tensor's last pack, elements move one by one.
extern "C" __global__ void relu_grad_from_y_packed(const T* __restrict__ dy, const T* __restrict__ y,
                                                   T* __restrict__ dx, long long n, int aligned) {
  const long long i = thread_index(), first = i * Pack<T>::SIZE;
  if (aligned && first + Pack<T>::SIZE <= n) {
    using Word = decltype(lanes_of(T{}));
    Pack<T> pack = load_pack(dy + first);
    const Pack<T> signs = load_pack(y + first);
    unsigned(&word)[WORDS] = reinterpret_cast<unsigned(&)[WORDS]>(pack);
    const Word(&sign)[WORDS] = reinterpret_cast<const Word(&)[WORDS]>(signs);
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) word[w] &= positive_lanes(sign[w]);
    store_pack(dx + first, pack);
  } else {
#pragma unroll 1
    for (long long e = first; e < n && e < first + Pack<T>::SIZE; ++e) dx[e] = positive(y[e]) ? dy[e] : T(0.0f);
  }
}

// 5. Step 4 with bits, in the natural order: the bits of a pack of halves are a byte, the bits of a pack of floats half
//    a byte.

// All ones in the elements of register w that the pack's bits keep.
__device__ __forceinline__ unsigned kept(unsigned bits, unsigned w) {
  if constexpr (sizeof(T) == 4) {
    return bits >> w & 1u ? ~0u : 0u;
  } else {
    // The two bits move to the low ends of the two halves, and the product fills each half with its bit.
    return ((bits | bits << 15) >> (2 * w) & 0x00010001u) * 0xffffu;
  }
}

// aligned: dy and dx begin on 16 bytes; otherwise, and in the tensor's last pack, elements move one by one.
extern "C" __global__ void relu_grad_tuned(const T* __restrict__ dy, const unsigned char* __restrict__ mask,
                                           T* __restrict__ dx, long long n, int aligned) {
  const long long i = thread_index(), first = i * Pack<T>::SIZE;
  if (aligned && first + Pack<T>::SIZE <= n) {
    Pack<T> pack = load_pack(dy + first);
    const unsigned bits = bits_of_pack<T>(mask, i);
    unsigned(&word)[WORDS] = reinterpret_cast<unsigned(&)[WORDS]>(pack);
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) word[w] &= kept(bits, w);
    store_pack(dx + first, pack);
  } else {
#pragma unroll 1
    for (long long e = first; e < n && e < first + Pack<T>::SIZE; ++e) {
      dx[e] = mask[e / GROUP] >> (e % GROUP) & 1u ? dy[e] : T(0.0f);
    }
  }
}
