// Queries, keys and values of few new tokens, as in decoding: an RMSNorm, three products, and RoPE of queries and keys, in
// one kernel. x is (M, E), the weights are (H D, E), (G D, E) and (G D, E): H heads of queries, and G of keys and of values.
//
// Memory bounds it: the weights come once. linear_few_rows.cu has the story of the product; this kernel has another end
// and takes rows of three weights. RoPE turns element i of a head together with element i + D / 2, as transformers' Llama
// has it. So these two are a pair of rows of a tile, and both sums are in one thread (few_rows.cuh). Keys and values go
// where they belong in a cache: `stride` elements lie from a head to the next.
//
// 1. A warp makes the sums of a pair (`fused`). 2. The tensor cores do (`tuned`).
//
// Macros: SCALAR (__half, __nv_bfloat16), and those of `tuned`: as in few_rows.cuh.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __nv_bfloat16
#endif

#include "few_rows.cuh"

// q: (M, heads, 2 half). k, v: `groups` heads of each row of x, `stride` elements apart. cosines, sines: (M, half).
struct Projections {
  const T *q_weight, *k_weight, *v_weight;
  const float *cosines, *sines;
  T *q, *k, *v;
  unsigned heads, groups, half, columns;
  long long stride;

  struct Ready {
    float cosine, sine;
  };

  // Heads are counted through: those of queries, of keys, of values.
  __device__ __forceinline__ unsigned pairs() const { return (heads + 2 * groups) * half; }
  __device__ __forceinline__ const T* row(unsigned pair, unsigned which) const {
    const unsigned existing = min(pair, pairs() - 1), head = existing / half, element = existing % half + which * half;
    const bool is_query = head < heads, is_key = head < heads + groups;
    const T* weight = is_query ? q_weight : is_key ? k_weight : v_weight;
    const unsigned before = is_query ? 0 : is_key ? heads : heads + groups;
    return weight + static_cast<long long>((head - before) * 2 * half + element) * columns;
  }
  __device__ __forceinline__ Ready ready(unsigned n, unsigned pair) const {
    if (pair / half >= heads + groups) return {};
    const long long angle = static_cast<long long>(n) * half + pair % half;
    return {__ldg(cosines + angle), __ldg(sines + angle)};
  }
  __device__ __forceinline__ void store(unsigned n, unsigned pair, const float (&sums)[2], const Ready& ready) const {
    const unsigned head = pair / half, element = pair % half;
    if (pair >= pairs()) return;
    T* to = q + (static_cast<long long>(n) * heads + head) * 2 * half;
    if (head >= heads) {
      const bool is_key = head < heads + groups;
      to = (is_key ? k : v) + (static_cast<long long>(n) * groups + head - (is_key ? heads : heads + groups)) * stride;
    }
    // Values aren't turned, not even by an angle of zero: zero times the other element's sum is a NaN if that is infinite.
    const bool turned = head < heads + groups;
    to[element] = T(turned ? fmaf(sums[0], ready.cosine, -(sums[1] * ready.sine)) : sums[0]);
    to[element + half] = T(turned ? fmaf(sums[1], ready.cosine, sums[0] * ready.sine) : sums[1]);
  }
};

#ifndef ROWS
extern "C" __global__ void __launch_bounds__(256)
    qkv_few_rows_fused(const T* x, const T* gamma, const T* q_weight, const T* k_weight, const T* v_weight,
                       const float* cosines, const float* sines, T* q, T* k, T* v, unsigned rows, unsigned columns,
                       unsigned heads, unsigned groups, unsigned half, long long stride, float epsilon) {
  const Projections layer{q_weight, k_weight, v_weight, cosines, sines, q, k, v, heads, groups, half, columns, stride};
  multiply_plainly<true>(layer, Input{x, gamma, rows, columns, epsilon});
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    qkv_few_rows_tuned(const T* x, const T* gamma, const T* q_weight, const T* k_weight, const T* v_weight,
                       const float* cosines, const float* sines, T* q, T* k, T* v, unsigned rows, unsigned columns,
                       unsigned heads, unsigned groups, unsigned half, long long stride, float epsilon) {
  const Projections layer{q_weight, k_weight, v_weight, cosines, sines, q, k, v, heads, groups, half, columns, stride};
  multiply_few<true>(layer, Input{x, gamma, rows, columns, epsilon});
}
#endif
