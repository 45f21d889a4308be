// What attention over windows by tensor cores works on: items and their order, bias and mask, and how Q, K and V come
// to shared memory. Macros: as in attention_tiles.cuh.
#pragma once

#include "attention_fragments.cuh"
#include "../include/fastdiv.cuh"

// ---- The order of the work.

// An item is a window and a head, or a part of its queries. Items of a segment share masks, a group of heads and the
// part, so one set of tables serves them: within a segment, heads of the group come first, then images. Blocks have
// equal shares of the items, one after another; or, where each segment has several blocks of its own, its images in
// turn. Then all blocks are at neighbouring windows at a time, and not each at a distant place of its own, which memory
// serves worse.
//
// items: of all. heads: H. masks: G. ways: blocks that take a segment's images in turn, or 1. segment: items of a
// segment. groups: of heads, times the parts.
struct Order {
  unsigned items, heads, masks, ways;
  Divisor<unsigned> segment, groups;
};
constexpr unsigned HEADS_OF_GROUP = TABLES ? TABLES : 1;

// first: the first of the item's tiles of queries. table: of its head, among the block's tables.
struct Item {
  unsigned window, head, mask, table, first;

  __device__ __forceinline__ Item(unsigned item, const Order& order) {
    const unsigned of = order.segment.quotient(item), rest = item - of * order.segment.size;
    mask = order.groups.quotient(of);
    const unsigned group = of - mask * order.groups.size;
    table = rest % HEADS_OF_GROUP;
    head = group / PARTS * HEADS_OF_GROUP + table;
    first = group % PARTS * QUERY_TILES;
    window = rest / HEADS_OF_GROUP * order.masks + mask;
  }
};

// A block's share of the items: `count`, from the item `first` on.
struct Share {
  unsigned first, count;

  __device__ __forceinline__ explicit Share(const Order& order) {
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

// What a score begins with, of the sum of its bias and mask. Scores are scaled after the product, so it is divided by
// the scale. Masks may have the lowest finite number in place of -infinity: a query with no other key then gives all
// keys the same weight. So a finite number stays finite.
__device__ __forceinline__ float begin_with(float sum) {
  const float scaled = sum * sqrtf(HEAD);
  return fabsf(sum) <= LARGEST ? fminf(fmaxf(scaled, -LARGEST), LARGEST) : scaled;
}

// Adds two neighbours of a row, whose first one has an even number. Rows of an even length have pairs of halves in a
// register each.
__device__ __forceinline__ void add_two(float (&two)[2], const Element* row, unsigned key) {
  if constexpr (TOKENS % 2 == 0) {
    const Lanes<Element> both(__ldg(reinterpret_cast<const unsigned*>(row + key)));
    two[0] += both.at[0], two[1] += both.at[1];
  } else {
    two[0] += to_float(row[key]);
    if (key + 1 < TOKENS) two[1] += to_float(row[key + 1]);
  }
}

// Whether each row of each tile is a query.
constexpr bool ALL_QUERIES = FULL && ALL_TILES % PARTS == 0;

// The part of a lane in tile (tile, column) of the scores: as mma.cuh draws D. Keys that don't exist have no weight.
__device__ __forceinline__ void begin_tile(float (&to)[4], const Operands& t, unsigned head, unsigned mask,
                                           unsigned tile, unsigned column, unsigned lane) {
  const unsigned key = 8 * column + 2 * (lane % 4);
#pragma unroll
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned query = 16 * tile + lane / 4 + 8 * half;
    float two[2] = {};
    if ((BIAS || MASK) && (ALL_QUERIES || query < TOKENS) && (FULL || key < TOKENS)) {
      if constexpr (BIAS) add_two(two, t.bias + (static_cast<long long>(head) * TOKENS + query) * TOKENS, key);
      if constexpr (MASK) add_two(two, t.mask + (static_cast<long long>(mask) * TOKENS + query) * TOKENS, key);
    }
#pragma unroll
    for (unsigned e = 0; e < 2; ++e) {
      to[2 * half + e] = FULL || key + e < TOKENS ? begin_with(two[e]) : -infinity();
    }
  }
}

// Where there are no tables, lets a warp's rows of bias and mask come to the L2 while q, k and v are on their way.
__device__ __forceinline__ void touch_added(const Operands& t, const Item& item, unsigned warp) {
  const unsigned first = 16 * (item.first + warp), end = min(first + 16, static_cast<unsigned>(TOKENS));
  if constexpr (TABLES == 0 && (BIAS || MASK)) {
    constexpr unsigned LINE = 128 / sizeof(Element);  // elements
#pragma unroll 1
    for (unsigned at = first * TOKENS + threadIdx.x % WARP * LINE; at < end * TOKENS; at += WARP * LINE) {
      if constexpr (BIAS) touch(t.bias + static_cast<long long>(item.head) * (TOKENS * TOKENS) + at);
      if constexpr (MASK) touch(t.mask + static_cast<long long>(item.mask) * (TOKENS * TOKENS) + at);
    }
  }
}

// The tables of the heads of a segment: these parts, lane by lane.
__device__ __forceinline__ void make_tables(const Operands& t, const Item& first) {
  // As many loads at a time as registers are free for them.
  constexpr int TOGETHER = HOLD || THREADS > 512 ? 1 : 4;
  constexpr int OF_HEAD = TABLE_BYTES / sizeof(float4), ALL = TABLES * OF_HEAD;
#pragma unroll TOGETHER
  for (int i = threadIdx.x; i < ALL; i += THREADS) {
    const unsigned head = first.head - first.table + i / OF_HEAD, part = i % OF_HEAD, place = part / WARP;
    const unsigned tile = place / (BANDS * TILES), column = place % (BANDS * TILES);
    float values[4];
    begin_tile(values, t, head, first.mask, first.first + tile, column, part % WARP);
    reinterpret_cast<float4*>(shared_memory)[i] = make_float4(values[0], values[1], values[2], values[3]);
  }
}

// ---- Q, K and V of an item on their way.

// Where a team's matrices lie: two of Q, then K and V, or one or two of all three. Q also takes the output.
struct Stage {
  unsigned q, k, v;

  __device__ __forceinline__ Stage(unsigned team, unsigned number) {
    const unsigned own = TABLES * TABLE_BYTES + team * TEAM_BYTES;
    const unsigned matrices = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)) + own;
    q = matrices + number * (HOLD ? MATRIX_BYTES : TEAM_BYTES / STAGES);
    k = HOLD ? matrices + 2 * MATRIX_BYTES : q + QUERY_BYTES;
    v = k + MATRIX_BYTES;
  }
};

// Begin to copy the first `rows` rows of a matrix, of at most MOST, to shared memory; the threads of a team take
// accesses in turn. Chunks have the same order in each eight rows: a thread's accesses in eight rows are at distances
// of their own, and lie as far from its accesses in the next eight, or in as many as the threads have at a time.
template <unsigned MOST>
__device__ __forceinline__ void fetch_matrix(unsigned to, const Element* from, unsigned step, unsigned rows) {
  constexpr unsigned AT_A_TIME = THREADS_OF_TEAM / ROW_LANES, TURNS = AT_A_TIME < 8 ? 8 / AT_A_TIME : 1;
  constexpr unsigned ELEMENTS = ACCESS / sizeof(Element);
  const unsigned thread = threadIdx.x % THREADS_OF_TEAM;
  if constexpr (THREADS_OF_TEAM % ROW_LANES == 0 && AT_A_TIME * TURNS % 8 == 0) {
    const unsigned row = thread / ROW_LANES, access = thread % ROW_LANES;
    const Element* own = from + row * step + access * ELEMENTS;
    unsigned places[TURNS];
#pragma unroll
    for (unsigned turn = 0; turn < TURNS; ++turn) places[turn] = access_at(to, turn * AT_A_TIME + row, access);
    if (access >= ACCESSES) return;
    // Words are many: all of their addresses at the same time would take the registers of K and V.
#pragma unroll (ACCESS == PACK_BYTES ? MOST : 1)
    for (unsigned begin = 0; begin < MOST; begin += TURNS * AT_A_TIME) {
#pragma unroll
      for (unsigned turn = 0; turn < TURNS; ++turn) {
        const unsigned first = begin + turn * AT_A_TIME;
        if (first + AT_A_TIME <= rows || (first < rows && row < rows - first)) {
          copy(places[turn] + begin * ROW_BYTES, own + first * step);
        }
      }
    }
  } else {
#pragma unroll
    for (unsigned first = 0; first < MOST * ROW_LANES; first += THREADS_OF_TEAM) {
      const unsigned row = (first + thread) / ROW_LANES, access = (first + thread) % ROW_LANES;
      if (row < rows && access < ACCESSES) copy(access_at(to, row, access), from + row * step + access * ELEMENTS);
    }
  }
}
__device__ __forceinline__ void fetch(const Operands& t, const Item& item, unsigned heads, const Stage& to) {
  const Rows rows = input_rows(item.window, item.head, heads);
  const unsigned first = 16 * item.first, queries = PARTS == 1 ? TOKENS : min(QUERIES, TOKENS - first);
  fetch_matrix<TOKENS>(to.k, t.k + rows.first, rows.step, TOKENS);
  fetch_matrix<QUERIES>(to.q, t.q + rows.first + first * rows.step, rows.step, queries);
  fetch_matrix<TOKENS>(to.v, t.v + rows.first, rows.step, TOKENS);
}

// Writes zeros to a team's matrices where their rows have columns that only fill tiles: no copy writes there.
__device__ __forceinline__ void clear_padding(unsigned team) {
  if constexpr (WIDTH != HEAD) {
    const unsigned matrices = Stage(team, 0).q, thread = threadIdx.x % THREADS_OF_TEAM;
#pragma unroll 1
    for (unsigned at = thread * PACK_BYTES; at < TEAM_BYTES; at += THREADS_OF_TEAM * PACK_BYTES) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(matrices + at), "r"(0) : "memory");
    }
    meet(team);
  }
}
