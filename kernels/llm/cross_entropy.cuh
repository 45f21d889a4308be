// What cross-entropy's kernels share: exponentials below the largest logit, their sums, and which row counts.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), IGNORED (the target that doesn't count, -100 unless told).
#pragma once

#ifndef SCALAR
#define SCALAR float
#endif
#ifndef IGNORED
#define IGNORED -100
#endif

#include "../rows/rows.cuh"

using T = SCALAR;

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LOWEST = -3.402823466e38f;
constexpr unsigned ANY_BLOCK = 512;  // threads of a block that has a row of any length

// 2^x in one instruction; results below the smallest normal number are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// e^(x - most). The difference comes first: it is exact where x is near `most`, however large both are.
__device__ __forceinline__ float exp_below(float x, float most) { return exp2_fast((x - most) * LOG2_E); }

// Exponentials below the number `most`, by one multiply-add and one instruction each: e^(x - most) = at(x) * scale. `most`
// times log2(e) is rounded, and `scale` takes back by how much, so that a result is as exact as that of exp_below(). Where
// `most` is so large that what is taken back isn't near 1, the difference comes first.
struct Below {
  float most, minus, scale;
  bool near;

  __device__ __forceinline__ explicit Below(float most)
      : most(most), minus(-(most * LOG2_E)), near(fabsf(most) < 32768.0f) {
    scale = near ? exp2_fast(-fmaf(most, LOG2_E, minus)) : 1.0f;
  }
  template <bool Near>
  __device__ __forceinline__ float at(float x) const {
    return Near ? exp2_fast(fmaf(x, LOG2_E, minus)) : exp_below(x, most);
  }
};

// Merges pairs: the largest of some logits, and the sum of e^(logit - largest). Where all logits are -inf the sum is
// zero: other threads may have larger ones.
__device__ __forceinline__ float base_of(float most) { return most == MINUS_INFINITY ? 0.0f : most; }
struct Exponentials {
  static __device__ __forceinline__ float identity(unsigned i) { return i == 0 ? MINUS_INFINITY : 0.0f; }
  static __device__ __forceinline__ void merge(float (&a)[2], const float (&b)[2]) {
    const float most = fmaxf(a[0], b[0]), base = base_of(most);
    a[1] = a[1] * exp_below(a[0], base) + b[1] * exp_below(b[0], base);
    a[0] = most;
  }
};

// The log of the sum of a row's exponentials, from the largest logit and the sum below it.
__device__ __forceinline__ float log_of(const float (&both)[2]) { return both[0] + logf(both[1]); }
// A row's loss: its target has the logit `of_target`.
__device__ __forceinline__ float loss_of(const float (&both)[2], float of_target) {
  return logf(both[1]) + (both[0] - of_target);
}
__device__ __forceinline__ bool counts(long long target) { return target != (IGNORED); }
constexpr float NO_NUMBER = __builtin_bit_cast(float, 0x7fc00000u);
// The loss of a row whose target is none of its columns: nothing where it is to be ignored; otherwise it is a mistake.
__device__ __forceinline__ float loss_without_target(long long target) { return counts(target) ? NO_NUMBER : 0.0f; }

// ---- Rows of any length and at any address, by a block. It keeps nothing of a row. The sum is below the largest logit
// so far; when a larger one comes, the sum is scaled down, which costs one more exponential for GROUP logits. The search
// starts from the lowest finite number, since -inf would lead to -inf - (-inf).
constexpr unsigned GROUP = 8;  // loads that a thread has under way

template <typename Element>
__device__ __forceinline__ void load_group(const Element* x, long long first, long long columns,
                                           float (&values)[GROUP]) {
#pragma unroll
  for (unsigned e = 0; e < GROUP; ++e) {
    const long long i = first + e * ANY_BLOCK;
    values[e] = i < columns ? to_float(x[i]) : MINUS_INFINITY;
  }
}
template <typename Element>
__device__ __forceinline__ void sum_online(BlockTeam<ANY_BLOCK>& team, const Element* x, long long columns,
                                           float (&both)[2]) {
  float most = LOWEST, sum = 0.0f, values[GROUP];
  for (long long first = threadIdx.x; first < columns; first += GROUP * ANY_BLOCK) {
    load_group(x, first, columns, values);
    float higher = most;
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) higher = fmaxf(higher, values[e]);
    sum *= exp_below(most, higher);
#pragma unroll
    for (unsigned e = 0; e < GROUP; ++e) sum += exp_below(values[e], higher);
    most = higher;
  }
  both[0] = most, both[1] = sum;
  team.template all<Exponentials>(both);
}

// ---- Rows in registers.

// The largest of a pack's elements, two halves at a time. NaN is ignored, as fmaxf does.
__device__ __forceinline__ float largest(const Pack<float>& pack) {
  return fmaxf(fmaxf(pack.at[0], pack.at[1]), fmaxf(pack.at[2], pack.at[3]));
}
template <typename Two>
__device__ __forceinline__ float largest_of_pairs(const Two (&pairs)[4]) {
  const Two most = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(to_float(most.x), to_float(most.y));
}
__device__ __forceinline__ float largest(const Pack<__half>& pack) {
  return largest_of_pairs(reinterpret_cast<const __half2(&)[4]>(pack));
}
__device__ __forceinline__ float largest(const Pack<__nv_bfloat16>& pack) {
  return largest_of_pairs(reinterpret_cast<const __nv_bfloat162(&)[4]>(pack));
}

template <bool Near, typename Row>
__device__ __forceinline__ float sum_chunks(const Below& below, const typename Row::Chunk (&chunks)[Row::CHUNKS]) {
  float sum = 0.0f, values[Row::CHUNK];
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    widen(chunks[j], values);
#pragma unroll
    for (unsigned e = 0; e < Row::elements(j); ++e) sum += below.template at<Near>(values[e]);
  }
  return sum;
}
// The largest logit of a row and the sum below it, from a row in registers, in which what a thread lacks is -inf. A warp
// takes the largest of its own logits, so that the warps of a team have to exchange numbers only once.
template <typename Row>
__device__ __forceinline__ void sum_registers(const Row& row, const typename Row::Chunk (&chunks)[Row::CHUNKS],
                                              float (&both)[2]) {
  float most[1] = {MINUS_INFINITY}, sum[1];
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) most[0] = fmaxf(most[0], largest(chunks[j]));
  row.team.template in_warp<Max>(most);
  const Below below(base_of(most[0]));
  sum[0] = below.near ? sum_chunks<true, Row>(below, chunks) : sum_chunks<false, Row>(below, chunks);
  row.team.template in_warp<Sum>(sum);
  both[0] = most[0], both[1] = sum[0] * below.scale;
  row.team.template across_warps<Exponentials>(both);
}
