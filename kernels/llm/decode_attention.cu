// Attention of one new token of each sequence to all tokens of the sequence, whose keys and values are kept: softmax(q k^T
// D^-1/2) v. q is (B, H, D), keys and values are (B, G, T, D); H / G heads of queries share a head of keys and values.
//
// Memory bounds it: each key and value is read once, 2 B G T D elements, and used for H / G heads. A context of 32768
// tokens of Llama 1B has 67 MB a layer, 14 us on an H200; one of 128 tokens has 0.3 MB, which only latency counts for.
//
// 1. A warp has a head of queries, and takes one key after the other (`fused`). Keys are read H / G times, and there are
//    no more warps than heads: 32 of them for one sequence.
// 2. A block has a head of keys with all its queries, and a part of the tokens (`tuned`). A warp takes 16 keys and values
//    at a time, as the tensor cores multiply them: up to eight heads of queries are rows, keys are columns. The order of
//    elements in a product doesn't matter if both operands have the same, so keys and values come from memory as they
//    are, 16 bytes a copy. AHEAD times 16 of them are under way to shared memory (decode_tokens.cuh). Each warp has a softmax of its own, with the largest score so far; at the end the warps of a block meet in
//    shared memory. Parts of a sequence meet in memory: the block that ends last adds them up.
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
    score = sum_of<WARP>(score);
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
  float* extents;  // [group][part][head][2]: the largest score and the sum
  unsigned* ended;
  unsigned count;
};

// Adds up the parts of a group, by the block that ends last.
__device__ __forceinline__ void meet(const Attention& all, const Parts& parts, unsigned group, unsigned first_head,
                                     unsigned heads, long long y_begin) {
  __shared__ float factors[HEADS][MOST_PARTS];
  const unsigned of_group = all.heads_of_group(), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const long long begin = static_cast<long long>(group) * parts.count;
#pragma unroll 1
  for (unsigned head = warp; head < heads; head += WARPS) {
    float largest = NONE, sum = 0.0f;
    for (unsigned part = lane; part < parts.count; part += WARP) {
      largest = fmaxf(largest, load_fresh(parts.extents + ((begin + part) * of_group + first_head + head) * 2));
    }
    largest = largest_of<WARP>(largest);
    for (unsigned part = lane; part < parts.count; part += WARP) {
      const float* extent = parts.extents + ((begin + part) * of_group + first_head + head) * 2;
      const float factor = power_of_2(load_fresh(extent) - largest);
      factors[head][part] = factor;
      sum = fmaf(load_fresh(extent + 1), factor, sum);
    }
    sum = sum_of<WARP>(sum);
    for (unsigned part = lane; part < parts.count; part += WARP) factors[head][part] /= sum;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < heads * HEAD; i += THREADS) {
    const float* from = parts.sums + (begin * of_group + first_head) * HEAD + i;
    float result = 0.0f;
#pragma unroll 8
    for (unsigned part = 0; part < parts.count; ++part) {
      result = fmaf(load_fresh(from + static_cast<long long>(part) * of_group * HEAD), factors[i / HEAD][part], result);
    }
    all.y[y_begin + i] = T(result);
  }
}

// Asks for a range of memory to come to the L2: whole 16 bytes from an aligned address. Before compute capability 9.0
// nothing does that for a range.
__device__ __forceinline__ void fetch_to_l2(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Blocks: parts of each group; in the second dimension, eight heads of queries of a group each. tokens_of_part: a
// multiple of KEYS.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    decode_attention_tuned(const T* q, const T* keys, const T* values, T* y, float* sums_of_parts,
                           float* extents_of_parts, unsigned* ended, unsigned heads, unsigned groups, unsigned tokens,
                           unsigned count, unsigned tokens_of_part, float scale) {
  extern __shared__ uint4 dynamic[];
  __shared__ Meeting meeting;
  __shared__ bool is_last;
  const Attention all{q, keys, values, y, heads, groups, tokens, scale};
  const Parts parts{sums_of_parts, extents_of_parts, ended, count};
  const unsigned group = blockIdx.x / count, part = blockIdx.x % count, lane = threadIdx.x % WARP;
  const unsigned of_group = all.heads_of_group(), first_head = blockIdx.y * HEADS;
  const unsigned here = min(HEADS, of_group - first_head);
  const unsigned end = min(tokens, (part + 1) * tokens_of_part);
  const Kept kept{keys + all.begin(group), values + all.begin(group), end, tokens - 1};
  // The place in a tensor (B, H, D), in elements: groups of all sequences follow each other.
  const long long own = (static_cast<long long>(group) * of_group + first_head) * HEAD;

  constexpr unsigned STRIDE = WARPS * KEYS;
  unsigned first = part * tokens_of_part + threadIdx.x / WARP * KEYS;
  uint4* const ring = dynamic + threadIdx.x / WARP * (AHEAD * SLOT);
  let_next_begin();
#pragma unroll
  for (unsigned r = 0; r < AHEAD; ++r) {
    if (r) close_copies();
    copy_step<BUT_LAST>(ring + r * SLOT, kept, first + r * STRIDE);
  }
  if (threadIdx.x == 0) {
    const unsigned begin = part * tokens_of_part, bytes = min(end - begin, MOST_FETCHED) * HEAD * sizeof(T);
    fetch_to_l2(kept.keys + static_cast<long long>(begin) * HEAD, bytes);
    fetch_to_l2(kept.values + static_cast<long long>(begin) * HEAD, bytes);
  }
  wait_for_before();

  uint4 query[CHUNKS];
#pragma unroll
  for (unsigned j = 0; j < CHUNKS; ++j) {
    query[j] = make_uint4(0, 0, 0, 0);
    if (lane / 4 < here && Kept::of_key(j) < HEAD) {
      query[j] = load_fresh(reinterpret_cast<const uint4*>(q + own + lane / 4 * HEAD + Kept::of_key(j)));
    }
  }
  const T *const key = kept.keys + Kept::place(kept.last, 0), *const value = kept.values + Kept::place(kept.last, 0);
#pragma unroll 1
  for (unsigned r = 0; r < AHEAD; ++r) {
    copy_last(ring + r * SLOT, kept, first + r * STRIDE, key, value,
              [](const uint4* from) { return load_fresh(from); });
  }
  close_copies();
  Softmax softmax;
  unsigned slot = 0;
#pragma unroll 1
  for (; first < end; first += STRIDE) {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    uint4* const place = ring + slot * SLOT;
    const Step step = take_step(place);
    copy_step<ALL>(place, kept, first + AHEAD * STRIDE);
    close_copies();
    softmax.add(step, query, first, end, scale);
    slot = slot + 1 == AHEAD ? 0 : slot + 1;
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
      if (element == 0) parts.extents[place / HEAD * 2] = largest, parts.extents[place / HEAD * 2 + 1] = sum;
    }
  }
  if (count == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* own_count = parts.ended + group * gridDim.y + blockIdx.y;
    is_last = atomicAdd(own_count, 1u) == count - 1;
    if (is_last) *own_count = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  meet(all, parts, group, first_head, here, own);
}
#endif
