// A random mask: byte i is 1 with the probability that `threshold` stands for, else 0.
//
// Macros: PACKS (16-byte stores a thread, random_mask_tuned only).
//
// Next to nothing is read, so the mask could be written at full speed if its numbers came fast enough. Kernels 1 and 2
// keep a generator for each thread in memory; kernel 3 draws each element's number from its index (philox.cuh).
//
// What each step gained on an NVIDIA H200 (reports/h200/masks), bool N1073741824 p=0.1.
// At least 8 B are read and 1.074 GB written. The ceiling is 229.0 us, by memory.
//   eager: PyTorch
//       1.615 ms   14.2% of ceiling
//   scalar: a generator of 48 bytes for each of few threads, one byte a store
//       3.293 ms    7.0% of ceiling  moves 1.077 GB  0.49x the speed of eager
//   packed: the same generators, 16 results in one store of 16 bytes
//       1.135 ms   20.2% of ceiling  moves 1.077 GB  2.90x the speed of scalar
//   tuned: no state: 16 elements a store from two Philox calls on their index
//       418.1 us   54.8% of ceiling  moves 1.074 GB  2.71x the speed of packed

#include "../include/pack.cuh"
#include "philox.cuh"

constexpr unsigned BLOCK = 256;
using Bytes = Pack<unsigned char>;  // 16 elements

// The usual form of a generator: 48 bytes that a thread loads, works with, and stores for the next launch. Thread t's
// counters have t in their upper half, so that no two threads draw the same words.
struct alignas(16) Generator {
  uint4 counter;  // of the next call
  uint4 words;    // that the last call drew
  uint2 key;
  unsigned used;  // of these four words
  unsigned padding;

  __device__ __forceinline__ uint4 next_4() {
    words = philox(counter, key);
    used = 4;
    if (++counter.x == 0) ++counter.y;
    return words;
  }
  __device__ __forceinline__ unsigned next() {
    if (used == 4) {
      next_4();
      used = 0;
    }
    const unsigned word = used == 0 ? words.x : used == 1 ? words.y : used == 2 ? words.z : words.w;
    ++used;
    return word;
  }
};

// The upper 24 bits of a word, against 2^24 times the probability.
__device__ __forceinline__ unsigned keep(unsigned word, unsigned threshold) { return (word >> 8) < threshold ? 1 : 0; }

__device__ __forceinline__ unsigned long long thread() {
  return static_cast<unsigned long long>(blockIdx.x) * BLOCK + threadIdx.x;
}

// 1. One number and one byte at a time; thread t has elements t, t + threads and so on. A state of 48 bytes a thread
//    allows but few threads. Each has a long chain of arithmetic from one store to the next, and a warp's is 32 bytes.
extern "C" __global__ void __launch_bounds__(BLOCK)
    random_mask_scalar(Generator* __restrict__ state, unsigned char* __restrict__ mask, unsigned long long n,
                       unsigned long long threads, unsigned threshold) {
  const unsigned long long t = thread();
  if (t >= threads) return;
  Generator generator = state[t];
  for (unsigned long long i = t; i < n; i += threads) mask[i] = keep(generator.next(), threshold);
  state[t] = generator;
}

// 2. As few threads with the same state, but 16 results make one store of 16 bytes. The four Philox calls behind them
//    don't wait for each other, so a thread has more under way, and a word no longer costs a look at what is used.
extern "C" __global__ void __launch_bounds__(BLOCK)
    random_mask_packed(Generator* __restrict__ state, unsigned char* __restrict__ mask, unsigned long long n,
                       unsigned long long threads, unsigned threshold, unsigned aligned) {
  const unsigned long long t = thread();
  if (t >= threads) return;
  Generator generator = state[t];
  for (unsigned long long first = t * Bytes::SIZE; first < n; first += threads * Bytes::SIZE) {
    unsigned bytes[4];
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) {
      const uint4 words = generator.next_4();
      bytes[w] = keep(words.x, threshold) | keep(words.y, threshold) << 8 | keep(words.z, threshold) << 16 |
                 keep(words.w, threshold) << 24;
    }
    store_filled(mask + first, reinterpret_cast<const Bytes&>(bytes), filled<unsigned char>(n, first), aligned);
  }
  state[t] = generator;
}

// 3. No state: the counter is made of the element's index, so any number of threads will do, and any launch draws the
//    same mask. Eight elements share a call, 16 bits each, which halves the arithmetic. It still sets the pace, so a
//    thread computes once what all its calls have in common.
//    More PACKS share more of it, fewer leave a small mask enough threads.
#ifdef PACKS
constexpr unsigned TILE = BLOCK * PACKS * Bytes::SIZE;  // elements of a block

__device__ __forceinline__ uint2 bumped(uint2 key) { return make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u); }

// philox() of counters that differ in their first word only: in each of the first two rounds, one of the two products
// is the same for all of them. Numbers at the ends of names are rounds.
struct Philox {
  uint2 key3;
  unsigned z1, x2, z2, w2;  // the counter after rounds 1 and 2, as far as it is known without the first word

  __device__ __forceinline__ Philox(uint4 counter, uint2 key1) {
    const uint2 key2 = bumped(key1);
    const uint2 b1 = wide_product(0xCD9E8D57u, counter.z), a2 = wide_product(0xD2511F53u, b1.y ^ counter.y ^ key1.x);
    key3 = bumped(key2);
    z1 = counter.w ^ key1.y;
    x2 = b1.x ^ key2.x;
    z2 = a2.y ^ key2.y;
    w2 = a2.x;
  }
  __device__ __forceinline__ uint4 operator()(unsigned first_word) const {
    const uint2 a1 = wide_product(0xD2511F53u, first_word), b2 = wide_product(0xCD9E8D57u, a1.y ^ z1);
    uint4 counter = make_uint4(b2.y ^ x2, b2.x, a1.x ^ z2, w2);
    uint2 key = key3;
#pragma unroll
    for (int round = 3; round <= 10; ++round, key = bumped(key)) {
      const uint2 a = wide_product(0xD2511F53u, counter.x), b = wide_product(0xCD9E8D57u, counter.z);
      counter = make_uint4(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
    }
    return counter;
  }
};

// Four elements' bytes from two words of the narrow stream. As in keep_8, bits 15 and 31 of a word come to say which of
// its halves are below the threshold. A permutation copies these signs over bytes, and of each byte one bit stays: 1 for
// -1 and 0 for 0, which a multiplication does as well as an AND. In a long thread the pipe for logic is the fuller one.
__device__ __forceinline__ unsigned bytes_of(unsigned first, unsigned second, unsigned upper, unsigned rest) {
  const unsigned words[2] = {first, second};
  unsigned below[2], bytes;
#pragma unroll
  for (unsigned j = 0; j < 2; ++j) {
    const unsigned not_below = (words[j] | 0x80008000u) - rest;
    asm("lop3.b32 %0, %1, %2, %3, 0x2b;" : "=r"(below[j]) : "r"(words[j]), "r"(not_below), "r"(upper));
  }
  asm("prmt.b32 %0, %1, %2, 0xfdb9;" : "=r"(bytes) : "r"(below[0]), "r"(below[1]));
  return PACKS > 2 ? bytes * 0xfefefeffu : bytes & 0x01010101u;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    random_mask_tuned(const unsigned long long* __restrict__ call, unsigned char* __restrict__ mask,
                      unsigned long long n, unsigned aligned, unsigned long long seed, unsigned threshold) {
  const unsigned upper = threshold >> 15 ? ~0u : 0u, rest = (threshold - (upper & 0x8000u)) * 0x10001u;
  // A block has a power of two of groups, so the upper halves of their indexes are the same.
  const unsigned long long tile = static_cast<unsigned long long>(blockIdx.x) * TILE, group = tile / 8, nonce = *call;
  const Philox draw(make_uint4(0, static_cast<unsigned>(group >> 32), static_cast<unsigned>(nonce),
                               static_cast<unsigned>(nonce >> 32)),
                    make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)));
  const auto sixteen = [&](unsigned pack) {
    const unsigned first = static_cast<unsigned>(group) + 2 * pack;
    const uint4 a = draw(first), b = draw(first + 1);
    return make_uint4(bytes_of(a.x, a.y, upper, rest), bytes_of(a.z, a.w, upper, rest),
                      bytes_of(b.x, b.y, upper, rest), bytes_of(b.z, b.w, upper, rest));
  };
  unsigned char* to = mask + tile;
  if (aligned && tile + TILE <= n) {
#pragma unroll
    for (unsigned k = 0; k < PACKS; ++k) {
      const unsigned pack = k * BLOCK + threadIdx.x;
      reinterpret_cast<uint4*>(to)[pack] = sixteen(pack);
    }
  } else {
#pragma unroll 1
    for (unsigned pack = threadIdx.x; pack < BLOCK * PACKS; pack += BLOCK) {
      const unsigned first = pack * Bytes::SIZE;
      const uint4 bytes = sixteen(pack);
      store_filled(to + first, reinterpret_cast<const Bytes&>(bytes), filled<unsigned char>(n, tile + first), false);
    }
  }
}

#endif  // PACKS
