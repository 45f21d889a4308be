// Attention of the step's token, for decode_step.cu: as in decode_attention.cu, but the first keys and values are
// asked for before the layer's first product, and the new token's come as words.
#pragma once

#include "../rows/mbarrier.cuh"
#include "decode_softmax.cuh"
#include "decode_weights.cuh"
#include "decode_words.cuh"

constexpr unsigned MOST_OF_GROUP = 64;  // parts of a group's tokens

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

// A step of 16 tokens in shared memory: keys in rows, then values, where the lane alone finds what it copied. Whole rows of
// keys come at once, as memory likes it; the two rows that a quarter of a warp reads lie in different banks.
constexpr unsigned PITCH = 4 * CHUNKS;                          // packs from a key to the next
constexpr unsigned SLOT = KEYS * PITCH + 4 * WIDE * WARP;       // packs
__device__ __forceinline__ unsigned place_of_key(unsigned row, unsigned pack) {
  return row * PITCH + (CHUNKS % 2 ? pack : pack ^ row % 2 * 4);
}

// Begins to copy tokens of a step from the cache; the last token is copied at once, from where `token` is.
template <Tokens Which>
__device__ __forceinline__ void copy_step(uint4* slot, const Kept& kept, const T (*token)[HEAD], unsigned first) {
  const unsigned lane = threadIdx.x % WARP;
  const auto bring = [&](uint4* to, const T* from, unsigned which, unsigned place, unsigned element) {
    const bool there = place < kept.end && element < HEAD;
    if (there && place == kept.last) {
      if (Which != BUT_LAST) *to = *reinterpret_cast<const uint4*>(token[which] + element);
      return;
    }
    if (Which == LAST) return;
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)),
                 "l"(from + (there ? Kept::place(place, element) : 0)), "n"(16), "r"(there ? 16 : 0)
                 : "memory");
  };
#pragma unroll
  for (unsigned i = 0; i < KEYS * PITCH / WARP; ++i) {
    const unsigned row = (i * WARP + lane) / PITCH, pack = (i * WARP + lane) % PITCH;
    bring(slot + place_of_key(row, pack), kept.keys, 0, first + row, pack * SIZE);
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * WIDE; ++i) {
    bring(slot + KEYS * PITCH + i * WARP + lane, kept.values, 1, Kept::value(first, i % 4), Kept::of_value(i / 4));
  }
}

// The lane's part of a step.
__device__ __forceinline__ void read_step(Step& step, const uint4* slot) {
  const unsigned lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned j = 0; j < CHUNKS; ++j) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) step.keys[j][i] = slot[place_of_key(lane / 4 + i * 8, j * 4 + lane % 4)];
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * WIDE; ++i) step.values[i / 4][i % 4] = slot[KEYS * PITCH + i * WARP + lane];
}

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
      if (first + s * STRIDE < kept.end) copy_step<BUT_LAST>(slots + s * SLOT, kept, nullptr, first + s * STRIDE);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
  }

  // Makes results and hands them out as `words`. copies: groups of copies that the thread has begun since `prepare`.
  // fresh: the words of queries, and of the new key and value of each group. The block's threads may have used `memory`
  // for something else until now.
  __device__ __forceinline__ void run(const Model& model, AttentionMemory& memory, const Word* fresh, Word* words,
                                      unsigned flag, unsigned copies, float scale) {
    if (group >= model.groups) return;
    take_words(fresh + group * heads * HEAD, heads * HEAD, flag,
               [&](unsigned place, float value) { memory.query[place] = T(value); });
#pragma unroll
    for (unsigned which = 0; which < 2; ++which) {
      take_words(fresh + (model.heads + which * model.groups + group) * HEAD, HEAD, flag,
                 [&](unsigned place, float value) { memory.token[which][place] = T(value); });
    }
    wait_for_groups(copies);
    __syncthreads();
    const Softmax softmax = softmax_of(memory, scale);
    memory.meeting.put(softmax, heads);
    __syncthreads();
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < heads * HEAD; i += THREADS) hand_out(memory, i, words, flag);
    if (all.parts > 1) add_if_last(memory, words, flag);
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
#pragma unroll
    for (unsigned s = 0; s < AHEAD; ++s) {
      const unsigned begin = first + s * STRIDE;
      if (begin <= kept.last && kept.last < min(begin + KEYS, kept.end)) {
        copy_step<LAST>(slots + s * SLOT, kept, memory.token, begin);
      }
    }
    Softmax softmax;
#pragma unroll 1
    for (unsigned done = 0, slot = 0; first < kept.end; first += STRIDE, ++done) {
      if (done >= AHEAD) wait_for_groups<AHEAD - 1>();
      __syncwarp();
      Step step;
      read_step(step, slots + slot * SLOT);
      __syncwarp();
      const unsigned next = first + AHEAD * STRIDE;
      if (next < kept.end) copy_step<ALL>(slots + slot * SLOT, kept, memory.token, next);
      asm volatile("cp.async.commit_group;" ::: "memory");
      softmax.add(step, query, first, kept.end, scale);
      slot = slot + 1 == AHEAD ? 0 : slot + 1;
    }
    return softmax;
  }

  // The sum of the warps' results of an element of a head: the result, or what the part has of it.
  __device__ __forceinline__ void hand_out(const AttentionMemory& memory, unsigned i, Word* words, unsigned flag) const {
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
      return;
    }
    const unsigned place = blockIdx.x * heads * HEAD + i;
    all.sums[place] = result;
    if (element == 0) all.extents[place / HEAD * 2] = largest, all.extents[place / HEAD * 2 + 1] = sum;
  }

  __device__ __forceinline__ void add_if_last(AttentionMemory& memory, Word* words, unsigned flag) const {
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

  const Sharing& all;
  const unsigned group, heads;
  uint4* const slots;
  Kept kept;
  unsigned first;
};
