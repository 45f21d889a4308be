// The backward of attention over one window and head, part 1: what happens to each score on its own or with the scores
// of its query, in registers. Part 2, the products, is window_attention_grad_strips.cuh, whose head defines the terms.
//
// Why this is written by hand: scores, probabilities and their gradients never leave the chip, so each lane must know
// which query and which key its registers belong to, and a softmax must be taken over values that four lanes hold.
//
// mma.cuh gives lane l of a warp these four elements of each tile of 16 queries x 8 keys:
//
//     keys            0 and 1     2 and 3     4 and 5     6 and 7
//     query r        | lane 4r   | lane 4r+1 | lane 4r+2 | lane 4r+3 |     their elements 0 and 1
//     query r + 8    | lane 4r   | lane 4r+1 | lane 4r+2 | lane 4r+3 |     their elements 2 and 3
//
// Here r is l / 4. The four lanes with the same r are a quad. A quad has all keys of two queries: of query r (half 0) and of query r + 8
// (half 1). So a maximum or a sum over the keys of a query is a loop over a lane's own registers, and then an exchange
// between the four lanes of the quad.
//
// Macros: as in window_attention_grad.cu.
#pragma once

#include "window_attention_grad_stage.cuh"

constexpr float LOG2_E = 1.4426950408889634f, LARGEST = 3.402823466e38f;
constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);

// Short windows: P and dS have room in shared memory at the same time, and what is added to the scores has room in
// registers.
constexpr bool SHORT = TOKENS <= 64;

// What a lane has of a strip (16 queries by the warp's keys): four elements of each tile. The warp's keys are all keys, or
// one half of them where two warps share a strip.
using Strip = float[OWN_TILES][4];

// The query, and the first of two keys, of a lane's elements. Element e belongs to query first_row() + e / 2 * 8 and to
// key first_column(tile) + e % 2.
__device__ __forceinline__ unsigned first_row() { return own_strip() * 16 + threadIdx.x % WARP / 4; }
__device__ __forceinline__ unsigned first_column(unsigned tile) {
  return (own_part() * OWN_TILES + tile) * 8 + threadIdx.x % 4 * 2;
}

// Whether element e of this tile belongs to a key in at least one lane. If not, all lanes skip it: the last tile of an
// odd number of tokens may have one key, which is element 0 or 2 of the first lane of a quad. Where two warps share a
// strip, a tile's number stands for other keys in each warp, so nothing is skipped: the probability of a key that doesn't
// exist is 0.
__device__ constexpr bool exists(unsigned tile, unsigned e) { return SHARERS > 1 || tile * 8 + e % 2 < TOKENS; }

// ---- What is added to the scores: bias, mask, and -inf for keys that don't exist.

// Two neighbouring elements as floats. pairs: one access loads both, which needs an address that is a multiple of 4.
__device__ __forceinline__ float2 two_of(const T* from, bool pairs) {
  if (pairs) {
    const Lanes<T> both(__ldg(reinterpret_cast<const unsigned*>(from)));
    return make_float2(both.at[0], both.at[1]);
  }
  return make_float2(to_float(__ldg(from)), to_float(__ldg(from + 1)));
}

// exp(x) is computed as 2 to the power x * log2(e). For short windows the scores, and what is added to them, are
// multiplied by UNIT = log2(e) when they are added: the scaling of scores by 1 / sqrt(HEAD) needs a multiplication anyway,
// and what is added is multiplied once and stays in registers. For long windows what is added is read again for each
// window, so the factor comes later, in to_probabilities, where it takes fewer instructions.
constexpr float UNIT = SHORT ? LOG2_E : 1.0f;

// x * UNIT for what is added. A finite x stays finite: some masks have the lowest float in place of -inf, and log2(e)
// times the lowest float would be -inf, so a row with nothing else would become NaN.
__device__ __forceinline__ float in_units(float x) {
  return SHORT && fabsf(x) <= LARGEST ? fminf(fmaxf(x * UNIT, -LARGEST), LARGEST) : x;
}

// What is added to the scores of the query `row` with the keys `column` and `column + 1`, in units: bias + mask, and
// -inf for a key that doesn't exist. bias: of the head, (TOKENS, TOKENS); mask: of the window, (TOKENS, TOKENS).
__device__ __forceinline__ float2 added_at(const T* bias, const T* mask, unsigned row, unsigned column, bool pairs) {
  float2 sum = make_float2(column < TOKENS ? 0.0f : MINUS_INFINITY, column + 1 < TOKENS ? 0.0f : MINUS_INFINITY);
  if (row >= TOKENS || column >= TOKENS) return sum;
  const unsigned at = row * TOKENS + column;
  if (TOKENS % 2 == 1 && column + 1 == TOKENS) {
    if (HAS_BIAS) sum.x += to_float(__ldg(bias + at));
    if (HAS_MASK) sum.x += to_float(__ldg(mask + at));
  } else {
    const float2 of_bias = HAS_BIAS ? two_of(bias + at, pairs) : make_float2(0.0f, 0.0f);
    const float2 of_mask = HAS_MASK ? two_of(mask + at, pairs) : make_float2(0.0f, 0.0f);
    sum = make_float2(of_bias.x + of_mask.x, of_bias.y + of_mask.y);
  }
  return make_float2(in_units(sum.x), in_units(sum.y));
}

// at(tile, half): what is added to a lane's two elements of a tile and of one of its two queries. Long windows read
// bias and mask each time; short windows keep the sums in registers as long as the mask stays the same.
struct AddedFromMemory {
  const T *bias, *mask;
  bool pairs;
  __device__ __forceinline__ float2 at(unsigned tile, unsigned half) const {
    return added_at(bias, mask, first_row() + 8 * half, first_column(tile), pairs);
  }
};
struct AddedInRegisters {
  float2 kept[OWN_TILES][2];
  __device__ __forceinline__ void load(const AddedFromMemory& from) {
#pragma unroll
    for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) kept[tile][half] = from.at(tile, half);
    }
  }
  __device__ __forceinline__ float2 at(unsigned tile, unsigned half) const { return kept[tile][half]; }
};

// ---- Over the keys of a query.

// The largest value, and the sum of the values, that the four lanes of a quad have. Each lane gets the result.
__device__ __forceinline__ float largest_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
  return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(ALL_LANES, value, 1);
  return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

// N numbers of each of a lane's two queries, one or two, from the other warp of the strip. place: EXCHANGE_BYTES of the
// strip's shared memory, which no other exchange has used since the last barrier of the block; each warp has half of them.
constexpr unsigned EXCHANGE_BYTES = 256;
template <unsigned N>
__device__ __forceinline__ void exchange(unsigned place, const float (&own)[N][2], float (&others)[N][2]) {
  const unsigned lane = threadIdx.x % WARP, at = place + lane / 4 * N * 4;
  const unsigned part = own_part() * EXCHANGE_BYTES / 2;
  if (lane % 4 == 0) {
#pragma unroll
    for (unsigned i = 0; i < 2 * N; ++i) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + part + (i / N * 8 * N + i % N) * 4), "f"(own[i % N][i / N])
                   : "memory");
    }
  }
  // A barrier of two warps; barrier 0 is the block's.
  asm volatile("bar.sync %0, %1;" ::"r"(1 + own_strip()), "r"(2 * WARP) : "memory");
#pragma unroll
  for (unsigned i = 0; i < 2 * N; ++i) {
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(others[i % N][i / N])
                 : "r"(at + (EXCHANGE_BYTES / 2 - part) + (i / N * 8 * N + i % N) * 4)
                 : "memory");
  }
}

// One instruction each, without a branch, so the compiler may mix the work of a lane's two queries. one_over is for
// the sum of a query's powers of 2, whose largest is 1: so the sum is at least 1, or NaN.
__device__ __forceinline__ float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}
__device__ __forceinline__ float one_over(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// What a lane's powers of 2 are multiplied by: one over the sum of all powers of their query. largest, sum: of the warp's
// keys. Each of the two warps of a strip has taken its powers relative to its own largest score.
__device__ __forceinline__ void to_inverses(float (&inverse)[2], const float (&largest)[2], const float (&sum)[2],
                                            unsigned place) {
  if constexpr (SHARERS == 1) {
    inverse[0] = one_over(sum[0]), inverse[1] = one_over(sum[1]);
    return;
  }
  float others[2][2];
  exchange<2>(place, {{largest[0], largest[1]}, {sum[0], sum[1]}}, others);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const float all = fmaxf(largest[half], others[0][half]);
    const float own = power_of_2((largest[half] - all) * (LOG2_E / UNIT));
    const float other = power_of_2((others[0][half] - all) * (LOG2_E / UNIT));
    inverse[half] = own * one_over(fmaf(others[1][half], other, sum[half] * own));
  }
}

// Replaces the scores s = q k^T of a strip by the probabilities softmax(s / sqrt(HEAD) + what is added). A query whose
// scores are all -inf gets NaN, as in torch. A key that doesn't exist gets 0. place: for an exchange.
template <typename Added>
__device__ __forceinline__ void to_probabilities(Strip& s, const Added& added, unsigned place) {
  float largest[2], base[2], sum[2], inverse[2];  // of each half
  // Scaled scores, and the largest score of each query.
#pragma unroll
  for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const float2 more = added.at(tile, half);
      float &first = s[tile][2 * half], &second = s[tile][2 * half + 1];
      first = fmaf(first, SCALE * UNIT, more.x);
      if (exists(tile, 1)) second = fmaf(second, SCALE * UNIT, more.y);
      const float larger = exists(tile, 1) ? fmaxf(first, second) : first;
      largest[half] = tile == 0 ? larger : fmaxf(largest[half], larger);
    }
  }
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    largest[half] = largest_of_quad(largest[half]);
    // Keys without weight in this warp alone don't make NaN of their query.
    base[half] = SHARERS > 1 && largest[half] == MINUS_INFINITY ? 0.0f : largest[half];
  }
  // Powers, and their sums.
#pragma unroll
  for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float &first = s[tile][2 * half], &second = s[tile][2 * half + 1];
      first = power_of_2((first - base[half]) * (LOG2_E / UNIT));
      second = exists(tile, 1) ? power_of_2((second - base[half]) * (LOG2_E / UNIT)) : 0.0f;
      const float both = exists(tile, 1) ? first + second : first;
      sum[half] = tile == 0 ? both : sum[half] + both;
    }
  }
  sum[0] = sum_of_quad(sum[0]), sum[1] = sum_of_quad(sum[1]);
  to_inverses(inverse, largest, sum, place);
  // Powers divided by their sums.
#pragma unroll
  for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) {
      if (exists(tile, e)) s[tile][e] *= inverse[e / 2];
    }
  }
}

// get(two, pair): a lane's probabilities of tiles 2 * pair and 2 * pair + 1, from where they are kept: in registers
// (short windows, and long ones whose strips two warps share), or rounded in the warp's strip of a square in shared memory
// (`strip`: the lane's address there). Two tiles at a time, because one ldmatrix loads two.
struct FromRegisters {
  const Strip& p;
  __device__ __forceinline__ void get(float (&two)[2][4], unsigned pair) const {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
      two[i / 4][i % 4] = 2 * pair + i / 4 < OWN_TILES ? p[2 * pair + i / 4][i % 4] : 0.0f;
    }
  }
};
struct FromSquare {
  unsigned strip;
  __device__ __forceinline__ void get(float (&two)[2][4], unsigned pair) const {
    unsigned words[4];
    load_matrices(words, strip + 2 * pair * PACK_BYTES);
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) two[i / 4][i % 4] = Lanes<T>(words[i / 2]).at[i % 2];
  }
};

// dQ and dK need dS / sqrt(HEAD). Of bfloat16, dS takes this factor before it is rounded, where the factor costs no
// instruction: `dP - delta` becomes one multiply-add, `dP * factor - delta * factor`. Of float16, dS is rounded as it
// is, and the factor comes after the products: the smallest halves are 2^-24 apart, and a step of a smaller dS would be
// sqrt(HEAD) times as large a part of it. Small dS are usual: where gradients aren't scaled, a P of 1/49 makes them so.
constexpr float BEFORE = is_bfloat16(T{}) ? SCALE : 1.0f, AFTER = is_bfloat16(T{}) ? 1.0f : SCALE;

// Replaces dP of a strip by dS * BEFORE, where dS = P * (dP - delta) is the gradient of the scaled scores, and delta
// is a query's sum of P * dP over its keys. place: for an exchange.
template <typename Probabilities>
__device__ __forceinline__ void to_gradients(Strip& dp, const Probabilities& probabilities, unsigned place) {
  constexpr unsigned PAIRS = (OWN_TILES + 1) / 2;
  float delta[2] = {};  // of each half
#pragma unroll
  for (unsigned pair = 0; pair < PAIRS; ++pair) {
    float p[2][4];
    probabilities.get(p, pair);
#pragma unroll
    for (unsigned tile = 2 * pair; tile < 2 * pair + 2 && tile < OWN_TILES; ++tile) {
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        if (exists(tile, e)) delta[e / 2] = fmaf(p[tile % 2][e], dp[tile][e], delta[e / 2]);
      }
    }
  }
  delta[0] = sum_of_quad(delta[0]), delta[1] = sum_of_quad(delta[1]);
  if constexpr (SHARERS > 1) {
    float others[1][2];
    exchange<1>(place, {{delta[0], delta[1]}}, others);
    delta[0] += others[0][0], delta[1] += others[0][1];
  }
  delta[0] *= BEFORE, delta[1] *= BEFORE;
#pragma unroll
  for (unsigned pair = 0; pair < PAIRS; ++pair) {
    float p[2][4];
    probabilities.get(p, pair);
#pragma unroll
    for (unsigned tile = 2 * pair; tile < 2 * pair + 2 && tile < OWN_TILES; ++tile) {
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        dp[tile][e] = exists(tile, e) ? p[tile % 2][e] * fmaf(dp[tile][e], BEFORE, -delta[e / 2]) : 0.0f;
      }
    }
  }
}
