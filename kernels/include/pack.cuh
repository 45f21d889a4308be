// Packs: several small elements that move as one 16-byte access, the widest that a thread has on every architecture
// from sm_80 to sm_100.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr unsigned PACK_BYTES = 16;

template <typename Element>
struct alignas(PACK_BYTES) Pack {
  static constexpr unsigned SIZE = PACK_BYTES / sizeof(Element);
  Element at[SIZE];
};

// One 16-byte load and one 16-byte store of an aligned address. With EvictFirst the cache gives these lines up before
// all other lines; otherwise the load takes the read-only path and the store is plain.
template <bool EvictFirst>
__device__ __forceinline__ uint4 load_16(const uint4* from) {
  return EvictFirst ? __ldcs(from) : __ldg(from);
}
template <bool EvictFirst>
__device__ __forceinline__ void store_16(uint4* to, uint4 value) {
  if constexpr (EvictFirst) {
    __stcs(to, value);
  } else {
    *to = value;
  }
}

// The same for packs.
template <bool EvictFirst = false, typename Element>
__device__ __forceinline__ Pack<Element> load_pack(const Element* from) {
  const uint4 raw = load_16<EvictFirst>(reinterpret_cast<const uint4*>(from));
  return reinterpret_cast<const Pack<Element>&>(raw);
}
template <bool EvictFirst = false, typename Element>
__device__ __forceinline__ void store_pack(Element* to, const Pack<Element>& pack) {
  store_16<EvictFirst>(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(pack));
}

// One store of 16 bytes to an aligned address, whatever stands beside it. Of a plain assignment the compiler makes four
// stores of words where another branch stores parts of the pack, or where its words come from asm.
__device__ __forceinline__ void store_whole(void* to, const uint4& raw) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x), "r"(raw.y),
               "r"(raw.z), "r"(raw.w)
               : "memory");
}

// How many of a pack's elements exist, if the pack begins at element `first` of `n`.
template <typename Element>
__device__ __forceinline__ unsigned filled(long long n, long long first) {
  const long long left = n - first;
  return left >= Pack<Element>::SIZE ? Pack<Element>::SIZE : left > 0 ? static_cast<unsigned>(left) : 0;
}

// The first `count` elements of a pack, at any address: one access if the pack is full and the tensor `aligned` to 16
// bytes, else element by element. What isn't loaded is zero.
template <typename Element>
__device__ __forceinline__ Pack<Element> load_filled(const Element* from, unsigned count, bool aligned) {
  if (aligned && count == Pack<Element>::SIZE) return load_pack(from);
  Pack<Element> pack{};
#pragma unroll
  for (unsigned j = 0; j < Pack<Element>::SIZE; ++j) {
    if (j < count) pack.at[j] = from[j];
  }
  return pack;
}
template <typename Element>
__device__ __forceinline__ void store_filled(Element* to, const Pack<Element>& pack, unsigned count, bool aligned) {
  if (aligned && count == Pack<Element>::SIZE) {
    store_pack(to, pack);
    return;
  }
#pragma unroll
  for (unsigned j = 0; j < Pack<Element>::SIZE; ++j) {
    if (j < count) to[j] = pack.at[j];
  }
}

template <unsigned WORD>
__device__ __forceinline__ uint4 funnel(const unsigned (&words)[8], unsigned bits) {
  // The highest word needed is WORD + 4; for WORD == 3 that is words[7].
  return make_uint4(__funnelshift_r(words[WORD], words[WORD + 1], bits), __funnelshift_r(words[WORD + 1], words[WORD + 2], bits),
                    __funnelshift_r(words[WORD + 2], words[WORD + 3], bits), __funnelshift_r(words[WORD + 3], words[WORD + 4], bits));
}

// A pack from any element's address: the two aligned 16-byte words around it, shifted together. Both words must lie
// inside the tensor. Neighbours share their words, so the second load hits L1 and memory sees each byte once.
// `misaligned` is the address modulo 16. Lanes have the same one, but where a row of biases ends, so the switch hardly
// diverges; and each case indexes the words with constants, so they stay in registers.
template <typename Element>
__device__ __forceinline__ Pack<Element> load_pack_shifted(const Element* from, unsigned misaligned) {
  const uint4* aligned = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(from) - misaligned);
  const uint4 low = __ldg(aligned), high = __ldg(aligned + 1);
  const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const unsigned bits = (misaligned % 4) * 8;
  uint4 raw;
  switch (misaligned / 4) {
    case 0: raw = funnel<0>(words, bits); break;
    case 1: raw = funnel<1>(words, bits); break;
    case 2: raw = funnel<2>(words, bits); break;
    default: raw = funnel<3>(words, bits); break;
  }
  return reinterpret_cast<const Pack<Element>&>(raw);
}
