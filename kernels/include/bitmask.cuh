// Bit masks. Bit i % 32 of word i / 32 is element i's; since words are stored lowest byte first, bit i % 8 of byte
// i / 8 is so too. A mask has whole words, and the bits past its last element are zero.
#pragma once

#include "pack.cuh"
#include "warp.cuh"

constexpr unsigned GROUP = 8;  // elements of one byte

// The bits of pack number `pack`, lowest first: a byte's for halves, half a byte's for floats.
template <typename Element>
__device__ __forceinline__ unsigned bits_of_pack(const unsigned char* __restrict__ mask, long long pack) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  return mask[pack * SIZE / GROUP] >> (pack * SIZE % GROUP) & ((1u << SIZE) - 1);
}

// Store the `bits` of pack number `pack`, which the lane holds. The even one of two lanes with floats stores for both.
// mask_bytes: bytes of the mask. Every lane of the warp must take part, also past the end, with bits 0.
template <typename Element>
__device__ __forceinline__ void store_bits_of_pack(unsigned char* __restrict__ mask, long long pack, unsigned bits,
                                                   long long mask_bytes) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  if constexpr (SIZE < GROUP) bits |= __shfl_down_sync(ALL_LANES, bits, 1) << SIZE;
  const long long byte = pack * SIZE / GROUP;
  if (pack * SIZE % GROUP == 0 && byte < mask_bytes) mask[byte] = static_cast<unsigned char>(bits);
}

// All ones in the halves of a pair that the bits keep: the lower one by bit 2 * pair, the upper one by the next. The
// multiplication puts these bits 16 apart, the shift onto the halves' signs, and the permutation copies the signs over
// the halves.
__device__ __forceinline__ unsigned kept_halves(unsigned bits, unsigned pair) {
  unsigned halves;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(halves) : "r"(bits * 0x8001u << (15 - 2 * pair)));
  return halves;
}

// The 256 elements that a warp works on: 32 groups, one a lane, so that the warp's 32 mask bytes are one transaction.
// The elements move in packs, neighbouring lanes beside each other. A pack of halves is the lane's own group. A pack of
// floats is half a group: lane l moves packs l and 32 + l, which belong to lanes l / 2 and 16 + l / 2, and two shuffles
// bring the bits from one to the other.
//
// Every lane of a warp must take part, also past the end of the tensor. The block must be whole warps.
template <typename Element>
struct Tile {
  static constexpr unsigned PACKS = GROUP / Pack<Element>::SIZE;  // packs a lane moves: 1 of halves, 2 of floats
  unsigned lane;
  long long group;  // this lane's

  __device__ __forceinline__ Tile() : lane(threadIdx.x % WARP), group(thread_index()) {}

  // The first element of the lane's pack k.
  __device__ __forceinline__ long long element(unsigned k) const {
    if constexpr (PACKS == 1) return group * GROUP;
    return (group - lane) * GROUP + (k * WARP + lane) * Pack<Element>::SIZE;
  }

  // The bits of the lane's pack k, lowest first, from the bytes that the groups' lanes hold.
  __device__ __forceinline__ unsigned to_pack(unsigned byte, unsigned k) const {
    if constexpr (PACKS == 1) {
      return byte;
    } else {
      return __shfl_sync(ALL_LANES, byte, k * (WARP / 2) + lane / 2) >> (lane % 2 * Pack<Element>::SIZE) & 0xfu;
    }
  }

  // `byte` without the bits of elements that don't exist.
  __device__ __forceinline__ unsigned within(unsigned byte, long long n) const {
    const long long left = n - group * GROUP;
    return left >= GROUP ? byte : left > 0 ? byte & ((1u << left) - 1) : 0;
  }
};
