// Attention over windows by tensor cores. The story, and what is counted, is in window_attention.cu.
//
// Macros: as in attention.cuh, and
//   TEAM    warps that share an item: each takes tiles of 16 queries.
//   TEAMS   teams of a block.
//   PARTS   into which the queries of a window and a head are cut: an item is one of the parts. With HOLD 1.
//   HOLD    1: a warp holds all of K and V in registers, so that the next ones may be on their way to the same place.
//   STAGES  2: the next item is on its way while a team works on one; 1: it comes afterwards. With HOLD 2.
//   TABLES  heads whose bias and mask a block keeps in shared memory; 0: they are read from memory where they are used.
//   SHARED  bytes of shared memory of a block.
#pragma once

#include "attention_items.cuh"

// ---- One item.

// K and V of an item: all their parts in registers, or read where they are used.
struct KeysAndValues {
  unsigned keys[HOLD ? PAIRS : 1][HOLD ? STEPS : 1][4], values[HOLD ? PAIRS : 1][HOLD ? STEPS : 1][4];
  unsigned k, v, lane;

  __device__ __forceinline__ KeysAndValues(const Stage& stage) : k(stage.k), v(stage.v), lane(threadIdx.x % WARP) {
    if constexpr (HOLD) {
#pragma unroll
      for (unsigned i = 0; i < PAIRS * STEPS; ++i) {
        load_keys(keys[i / STEPS][i % STEPS], k, i / STEPS, i % STEPS, lane);
        load_values(values[i / STEPS][i % STEPS], v, i / STEPS, i % STEPS, lane);
      }
    }
  }

  // Keys of a pair of tiles of a band, columns of a step; values of the same tokens, columns of a pair of tiles.
  __device__ __forceinline__ void get_keys(unsigned (&to)[4], unsigned band, unsigned pair, unsigned step) const {
    if constexpr (HOLD) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) to[i] = keys[pair][step][i];
    } else {
      load_keys(to, k, band * PAIRS + pair, step, lane);
    }
  }
  __device__ __forceinline__ void get_values(unsigned (&to)[4], unsigned band, unsigned pair, unsigned columns) const {
    if constexpr (HOLD) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) to[i] = values[pair][columns][i];
    } else {
      load_values(to, v, band * PAIRS + pair, columns, lane);
    }
  }
};

// Adds the product of a tile of Q and a band of K to the scores.
__device__ __forceinline__ void multiply_keys(float (&scores)[TILES][4], unsigned q, unsigned tile, unsigned band,
                                              const KeysAndValues& kv) {
#pragma unroll
  for (unsigned step = 0; step < STEPS; ++step) {
    unsigned a[4], b[4];
    load_queries(a, q, tile, step, kv.lane);
#pragma unroll
    for (unsigned pair = 0; pair < PAIRS; ++pair) {
      kv.get_keys(b, band, pair, step);
      multiply_add<Element>(scores[2 * pair], a, {b[0], b[1]});
      if (2 * pair + 1 < TILES) multiply_add<Element>(scores[2 * pair + 1], a, {b[2], b[3]});
    }
  }
}

// Whether column i of a band is the column of a token in some lane. A lane has two columns of each tile. The compiler
// knows the answer if there is a single band.
__device__ constexpr bool exists(unsigned i) { return FULL || BANDS > 1 || i / 2 * 8 + i % 2 < TOKENS; }

// e^(score - largest) is 2^(score * SCALE - largest * SCALE), one multiply-add and one instruction. The second product
// is rounded, which does no harm while it is small: the rounding is a factor of all weights and of their sum. Beyond FAR
// it may move the power by more than 2^x takes, so there the difference of the scores comes first, which is exact.
constexpr float FAR = 4096.0f;
__device__ __forceinline__ float scale_of_power() { return LOG2_E / sqrtf(HEAD); }

// A row of a tile as four lanes have it. largest: of the scores so far. sum: of the lane's own weights.
struct Row {
  float largest = -infinity(), sum = 0.0f;

  // Takes in the scores of a band in the upper (half = 0) or lower half of a tile. Gives what former weights have to be
  // multiplied with. Where all scores so far are -infinity, their weights are zero: if no other band comes, the row's
  // result is 0 / 0.
  __device__ __forceinline__ float meet(const float (&scores)[TILES][4], unsigned half) {
    [[maybe_unused]] const float before = largest;
#pragma unroll
    for (unsigned i = 0; i < TILES; ++i) {
      const float left = scores[i][2 * half], right = scores[i][2 * half + 1];
      if (exists(2 * i)) largest = fmaxf(largest, exists(2 * i + 1) ? fmaxf(left, right) : left);
    }
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
    const float factor = BANDS == 1 ? 1.0f : power_of_2((before - base()) * scale_of_power());
    sum *= factor;
    return factor;
  }

  // The score whose weight is 1.
  __device__ __forceinline__ float base() const { return largest == -infinity() ? 0.0f : largest; }

  // The weights of a band: powers of 2 of the distance of a score to `from`, rounded to halves, two in a register.
  __device__ __forceinline__ void weigh(unsigned (&weights)[TILES][2], const float (&scores)[TILES][4], unsigned half,
                                        float from) {
    const float scale = scale_of_power(), zero = from * scale;
#pragma unroll
    for (unsigned i = 0; i < TILES; ++i) {
      const float left = power_of_2(fmaf(scores[i][2 * half], scale, -zero));
      const float right = exists(2 * i + 1) ? power_of_2(fmaf(scores[i][2 * half + 1], scale, -zero)) : 0.0f;
      sum += left + right;
      weights[i][half] = rounded_pair<Element>(left, right);
    }
  }

  // One over the sum of all weights.
  __device__ __forceinline__ float inverse() const {
    const float two = sum + __shfl_xor_sync(ALL_LANES, sum, 1);
    return one_over(two + __shfl_xor_sync(ALL_LANES, two, 2));
  }
};

// Adds the product of a band's weights and V. Two neighbouring tiles of weights are the left operand.
__device__ __forceinline__ void multiply_values(float (&out)[2 * STEPS][4], const unsigned (&weights)[TILES][2],
                                                unsigned band, const KeysAndValues& kv) {
#pragma unroll
  for (unsigned pair = 0; pair < PAIRS; ++pair) {
    const bool whole = 2 * pair + 1 < TILES;  // else there are 8 tokens
    const unsigned *left = weights[2 * pair], *right = weights[2 * pair + whole];
    const unsigned a[4] = {left[0], left[1], right[0], right[1]};
#pragma unroll
    for (unsigned columns = 0; columns < STEPS; ++columns) {
      unsigned b[4];
      kv.get_values(b, band, pair, columns);
      if (whole) {
        multiply_add<Element>(out[2 * columns], a, {b[0], b[1]});
        multiply_add<Element>(out[2 * columns + 1], a, {b[2], b[3]});
      } else {
        multiply_add_8(out[2 * columns], a, b[0]);
        multiply_add_8(out[2 * columns + 1], a, b[2]);
      }
    }
  }
}

// Writes a tile of the output, by way of its queries' place in shared memory, from which it goes to memory in the
// accesses that its rows have. Columns that only fill tiles stay as they are: zeros.
__device__ __forceinline__ void store_tile(const Operands& t, const Item& item, unsigned heads, unsigned q,
                                           unsigned tile, unsigned lane, const float (&out)[2 * STEPS][4],
                                           const float (&inverse)[2]) {
  __syncwarp();  // all lanes have read the queries
  const unsigned before = 16 * item.first;  // tokens of other items
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = 16 * tile + 8 * half + lane / 4;
    if (before + 16 * tile + 8 * half < TOKENS && before + row < TOKENS) {
#pragma unroll
      for (unsigned j = 0; j < 2 * STEPS; ++j) {
        const float left = out[j][2 * half] * inverse[half], right = out[j][2 * half + 1] * inverse[half];
        if (8 * j + 8 <= HEAD || 8 * j + lane % 4 * 2 < HEAD) {
          store_word(chunk_at(q, row, j) + lane % 4 * 4, rounded_pair<Element>(left, right));
        }
      }
    }
  }
  __syncwarp();
  const Rows rows = output_rows(item.window, item.head, heads);
#pragma unroll
  for (unsigned begin = 0; begin < 16 * ROW_LANES; begin += WARP) {
    const unsigned row = 16 * tile + (begin + lane) / ROW_LANES, access = (begin + lane) % ROW_LANES;
    // A row that is one access has one lane, and the lanes past 16 none: the next rows are of other warps or blocks.
    if ((ROW_LANES > 1 || lane < 16) && before + row < TOKENS && access < ACCESSES) {
      const unsigned from = access_at(q, row, access);
      Element* own = t.out + rows.first + (before + row) * rows.step + access * (ACCESS / sizeof(Element));
      if constexpr (ACCESS == PACK_BYTES) {
        store_whole(own, load_shared(from));
      } else {
        *reinterpret_cast<unsigned*>(own) = load_word(from);
      }
    }
  }
}

// What the scores of a tile and a band begin with.
__device__ __forceinline__ void begin_scores(float (&scores)[TILES][4], const Operands& t, const Item& item,
                                             unsigned tile, unsigned band, unsigned lane) {
  const unsigned first = (item.table * QUERY_TILES + tile) * (BANDS * TILES) + band * TILES;
  const unsigned lanes = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + lane * sizeof(float4);
#pragma unroll
  for (unsigned i = 0; i < TILES; ++i) {
    if constexpr (TABLES) {
      load_floats(scores[i], lanes + (first + i) * (WARP * sizeof(float4)));
    } else {
      begin_tile(scores[i], t, item.head, item.mask, item.first + tile, band * TILES + i, lane);
    }
  }
}

// 16 queries of an item. HALVES: of the tile in which some lane has a row. Known to the compiler, so that it may mix
// the work of both.
template <unsigned HALVES>
__device__ __forceinline__ void attend_tile(const Operands& t, const Item& item, unsigned heads, unsigned q,
                                            unsigned tile, const KeysAndValues& kv) {
  constexpr unsigned TOGETHER = BANDS == 1 ? HALVES : 1;  // with several bands, both halves would take too many registers
  float out[2 * STEPS][4] = {};
  Row row[2];
#pragma unroll 1
  for (unsigned band = 0; band < BANDS; ++band) {
    float scores[TILES][4];
    unsigned weights[TILES][2] = {};
    begin_scores(scores, t, item, tile, band, kv.lane);
    multiply_keys(scores, q, tile, band, kv);
#pragma unroll
    for (unsigned first = 0; first < HALVES; first += TOGETHER) {
      bool far = false;
#pragma unroll
      for (unsigned half = first; half < first + TOGETHER; ++half) {
        const float factor = row[half].meet(scores, half);
#pragma unroll
        for (unsigned i = 0; BANDS > 1 && i < 4 * STEPS; ++i) out[i / 2][2 * half + i % 2] *= factor;
        far |= fabsf(row[half].base()) > FAR / scale_of_power();
      }
      if (far) {
#pragma unroll
        for (unsigned i = 0; i < 2 * TOGETHER * TILES; ++i) {
          const unsigned half = first + i % TOGETHER;
          scores[i / (2 * TOGETHER)][2 * half + i / TOGETHER % 2] -= row[half].base();
        }
      }
#pragma unroll
      for (unsigned half = first; half < first + TOGETHER; ++half) {
        row[half].weigh(weights, scores, half, far ? 0.0f : row[half].base());
      }
    }
    multiply_values(out, weights, band, kv);
  }
  const float inverse[2] = {row[0].inverse(), row[1].inverse()};
  store_tile(t, item, heads, q, tile, kv.lane, out, inverse);
}

// All that a block has to do. Items are counted within its share.
__device__ __forceinline__ void attend(const Operands& t, const Order& order) {
  const unsigned team = threadIdx.x / THREADS_OF_TEAM, warp = threadIdx.x % THREADS_OF_TEAM / WARP;
  const Share share(order);
  unsigned begin = 0, next = team, stage = 0;
  clear_padding(team);
  if (next < share.count) fetch(t, Item(share.item(next, order), order), order.heads, Stage(team, stage));
  while (begin < share.count) {
    unsigned end = share.count;
    if constexpr (TABLES) {
      const unsigned item = share.item(begin, order);
      end = min(end, (order.segment.quotient(item) + 1) * order.segment.size - share.first);
      __syncthreads();  // nobody needs the former tables any more
      make_tables(t, Item(item, order));
      __syncthreads();
    }
    while (next < end) {
      const Item item(share.item(next, order), order);
      const Stage now(team, stage);
      touch_added(t, item, warp);
      wait_for_copies();
      meet(team);  // all copies have come, and nobody needs the other stage any more
      const KeysAndValues kv(now);
      if constexpr (HOLD) meet(team);
      next += TEAMS;
      const auto fetch_next = [&] {
        if (next < share.count) fetch(t, Item(share.item(next, order), order), order.heads, Stage(team, stage));
      };
      if constexpr (STAGES == 2) stage ^= 1, fetch_next();
#pragma unroll 1
      for (unsigned tile = warp; tile < QUERY_TILES && item.first + tile < ALL_TILES; tile += TEAM) {
        if (TOKENS % 16 == 0 || TOKENS % 16 > 8 || item.first + tile + 1 < ALL_TILES) {
          attend_tile<2>(t, item, order.heads, now.q, tile, kv);
        } else {
          attend_tile<1>(t, item, order.heads, now.q, tile, kv);
        }
      }
      if constexpr (STAGES == 1) {
        meet(team);  // nobody needs this item any more
        fetch_next();
      }
    }
    begin = end;
  }
}
