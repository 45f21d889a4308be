// Dropout: y = x * scale where a random number is below `threshold`, else 0; and the mask of what was kept.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// An element's number depends on the seed, the call and the element's index alone (philox.cuh), so a mask doesn't
// depend on the launch, kernels 2 to 4 draw the same one, and a backward can draw it again. Ten rounds of Philox are 60
// instructions, while memory gives a multiprocessor about 16 bytes a clock: what counts is how many elements share the
// rounds. They are four in kernels 1 to 4, and eight in kernel 5. From kernel 2 on the loads come first, so that the
// rounds run while memory answers.
//
// What each step gained on an NVIDIA H200 (reports/h200/dropout), float32 N134217728 p=0.1.
// At least 536.9 MB are read and 553.6 MB written. The ceiling is 254.5 us, by memory.
//   eager: PyTorch
//       366.5 us   69.5% of ceiling
//   naive: one random number, one element and one mask byte at a time, four of them a thread
//       387.4 us   65.7% of ceiling  moves 1.208 GB  0.95x the speed of eager
//   vectorized: the four elements of a Philox call by one load and one store; byte mask
//       288.5 us   88.2% of ceiling  moves 1.208 GB  1.34x the speed of naive
//   bitmask_match: a bit an element, eight lanes' combined by match and reduce
//       266.5 us   95.5% of ceiling  moves 1.091 GB  1.08x the speed of vectorized
//   bitmask_shuffle: a bit an element, eight lanes' combined by shuffles
//       264.4 us   96.3% of ceiling  moves 1.091 GB  1.01x the speed of bitmask_match
//   tuned: eight numbers a Philox call, 16-byte packs, a mask byte a lane
//       263.8 us   96.5% of ceiling  moves 1.091 GB  1.00x the speed of bitmask_shuffle

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bitmask.cuh"
#include "keep.cuh"
#include "philox.cuh"
#include "../include/quad.cuh"

using T = SCALAR;

__device__ __forceinline__ long long thread() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

// 1. One number, one element and one byte of mask at a time. A thread makes one Philox call and goes through its four
//    words in a loop. The elements of a turn are neighbours, as the threads are, so accesses are narrow but coalesced. A
//    block has the next four elements for each of its threads; so word w of thread t goes to element w * threads + t of
//    the block.
constexpr unsigned NAIVE_BLOCK = 256;  // threads; as in harness/collection/ops/dropout/dropout.py

extern "C" __global__ void __launch_bounds__(NAIVE_BLOCK)
    dropout_naive(const T* __restrict__ x, const unsigned long long* __restrict__ call, T* __restrict__ y,
                  bool* __restrict__ mask, long long n, unsigned long long seed, unsigned threshold, float scale) {
  const uint4 drawn = Stream{seed, *call}.words(thread());
  const unsigned words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
  const long long first = static_cast<long long>(blockIdx.x) * (4 * NAIVE_BLOCK) + threadIdx.x;
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const long long i = first + w * NAIVE_BLOCK;
    if (i < n) {
      const bool kept = words[w] >> 8 < threshold;
      y[i] = keep(x[i], kept, scale);
      mask[i] = kept;
    }
  }
}

// What kernels 2 to 4 share: four elements a thread by one load, one Philox call and one store. Gives the bits of what
// was kept, none for elements that don't exist. whole: quads that move in one access; other elements go one by one.
__device__ __forceinline__ unsigned drop_quad(const T* __restrict__ x, const unsigned long long* __restrict__ call,
                                              T* __restrict__ y, long long quad, long long n, long long whole,
                                              unsigned long long seed, unsigned threshold, float scale) {
  const long long begin = quad * Quad<T>::SIZE;
  Quad<T> values;
  if (quad < whole) values = load_quad(x + begin);
  unsigned bits = keep_4({seed, *call}, quad, threshold);
  if (quad < whole) {
    keep_all(values.at, bits, scale);
    store_quad(y + begin, values);
  } else {
    bits = within_quad(bits, n - begin);
    keep_each(x, y, begin, min(begin + Quad<T>::SIZE, n), bits, scale);
  }
  return bits;
}

// 2. The four elements of a thread are neighbours, so that they take one load, one store, and one store for the four
//    bytes of mask.
extern "C" __global__ void dropout_vectorized(const T* __restrict__ x, const unsigned long long* __restrict__ call,
                                              T* __restrict__ y, bool* __restrict__ mask, long long n, long long whole,
                                              unsigned long long seed, unsigned threshold, float scale) {
  const long long quad = thread();
  const unsigned bits = drop_quad(x, call, y, quad, n, whole, seed, threshold, scale);
  const long long begin = quad * Quad<T>::SIZE;
  if (quad < whole) {
    store_quad(mask + begin, Quad<bool>{bool(bits & 1u), bool(bits & 2u), bool(bits & 4u), bool(bits & 8u)});
  } else {
#pragma unroll 1
    for (long long i = begin; i < min(begin + Quad<T>::SIZE, n); ++i) mask[i] = bits >> (i - begin) & 1u;
  }
}

// 3. A bit of mask an element, an eighth of the bytes. Eight neighbouring threads share a word. A match of the word's
//    index tells each thread which lanes these are, a reduction over them gives each the word, and one writes it. Every
//    lane takes part, also past the end.
extern "C" __global__ void dropout_bitmask_match(const T* __restrict__ x, const unsigned long long* __restrict__ call,
                                                 T* __restrict__ y, unsigned* __restrict__ mask, long long n,
                                                 long long whole, unsigned long long seed, unsigned threshold,
                                                 float scale) {
  const long long quad = thread();
  const unsigned bits = drop_quad(x, call, y, quad, n, whole, seed, threshold, scale);
  // The words of a warp differ in the lower half of their index.
  const unsigned lanes = __match_any_sync(ALL_LANES, static_cast<unsigned>(quad / 8));
  const unsigned word = __reduce_or_sync(lanes, bits << (quad % 8 * 4));
  if (quad % 8 == 0 && quad * 4 < n) mask[quad / 8] = word;
}

// 4. The same with a tree of three shuffles.
extern "C" __global__ void dropout_bitmask_shuffle(const T* __restrict__ x, const unsigned long long* __restrict__ call,
                                                   T* __restrict__ y, unsigned* __restrict__ mask, long long n,
                                                   long long whole, unsigned long long seed, unsigned threshold,
                                                   float scale) {
  const long long quad = thread();
  const unsigned word = word_of_quads(drop_quad(x, call, y, quad, n, whole, seed, threshold, scale));
  if (quad % 8 == 0 && quad * 4 < n) mask[quad / 8] = word;
}

// 5. Sixteen bits of randomness an element in place of 24, so that a Philox call does for eight: a pack of halves, or
//    two of floats. Each lane writes the mask of its eight elements as a byte, so that no lanes need combining and a
//    warp's mask is one 32-byte transaction. Halves are masked in pairs.
//    whole: groups whose whole warp moves packs, a multiple of 32. The other groups have a path of their own, Philox
//    and all, so that the packs' path has no branch and the compiler leaves its loads at the top.
extern "C" __global__ void dropout_tuned(const T* __restrict__ x, const unsigned long long* __restrict__ call,
                                         T* __restrict__ y, unsigned char* __restrict__ mask, long long n,
                                         long long whole, unsigned long long seed, unsigned threshold, float scale) {
  const Tile<T> tile;
  if (tile.group >= whole) {
    const long long begin = tile.group * GROUP;
    const unsigned byte = tile.within(keep_8({seed, *call}, tile.group, threshold), n);
    keep_each(x, y, begin, min(begin + GROUP, n), byte, scale);
    // The last word's bytes are written also where they stand for no element.
    if (begin < (n + 31) / 32 * 32) mask[tile.group] = byte;
    return;
  }
  Pack<T> packs[Tile<T>::PACKS];
#pragma unroll
  for (unsigned k = 0; k < Tile<T>::PACKS; ++k) packs[k] = load_pack(x + tile.element(k));
  const unsigned byte = keep_8({seed, *call}, tile.group, threshold);
#pragma unroll
  for (unsigned k = 0; k < Tile<T>::PACKS; ++k) {
    keep_all(packs[k].at, tile.to_pack(byte, k), scale);
    store_pack(y + tile.element(k), packs[k]);
  }
  mask[tile.group] = byte;
}
