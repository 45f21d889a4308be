// Attention of one new token of each sequence to all tokens of the sequence, whose keys and values are kept: softmax(q k^T
// D^-1/2) v. q is (B, H, D), keys and values are (B, G, T, D); H / G heads of queries share a head of keys and values.
//
// Memory bounds it: each key and value is read once, 2 B G T D elements, and used for H / G heads. A context of 32768
// tokens of Llama 1B has 67 MB a layer, 14 us on an H200; one of 128 tokens has 0.3 MB, which only latency counts for.
//
// 1. A warp has a head of queries, and takes one key after the other (`fused`). Keys are read H / G times, and there are
//    no more warps than heads: 32 of them for one sequence.
// 2. A block has a head of keys with all its queries, and a part of the tokens (`tuned`). A warp takes 16 keys and values
//    at a time, as the tensor cores multiply them: keys, and then elements of values, are rows; up to eight heads of
//    queries are columns. AHEAD times 16 keys and values are under way to shared memory, 16 bytes a copy
//    (decode_tokens.cuh). Each warp has a softmax of its own (decode_softmax.cuh); at the end the warps of a block meet
//    in shared memory. Parts of a sequence meet in memory: the block that ends last adds them up, all of its threads at
//    once, since nothing but the memory's latency counts there.
//
// As a kernel of a chain (dependent.cuh) it asks for the first keys and values before the kernel in front has ended, but
// for the last token's, which that kernel makes.
//
// Macros: SCALAR (__half, __nv_bfloat16), HEAD (D), and of `tuned` WARPS (of a block), AHEAD, BLOCKS (of a
// multiprocessor at a time).

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __nv_bfloat16
#endif
#ifndef HEAD
#define HEAD 64
#endif

#include "../include/number.cuh"
#include "decode_softmax.cuh"
#ifdef WARPS
#include "decode_tokens.cuh"
#endif

// The tensors. scale: of scores, times log2(e), so that powers of 2 do.
struct Attention {
  const T *q, *keys, *values;
  T* y;
  unsigned heads, groups, tokens;
  float scale;

  __device__ __forceinline__ unsigned heads_of_group() const { return heads / groups; }
  // Where keys or values of head `group` begin; groups are counted through all sequences.
  __device__ __forceinline__ long long begin(unsigned group) const {
    return static_cast<long long>(group) * tokens * HEAD;
  }
};

#ifndef WARPS

// 1. A warp has a head.
constexpr unsigned PARTS = (HEAD + WARP - 1) / WARP;  // elements of a lane

extern "C" __global__ void __launch_bounds__(256)
    decode_attention_fused(const T* q, const T* keys, const T* values, T* y, unsigned sequences, unsigned heads,
                           unsigned groups, unsigned tokens, float scale) {
  const Attention all{q, keys, values, y, heads, groups, tokens, scale};
  const unsigned head = thread_index<unsigned>() / WARP, lane = threadIdx.x % WARP;
  let_next_begin();
  wait_for_before();
  if (head >= sequences * heads) return;
  const long long own = static_cast<long long>(head) * HEAD;
  const long long begin = all.begin(head / all.heads_of_group());
  float query[PARTS], sums[PARTS] = {}, largest = NONE, sum = 0.0f;
#pragma unroll
  for (unsigned p = 0; p < PARTS; ++p) {
    query[p] = lane + p * WARP < HEAD ? to_float(load_fresh(q + own + lane + p * WARP)) * scale : 0.0f;
  }
#pragma unroll 1
  for (unsigned token = 0; token < tokens; ++token) {
    const long long row = begin + static_cast<long long>(token) * HEAD + lane;
    float score = 0.0f;
#pragma unroll
    for (unsigned p = 0; p < PARTS; ++p) {
      if (lane + p * WARP < HEAD) score = fmaf(query[p], to_float(load_fresh(keys + row + p * WARP)), score);
    }
    score = sum_of(score);
    const float before = largest;
    largest = fmaxf(largest, score);
    const float kept = power_of_2(before - largest), share = power_of_2(score - largest);
    sum = fmaf(sum, kept, share);
#pragma unroll
    for (unsigned p = 0; p < PARTS; ++p) {
      if (lane + p * WARP < HEAD) sums[p] = fmaf(sums[p], kept, share * to_float(load_fresh(values + row + p * WARP)));
    }
  }
#pragma unroll
  for (unsigned p = 0; p < PARTS; ++p) {
    if (lane + p * WARP < HEAD) y[own + lane + p * WARP] = T(sums[p] / sum);
  }
}

#else

// 2. Warps share tokens, and up to eight heads of queries are multiplied at a time.

// Parts of sequences, in memory, and how many of each group's parts have ended: zeros before the kernel and after it.
struct Parts {
  float* sums;     // [group][part][head][HEAD]
  float2* extents;  // [group][part][head]: the largest score and the sum
  unsigned* ended;
  unsigned count;
};

// Whether the block's part of a group is the last one to end. Then the block sees what the others wrote. One thread's
// release is enough for a block whose threads have met.
__device__ __forceinline__ bool ends_last(unsigned* ended, unsigned count) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(ended)), "r"(1u)
                 : "memory");
    is_last = before == count - 1;
    if (is_last) *ended = 0;
  }
  __syncthreads();
  return is_last;
}

// What the parts of each head are multiplied with, by a warp a head.
__device__ __forceinline__ void share_parts(float (&factors)[HEADS][MOST_PARTS], const float2* extents,
                                            unsigned of_group, unsigned count, unsigned heads) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll 1
  for (unsigned head = threadIdx.x / WARP; head < heads; head += WARPS) {
    float2 own[MOST_PARTS / WARP];
    float largest = NONE, sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < MOST_PARTS / WARP; ++i) {
      const unsigned part = lane + i * WARP;
      own[i] = part < count ? load_fresh(extents + part * of_group + head) : make_float2(NONE, 0.0f);
      largest = fmaxf(largest, own[i].x);
    }
    largest = largest_of(largest);
#pragma unroll
    for (unsigned i = 0; i < MOST_PARTS / WARP; ++i) {
      own[i].x = power_of_2(own[i].x - largest);
      sum = fmaf(own[i].y, own[i].x, sum);
    }
    sum = sum_of(sum);
#pragma unroll
    for (unsigned i = 0; i < MOST_PARTS / WARP; ++i) factors[head][lane + i * WARP] = own[i].x / sum;
  }
}

// Adds up the parts of a group. A thread has four elements of some of the parts; their threads meet in `meeting`.
__device__ __forceinline__ void meet(const Attention& all, const Parts& parts, float4* meeting, unsigned group,
                                     unsigned first_head, unsigned heads, T* y) {
  __shared__ float factors[HEADS][MOST_PARTS];
  constexpr unsigned AT_ONCE = 8;  // parts that a thread asks for before it needs one
  const unsigned of_group = all.heads_of_group();
  const long long begin = static_cast<long long>(group) * parts.count * of_group + first_head;
  const unsigned columns = heads * HEAD / 4, across = min(columns, THREADS), teams = THREADS / across;
  const unsigned team = threadIdx.x / across;
#pragma unroll 1
  for (unsigned column = threadIdx.x % across, first = 0; first < columns; first += across, column += across) {
    const float4* from = reinterpret_cast<const float4*>(parts.sums + begin * HEAD) + column;
    const float* factor = factors[min(column * 4 / HEAD, heads - 1)];
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (unsigned part = team; part - team < parts.count; part += AT_ONCE * teams) {
      float4 own[AT_ONCE];
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        const unsigned p = part + i * teams;
        own[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // an infinity times the share of no part would be no number
        if (p < parts.count && column < columns) {
          own[i] = load_fresh(from + static_cast<long long>(p) * of_group * (HEAD / 4));
        }
      }
      if (first == 0 && part == team) {
        share_parts(factors, parts.extents + begin, of_group, parts.count, heads);
        __syncthreads();
      }
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        const unsigned p = part + i * teams;
        const float share = p < parts.count ? factor[p] : 0.0f;
        sum.x = fmaf(own[i].x, share, sum.x), sum.y = fmaf(own[i].y, share, sum.y);
        sum.z = fmaf(own[i].z, share, sum.z), sum.w = fmaf(own[i].w, share, sum.w);
      }
    }
    meeting[threadIdx.x] = sum;
    __syncthreads();
    if (team == 0 && column < columns) {
#pragma unroll 1
      for (unsigned other = 1; other < teams; ++other) {
        const float4 own = meeting[threadIdx.x + other * across];
        sum.x += own.x, sum.y += own.y, sum.z += own.z, sum.w += own.w;
      }
      *reinterpret_cast<uint2*>(y + column * 4) =
          make_uint2(rounded_pair<T>(sum.x, sum.y), rounded_pair<T>(sum.z, sum.w));
    }
    __syncthreads();
  }
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Blocks: parts of each group; in the second dimension, eight heads of queries of a group each. tokens_of_part: a
// multiple of KEYS.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    decode_attention_tuned(const T* q, const T* keys, const T* values, T* y, float* sums_of_parts,
                           float2* extents_of_parts, unsigned* ended, unsigned heads, unsigned groups, unsigned tokens,
                           unsigned count, unsigned tokens_of_part, float scale) {
  alignas(128) extern __shared__ uint4 dynamic[];
  __shared__ alignas(16) Meeting meeting;
  const Attention all{q, keys, values, y, heads, groups, tokens, scale};
  const Parts parts{sums_of_parts, extents_of_parts, ended, count};
  const unsigned group = blockIdx.x / count, part = blockIdx.x % count, lane = threadIdx.x % WARP;
  const unsigned of_group = all.heads_of_group(), first_head = blockIdx.y * HEADS;
  const unsigned here = min(HEADS, of_group - first_head);
  const unsigned end = min(tokens, (part + 1) * tokens_of_part), last = tokens - 1;
  const T *const own_keys = keys + all.begin(group), *const own_values = values + all.begin(group);
  // The place in a tensor (B, H, D), in elements: groups of all sequences follow each other.
  const long long own = (static_cast<long long>(group) * of_group + first_head) * HEAD;

  unsigned first = part * tokens_of_part + threadIdx.x / WARP * KEYS;
  const long long begin = static_cast<long long>(first) * HEAD;
  Coming coming(own_keys + begin, own_values + begin, first, end, last);
  uint4* const own_ring = dynamic + threadIdx.x / WARP * (AHEAD * SLOT / PACK_BYTES);
  const unsigned ring = shared_address(own_ring);
  let_next_begin();
#pragma unroll 1
  for (unsigned r = 0; r < AHEAD; ++r) {
    if (r) close_copies();
    coming.copy_step<BUT_LAST>(ring + r * SLOT);
  }
  wait_for_before();

  // Column lane / 4 of a product's operand: two neighbours of each eight elements.
  unsigned query[TILES][2] = {};
  if (lane / 4 < here) {
    const unsigned* const from = reinterpret_cast<const unsigned*>(q + own + lane / 4 * HEAD) + lane % 4;
#pragma unroll
    for (unsigned i = 0; i < PACKS; ++i) query[i / 2][i % 2] = load_fresh(from + i * (SIZE / 2));
  }
#pragma unroll 1
  for (unsigned r = 0; r < AHEAD; ++r) {
    copy_last(own_ring + r * (SLOT / PACK_BYTES), own_keys, own_values, first + r * STRIDE, end, last);
  }
  close_copies();
  Softmax softmax;
  const Places places;
  unsigned slot = ring;
#pragma unroll 1
  for (; first < end; first += STRIDE) {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    const Step step = take_step(slot, places);
    coming.copy_step<ALL>(slot);
    close_copies();
    softmax.add(step, query, end - first, scale);
    slot = slot == ring + (AHEAD - 1) * SLOT ? ring : slot + SLOT;
  }
  meeting.put(softmax, here);
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < here * HEAD; i += THREADS) {
    const unsigned head = i / HEAD, element = i % HEAD;
    float largest = NONE, sum = 0.0f, result = 0.0f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) largest = fmaxf(largest, meeting.largest[w][head]);
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) {
      const float factor = power_of_2(meeting.largest[w][head] - largest);
      sum = fmaf(meeting.sum[w][head], factor, sum);
      result = fmaf(meeting.sums[w][head][element], factor, result);
    }
    if (count == 1) {
      y[own + i] = T(result / sum);
    } else {
      const long long place = (static_cast<long long>(blockIdx.x) * of_group + first_head) * HEAD + i;
      parts.sums[place] = result;
      if (element == 0) parts.extents[place / HEAD] = make_float2(largest, sum);
    }
  }
  if (count == 1 || !ends_last(parts.ended + group * gridDim.y + blockIdx.y, count)) return;
  meet(all, parts, reinterpret_cast<float4*>(&meeting), group, first_head, here, y + own);
}
#endif
