// A few neighbouring elements of any type, which move in one access and are worked on in float.
#pragma once

#include "../include/number.cuh"
#include "../include/warp.cuh"

__device__ __forceinline__ float to_float(int value) { return static_cast<float>(value); }

// The lower two bytes are two integers, saturated to 8 bits, `low` first; the upper two are the lower ones of `above`.
__device__ __forceinline__ unsigned saturated(int low, int high, unsigned above) {
  unsigned bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(high), "r"(low), "r"(above));
  return bytes;
}

// A float as an integer of 8 bits. It is rounded to the nearest integer, halves to the even one, and saturates at -128
// and 127. NaN gives 0: so PTX defines the conversion to 32 bits.
__device__ __forceinline__ signed char quantised(float value) {
  return static_cast<signed char>(saturated(__float2int_rn(value), 0, 0));
}

// The inverse of a scale. 0 has an infinite one: then what isn't 0 saturates by its sign, and 0 gives NaN, and so 0.
__device__ __forceinline__ float inverse(float scale) { return 1.0f / scale; }

// The same inverse without a jump, which the compiler's division has for scales near the ends of the range. The
// approximation is off by a unit in the last place at most, and the step after it makes up for that.
__device__ __forceinline__ float straight_inverse(float scale) {
  float guess;
  asm("rcp.approx.f32 %0, %1;" : "=f"(guess) : "f"(scale));
  const float off = fmaf(scale, guess, -1.0f);  // NaN where one of both is 0 and the other one infinite
  return fabsf(off) < 1.0f ? fmaf(guess, -off, guess) : guess;
}

// `SIZE` elements as they lie in memory. A single small element is in the lower part of its word.
template <typename Element, unsigned SIZE>
struct Few {
  static constexpr unsigned BYTES = SIZE * sizeof(Element), WORDS = BYTES < 4 ? 1 : BYTES / 4;
  unsigned word[WORDS];

  // The address must be a multiple of BYTES, or of 16 where there are more.
  __device__ __forceinline__ void load(const Element* __restrict__ from) {
    if constexpr (BYTES >= 16) {
#pragma unroll
      for (unsigned k = 0; k < BYTES / 16; ++k) {
        const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from) + k);
        word[4 * k] = raw.x, word[(4 * k + 1) % WORDS] = raw.y;
        word[(4 * k + 2) % WORDS] = raw.z, word[(4 * k + 3) % WORDS] = raw.w;
      }
    } else if constexpr (BYTES == 8) {
      const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
      word[0] = raw.x, word[1 % WORDS] = raw.y;
    } else if constexpr (BYTES == 4) {
      word[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else if constexpr (BYTES == 2) {
      word[0] = __ldg(reinterpret_cast<const unsigned short*>(from));
    } else {
      word[0] = __ldg(reinterpret_cast<const unsigned char*>(from));
    }
  }
  __device__ __forceinline__ void store(Element* __restrict__ to) const {
    static_assert(BYTES <= 16);
    if constexpr (BYTES == 16) {
      *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1 % WORDS], word[2 % WORDS], word[3 % WORDS]);
    } else if constexpr (BYTES == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1 % WORDS]);
    } else if constexpr (BYTES == 4) {
      *reinterpret_cast<unsigned*>(to) = word[0];
    } else if constexpr (BYTES == 2) {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(word[0]);
    } else {
      *reinterpret_cast<unsigned char*>(to) = static_cast<unsigned char>(word[0]);
    }
  }

  __device__ __forceinline__ void widen(float (&values)[SIZE]) const {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      const Lanes<Element> lanes(word[w]);
#pragma unroll
      for (unsigned l = 0; l < Lanes<Element>::SIZE && l < SIZE; ++l) {
        values[w * Lanes<Element>::SIZE + l] = lanes.at[l];
      }
    }
  }
  // Rounds once. What is above `SIZE` in the last word is 0.
  __device__ __forceinline__ void narrow(const float (&values)[SIZE]) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      Lanes<Element> lanes;
#pragma unroll
      for (unsigned l = 0; l < Lanes<Element>::SIZE; ++l) {
        lanes.at[l] = l < SIZE ? values[w * Lanes<Element>::SIZE + l] : 0.0f;
      }
      word[w] = lanes.word();
    }
  }
};

// Integers of 32 bits, which are only read, and of 8 bits, which are only written.
template <>
__device__ __forceinline__ Lanes<int>::Lanes(unsigned word) : at{static_cast<float>(static_cast<int>(word))} {}
template <>
__device__ __forceinline__ unsigned Lanes<signed char>::word() const {
  return saturated(__float2int_rn(at[0]), __float2int_rn(at[1]),
                   saturated(__float2int_rn(at[2]), __float2int_rn(at[3]), 0));
}

// A single element from a float, rounded once.
template <typename Element>
__device__ __forceinline__ Element narrowed(float value) {
  if constexpr (sizeof(Element) == 1) {
    return quantised(value);
  } else {
    return Element(value);
  }
}
