// ReLU that keeps a bit an element for its backward: y = x > 0 ? x : 0 (NaN stays NaN), bit = x > 0 (NaN gives 0).
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// Every kernel reads x once and writes y once, and the mask is 1/32 of a float tensor, 1/16 of a half one. What differs
// is how the bits of one byte or word come together. The elements of a byte are neighbours, and one thread has to write
// the byte; but in a coalesced access the neighbours belong to different threads.
//
// All masks are in the order of bitmask.cuh and have whole words, but the mask of relu_mask_strided has an order of its
// own. What a mask holds past its last element is zero.
//
// What each step gained on an NVIDIA H200 (reports/h200/masks), float32 N134217728.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 251.0 us, by memory.
//   eager: PyTorch
//       253.2 us   99.1% of ceiling
//   sequential: 8 neighbouring elements a thread, which writes their byte
//       656.8 us   38.2% of ceiling  moves 1.091 GB  0.39x the speed of eager
//   strided: 8 elements a thread, spaced so that a warp reads neighbours; the bits are permuted
//       268.1 us   93.6% of ceiling  moves 1.091 GB  2.45x the speed of sequential
//   ballot: one element a thread, one word a warp by a ballot
//       422.7 us   59.4% of ceiling  moves 1.091 GB  0.63x the speed of strided
//   ballot8: 8 ballots a warp, whose words are one 32-byte write
//       268.3 us   93.5% of ceiling  moves 1.091 GB  1.58x the speed of ballot
//   tuned: packs of 16 bytes, whose bits are a byte or half of one
//       261.6 us   95.9% of ceiling  moves 1.091 GB  1.03x the speed of ballot8

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bitmask.cuh"
#include "../include/relu.cuh"

using T = SCALAR;

// 1. Eight neighbouring elements a thread, which makes their byte alone. But in each access the lanes of a warp are
//    eight elements apart: of every 32-byte sector that it touches it takes one float or two halves. The L1 keeps the
//    sectors for the other seven loads; the stores go through to the L2 in these small pieces.
extern "C" __global__ void relu_mask_sequential(const T* __restrict__ x, T* __restrict__ y,
                                                unsigned char* __restrict__ mask, long long n, long long mask_bytes) {
  const long long i = thread_index();
  if (i >= mask_bytes) return;
  unsigned byte = 0;
#pragma unroll
  for (unsigned j = 0; j < GROUP; ++j) {
    const long long element = i * GROUP + j;
    if (element < n) {
      const T value = x[element];
      y[element] = relu(value);
      byte |= positive(value) ? 1u << j : 0u;
    }
  }
  mask[i] = static_cast<unsigned char>(byte);
}

// 2. Eight elements a thread that lie `mask_bytes` apart, so that the lanes of a warp are neighbours in each access.
//    The price is the order of the bits: bit k of byte i is element i + k * mask_bytes, where mask_bytes is n / 8
//    rounded up. It depends on n, and the backward must know it (relu_grad_bitset_strided does).
extern "C" __global__ void relu_mask_strided(const T* __restrict__ x, T* __restrict__ y,
                                             unsigned char* __restrict__ mask, long long n, long long mask_bytes) {
  const long long i = thread_index();
  if (i >= mask_bytes) return;
  T value[GROUP];
#pragma unroll
  for (unsigned k = 0; k < GROUP; ++k) {
    const long long element = i + k * mask_bytes;
    value[k] = element < n ? x[element] : T(0.0f);
  }
  unsigned byte = 0;
#pragma unroll
  for (unsigned k = 0; k < GROUP; ++k) {
    const long long element = i + k * mask_bytes;
    if (element < n) y[element] = relu(value[k]);
    byte |= positive(value[k]) ? 1u << k : 0u;
  }
  mask[i] = static_cast<unsigned char>(byte);
}

// 3. One element a thread. A ballot collects the bits of a warp's 32 neighbours in their natural order, and one lane
//    writes the word. Every access is coalesced, but with one small load a thread too few bytes are in flight.
extern "C" __global__ void relu_mask_ballot(const T* __restrict__ x, T* __restrict__ y, unsigned* __restrict__ mask,
                                            long long n, long long words) {
  const long long i = thread_index();
  // Lanes past the end stay for the ballot; their bits are zero.
  const T value = i < n ? x[i] : T(0.0f);
  if (i < n) y[i] = relu(value);
  const unsigned word = __ballot_sync(ALL_LANES, positive(value));
  if (i % WARP == 0 && i / WARP < words) mask[i / WARP] = word;
}

// 4. Eight words a warp: eight loads a lane are in flight, and the words go out as one sector of 32 bytes.
extern "C" __global__ void relu_mask_ballot8(const T* __restrict__ x, T* __restrict__ y, unsigned* __restrict__ mask,
                                             long long n, long long words) {
  constexpr unsigned PER_WARP = 8;
  const unsigned lane = threadIdx.x % WARP;
  const long long first_word = thread_index() / WARP * PER_WARP;
  T value[PER_WARP];
#pragma unroll
  for (unsigned k = 0; k < PER_WARP; ++k) {
    const long long i = (first_word + k) * WARP + lane;
    value[k] = i < n ? x[i] : T(0.0f);
  }
  unsigned own = 0;  // lane k keeps word k
#pragma unroll
  for (unsigned k = 0; k < PER_WARP; ++k) {
    const long long i = (first_word + k) * WARP + lane;
    if (i < n) y[i] = relu(value[k]);
    const unsigned word = __ballot_sync(ALL_LANES, positive(value[k]));
    if (lane == k) own = word;
  }
  if (lane < PER_WARP && first_word + lane < words) mask[first_word + lane] = own;
}

// 5. One pack of 16 bytes a thread: an eighth of the accesses in halves, a quarter in floats. A lane with halves has
//    its byte of the mask to itself, and the 32 bytes of a warp are one sector again; of floats two lanes share a byte.
//    Halves are compared and cut off in pairs, as they lie in a register.

// aligned: x and y begin on 16 bytes; otherwise, and in the tensor's last pack, elements move one by one.
extern "C" __global__ void relu_mask_tuned(const T* __restrict__ x, T* __restrict__ y, unsigned char* __restrict__ mask,
                                           long long n, long long mask_bytes, int aligned) {
  const long long i = thread_index(), first = i * Pack<T>::SIZE;
  unsigned bits;
  if (aligned && first + Pack<T>::SIZE <= n) {
    Pack<T> pack = load_pack(x + first);
    bits = relu_pack(pack);
    store_pack(y + first, pack);
  } else {
    const unsigned count = filled<T>(n, first);
    // What doesn't exist is loaded as zero, so its bits are zero too.
    Pack<T> pack = load_filled(x + first, count, false);
    bits = relu_pack(pack);
    store_filled(y + first, pack, count, false);
  }
  store_bits_of_pack<T>(mask, i, bits, mask_bytes);
}
