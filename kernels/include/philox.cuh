// Philox4x32-10, a counter-based generator: ten rounds turn a 128-bit counter into four random 32-bit words, so any
// thread can draw any element's number, in any order, and a backward pass can draw it again.
// Source: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).
// The host's twin, and the same stream in torch, is harness/ops/_philox.py.
#pragma once

__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long a = 0xD2511F53ull * counter.x, b = 0xCD9E8D57ull * counter.z;
    counter = make_uint4(static_cast<unsigned>(b >> 32) ^ counter.y ^ key.x, static_cast<unsigned>(b),
                         static_cast<unsigned>(a >> 32) ^ counter.w ^ key.y, static_cast<unsigned>(a));
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// One call's stream. `seed` is the key; the counter's lower half is the element's group, its upper half `call`, which
// tells one call of an op from the next.
struct Stream {
  unsigned long long seed, call;
  __device__ __forceinline__ uint4 words(unsigned long long group) const {
    return philox(make_uint4(static_cast<unsigned>(group), static_cast<unsigned>(group >> 32), static_cast<unsigned>(call),
                             static_cast<unsigned>(call >> 32)),
                  make_uint2(static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)));
  }
};

// The narrow stream: a group of eight elements shares the four words, 16 bits each, the lower half first. Bit j of the
// result is set where element 8 * group + j is kept: its number is below `threshold`, which is 2^16 times the
// probability.
__device__ __forceinline__ unsigned keep_8(const Stream& stream, unsigned long long group, unsigned threshold) {
  const uint4 words = stream.words(group);
  const unsigned word[4] = {words.x, words.y, words.z, words.w};
  unsigned bits = 0;
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) {
    bits |= ((word[j] & 0xffffu) < threshold ? 1u : 0u) << (2 * j);
    bits |= ((word[j] >> 16) < threshold ? 2u : 0u) << (2 * j);
  }
  return bits;
}

// The wide stream: a group of four elements shares the four words, the upper 24 bits each, as a float's fraction has
// them. Bit j is set where element 4 * group + j is kept; `threshold` is 2^24 times the probability.
__device__ __forceinline__ unsigned keep_4(const Stream& stream, unsigned long long group, unsigned threshold) {
  const uint4 words = stream.words(group);
  return ((words.x >> 8) < threshold ? 1u : 0u) | ((words.y >> 8) < threshold ? 2u : 0u) |
         ((words.z >> 8) < threshold ? 4u : 0u) | ((words.w >> 8) < threshold ? 8u : 0u);
}
