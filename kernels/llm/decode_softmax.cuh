// What a warp keeps of tokens and of their softmax, for decode_attention.cu, which has the story.
//
// With r = lane / 4 and c = lane % 4, a lane has of each step of 16 keys
//
//     keys r and r + 8: elements 32 j + 8 c to 32 j + 8 c + 7, rows of the first product's B, for each j < CHUNKS
//     values 2 c, 2 c + 1, 2 c + 8, 2 c + 9: elements 64 j + 8 r to 64 j + 8 r + 7. Element e of these eight belongs to
//     column r of the second product number 8 j + e
//
// and its results are elements 64 j + 16 c to 64 j + 16 c + 15 of head r. Heads of queries are the rows of A. Its other
// eight rows are zeros.
//
// Macros: HEAD and WARPS, as in decode_attention.cu.
#pragma once

#include "../include/dependent.cuh"
#include "../include/mma.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

constexpr float NONE = -1.0e30f;  // lower than any score, and finite
[[maybe_unused]] constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);

template <unsigned Lanes>
__device__ __forceinline__ float sum_of(float value) {
#pragma unroll
  for (unsigned step = Lanes / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}
template <unsigned Lanes>
__device__ __forceinline__ float largest_of(float value) {
#pragma unroll
  for (unsigned step = Lanes / 2; step; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
  return value;
}
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#ifdef WARPS
constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned KEYS = 16;                  // of a step
constexpr unsigned HEADS = 8;                  // of queries, of a block
constexpr unsigned SIZE = Pack<T>::SIZE;       // elements of a load
constexpr unsigned CHUNKS = (HEAD + 31) / 32;  // of 32 elements
constexpr unsigned WIDE = (HEAD + 63) / 64;    // of 64 elements
constexpr unsigned MOST_PARTS = 128;           // of a sequence

// A lane's keys and values of a step.
struct Step {
  uint4 keys[CHUNKS][2], values[WIDE][4];
};

// Tokens of a step: the last one of all is another kernel's, and comes when that kernel has ended.
enum Tokens { ALL, BUT_LAST };

// The keys and values of a group. Tokens before `end` are the block's. `last`: the last token of all.
struct Kept {
  const T *keys, *values;
  unsigned end, last;

  static __device__ __forceinline__ unsigned value(unsigned first, unsigned i) {
    return first + threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8;
  }
  static __device__ __forceinline__ unsigned of_key(unsigned j) { return j * 32 + threadIdx.x % 4 * SIZE; }
  static __device__ __forceinline__ unsigned of_value(unsigned j) { return j * 64 + threadIdx.x % WARP / 4 * SIZE; }
  static __device__ __forceinline__ long long place(unsigned token, unsigned element) {
    return static_cast<long long>(token) * HEAD + element;
  }
};

// What a warp, a block or a part has: for each head the largest score, the sum of powers, and sums of values.
struct Softmax {
  float largest = NONE, sum = 0.0f;  // of the lane's head; `sum` of the lane's keys
  float sums[WIDE * 8][4] = {};      // [.][0] and [.][1] are the lane's; the others belong to rows of zeros

  __device__ __forceinline__ void add(const Step& step, const uint4 (&query)[CHUNKS], unsigned first, unsigned end,
                                      float scale) {
    float scores[2][4] = {};
#pragma unroll
    for (unsigned j = 0; j < CHUNKS; ++j) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const uint4& key = step.keys[j][i];
        multiply_add<T>(scores[i], {query[j].x, 0, query[j].y, 0}, {key.x, key.y});
        multiply_add<T>(scores[i], {query[j].z, 0, query[j].w, 0}, {key.z, key.w});
      }
    }
    float now = largest;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      float& score = scores[i / 2][i % 2];
      score = Kept::value(first, i) < end ? score * scale : MINUS_INFINITY;
      now = fmaxf(now, score);
    }
    now = largest_of<4>(now);
    const float kept = power_of_2(largest - now);
    largest = now, sum *= kept;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      float& score = scores[i / 2][i % 2];
      score = power_of_2(score - now);
      sum += score;
    }
    const unsigned shares[] = {rounded_pair<T>(scores[0][0], scores[0][1]), 0,
                               rounded_pair<T>(scores[1][0], scores[1][1]), 0};
#pragma unroll
    for (unsigned j = 0; j < WIDE; ++j) {
      const uint4(&own)[4] = step.values[j];
      const unsigned words[4][4] = {{own[0].x, own[0].y, own[0].z, own[0].w}, {own[1].x, own[1].y, own[1].z, own[1].w},
                                    {own[2].x, own[2].y, own[2].z, own[2].w}, {own[3].x, own[3].y, own[3].z, own[3].w}};
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        const unsigned select = e % 2 ? 0x7632 : 0x5410, w = e / 2;
        float(&to)[4] = sums[j * 8 + e];
        to[0] *= kept, to[1] *= kept;
        multiply_add<T>(to, shares, {__byte_perm(words[0][w], words[1][w], select),
                                     __byte_perm(words[2][w], words[3][w], select)});
      }
    }
  }
};

// Warps' results in shared memory.
struct Meeting {
  float largest[WARPS][HEADS], sum[WARPS][HEADS], sums[WARPS][HEADS][WIDE * 64];

  __device__ __forceinline__ void put(const Softmax& own, unsigned heads) {
    const unsigned warp = threadIdx.x / WARP, head = threadIdx.x % WARP / 4, quarter = threadIdx.x % 4;
    const float sum_of_keys = sum_of<4>(own.sum);
    if (head >= heads) return;
    if (quarter == 0) largest[warp][head] = own.largest, sum[warp][head] = sum_of_keys;
#pragma unroll
    for (unsigned j = 0; j < WIDE; ++j) {
#pragma unroll
      for (unsigned e = 0; e < 16; ++e) {
        sums[warp][head][j * 64 + quarter * 16 + e] = own.sums[j * 8 + e % 8][e / 8];
      }
    }
  }
};
#endif
