// Rotary position embeddings (Su et al., RoFormer, 2021) of queries and keys, in one launch: each pair of elements of a
// head is rotated by an angle, which depends on the token's position and on the pair.
//
//   first' = first * cos - second * sin,  second' = second * cos + first * sin
//
// There are two conventions. Halves: element i of a head and element i + D / 2 are a pair, as in transformers' Llama.
// Interleaved: elements 2i and 2i + 1 are, as in Meta's Llama and in the paper. The backward rotates by the opposite angle.
// cos and sin are tables of floats, (positions, D / 2), and each token has a position of its own: sequences that begin
// somewhere else, as in decoding, are no other case. Queries and keys may have different numbers of heads.
//
// Memory bounds it: queries and keys are read once and written once. Torch's functions make copies of halves, products and
// sums of them, which move about five times this, for queries and keys one after the other. One kernel with a pair a
// thread reads a cosine and a sine for each pair, as many bytes as the pair of floats itself, though from the L1 (1). A
// token's heads all have the same angles. So a thread takes the same place in several heads of a token: it loads its
// angles once, and has packs of 16 bytes of all these heads under way (2).
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INTERLEAVED (0 or 1), BACKWARD (0 or 1: the opposite angle), and the
// macros of `tuned`.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 T8192-Q32-K8-D128-P8192
// pairs=interleaved,way=forward.
// At least 88.15 MB are read and 83.89 MB written. The ceiling is 42.11 us, by memory.
//   fused: one kernel for both, a pair a thread; any address
//   tuned: 16 bytes an access; a thread has one place of up to four heads, and loads its angles once
//       43.46 us   96.9% of ceiling  moves 172.0 MB

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INTERLEAVED
#define INTERLEAVED 0
#endif
#ifndef BACKWARD
#define BACKWARD 0
#endif

#include "../include/fastdiv.cuh"
#include "../rows/rows.cuh"

using T = SCALAR;

[[maybe_unused]] constexpr unsigned BLOCK = 256;  // threads; as in harness/collection/ops/elementwise.py

__device__ __forceinline__ void rotate(float& first, float& second, float cosine, float sine) {
  if (BACKWARD) sine = -sine;
  const float before = first;
  first = fmaf(before, cosine, -(second * sine));
  second = fmaf(second, cosine, before * sine);
}

// A token's heads: those of the queries, and behind them those of the keys. Each tensor is (tokens, heads, D).
struct Heads {
  const T *q, *k;
  T *q_out, *k_out;
  unsigned of_q, of_k, elements;  // heads of a token; elements of a head

  __device__ __forceinline__ unsigned all() const { return of_q + of_k; }
  __device__ __forceinline__ long long begin(long long token, unsigned head) const {
    return (head < of_q ? token * of_q + head : token * of_k + (head - of_q)) * elements;
  }
  __device__ __forceinline__ const T* from(long long token, unsigned head) const {
    return (head < of_q ? q : k) + begin(token, head);
  }
  __device__ __forceinline__ T* to(long long token, unsigned head) const {
    return (head < of_q ? q_out : k_out) + begin(token, head);
  }
};

#ifndef LANES

// 1. A pair a thread, at any address.
extern "C" __global__ void __launch_bounds__(BLOCK)
    rope_fused(const T* __restrict__ q, const T* __restrict__ k, const float* __restrict__ cosines,
               const float* __restrict__ sines, const long long* __restrict__ positions, T* __restrict__ q_out,
               T* __restrict__ k_out, long long pairs, unsigned heads_of_q, unsigned heads_of_k, unsigned half,
               unsigned long long half_multiplier, unsigned half_shift, unsigned long long heads_multiplier,
               unsigned heads_shift) {
  const long long i = thread_index();
  if (i >= pairs) return;
  const Heads heads{q, k, q_out, k_out, heads_of_q, heads_of_k, 2 * half};
  const long long row = fast_divide<unsigned long long>(i, half_multiplier, half_shift);
  const long long token = fast_divide<unsigned long long>(row, heads_multiplier, heads_shift);
  const unsigned pair = static_cast<unsigned>(i - row * half), head = static_cast<unsigned>(row - token * heads.all());
  const unsigned one = INTERLEAVED ? 2 * pair : pair, other = INTERLEAVED ? one + 1 : one + half;
  const T* from = heads.from(token, head);
  const long long angle = positions[token] * half + pair;
  float first = to_float(from[one]), second = to_float(from[other]);
  rotate(first, second, cosines[angle], sines[angle]);
  T* to = heads.to(token, head);
  to[one] = T(first);
  to[other] = T(second);
}

#else

// 2. Packs of 16 bytes. A head's pairs fill the packs of LANES threads; GROUPS such teams share the heads of a token, EACH
//    heads each, and TOKENS tokens share a block. Where halves are pairs, a thread has a pack of each half; otherwise a
//    pack has whole pairs. Halves of heads are whole packs (heads, where pairs are interleaved), tensors are aligned.
//
//    Macros: LANES, GROUPS, EACH, TOKENS.
constexpr unsigned SIZE = Pack<T>::SIZE, PACKS = INTERLEAVED ? 1 : 2, ANGLES = INTERLEAVED ? SIZE / 2 : SIZE;
constexpr unsigned THREADS = (LANES * GROUPS * TOKENS + WARP - 1) / WARP * WARP;

// Neighbouring floats, from an address that is aligned to all of them, or to 16 bytes.
__device__ __forceinline__ void load_angles(const float* __restrict__ from, float (&angles)[ANGLES]) {
  if constexpr (ANGLES == 2) {
    const float2 two = __ldg(reinterpret_cast<const float2*>(from));
    angles[0] = two.x, angles[1] = two.y;
  } else {
#pragma unroll
    for (unsigned e = 0; e < ANGLES; e += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + e));
      angles[e] = four.x, angles[(e + 1) % ANGLES] = four.y;
      angles[(e + 2) % ANGLES] = four.z, angles[(e + 3) % ANGLES] = four.w;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_tuned(const T* __restrict__ q, const T* __restrict__ k, const float* __restrict__ cosines,
               const float* __restrict__ sines, const long long* __restrict__ positions, T* __restrict__ q_out,
               T* __restrict__ k_out, long long tokens, unsigned heads_of_q, unsigned heads_of_k) {
  constexpr unsigned HALF = LANES * ANGLES;
  const unsigned lane = threadIdx.x % LANES, group = threadIdx.x / LANES % GROUPS;
  const unsigned in_block = threadIdx.x / (LANES * GROUPS);
  const long long token = static_cast<long long>(blockIdx.x) * TOKENS + in_block;
  if (in_block >= TOKENS || token >= tokens) return;
  const Heads heads{q, k, q_out, k_out, heads_of_q, heads_of_k, 2 * HALF};
  const unsigned own = lane * SIZE;  // of a head, or of each of its halves
  Pack<T> packs[EACH][PACKS];
#pragma unroll
  for (unsigned h = 0; h < EACH; ++h) {
    const unsigned head = group + h * GROUPS;
    if (head >= heads.all()) break;
    const T* from = heads.from(token, head) + own;
#pragma unroll
    for (unsigned p = 0; p < PACKS; ++p) packs[h][p] = load_pack(from + p * HALF);
  }
  float cosine[ANGLES], sine[ANGLES];
  const long long angle = positions[token] * HALF + lane * ANGLES;
  load_angles(cosines + angle, cosine);
  load_angles(sines + angle, sine);
#pragma unroll
  for (unsigned h = 0; h < EACH; ++h) {
    const unsigned head = group + h * GROUPS;
    if (head >= heads.all()) break;
    float values[PACKS][SIZE];
#pragma unroll
    for (unsigned p = 0; p < PACKS; ++p) widen(packs[h][p], values[p]);
#pragma unroll
    for (unsigned a = 0; a < ANGLES; ++a) {
      if constexpr (INTERLEAVED) {
        rotate(values[0][2 * a], values[0][2 * a + 1], cosine[a], sine[a]);
      } else {
        rotate(values[0][a], values[PACKS - 1][a], cosine[a], sine[a]);
      }
    }
    T* to = heads.to(token, head) + own;
#pragma unroll
    for (unsigned p = 0; p < PACKS; ++p) {
      Pack<T> result;
      narrow(values[p], result);
      store_pack(to + p * HALF, result);
    }
  }
}
#endif
