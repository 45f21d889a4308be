// Attention of the step's token, for decode_step.cu: as in decode_attention.cu, but keys and values of a warp's next
// steps are under way to its registers, since shared memory is full of weights.
#pragma once

#include "decode_softmax.cuh"
#include "decode_words.cuh"

constexpr unsigned MOST_OF_GROUP = 64;            // parts of a group's tokens
constexpr unsigned STEPS = WARPS > 8 ? 1 : 2;     // of a warp that are under way: registers have no room for more

// How blocks share the tokens: each of the first groups * parts blocks has a part of a group's. Sums and extents of parts
// are (group, part, head) and (group, part, head, HEAD).
struct Sharing {
  unsigned parts, tokens_of_part;
  float *sums, *extents;
  unsigned* ended;  // parts of each group: zeros before the kernel and after it
};

// What a block has in shared memory meanwhile. `token`: the new key and value, which are in the cache only later.
struct AttentionMemory {
  alignas(16) Meeting meeting;
  alignas(16) T query[HEADS * HEAD];
  alignas(16) T token[2][HEAD];
  float factors[HEADS][MOST_OF_GROUP];
  bool is_last;
};

// Keys and values of 16 tokens, from the cache or, for the last token, from where `token` is.
__device__ __forceinline__ void load_step(Step& step, const Kept& kept, const T (*token)[HEAD], unsigned first) {
  const auto pack = [&](const T* from, unsigned which, unsigned place, unsigned element) {
    const bool there = place < kept.end && element < HEAD;
    const T* at = place == kept.last ? token[which] + element : from + Kept::place(place, element);
    return there ? *reinterpret_cast<const uint4*>(at) : uint4{};
  };
#pragma unroll
  for (unsigned j = 0; j < CHUNKS; ++j) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) step.keys[j][i] = pack(kept.keys, 0, Kept::key(first, i), Kept::of_key(j));
  }
#pragma unroll
  for (unsigned j = 0; j < WIDE; ++j) {
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) step.values[j][i] = pack(kept.values, 1, Kept::value(first, i), Kept::of_value(j));
  }
}

// Hands out the sums over all parts of a group, by the block that ends last.
__device__ __forceinline__ void add_parts(const Sharing& all, AttentionMemory& memory, unsigned group, unsigned heads,
                                          Word* words, unsigned flag) {
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, begin = group * all.parts;
#pragma unroll 1
  for (unsigned head = warp; head < heads; head += WARPS) {
    float largest = NONE, sum = 0.0f;
    for (unsigned part = lane; part < all.parts; part += WARP) {
      largest = fmaxf(largest, load_fresh(all.extents + ((begin + part) * heads + head) * 2));
    }
    largest = largest_of<WARP>(largest);
    for (unsigned part = lane; part < all.parts; part += WARP) {
      const float* extent = all.extents + ((begin + part) * heads + head) * 2;
      const float factor = power_of_2(load_fresh(extent) - largest);
      memory.factors[head][part] = factor;
      sum = fmaf(load_fresh(extent + 1), factor, sum);
    }
    sum = sum_of<WARP>(sum);
    for (unsigned part = lane; part < all.parts; part += WARP) memory.factors[head][part] /= sum;
  }
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < heads * HEAD; i += THREADS) {
    float result = 0.0f;
#pragma unroll 8
    for (unsigned part = 0; part < all.parts; ++part) {
      result = fmaf(load_fresh(all.sums + (begin + part) * heads * HEAD + i), memory.factors[i / HEAD][part], result);
    }
    put_word(words + group * heads * HEAD + i, to_float(T(result)), flag);
  }
}

// Attention of the block's part, if it has one. `fresh`: the words of queries, and of the new key and value of each
// group. Results go to `words`. The block's threads may have used `memory` for something else until now.
__device__ __forceinline__ void attend(const Model& model, const Layer& layer, const Sharing& all,
                                       AttentionMemory& memory, const Word* fresh, Word* words, unsigned flag,
                                       unsigned tokens, float scale) {
  if (blockIdx.x >= model.groups * all.parts) return;
  const unsigned group = blockIdx.x / all.parts, part = blockIdx.x % all.parts, lane = threadIdx.x % WARP;
  const unsigned heads = model.heads / model.groups, end = min(tokens, (part + 1) * all.tokens_of_part);
  const long long of_group = static_cast<long long>(group) * tokens * HEAD;
  const Kept kept{layer.keys + of_group, layer.values + of_group, end, tokens - 1};
  constexpr unsigned STRIDE = WARPS * KEYS;
  unsigned first = part * all.tokens_of_part + threadIdx.x / WARP * KEYS;
  const auto is_ready = [&](unsigned begin) { return begin + KEYS <= kept.last || begin >= end; };
  Step steps[STEPS];
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (is_ready(first + s * STRIDE)) load_step(steps[s], kept, memory.token, first + s * STRIDE);
  }

  take_words(fresh + group * heads * HEAD, heads * HEAD, flag,
             [&](unsigned place, float value) { memory.query[place] = T(value); });
#pragma unroll
  for (unsigned which = 0; which < 2; ++which) {
    take_words(fresh + (model.heads + which * model.groups + group) * HEAD, HEAD, flag,
               [&](unsigned place, float value) { memory.token[which][place] = T(value); });
  }
  __syncthreads();
  uint4 query[CHUNKS];
#pragma unroll
  for (unsigned j = 0; j < CHUNKS; ++j) {
    query[j] = uint4{};
    if (lane / 4 < heads && Kept::of_key(j) < HEAD) {
      query[j] = *reinterpret_cast<const uint4*>(memory.query + lane / 4 * HEAD + Kept::of_key(j));
    }
  }
#pragma unroll
  for (unsigned s = 0; s < STEPS; ++s) {
    if (!is_ready(first + s * STRIDE)) load_step(steps[s], kept, memory.token, first + s * STRIDE);
  }
  Softmax softmax;
#pragma unroll 1
  while (first < end) {
#pragma unroll
    for (unsigned s = 0; s < STEPS; ++s, first += STRIDE) {
      if (first >= end) break;
      softmax.add(steps[s], query, first, end, scale);
      load_step(steps[s], kept, memory.token, first + STEPS * STRIDE);
    }
  }
  memory.meeting.put(softmax, heads);
  __syncthreads();
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < heads * HEAD; i += THREADS) {
    const unsigned head = i / HEAD, element = i % HEAD;
    float largest = NONE, sum = 0.0f, result = 0.0f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) largest = fmaxf(largest, memory.meeting.largest[w][head]);
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) {
      const float factor = power_of_2(memory.meeting.largest[w][head] - largest);
      sum = fmaf(memory.meeting.sum[w][head], factor, sum);
      result = fmaf(memory.meeting.sums[w][head][element], factor, result);
    }
    if (all.parts == 1) {
      put_word(words + group * heads * HEAD + i, to_float(T(result / sum)), flag);
    } else {
      const unsigned place = blockIdx.x * heads * HEAD + i;
      all.sums[place] = result;
      if (element == 0) all.extents[place / HEAD * 2] = largest, all.extents[place / HEAD * 2 + 1] = sum;
    }
  }
  if (all.parts == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    memory.is_last = atomicAdd(all.ended + group, 1u) == all.parts - 1;
    if (memory.is_last) all.ended[group] = 0;
  }
  __syncthreads();
  if (!memory.is_last) return;
  __threadfence();
  add_parts(all, memory, group, heads, words, flag);
}
