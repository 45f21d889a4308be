// Attention over windows by tensor cores. The story, and what is counted, is in window_attention.cu.
//
// Macros: as in attention.cuh, and
//   TEAM    warps that share a window and a head: each takes tiles of 16 queries.
//   TEAMS   teams of a block.
//   HOLD    1: a warp holds all of K and V in registers, so that the next ones may be on their way to the same place.
//   TABLES  heads whose bias and mask a block keeps in shared memory; 0: they are read from memory where they are used.
//   SHARED  bytes of shared memory of a block.
#pragma once

#include "attention_fragments.cuh"
#include "../include/fastdiv.cuh"

// ---- The order of the work.

// An item is a window and a head. Items of a segment share masks and a group of heads, so one set of tables serves
// them: within a segment, heads of the group come first, then images. Blocks have equal parts of the items, one after
// another; or, where each segment has several blocks of its own, its images in turn. Then all blocks are at
// neighbouring windows at a time, and not each at a distant place of its own, which memory serves worse.
//
// items: of all. heads: H. masks: G. ways: blocks that take a segment's images in turn, or 1. segment: items of a
// segment. groups: of heads.
struct Order {
  unsigned items, heads, masks, ways;
  Divisor<unsigned> segment, groups;
};
constexpr unsigned HEADS_OF_GROUP = TABLES ? TABLES : 1;

struct Item {
  unsigned window, head, mask, table;

  __device__ __forceinline__ Item(unsigned item, const Order& order) {
    const unsigned of = order.segment.quotient(item), rest = item - of * order.segment.size;
    mask = order.groups.quotient(of);
    const unsigned group = of - mask * order.groups.size;
    table = rest % HEADS_OF_GROUP;
    head = group * HEADS_OF_GROUP + table;
    window = rest / HEADS_OF_GROUP * order.masks + mask;
  }
};

// A block's part of the items: `count`, from the item `first` on.
struct Part {
  unsigned first, count;

  __device__ __forceinline__ explicit Part(const Order& order) {
    if (order.ways > 1) {
      const unsigned segment = blockIdx.x / order.ways, turn = blockIdx.x - segment * order.ways;
      const unsigned images = order.segment.size / HEADS_OF_GROUP;
      first = segment * order.segment.size + turn * HEADS_OF_GROUP;
      count = (images - turn + order.ways - 1) / order.ways * HEADS_OF_GROUP;
    } else {
      const unsigned long long all = order.items;
      first = all * blockIdx.x / gridDim.x;
      count = all * (blockIdx.x + 1) / gridDim.x - first;
    }
  }
  __device__ __forceinline__ unsigned item(unsigned n, const Order& order) const {
    return first + n + n / HEADS_OF_GROUP * ((order.ways - 1) * HEADS_OF_GROUP);
  }
};

// Wait for the other threads of the team. Barrier 0 is the block's.
__device__ __forceinline__ void meet(unsigned team) {
  if constexpr (TEAM == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(THREADS_OF_TEAM) : "memory");
  }
}

// ---- Bias and mask.

// What the score of a query and a key begins with. Scores are scaled after the product, so it is divided by the scale.
// Keys that don't exist have no weight. Masks may have the lowest finite number in place of -infinity: a query with no
// other key then gives all keys the same weight. So a finite number stays finite.
__device__ __forceinline__ float begin_with(const Operands& t, unsigned head, unsigned mask, unsigned query,
                                           unsigned key) {
  if (!FULL && key >= TOKENS) return -infinity();
  if (!(BIAS || MASK) || query >= TOKENS) return 0.0f;
  const float sum = added(t, head, mask, query, key), scaled = sum * sqrtf(HEAD);
  return fabsf(sum) <= LARGEST ? fminf(fmaxf(scaled, -LARGEST), LARGEST) : scaled;
}

// The part of a lane in tile (tile, column) of the scores: as mma.cuh draws D.
__device__ __forceinline__ void begin_tile(float (&to)[4], const Operands& t, unsigned head, unsigned mask,
                                           unsigned tile, unsigned column, unsigned lane) {
  const unsigned query = 16 * tile + lane / 4, key = 8 * column + 2 * (lane % 4);
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) to[i] = begin_with(t, head, mask, query + i / 2 * 8, key + i % 2);
}

// The tables of the heads of a segment: these parts, lane by lane.
__device__ __forceinline__ void make_tables(const Operands& t, const Item& first) {
  constexpr int PARTS = TABLE_BYTES / sizeof(float4), ALL = TABLES * PARTS;
#pragma unroll 1
  for (int i = threadIdx.x; i < ALL; i += THREADS) {
    const unsigned head = first.head - first.table + i / PARTS, part = i % PARTS, place = part / WARP;
    const unsigned tile = place / (BANDS * TILES), column = place % (BANDS * TILES);
    float values[4];
    begin_tile(values, t, head, first.mask, tile, column, part % WARP);
    reinterpret_cast<float4*>(shared_memory)[i] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

// ---- One item.

// Where a team's matrices lie: two of Q, each of which also takes the output, then K and V, or two of both.
struct Stage {
  unsigned q, k, v;

  __device__ __forceinline__ Stage(unsigned team, unsigned number) {
    const unsigned own = TABLES * TABLE_BYTES + team * TEAM_BYTES;
    const unsigned matrices = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + own;
    q = matrices + number * MATRIX_BYTES;
    k = matrices + (HOLD ? 2 : 2 + 2 * number) * MATRIX_BYTES;
    v = k + MATRIX_BYTES;
  }
};

// Begin to copy one matrix to shared memory; the threads of a team take packs in turn. Chunks have the same order in
// each eight rows: a thread whose packs are that far apart, or a multiple, has them at fixed distances from the first
// one.
__device__ __forceinline__ void fetch_matrix(unsigned to, const Element* from, unsigned step) {
  constexpr unsigned PACKS = TOKENS * CHUNKS, ROWS_AT_A_TIME = THREADS_OF_TEAM / CHUNKS;
  const unsigned thread = threadIdx.x % THREADS_OF_TEAM;
  if constexpr (THREADS_OF_TEAM % (8 * CHUNKS) == 0) {
    const unsigned row = thread / CHUNKS, chunk = thread % CHUNKS, place = chunk_at(to, row, chunk);
    const Element* own = from + row * step + chunk * CHUNK;
#pragma unroll
    for (unsigned first = 0; first < TOKENS; first += ROWS_AT_A_TIME) {
      if (first + ROWS_AT_A_TIME <= TOKENS || row < TOKENS - first) {
        copy_pack(place + first * ROW_BYTES, own + first * step);
      }
    }
  } else {
#pragma unroll
    for (unsigned first = 0; first < PACKS; first += THREADS_OF_TEAM) {
      const unsigned pack = first + thread, row = pack / CHUNKS, chunk = pack % CHUNKS;
      if (pack < PACKS) copy_pack(chunk_at(to, row, chunk), from + row * step + chunk * CHUNK);
    }
  }
}
__device__ __forceinline__ void fetch(const Operands& t, const Item& item, unsigned heads, const Stage& to) {
  const Rows rows = input_rows(item.window, item.head, heads);
  fetch_matrix(to.k, t.k + rows.first, rows.step);
  fetch_matrix(to.q, t.q + rows.first, rows.step);
  fetch_matrix(to.v, t.v + rows.first, rows.step);
}

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

// Writes a tile of the output, by way of its queries' place in shared memory, whose packs of 16 bytes then go to
// memory.
__device__ __forceinline__ void store_tile(const Operands& t, const Item& item, unsigned heads, unsigned q,
                                           unsigned tile, unsigned lane, const float (&out)[2 * STEPS][4],
                                           const float (&inverse)[2]) {
  __syncwarp();  // all lanes have read the queries
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned row = 16 * tile + 8 * half + lane / 4;
    if (16 * tile + 8 * half < TOKENS && row < TOKENS) {
#pragma unroll
      for (unsigned j = 0; j < 2 * STEPS; ++j) {
        const float left = out[j][2 * half] * inverse[half], right = out[j][2 * half + 1] * inverse[half];
        store_word(chunk_at(q, row, j) + lane % 4 * 4, rounded_pair<Element>(left, right));
      }
    }
  }
  __syncwarp();
  const Rows rows = output_rows(item.window, item.head, heads);
#pragma unroll
  for (unsigned first = 0; first < 16 * CHUNKS; first += WARP) {
    const unsigned pack = first + lane, row = 16 * tile + pack / CHUNKS, chunk = pack % CHUNKS;
    if (row < TOKENS) {
      store_whole(t.out + rows.first + row * rows.step + chunk * CHUNK, load_shared(chunk_at(q, row, chunk)));
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
      begin_tile(scores[i], t, item.head, item.mask, tile, band * TILES + i, lane);
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

// All that a block has to do. Items are counted within its part.
__device__ __forceinline__ void attend(const Operands& t, const Order& order) {
  const unsigned team = threadIdx.x / THREADS_OF_TEAM, warp = threadIdx.x % THREADS_OF_TEAM / WARP;
  const Part part(order);
  unsigned begin = 0, next = team, stage = 0;
  if (next < part.count) fetch(t, Item(part.item(next, order), order), order.heads, Stage(team, stage));
  while (begin < part.count) {
    unsigned end = part.count;
    if constexpr (TABLES) {
      const unsigned item = part.item(begin, order);
      end = min(end, (order.segment.quotient(item) + 1) * order.segment.size - part.first);
      __syncthreads();  // nobody needs the former tables any more
      make_tables(t, Item(item, order));
      __syncthreads();
    }
    while (next < end) {
      const Item item(part.item(next, order), order);
      const Stage now(team, stage);
      wait_for_copies();
      meet(team);  // all copies have come, and nobody needs the other stage any more
      const KeysAndValues kv(now);
      if constexpr (HOLD) meet(team);
      next += TEAMS, stage ^= 1;
      if (next < part.count) fetch(t, Item(part.item(next, order), order), order.heads, Stage(team, stage));
#pragma unroll 1
      for (unsigned tile = warp; tile < QUERY_TILES; tile += TEAM) {
        if (TOKENS % 16 == 0 || TOKENS % 16 > 8 || tile + 1 < QUERY_TILES) {
          attend_tile<2>(t, item, order.heads, now.q, tile, kv);
        } else {
          attend_tile<1>(t, item, order.heads, now.q, tile, kv);
        }
      }
    }
    begin = end;
  }
}
