// The backward of one window and head by a block, for window_attention_grad.cu, whose macros this file needs.
//
// A warp has a strip of 16 queries. With c = 2 * (l % 4) and r = l / 4, lane l has of each tile of 8 keys the queries r
// and r + 8 of the strip and the keys c and c + 1, as mma.cuh draws it. So a query lies in four lanes, a quad.
#pragma once

#include "window_attention_grad_stage.cuh"

constexpr float LOG2_E = 1.4426950408889634f, LARGEST = 3.402823466e38f;
constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);
constexpr bool SHORT = TOKENS <= 64;  // P and dS have room in shared memory at the same time
constexpr unsigned SQUARES = SHORT ? 2 : 1;
constexpr unsigned STRIP_PAIRS = STRIPS > 1 ? STRIPS / 2 : 1;  // of strips of keys

using Strip = float[TILES][4];          // a warp's 16 queries by all keys
using Halves = unsigned[2 * STRIPS][2];  // the same, rounded

// Where a lane's four elements of a tile are: the first has this row and this column.
__device__ __forceinline__ unsigned first_row() { return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4; }
__device__ __forceinline__ unsigned first_column(unsigned tile) { return tile * 8 + threadIdx.x % 4 * 2; }

// Whether some lane's element e of a tile is a key's.
__device__ constexpr bool exists(unsigned tile, unsigned e) { return tile * 8 + e % 2 < TOKENS; }

// Two neighbouring elements, in one access where `pairs`: that needs an even number of tokens, and addresses that are
// multiples of 4.
__device__ __forceinline__ float2 two_of(const T* from, bool pairs) {
  if (pairs) {
    const Lanes<T> both(__ldg(reinterpret_cast<const unsigned*>(from)));
    return make_float2(both.at[0], both.at[1]);
  }
  return make_float2(to_float(__ldg(from)), to_float(__ldg(from + 1)));
}

// What is added stays in registers where it can, and then in units of log2(e), so that powers of 2 need no factor.
// Elsewhere it is read for each window, and the factor comes later, where it takes fewer instructions.
constexpr float UNIT = SHORT ? LOG2_E : 1.0f;

// A number in these units. What is finite stays finite: some masks have the lowest number there is in place of -inf.
__device__ __forceinline__ float in_units(float x) {
  return SHORT && x >= -LARGEST ? fmaxf(x * UNIT, -LARGEST) : x;
}

// What is added to a row's scores at `column` and the next: bias and mask, and -inf for keys that don't exist.
// bias, mask: of the head and of the window, (TOKENS, TOKENS).
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

// What is added to the scores, read where it is needed.
struct AddedFromMemory {
  const T *bias, *mask;
  bool pairs;
  __device__ __forceinline__ float2 at(unsigned tile, unsigned half) const {
    return added_at(bias, mask, first_row() + 8 * half, first_column(tile), pairs);
  }
};

// The same, kept in registers.
struct AddedInRegisters {
  float2 kept[TILES][2];
  __device__ __forceinline__ void load(const AddedFromMemory& from) {
#pragma unroll
    for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) kept[tile][half] = from.at(tile, half);
    }
  }
  __device__ __forceinline__ float2 at(unsigned tile, unsigned half) const { return kept[tile][half]; }
};

// The largest or the sum of what the four lanes of a quad have.
__device__ __forceinline__ float most_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
  return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}
__device__ __forceinline__ float sum_of_quad(float value) {
  value += __shfl_xor_sync(ALL_LANES, value, 1);
  return value + __shfl_xor_sync(ALL_LANES, value, 2);
}
__device__ __forceinline__ float power_of_2(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

// 1 / x, where x is a sum of powers of 2 of which the largest is 1, or not a number.
__device__ __forceinline__ float one_over(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

// left (the warp's strip of a staged tensor) times the transpose of `right` (all rows of another one).
__device__ __forceinline__ void strip_by_rows(Strip& sums, unsigned left, unsigned right) {
  const unsigned lane = threadIdx.x % WARP;
  unsigned a[DIM / 16][4];
  const unsigned strip = left + threadIdx.x / WARP * 16 * PITCH + place_in_16(PITCH);
#pragma unroll
  for (unsigned k = 0; k < DIM / 16; ++k) load_matrices(a[k], strip + 2 * k * PACK_BYTES);
  const unsigned rows = right + lane % 8 * PITCH + lane / 8 * PACK_BYTES;
#pragma unroll
  for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) sums[tile][e] = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < DIM / 16; k += 2) {
      unsigned b[4];
      load_matrices(b, rows + tile * 8 * PITCH + 2 * k * PACK_BYTES);
      multiply_add<T>(sums[tile], a[k], {b[0], b[1]});
      multiply_add<T>(sums[tile], a[k + 1], {b[2], b[3]});
    }
  }
}

// Scores become probabilities: the softmax of s / sqrt(DIM) + what is added. A query whose scores are all -inf has NaN,
// as torch's has. The inverse is an instruction without a branch, so the compiler may mix the work of both halves.
template <typename Added>
__device__ __forceinline__ void to_probabilities(Strip& s, const Added& added) {
  float most[2], sum[2], inverse[2];
#pragma unroll
  for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      const float2 more = added.at(tile, half);
      float &first = s[tile][2 * half], &second = s[tile][2 * half + 1];
      first = fmaf(first, SCALE * UNIT, more.x);
      if (exists(tile, 1)) second = fmaf(second, SCALE * UNIT, more.y);
      const float larger = exists(tile, 1) ? fmaxf(first, second) : first;
      most[half] = tile == 0 ? larger : fmaxf(most[half], larger);
    }
  }
  most[0] = most_of_quad(most[0]), most[1] = most_of_quad(most[1]);
#pragma unroll
  for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      float &first = s[tile][2 * half], &second = s[tile][2 * half + 1];
      first = power_of_2((first - most[half]) * (LOG2_E / UNIT));
      second = exists(tile, 1) ? power_of_2((second - most[half]) * (LOG2_E / UNIT)) : 0.0f;
      const float both = exists(tile, 1) ? first + second : first;
      sum[half] = tile == 0 ? both : sum[half] + both;
    }
  }
  inverse[0] = one_over(sum_of_quad(sum[0])), inverse[1] = one_over(sum_of_quad(sum[1]));
#pragma unroll
  for (unsigned tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) {
      if (exists(tile, e)) s[tile][e] *= inverse[e / 2];
    }
  }
}

// P of two neighbouring tiles, from registers, or rounded from the warp's strip of a square.
struct FromRegisters {
  const Strip& p;
  __device__ __forceinline__ void get(float (&two)[2][4], unsigned pair) const {
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) two[i / 4][i % 4] = 2 * pair + i / 4 < TILES ? p[2 * pair + i / 4][i % 4] : 0.0f;
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

// dP becomes dS / sqrt(DIM), where dS = P * (dP - the row's sum of P * dP) is the gradient of scores after their
// scaling. dQ and dK need it so, and here the factor costs nothing: it makes a subtraction a multiply-add.
template <typename Probabilities>
__device__ __forceinline__ void to_gradients(Strip& dp, const Probabilities& probabilities) {
  float delta[2] = {};
#pragma unroll
  for (unsigned pair = 0; pair < STRIPS; ++pair) {
    float p[2][4];
    probabilities.get(p, pair);
#pragma unroll
    for (unsigned tile = 2 * pair; tile < 2 * pair + 2 && tile < TILES; ++tile) {
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        if (exists(tile, e)) delta[e / 2] = fmaf(p[tile % 2][e], dp[tile][e], delta[e / 2]);
      }
    }
  }
  delta[0] = SCALE * sum_of_quad(delta[0]), delta[1] = SCALE * sum_of_quad(delta[1]);
#pragma unroll
  for (unsigned pair = 0; pair < STRIPS; ++pair) {
    float p[2][4];
    probabilities.get(p, pair);
#pragma unroll
    for (unsigned tile = 2 * pair; tile < 2 * pair + 2 && tile < TILES; ++tile) {
#pragma unroll
      for (unsigned e = 0; e < 4; ++e) {
        dp[tile][e] = exists(tile, e) ? p[tile % 2][e] * fmaf(dp[tile][e], SCALE, -delta[e / 2]) : 0.0f;
      }
    }
  }
}

// A strip as the A of four products a 16 keys. There is a tile more than TILES where those are odd: zeros.
__device__ __forceinline__ void round_strip(Halves& halves, const Strip& strip) {
#pragma unroll
  for (unsigned tile = 0; tile < 2 * STRIPS; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      halves[tile][half] = tile < TILES ? rounded_pair<T>(strip[tile][2 * half], strip[tile][2 * half + 1]) : 0u;
    }
  }
}

// Puts the warp's strip of P or dS into a square of shared memory, where other warps find columns of it.
__device__ __forceinline__ void share_strip(unsigned square, const Halves& halves) {
  const unsigned at = square + threadIdx.x / WARP * 16 * SQUARE_PITCH + place_in_16(SQUARE_PITCH);
#pragma unroll
  for (unsigned s = 0; s < STRIPS; ++s) {
    const unsigned words[4] = {halves[2 * s][0], halves[2 * s][1], halves[2 * s + 1][0], halves[2 * s + 1][1]};
    store_matrices(at + 2 * s * PACK_BYTES, words);
  }
}

// One step of 16 rows of `right` (at the lane's place in it): adds what COUNT strips a give.
template <unsigned COUNT>
__device__ __forceinline__ void add_products(float (&sums)[COUNT][CHUNKS][4], const unsigned (&a)[COUNT][4],
                                             unsigned right) {
#pragma unroll
  for (unsigned n = 0; n < CHUNKS; n += 2) {
    unsigned b[4];
    load_matrices_transposed(b, right + n * PACK_BYTES);
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      multiply_add<T>(sums[i][n], a[i], {b[0], b[1]});
      multiply_add<T>(sums[i][n + 1], a[i], {b[2], b[3]});
    }
  }
}

// The warp's strip in registers, times all rows of `right`: dQ = dS k.
__device__ __forceinline__ void strip_product(float (&sums)[1][CHUNKS][4], const Halves& left, unsigned right) {
  const unsigned rows = right + place_in_16(PITCH);
#pragma unroll
  for (unsigned s = 0; s < STRIPS; ++s) {
    const unsigned a[1][4] = {{left[2 * s][0], left[2 * s][1], left[2 * s + 1][0], left[2 * s + 1][1]}};
    add_products<1>(sums, a, rows + s * 16 * PITCH);
  }
}

// COUNT strips of 16 columns of a square, as rows, times all rows of `right`: dV = P^T dout, dK = dS^T q.
template <unsigned COUNT>
__device__ __forceinline__ void columns_product(float (&sums)[COUNT][CHUNKS][4], unsigned square, unsigned strip,
                                                unsigned right) {
  const unsigned lane = threadIdx.x % WARP, rows = right + place_in_16(PITCH);
  const unsigned columns = square + (lane % 8 + lane / 16 * 8) * SQUARE_PITCH +
                           (2 * strip + lane / 8 % 2) * PACK_BYTES;
#pragma unroll
  for (unsigned s = 0; s < STRIPS; ++s) {
    unsigned a[COUNT][4];
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      load_matrices_transposed(a[i], columns + s * 16 * SQUARE_PITCH + 2 * i * PACK_BYTES);
    }
    add_products<COUNT>(sums, a, rows + s * 16 * PITCH);
  }
}

// dV or dK of COUNT strips of keys from `strip` on.
template <unsigned COUNT>
__device__ __forceinline__ void write_columns(unsigned room, T* to, unsigned square, unsigned strip, unsigned right,
                                              bool aligned) {
  float sums[COUNT][CHUNKS][4] = {};
  columns_product<COUNT>(sums, square, strip, right);
#pragma unroll
  for (unsigned i = 0; i < COUNT; ++i) write_strip(room, to, strip + i, sums[i], aligned);
}

// Where a window and head goes: dq, dk, dv, each at its first element.
struct Results {
  T *dq, *dk, *dv;
};
__device__ __forceinline__ Results results_at(T* dq, T* dk, T* dv, const Offsets& offsets) {
  if constexpr (PACKED != 0) dk = dq + BETWEEN, dv = dq + 2 * BETWEEN;
  return {dq + offsets.qkv, dk + offsets.qkv, dv + offsets.qkv};
}

// The backward of a window and head, from a full stage. squares: SQUARES of them; rooms: 16 rows for each warp.
// Every dS / sqrt(DIM) is given to `sums`.
template <typename Added, typename Sums>
__device__ __forceinline__ void backward(unsigned stage, unsigned squares, unsigned rooms, const Added& added,
                                         Sums& sums, const Results& to, bool aligned) {
  const unsigned warp = threadIdx.x / WARP;
  const unsigned dout = stage + DOUT * TENSOR_BYTES, q = stage + Q * TENSOR_BYTES;
  const unsigned k = stage + K * TENSOR_BYTES, v = stage + V * TENSOR_BYTES;
  const unsigned room = rooms + warp * 16 * PITCH;
  Halves halves;
  {
    Strip p, ds;
    strip_by_rows(p, q, k);
    if (SHORT) strip_by_rows(ds, dout, v);  // this early, tensor cores work on it during the softmax
    to_probabilities(p, added);
    round_strip(halves, p);
    share_strip(squares, halves);
    if constexpr (SHORT) {
      to_gradients(ds, FromRegisters{p});
    } else {
      // P and dS of so many keys don't fit into registers at a time.
      strip_by_rows(ds, dout, v);
      __syncwarp();
      to_gradients(ds, FromSquare{squares + warp * 16 * SQUARE_PITCH + place_in_16(SQUARE_PITCH)});
    }
    sums.add(ds);
    round_strip(halves, ds);
  }
  if (SHORT) share_strip(squares + SQUARE_BYTES, halves);
  float dq[1][CHUNKS][4] = {};
  strip_product(dq, halves, k);
  write_strip(room, to.dq, warp, dq[0], aligned);
  __syncthreads();
  if constexpr (SHORT && STRIPS % 2 == 0) {
    // Two strips of keys a warp: what it loads of dout or q serves both.
    const bool of_k = warp / STRIP_PAIRS == 1;
    write_columns<2>(room, of_k ? to.dk : to.dv, of_k ? squares + SQUARE_BYTES : squares, warp % STRIP_PAIRS * 2,
                     of_k ? q : dout, aligned);
  } else {
    write_columns<1>(room, to.dv, squares, warp, dout, aligned);
    if (!SHORT) {
      __syncthreads();
      share_strip(squares, halves);
      __syncthreads();
    }
    write_columns<1>(room, to.dk, squares + (SQUARES - 1) * SQUARE_BYTES, warp, q, aligned);
  }
}
