// The weights of a whole step, as one stream that each warp reads ahead of its work, for decode_step.cu.
//
// A warp's work is pairs of rows of weights: of one product after the other, layer after layer, it has each pair whose
// number is its own, and numbers go on from product to product, so that all warps have the same number of pairs in the
// end. Weights depend on nothing, so a warp asks for its next pairs while it still works on, or waits for, earlier ones:
// a ring of STAGES of shared memory, in which each lane copies columns of its own and reads no others.
#pragma once

#include "../rows/mbarrier.cuh"

constexpr unsigned SIZE_OF_PACK = Pack<T>::SIZE;
constexpr unsigned PACKS_OF_STAGE = 2;                                   // of a lane, of each of the two rows
constexpr unsigned COLUMNS = PACKS_OF_STAGE * WARP * SIZE_OF_PACK;       // of a stage
constexpr unsigned STAGE = 2 * COLUMNS;                                  // elements of two rows

// The tensors of a layer: addresses, in this order in memory.
struct Layer {
  const T *q, *k, *v, *o, *gate, *up, *down, *norm, *norm_behind;
  T *keys, *values;
};

// A product's rows of weights, in pairs. The head is the product of a layer behind the last one.
enum Product { QKV, OUT, GATES, DOWN, PRODUCTS };

struct Model {
  const Layer* layers;  // in shared memory
  const T* head;
  unsigned count, hidden, intermediate, heads, groups, vocabulary;

  __device__ __forceinline__ unsigned attended() const { return heads * HEAD; }
  __device__ __forceinline__ unsigned pairs(unsigned layer, unsigned product) const {
    if (layer == count) return (vocabulary + 1) / 2;
    return product == QKV ? (heads + 2 * groups) * (HEAD / 2) : product == GATES ? intermediate : hidden / 2;
  }
  __device__ __forceinline__ unsigned columns(unsigned layer, unsigned product) const {
    if (layer == count) return hidden;
    return product == OUT ? attended() : product == DOWN ? intermediate : hidden;
  }
  // The two rows of a pair. RoPE turns elements i and i + HEAD / 2 of a head together.
  __device__ __forceinline__ void rows(unsigned layer, unsigned product, unsigned pair, const T* (&of)[2]) const {
    const long long width = columns(layer, product);
    if (layer == count) {
      of[0] = head + 2 * pair * width, of[1] = head + min(2 * pair + 1, vocabulary - 1) * width;
      return;
    }
    const Layer& own = layers[layer];
    if (product == QKV) {
      const unsigned at = pair / (HEAD / 2), element = pair % (HEAD / 2);
      const T* weight = at < heads ? own.q : at < heads + groups ? own.k : own.v;
      const unsigned before = at < heads ? 0 : at < heads + groups ? heads : heads + groups;
      of[0] = weight + ((at - before) * HEAD + element) * width, of[1] = of[0] + HEAD / 2 * width;
    } else if (product == GATES) {
      of[0] = own.gate + pair * width, of[1] = own.up + pair * width;
    } else {
      of[0] = (product == OUT ? own.o : own.down) + 2 * pair * width, of[1] = of[0] + width;
    }
  }
};

// Which pairs are the warp's own.
struct Turn {
  unsigned own, warps, begin = 0;

  __device__ __forceinline__ Turn()
      : own(threadIdx.x / WARP * gridDim.x + blockIdx.x), warps(gridDim.x * WARPS) {}
  __device__ __forceinline__ unsigned first() const { return own >= begin ? own - begin : own + warps - begin; }
  __device__ __forceinline__ void go_on(unsigned pairs) { begin = (begin + pairs) % warps; }
};

class Weights {
 public:
  __device__ __forceinline__ Weights(const Model& model, T* ring)
      : model(model), own(ring + threadIdx.x / WARP * (STAGES * STAGE) + threadIdx.x % WARP * SIZE_OF_PACK) {
    pair = turn.first();
    find();
#pragma unroll 1
    for (unsigned s = 0; s < STAGES; ++s) refill();
  }

  // The oldest stage, as soon as it is there: the lane's columns of the first row; the second row is COLUMNS behind.
  __device__ __forceinline__ const T* wait() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    return own + slot * STAGE;
  }

  // Begins to copy what comes next, to where the oldest stage was.
  __device__ __forceinline__ void refill() {
    if (layer <= model.count) {
      T* const to = own + slot * STAGE;
      const unsigned lane = threadIdx.x % WARP * SIZE_OF_PACK;
#pragma unroll
      for (unsigned p = 0; p < PACKS_OF_STAGE; ++p) {
        const unsigned k = begin + p * (WARP * SIZE_OF_PACK) + lane;
        if (k < columns) {
          copy_async_16(shared_address(to + p * (WARP * SIZE_OF_PACK)), rows[0] + k);
          copy_async_16(shared_address(to + COLUMNS + p * (WARP * SIZE_OF_PACK)), rows[1] + k);
        }
      }
      begin += COLUMNS;
      if (begin >= columns) begin = 0, pair += turn.warps, find();
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  }

 private:
  // The rows of the next pair: of this product, or of the next one that has a pair of the warp.
  __device__ __forceinline__ void find() {
    while (pair >= model.pairs(layer, product)) {
      turn.go_on(model.pairs(layer, product));
      product = product + 1 == PRODUCTS ? 0 : product + 1;
      if (product == 0 || layer == model.count) ++layer;
      if (layer > model.count) return;
      pair = turn.first();
    }
    columns = model.columns(layer, product);
    model.rows(layer, product, pair, rows);
  }

  const Model& model;
  T* const own;
  Turn turn;
  unsigned layer = 0, product = 0, pair, begin = 0, columns = 0, slot = 0;
  const T* rows[2];
};
