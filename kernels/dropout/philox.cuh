// Philox4x32-10, a counter-based generator: ten rounds turn a 128-bit counter into four random 32-bit words, so any
// thread can draw any element's number, in any order, and a backward pass can draw it again.
// Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
// The host's twin, and the same stream in torch, is harness/collection/ops/dropout/_philox.py.
#pragma once

// The product's lower and upper word, by one multiplication.
__device__ __forceinline__ uint2 wide_product(unsigned a, unsigned b) {
  unsigned long long product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return make_uint2(static_cast<unsigned>(product), static_cast<unsigned>(product >> 32));
}

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint2 a = wide_product(0xD2511F53u, counter.x), b = wide_product(0xCD9E8D57u, counter.z);
    counter = make_uint4(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// One call's stream. `seed` is the key; the counter's lower half is the element's group, its upper half `call`, which
// tells one call of an op from the next. Nothing else goes in: two layers with the same seed and the same number of the
// call draw the same mask. So a model must give each of its layers a seed of its own, or number the calls of all layers
// together.
struct Stream {
  unsigned long long seed, call;
  __device__ __forceinline__ uint4 words(unsigned long long group) const {
    return philox(make_uint4(static_cast<unsigned>(group), static_cast<unsigned>(group >> 32),
                             static_cast<unsigned>(call), static_cast<unsigned>(call >> 32)),
                  make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)));
  }
};

// The narrow stream: a group of eight elements shares the four words, 16 bits each, the lower half first. Bit j of the
// result is set where element 8 * group + j is kept: its number is below `threshold`, which is 2^16 times the
// probability.
__device__ __forceinline__ unsigned keep_8(const Stream& stream, unsigned long long group, unsigned threshold) {
  const uint4 words = stream.words(group);
  const unsigned word[4] = {words.x, words.y, words.z, words.w};
  // Both halves of a word are compared at once. `upper` has all bits set if the threshold is 2^15 or more, and `rest`,
  // in both halves, is what remains without these 2^15: up to 2^15. The subtraction leaves bit 15 of a half set where
  // its lower 15 bits aren't below `rest`. Bits 15 and 31 of `below` say which halves are below the threshold: the
  // opposite of the majority of word, not_below and ~upper.
  const unsigned upper = threshold >> 15 ? ~0u : 0u;
  const unsigned rest = (threshold - (upper & 0x8000u)) * 0x10001u;
  unsigned below[4];
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) {
    const unsigned not_below = (word[j] | 0x80008000u) - rest;
    asm("lop3.b32 %0, %1, %2, %3, 0x2b;" : "=r"(below[j]) : "r"(word[j]), "r"(not_below), "r"(upper));
  }
  // The signs of bytes 1 and 3 of two words fill four bytes with 0 or -1. Times -1, -2, -4 ... they add up to the bits.
  int fours[2];
  asm("prmt.b32 %0, %1, %2, 0xfdb9;" : "=r"(fours[0]) : "r"(below[0]), "r"(below[1]));
  asm("prmt.b32 %0, %1, %2, 0xfdb9;" : "=r"(fours[1]) : "r"(below[2]), "r"(below[3]));
  return __dp4a(fours[1], int(0x80c0e0f0u), __dp4a(fours[0], int(0xf8fcfeffu), 0));
}

// The wide stream: a group of four elements shares the four words, the upper 24 bits each, as a float's fraction has
// them. Bit j is set where element 4 * group + j is kept; `threshold` is 2^24 times the probability.
__device__ __forceinline__ unsigned keep_4(const Stream& stream, unsigned long long group, unsigned threshold) {
  const uint4 words = stream.words(group);
  return ((words.x >> 8) < threshold ? 1u : 0u) | ((words.y >> 8) < threshold ? 2u : 0u) |
         ((words.z >> 8) < threshold ? 4u : 0u) | ((words.w >> 8) < threshold ? 8u : 0u);
}
