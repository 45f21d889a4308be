// One more token of one sequence by a whole Llama, in a single kernel whose blocks stay (a persistent kernel, or
// megakernel): five products a layer with what stands between them, attention to the cache, and the logits.
//
// Memory bounds it: each weight, and each key and value, is read once. What a chain of kernels loses is the time from one
// kernel's last byte to the next one's full rate, 81 times in a step of Llama 1B, though weights don't depend on what
// kernels before them make. Here a warp reads its weights as one stream through all layers (decode_weights.cuh), and
// works on a part as soon as the part and x are there. While blocks wait for each other, up to 200 KB of each
// multiprocessor are under way, which is 5 us of the memory of an H200.
//
// One block on each multiprocessor. A warp has pairs of rows of weights, and its lanes share the columns. Vectors come to
// the shared memory of every block, as words with flags (decode_words.cuh): what a product makes is there about a
// microsecond later. The vector behind the gates is the longest. It goes through memory, and all blocks meet before they
// read it. So no block is more than a layer ahead: words of a layer go where words of the layer before were, and vectors
// behind the gates have two places, in turn.
//
// Each block has x, in float32, and adds to it what products hand out.
//
// Macros: SCALAR (__half, __nv_bfloat16), HEAD (elements of a head), WARPS (of a block), STAGES (of a warp's ring of
// weights), AHEAD (of its ring of tokens).

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __nv_bfloat16
#endif
#ifndef HEAD
#define HEAD 64
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef STAGES
#define STAGES 8
#endif
#ifndef AHEAD
#define AHEAD 2
#endif

#include "../include/number.cuh"
#include "decode_softmax.cuh"
#include "decode_weights.cuh"
#include "decode_step_attention.cuh"

// Vectors in the memory of a block. x: of the layer, float32. input: of the next product; its memory is attention's in
// between. norms: weights of the next norm in front of a layer, and of the one behind attention. A thread has the same
// pairs of elements of x and of what x becomes.
struct Vectors {
  float2* x;
  T* input;
  T* norms[2];
  float* squares;  // of the warps' parts of x
  unsigned pairs;
};

// Begins to copy the weights of a norm.
__device__ __forceinline__ void copy_norm(T* to, const T* from, unsigned columns) {
  for (unsigned k = threadIdx.x * SIZE; k < columns; k += THREADS * SIZE) copy_async_16(shared_address(to + k), from + k);
  asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void widen_pack(const T* from, float (&values)[SIZE]) {
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  const unsigned words[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) {
    const Lanes<T> lanes(words[w]);
    values[2 * w] = lanes.at[0], values[2 * w + 1] = lanes.at[1];
  }
}

// Makes `input` of x by an RMSNorm. copies: groups of copies that the thread has begun since it copied the norm's weights.
__device__ __forceinline__ void normalise(const Vectors& vectors, unsigned which, unsigned copies, float epsilon) {
  float sum = 0.0f;
  for (unsigned k = threadIdx.x; k < vectors.pairs; k += THREADS) {
    const float2 both = vectors.x[k];
    sum = fmaf(both.x, both.x, fmaf(both.y, both.y, sum));
  }
  sum = sum_of<WARP>(sum);
  if (threadIdx.x % WARP == 0) vectors.squares[threadIdx.x / WARP] = sum;
  wait_for_groups(copies);
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (unsigned w = 0; w < WARPS; ++w) sum += vectors.squares[w];
  const float scale = rsqrtf(sum / static_cast<float>(2 * vectors.pairs) + epsilon);
  for (unsigned k = threadIdx.x; k < vectors.pairs; k += THREADS) {
    const float2 both = vectors.x[k];
    const Lanes<T> weights(reinterpret_cast<const unsigned*>(vectors.norms[which])[k]);
    const unsigned rounded = rounded_pair<T>(both.x * scale * weights.at[0], both.y * scale * weights.at[1]);
    reinterpret_cast<unsigned*>(vectors.input)[k] = rounded;
  }
  __syncthreads();
}

// Adds what a product made to x, and normalises x. No thread may still work with the vectors of before.
__device__ __forceinline__ void take_x(const Vectors& vectors, unsigned which, unsigned copies, float epsilon,
                                       const Word* words, unsigned flag) {
  __syncthreads();
  take_pairs(vectors.pairs, flag, [&](unsigned pair) { return words + pair; },
             [&](unsigned pair, unsigned values) {
               const Lanes<T> more(values);
               vectors.x[pair].x += more.at[0], vectors.x[pair].y += more.at[1];
             });
  normalise(vectors, which, copies, epsilon);
}

// Multiplies the warp's pairs of rows of a product with `input`, and gives each pair's sums to store(pair, sums), by one
// lane. Returns how many stages they took.
template <typename Store>
__device__ __forceinline__ unsigned multiply(Weights& weights, Turn& turn, const T* input, unsigned pairs, unsigned columns,
                                         Store store) {
  const unsigned lane = threadIdx.x % WARP;
  unsigned stages = 0;
#pragma unroll 1
  for (unsigned pair = turn.first(); pair < pairs; pair += turn.warps) {
    float sums[PACKS_OF_STAGE][2] = {};
#pragma unroll 1
    for (unsigned begin = 0; begin < columns; begin += COLUMNS, ++stages) {
      const T* const stage = weights.wait();
      const auto add = [&](unsigned packs) {
        float of_x[PACKS_OF_STAGE][SIZE], first[PACKS_OF_STAGE][SIZE], second[PACKS_OF_STAGE][SIZE];
#pragma unroll
        for (unsigned p = 0; p < PACKS_OF_STAGE; ++p) {
          if (p >= packs) break;
          widen_pack(input + begin + (p * WARP + lane) * SIZE, of_x[p]);
          widen_pack(stage + p * (WARP * SIZE), first[p]), widen_pack(stage + COLUMNS + p * (WARP * SIZE), second[p]);
        }
#pragma unroll
        for (unsigned p = 0; p < PACKS_OF_STAGE; ++p) {
          if (p >= packs) break;
#pragma unroll
          for (unsigned e = 0; e < SIZE; ++e) {
            sums[p][0] = fmaf(first[p][e], of_x[p][e], sums[p][0]);
            sums[p][1] = fmaf(second[p][e], of_x[p][e], sums[p][1]);
          }
        }
      };
      // A whole stage has no branch inside, so that all of it is asked for before the first sum.
      if (begin + COLUMNS <= columns) {
        add(PACKS_OF_STAGE);
      } else if (begin + lane * SIZE < columns) {
        add((columns - begin - lane * SIZE + WARP * SIZE - 1) / (WARP * SIZE));
      }
      weights.refill();
    }
#pragma unroll
    for (unsigned p = 1; p < PACKS_OF_STAGE; ++p) sums[0][0] += sums[p][0], sums[0][1] += sums[p][1];
    const float both[] = {sum_of<WARP>(sums[0][0]), sum_of<WARP>(sums[0][1])};
    if (lane == 0) store(pair, both);
  }
  turn.go_on(pairs);
  return stages;
}

// between: two vectors behind the gates. words: of pairs of queries, keys and values, of attention's results, of what
// attention adds to x, and of what the rest of a layer adds; words_of_parts: as Sharing has them. All words, and arrivals,
// are zeros before the first launch. size_of_input:
// elements that `Vectors::input` has.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    decode_step_tuned(const long long* token, const T* embedding, const Layer* table, const T* norm, const T* head,
                      const float* cosines, const float* sines, T* logits, Word* words, T* between, Word* arrivals,
                      Word* words_of_parts, unsigned layers, unsigned hidden, unsigned intermediate, unsigned heads,
                      unsigned groups, unsigned vocabulary, unsigned tokens, unsigned parts, unsigned tokens_of_part,
                      unsigned size_of_input, float scale, float epsilon) {
  extern __shared__ uint4 dynamic[];
  __shared__ float squares[WARPS];
  __shared__ float turned[2][HEAD / 2];
  __shared__ Word arrived;
  T* const ring = reinterpret_cast<T*>(dynamic);
  uint4* const slots = dynamic + WARPS * STAGES * STAGE / SIZE;
  T* const input = reinterpret_cast<T*>(slots + WARPS * AHEAD * SLOT);
  T* const norms = input + size_of_input;
  float2* const x = reinterpret_cast<float2*>(norms + 2 * hidden);
  Layer* const own_table = reinterpret_cast<Layer*>(x + hidden / 2);
  const Vectors vectors{x, input, {norms, norms + hidden}, squares, hidden / 2};
  const Sharing sharing{parts, tokens_of_part, words_of_parts};

  if (threadIdx.x == 0) arrived = look_at(arrivals);
  constexpr unsigned ADDRESSES = sizeof(Layer) / sizeof(Word);
  for (unsigned i = threadIdx.x; i < layers * ADDRESSES; i += THREADS) {
    reinterpret_cast<Word*>(own_table)[i] = reinterpret_cast<const Word*>(table)[i];
  }
  for (unsigned i = threadIdx.x; i < HEAD / 2; i += THREADS) turned[0][i] = cosines[i], turned[1][i] = sines[i];
  __syncthreads();

  const Model model{own_table, head, layers, hidden, intermediate, heads, groups, vocabulary};
  copy_norm(vectors.norms[0], own_table[0].norm, hidden);
  Weights weights(model, ring);
  Turn turn;
  // Each launch adds as many arrivals. This block hasn't arrived, so all counts of this launch give the same number.
  const Word launches = arrived / (static_cast<Word>(gridDim.x) * layers);
  Word *const attended = words + (heads + 2 * groups) * (HEAD / 2), *const behind = attended + model.attended() / 2;
  Word* const next = behind + hidden / 2;
  const unsigned first_flag = static_cast<unsigned>(launches) * layers + 1;
  const unsigned* const row = reinterpret_cast<const unsigned*>(embedding + *token * hidden);
  for (unsigned k = threadIdx.x; k < hidden / 2; k += THREADS) {
    const Lanes<T> both(row[k]);
    x[k] = make_float2(both.at[0], both.at[1]);
  }
  unsigned copies = STAGES + 1 + AHEAD;  // groups between the norm's weights and their use
#pragma unroll 1
  for (unsigned number = 0; number < layers; ++number) {
    const Layer& layer = own_table[number];
    const unsigned flag = first_flag + number;
    copy_norm(vectors.norms[1], layer.norm_behind, hidden);
    Attention attention(model, layer, sharing, slots, tokens);
    attention.prepare();
    if (number) {
      take_x(vectors, 0, copies, epsilon, next, flag - 1);
    } else {
      normalise(vectors, 0, copies, epsilon);
    }
    copy_norm(vectors.norms[0], number + 1 < layers ? own_table[number + 1].norm : norm, hidden);
    const auto keep = [&](unsigned pair, const float(&sums)[2]) {
      const unsigned at = pair / (HEAD / 2), element = pair % (HEAD / 2);
      const bool is_value = at >= heads + groups;
      const float cosine = is_value ? 1.0f : turned[0][element], sine = is_value ? 0.0f : turned[1][element];
      const float first = fmaf(sums[0], cosine, -(sums[1] * sine)), second = fmaf(sums[1], cosine, sums[0] * sine);
      put_pair(words + pair, first, second, flag);
      if (at < heads) return;
      const long long group = at - (is_value ? heads + groups : heads);
      T* const kept = (is_value ? layer.values : layer.keys) + ((group + 1) * tokens - 1) * HEAD + element;
      kept[0] = T(first), kept[HEAD / 2] = T(second);
    };
    copies = 1 + multiply(weights, turn, input, model.pairs(number, QKV), hidden, keep);
    __syncthreads();
    attention.run(model, *reinterpret_cast<AttentionMemory*>(input), words, attended, flag, copies, scale);
    __syncthreads();
    take_pairs(model.attended() / 2, flag, [&](unsigned pair) { return attended + pair; },
               [&](unsigned pair, unsigned values) { reinterpret_cast<unsigned*>(input)[pair] = values; });
    __syncthreads();
    const auto add_behind = [&](unsigned pair, const float(&sums)[2]) {
      put_pair(behind + pair, sums[0], sums[1], flag);
    };
    copies += multiply(weights, turn, input, hidden / 2, model.attended(), add_behind);
    take_x(vectors, 1, copies, epsilon, behind, flag);
    T* const gated = between + number % 2 * intermediate;
    const auto open = [&](unsigned pair, const float(&sums)[2]) {
      gated[pair] = T(sums[0] / (1.0f + __expf(-sums[0])) * sums[1]);
    };
    copies = multiply(weights, turn, input, intermediate, hidden, open);
    meet_blocks(arrivals, (launches * layers + number + 1) * gridDim.x);
    for (unsigned k = threadIdx.x * SIZE; k < intermediate; k += THREADS * SIZE) {
      *reinterpret_cast<uint4*>(input + k) = load_fresh(reinterpret_cast<const uint4*>(gated + k));
    }
    __syncthreads();
    const auto add_next = [&](unsigned pair, const float(&sums)[2]) { put_pair(next + pair, sums[0], sums[1], flag); };
    copies += multiply(weights, turn, input, hidden / 2, intermediate, add_next);
  }
  take_x(vectors, 0, copies, epsilon, next, first_flag + layers - 1);
  multiply(weights, turn, input, model.pairs(layers, QKV), hidden, [&](unsigned pair, const float(&sums)[2]) {
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
      if (2 * pair + i < vocabulary) logits[2 * pair + i] = T(sums[i]);
    }
  });
}
