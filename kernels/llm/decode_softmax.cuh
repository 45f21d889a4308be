// What a warp keeps of tokens and of their softmax, for decode_attention.cu, which has the story.
//
// Both products (mma.cuh) have heads of queries in columns. Rows are
//
//     of scores: keys, the 16 of a step; 16 elements are multiplied at a time
//     of sums: elements of values, 16 at a time; shares of the step's tokens are multiplied with them
//
// With r = lane / 4 and c = lane % 4, a lane has scores of tokens r and r + 8 for heads 2 c and 2 c + 1, and sums of
// elements r and r + 8 of each 16 for the same heads. The second product takes shares of tokens 2 c, 2 c + 1, 2 c + 8
// and 2 c + 9 for head r, so lanes exchange shares in between.
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

// The sum over lanes that are a multiple of `Apart` away, a power of 2; and the largest of them.
template <unsigned Apart = 1>
__device__ __forceinline__ float sum_of(float value) {
#pragma unroll
  for (unsigned step = WARP / 2; step >= Apart; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}
template <unsigned Apart = 1>
__device__ __forceinline__ float largest_of(float value) {
#pragma unroll
  for (unsigned step = WARP / 2; step >= Apart; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
  }
  return value;
}
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

#ifdef WARPS
constexpr unsigned THREADS = WARPS * WARP;
constexpr unsigned KEYS = 16;                // of a step
constexpr unsigned HEADS = 8;                // of queries, of a block
constexpr unsigned SIZE = Pack<T>::SIZE;     // elements of a copy
constexpr unsigned PACKS = HEAD / SIZE;      // of a row
constexpr unsigned TILES = (PACKS + 1) / 2;  // of 16 elements
constexpr unsigned MOST_PARTS = 128;         // of a sequence
constexpr float SLACK = 8.0f;                // a share is at most 2 to this power

static_assert(HEAD % SIZE == 0, "rows are whole packs");

// A lane's operands of a step.
struct Step {
  unsigned keys[TILES][4], values[TILES][4];
};

// A matrix of 8 x 8 halves in a warp's registers, with rows and columns exchanged: a lane gives columns 2 c and 2 c + 1
// of row r, and gets rows 2 c and 2 c + 1 of column r.
__device__ __forceinline__ unsigned transposed(unsigned pair) {
  unsigned other;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

// What a warp has of heads 2 c and 2 c + 1: the score that others are compared with, the sum of powers, and sums of
// values. Only when a score is larger by more than SLACK, lanes look for the largest, and multiply what they have by a
// power of 2.
struct Softmax {
  float largest[2] = {NONE, NONE};
  float sum[2] = {};          // of the lane's tokens
  float sums[TILES][4] = {};  // element r of both heads, then element r + 8

  // Adds the first `count` tokens of a step, or all. scale: of scores.
  __device__ __forceinline__ void add(const Step& step, const unsigned (&query)[TILES][2], unsigned count,
                                      float scale) {
    float scores[4] = {};  // token r of both heads, then token r + 8
#pragma unroll
    for (unsigned n = 0; n < TILES; ++n) {
      const bool is_half = PACKS % 2 && n == TILES - 1;
      const unsigned(&own)[4] = step.keys[n];
      multiply_add<T>(scores, {own[0], own[1], is_half ? 0 : own[2], is_half ? 0 : own[3]}, query[n]);
    }
    if (count < KEYS) leave_out(scores, count);
    const float now[] = {fmaxf(scores[0], scores[2]) * scale, fmaxf(scores[1], scores[3]) * scale};
    if (__any_sync(ALL_LANES, now[0] > largest[0] + SLACK || now[1] > largest[1] + SLACK)) compare_with(now);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      scores[i] = power_of_2(fmaf(scores[i], scale, -largest[i % 2]));
      sum[i % 2] += scores[i];
    }
    const unsigned shares[] = {transposed(rounded_pair<T>(scores[0], scores[1])),
                               transposed(rounded_pair<T>(scores[2], scores[3]))};
#pragma unroll
    for (unsigned n = 0; n < TILES; ++n) multiply_add<T>(sums[n], step.values[n], shares);
  }

  // Tokens from `count` on get no share.
  static __device__ __forceinline__ void leave_out(float (&scores)[4], unsigned count) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      if (threadIdx.x % WARP / 4 + i / 2 * 8 >= count) scores[i] = MINUS_INFINITY;
    }
  }

  // Compares with the largest score from now on, of which each lane has found its own.
  __device__ __forceinline__ void compare_with(const float (&now)[2]) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const float before = largest[i];
      largest[i] = largest_of<4>(fmaxf(before, now[i]));
      const float kept = power_of_2(before - largest[i]);
      sum[i] *= kept;
#pragma unroll
      for (unsigned n = 0; n < TILES; ++n) sums[n][i] *= kept, sums[n][i + 2] *= kept;
    }
  }
};

// Warps' results in shared memory. Rows are so long that a warp's stores meet no bank conflict.
struct Meeting {
  float largest[WARPS][HEADS], sum[WARPS][HEADS], sums[WARPS][HEADS][TILES * 16 + 4];

  __device__ __forceinline__ void put(const Softmax& own, unsigned heads) {
    const unsigned warp = threadIdx.x / WARP, row = threadIdx.x % WARP / 4;
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned head = threadIdx.x % 4 * 2 + i;
      const float of_all = sum_of<4>(own.sum[i]);
      if (head >= heads) continue;
      if (row == 0) largest[warp][head] = own.largest[i], sum[warp][head] = of_all;
#pragma unroll
      for (unsigned n = 0; n < TILES; ++n) {
        sums[warp][head][n * 16 + row] = own.sums[n][i];
        sums[warp][head][n * 16 + row + 8] = own.sums[n][i + 2];
      }
    }
  }
};
#endif
