// Attention of the step's token, for decode_step.cu: as in decode_attention.cu, but the first keys and values are
// asked for before the layer's first product, and the new token's come as words.
#pragma once

#include "decode_tokens.cuh"
#include "decode_weights.cuh"
#include "decode_words.cuh"

// How blocks share the tokens: each of the first groups * parts blocks has a part of a group's. words: of each group, part
// and head, the largest score, the sum of powers, and sums of values.
struct Sharing {
  unsigned parts, tokens_of_part;
  Word* words;

  static constexpr unsigned OF_HEAD = HEAD + 2;
};

// What a block has in shared memory meanwhile. `token`: the new key and value, which are in the cache only later.
struct AttentionMemory {
  alignas(16) Meeting meeting;
  alignas(16) T query[HEADS * HEAD];
  alignas(16) T token[2][HEAD];
};

// Waits until at most so many of the thread's groups of copies are under way; or fewer, where the number isn't known to
// the compiler.
template <unsigned Left>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}
__device__ __forceinline__ void wait_for_groups(unsigned left) {
  if (left >= 8) {
    wait_for_groups<8>();
  } else if (left >= 4) {
    wait_for_groups<4>();
  } else {
    wait_for_groups<0>();
  }
}

// Hands out the sums over all parts of a group: each block of the group has as many of the pairs, a warp one after the
// other, and a lane one part.
__device__ __forceinline__ void add_parts(const Sharing& all, unsigned group, unsigned heads, Word* words,
                                          unsigned flag) {
  const unsigned lane = threadIdx.x % WARP, first = blockIdx.x % all.parts + threadIdx.x / WARP * all.parts;
#pragma unroll 1
  for (unsigned pair = first; pair < heads * (HEAD / 2); pair += WARPS * all.parts) {
    const unsigned head = pair / (HEAD / 2), element = pair % (HEAD / 2) * 2;
    float largest = NONE, sum = 0.0f;
    float2 result{};
#pragma unroll 1
    for (unsigned part = lane; part < all.parts; part += WARP) {
      const Word* const own = all.words + ((group * all.parts + part) * heads + head) * Sharing::OF_HEAD;
      const float2 extent = take_numbers(own, flag), values = take_numbers(own + 2 + element, flag);
      const float now = fmaxf(largest, extent.x), kept = power_of_2(largest - now), share = power_of_2(extent.x - now);
      largest = now, sum = fmaf(sum, kept, extent.y * share);
      result.x = fmaf(result.x, kept, values.x * share), result.y = fmaf(result.y, kept, values.y * share);
    }
    const float factor = power_of_2(largest - largest_of<WARP>(largest));
    sum = sum_of<WARP>(sum * factor);
    result.x = sum_of<WARP>(result.x * factor), result.y = sum_of<WARP>(result.y * factor);
    if (lane == 0) put_pair(words + group * heads * (HEAD / 2) + pair, result.x / sum, result.y / sum, flag);
  }
}

// Attention of the block's part of a group's tokens; of no tokens, if the block has no part.
class Attention {
 public:
  __device__ __forceinline__ Attention(const Model& model, const Layer& layer, const Sharing& all, uint4* slots,
                                       unsigned tokens)
      : all(all), group(blockIdx.x / all.parts), heads(model.heads / model.groups),
        slots(slots + threadIdx.x / WARP * (AHEAD * SLOT)) {
    const unsigned part = blockIdx.x % all.parts;
    const long long of_group = static_cast<long long>(group) * tokens * HEAD;
    const bool has_part = group < model.groups;
    kept = {layer.keys + of_group, layer.values + of_group, has_part ? min(tokens, (part + 1) * all.tokens_of_part) : 0,
            tokens - 1};
    first = has_part ? part * all.tokens_of_part + threadIdx.x / WARP * KEYS : tokens;
  }

  // Begins to copy the first steps, which depend on no product but for the last token.
  __device__ __forceinline__ void prepare() {
#pragma unroll
    for (unsigned s = 0; s < AHEAD; ++s) {
      if (first + s * STRIDE < kept.end) copy_step<BUT_LAST>(slots + s * SLOT, kept, first + s * STRIDE);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }

  // Makes results and hands them out as `words`. copies: groups of copies that the thread has begun since `prepare`.
  // fresh: the words of queries, and of the new key and value of each
  // group: elements i and i + HEAD / 2 of a head are a pair. The block's threads may have used `memory`
  // for something else until now.
  __device__ __forceinline__ void run(const Model& model, AttentionMemory& memory, const Word* fresh, Word* words,
                                      unsigned flag, unsigned copies, float scale) {
    if (group >= model.groups) return;
    constexpr unsigned PAIRS = HEAD / 2;
    const auto head_of = [&](unsigned pair) {  // of the group's queries; then its key and value
      const unsigned head = pair / PAIRS;
      return head < heads ? group * heads + head : model.heads + (head - heads) * model.groups + group;
    };
    take_pairs((heads + 2) * PAIRS, flag, [&](unsigned pair) { return fresh + head_of(pair) * PAIRS + pair % PAIRS; },
               [&](unsigned pair, unsigned values) {
                 T* const to = pair < heads * PAIRS ? memory.query + pair / PAIRS * HEAD
                                                    : memory.token[pair / PAIRS - heads];
                 const T(&both)[2] = reinterpret_cast<const T(&)[2]>(values);
                 to[pair % PAIRS] = both[0], to[pair % PAIRS + PAIRS] = both[1];
               });
    wait_for_groups(copies);
    __syncthreads();
    const Softmax softmax = softmax_of(memory, scale);
    memory.meeting.put(softmax, heads);
    __syncthreads();
#pragma unroll 1
    for (unsigned pair = threadIdx.x; pair < heads * PAIRS; pair += THREADS) hand_out(memory, pair, words, flag);
    if (all.parts > 1) add_parts(all, group, heads, words, flag);
  }

 private:
  static constexpr unsigned STRIDE = WARPS * KEYS;

  __device__ __forceinline__ Softmax softmax_of(AttentionMemory& memory, float scale) {
    const unsigned lane = threadIdx.x % WARP;
    uint4 query[CHUNKS];
#pragma unroll
    for (unsigned j = 0; j < CHUNKS; ++j) {
      query[j] = uint4{};
      if (lane / 4 < heads && Kept::of_key(j) < HEAD) {
        query[j] = *reinterpret_cast<const uint4*>(memory.query + lane / 4 * HEAD + Kept::of_key(j));
      }
    }
    const T *const key = memory.token[0], *const value = memory.token[1];
    const auto load = [](const uint4* from) { return *from; };
#pragma unroll
    for (unsigned s = 0; s < AHEAD; ++s) copy_last(slots + s * SLOT, kept, first + s * STRIDE, key, value, load);
    Softmax softmax;
#pragma unroll 1
    for (unsigned done = 0, slot = 0; first < kept.end; first += STRIDE, ++done) {
      if (done >= AHEAD) wait_for_groups<AHEAD - 1>();
      uint4* const place = slots + slot * SLOT;
      const Step step = take_step(place);
      const unsigned next = first + AHEAD * STRIDE;
      if (next < kept.end) copy_step<BUT_LAST>(place, kept, next);
      copy_last(place, kept, next, key, value, load);
      asm volatile("cp.async.commit_group;" ::: "memory");
      softmax.add(step, query, first, kept.end, scale);
      slot = slot + 1 == AHEAD ? 0 : slot + 1;
    }
    return softmax;
  }

  // The sums of the warps' results of two elements of a head: the results, or what the part has of them.
  __device__ __forceinline__ void hand_out(const AttentionMemory& memory, unsigned pair, Word* words,
                                           unsigned flag) const {
    const unsigned head = pair / (HEAD / 2), element = pair % (HEAD / 2) * 2;
    float largest = NONE, sum = 0.0f;
    float2 result{};
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) largest = fmaxf(largest, memory.meeting.largest[w][head]);
#pragma unroll
    for (unsigned w = 0; w < WARPS; ++w) {
      const float factor = power_of_2(memory.meeting.largest[w][head] - largest);
      const float* const own = &memory.meeting.sums[w][head][element];
      sum = fmaf(memory.meeting.sum[w][head], factor, sum);
      result.x = fmaf(own[0], factor, result.x), result.y = fmaf(own[1], factor, result.y);
    }
    if (all.parts == 1) {
      put_pair(words + group * heads * (HEAD / 2) + pair, result.x / sum, result.y / sum, flag);
      return;
    }
    Word* const own = all.words + (blockIdx.x * heads + head) * Sharing::OF_HEAD;
    put_number(own + 2 + element, result.x, flag), put_number(own + 3 + element, result.y, flag);
    if (element == 0) put_number(own, largest, flag), put_number(own + 1, sum, flag);
  }

  const Sharing& all;
  const unsigned group, heads;
  uint4* const slots;
  Kept kept;
  unsigned first;
};
