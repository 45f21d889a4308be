// The backward of LayerNorm and RMSNorm on tiles of rows, which are on their way to shared memory while others are
// worked on.
//
// Macros, where harness/ops/_norm_grad_plan.py chooses this kernel: LANES (threads of a warp that are a team; 0: the
// team is a block, or a cluster of blocks), THREADS (of a block), KEPT (chunks of a row that a thread has), AT_ONCE
// (rows that a team reduces together), STAGES (tiles for which there is room), and 0 or 1: CLUSTER, SINGLES (chunks are
// elements).
#pragma once

#ifdef STAGES

#include "mbarrier.cuh"
#include "norm_grad.cuh"

#if LANES > 0
using TileTeam = WarpTeam<LANES>;
constexpr unsigned TEAMS = THREADS / LANES, TEAM_THREADS = LANES;  // of a block
#else
#if CLUSTER && __CUDA_ARCH__ >= 900  // elsewhere never launched
using TileTeam = ClusterTeam<THREADS>;
#else
using TileTeam = BlockTeam<THREADS>;
#endif
constexpr unsigned TEAMS = 1, TEAM_THREADS = THREADS;
#endif
static_assert(TEAMS == 1 || AT_ONCE == 1, "the rows of a block's teams would overlap");

// How tiles lie in memory and in the stages. A tile has `rows` rows; in a cluster each block has its `piece` of their
// columns. A stage has the tile's dy and x, `bytes` each, and behind them its statistics, `row_bytes` each.
struct Tiling {
  unsigned rows, piece, bytes, row_bytes;
};

// How packs come to a stage.
#if __CUDA_ARCH__ >= 900
// One thread starts bulk copies, which spares the others the instructions. A barrier a stage counts the bytes.
class Fetches {
 public:
  __device__ __forceinline__ Fetches() : barriers(of_block()) {
    if (threadIdx.x == 0) {
      for (unsigned s = 0; s < STAGES; ++s) mbarrier::init(barrier(s));
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  __device__ __forceinline__ static bool mine() { return threadIdx.x == 0; }
  // What is started for the stage after this, and before the next call, has that many packs.
  __device__ __forceinline__ void expect(unsigned stage, unsigned packs) const {
    mbarrier::expect(barrier(stage), packs * PACK_BYTES);
  }
  __device__ __forceinline__ void start(unsigned stage, char* to, const char* from, unsigned packs) const {
    if (packs == 0) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(packs * PACK_BYTES), "r"(barrier(stage))
        : "memory");
  }
  __device__ __forceinline__ void close() const {}
  // phase: how many times the stage was used before.
  __device__ __forceinline__ void wait(unsigned stage, unsigned phase) const { mbarrier::wait(barrier(stage), phase); }

 private:
  __device__ __forceinline__ static unsigned of_block() {
    __shared__ unsigned long long barriers[STAGES];
    return shared_address(barriers);
  }
  __device__ __forceinline__ unsigned barrier(unsigned stage) const { return barriers + mbarrier::BYTES * stage; }
  const unsigned barriers;
};
#else
// Every thread copies packs, a group of them for each stage.
class Fetches {
 public:
  __device__ __forceinline__ static bool mine() { return true; }
  __device__ __forceinline__ void expect(unsigned, unsigned) const {}
  __device__ __forceinline__ void start(unsigned, char* to, const char* from, unsigned packs) const {
    for (unsigned k = threadIdx.x; k < packs; k += THREADS) {
      copy_async_16(shared_address(to + k * PACK_BYTES), from + k * PACK_BYTES);
    }
  }
  __device__ __forceinline__ void close() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ __forceinline__ void wait(unsigned, unsigned) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES > 2 ? STAGES - 2 : 0) : "memory");
  }
};
#endif

// What a block has of the matrices, in its stages: where a tile's rows lie there, and what has to come.
template <bool Centred, typename Element>
struct Stages {
  const Element *dy, *x;
  const float *mean, *rstd;
  char* memory;
  long long rows;
  unsigned columns, first, here;  // this block has columns [first, first + here)
  Tiling tiling;

  __device__ __forceinline__ long long tiles() const { return (rows + tiling.rows - 1) / tiling.rows; }
  __device__ __forceinline__ unsigned rows_of(long long tile) const {
    return static_cast<unsigned>(min(static_cast<long long>(tiling.rows), rows - tile * tiling.rows));
  }

  __device__ __forceinline__ void fetch(const Fetches& fetches, long long tile, unsigned stage) const {
    if (tile < tiles() && Fetches::mine()) {
      unsigned packs = 0;
      each(tile, stage, [&](char*, const char*, unsigned count, unsigned) { packs += count; });
      fetches.expect(stage, packs);
      each(tile, stage, [&](char* to, const char* from, unsigned count, unsigned) {
        fetches.start(stage, to, from, count);
      });
    }
    fetches.close();
  }
  // What isn't a whole pack of it, where a tensor ends.
  __device__ __forceinline__ void fetch_rest(long long tile, unsigned stage) const {
    // Only of the last rows: their statistics share a pack, which may not be full.
    if (tile + Pack<float>::SIZE < tiles()) return;
    each(tile, stage, [&](char* to, const char* from, unsigned packs, unsigned rest) {
      const unsigned i = packs * PACK_BYTES + threadIdx.x * 2;
      if (threadIdx.x * 2 < rest) *reinterpret_cast<short*>(to + i) = *reinterpret_cast<const short*>(from + i);
    });
  }

  // A row of the tile, from the block's first column on; `has` tells whether there is such a row. begin: of its dx.
  struct Row {
    NormRow<Centred> of;
    const Element *dy, *x;
    long long begin;
    bool has;
  };
  __device__ __forceinline__ Row row(long long tile, unsigned stage, unsigned number) const {
    const long long first_row = tile * tiling.rows, begin = first_row * columns + first;
    const unsigned head = SINGLES ? static_cast<unsigned>(begin) % Pack<Element>::SIZE : 0;
    const unsigned at = head + number * columns, row_at = static_cast<unsigned>(first_row) % Pack<float>::SIZE + number;
    // Where there is no row there is still some number to read.
    const float of_rstd = reinterpret_cast<const float*>(rstd_of(stage))[row_at];
    const float of_mean = Centred ? reinterpret_cast<const float*>(mean_of(stage))[row_at] : 0.0f;
    return {{of_mean, of_rstd},
            reinterpret_cast<const Element*>(dy_of(stage)) + at,
            reinterpret_cast<const Element*>(x_of(stage)) + at,
            begin + static_cast<long long>(number) * columns,
            number < rows_of(tile)};
  }

 private:
  __device__ __forceinline__ char* dy_of(unsigned stage) const {
    return memory + stage * (2 * tiling.bytes + NormRow<Centred>::SUMS * tiling.row_bytes);
  }
  __device__ __forceinline__ char* x_of(unsigned stage) const { return dy_of(stage) + tiling.bytes; }
  __device__ __forceinline__ char* rstd_of(unsigned stage) const { return dy_of(stage) + 2 * tiling.bytes; }
  __device__ __forceinline__ char* mean_of(unsigned stage) const { return rstd_of(stage) + tiling.row_bytes; }

  // Calls copy(to, from, packs, rest) for what a stage takes from each tensor: so many packs, from an aligned address,
  // and then `rest` bytes, where the tensor ends within a pack. What else is in its packs comes along: element `begin`
  // comes to lie at begin % SIZE.
  template <typename Copy>
  __device__ __forceinline__ void each(long long tile, unsigned stage, Copy copy) const {
    const long long row = tile * tiling.rows, begin = row * columns + first, all = rows * columns;
    const unsigned count = rows_of(tile), elements = (count - 1) * columns + here;
    span<SINGLES>(dy_of(stage), dy, begin, elements, all, copy);
    span<SINGLES>(x_of(stage), x, begin, elements, all, copy);
    span<true>(rstd_of(stage), rstd, row, count, rows, copy);
    if constexpr (Centred) span<true>(mean_of(stage), mean, row, count, rows, copy);
  }
  template <bool Anywhere, typename Tensor, typename Copy>
  __device__ __forceinline__ static void span(char* to, const Tensor* from, long long begin, unsigned count,
                                              long long all, Copy copy) {
    constexpr unsigned SIZE = Pack<Tensor>::SIZE;
    const unsigned head = Anywhere ? static_cast<unsigned>(begin) % SIZE : 0, end = head + count;
    const char* first = reinterpret_cast<const char*>(from + (begin - head));
    if (!Anywhere || begin - head + (end + SIZE - 1) / SIZE * SIZE <= all) {
      copy(to, first, (end + SIZE - 1) / SIZE, 0);
    } else {
      copy(to, first, end / SIZE, end % SIZE * static_cast<unsigned>(sizeof(Tensor)));
    }
  }
};

// Blocks, or clusters, take tiles in turn. While one is worked on, the next ones are under way: memory isn't idle while
// rows are reduced, although few threads have the registers that the sums of columns take.
template <bool Centred, typename Element>
class OnTiles {
 public:
  using Chunk = typename ChunkOf<Element, SINGLES>::Type;
  using TileStages = Stages<Centred, Element>;
  static constexpr unsigned SUMS = NormRow<Centred>::SUMS, SIZE = Chunk::SIZE;

  __device__ __forceinline__ OnTiles(const Element* dy, const Element* x, const Element* gamma, const float* mean,
                                     const float* rstd, Element* dx, char* memory, long long rows, unsigned columns,
                                     Tiling tiling)
      : dx(dx) {
    const unsigned first = blockIdx.x % team_blocks() * tiling.piece;
    stages = {dy, x, mean, rstd, memory, rows, columns, first, min(tiling.piece, columns - first), tiling};
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      scale[j] = Chunk{};
      if (has(j)) load_chunk(gamma + first + offset(j), scale[j]);
    }
  }

  __device__ __forceinline__ unsigned team_blocks() const {
#if LANES > 0
    return 1;
#else
    return team.blocks();
#endif
  }

  __device__ __forceinline__ void run() {
    const long long tiles = stages.tiles(), step = gridDim.x / team_blocks();
    long long at = blockIdx.x / team_blocks();
    const Fetches fetches;
    for (unsigned s = 0; s + 1 < STAGES; ++s) stages.fetch(fetches, at + s * step, s);
    for (unsigned stage = 0, phase = 0; at < tiles; at += step) {
      if constexpr (STAGES == 1) {
        __syncthreads();
        stages.fetch(fetches, at, 0);
      }
      fetches.wait(stage, phase);
      stages.fetch_rest(at, stage);
      // From here on all threads see the tile, and none reads the one before any more, whose place is free.
      __syncthreads();
      if constexpr (STAGES > 1) stages.fetch(fetches, at + (STAGES - 1) * step, stage ? stage - 1 : STAGES - 1);
      work(at, stage);
      ++stage;
      if (stage == STAGES) {
        stage = 0;
        ++phase;
      }
    }
  }

  __device__ __forceinline__ void put(const ColumnSums<Element>& to) {
#if LANES > 0
    __syncthreads();
    put_team_sums<LANES>(reinterpret_cast<float*>(stages.memory), sums, 0, stages.columns, to);
#else
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) {
        float chosen[SIZE];
        sums_of(sums[j], s, chosen);
        if constexpr (SINGLES) {
          to.put(s, stages.first + offset(j), chosen[0]);
        } else {
          to.put_pack(s, stages.first + offset(j), chosen);
        }
      }
    }
#endif
  }

 private:
  // Of chunk j, from the first of this block's columns.
  __device__ __forceinline__ unsigned offset(unsigned j) const {
    return (threadIdx.x % TEAM_THREADS + j * TEAM_THREADS) * SIZE;
  }
  // Whether the block's columns have the thread's chunk j. Only the last one may be missing.
  __device__ __forceinline__ bool has(unsigned j) const { return j + 1 < KEPT || offset(j) < stages.here; }

  __device__ __forceinline__ void work(long long tile, unsigned stage) {
    const unsigned count = stages.rows_of(tile);
    // Teams without a row take the turn too, for the shuffles.
    for (unsigned turn = 0; turn < count; turn += TEAMS * AT_ONCE) {
      typename TileStages::Row own[AT_ONCE];
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) own[i] = stages.row(tile, stage, turn + threadIdx.x / TEAM_THREADS + i);
      float means[AT_ONCE][SUMS];
      reduce(own, means);
      // Chunks are read from the tile once more: to keep them would take registers that the sums of columns need.
      asm volatile("" ::: "memory");
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        if (own[i].has) store_row(own[i], means[i]);
      }
    }
  }
  // The sums of rows divided by the columns. On the way the rows' elements are added to the sums of their columns.
  __device__ __forceinline__ void reduce(const typename TileStages::Row (&own)[AT_ONCE],
                                         float (&means)[AT_ONCE][SUMS]) {
    const float share = 1.0f / stages.columns;
    float all[AT_ONCE * SUMS];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      float row_sums[SUMS] = {};
      if (own[i].has) add_row(own[i], row_sums);
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) all[i * SUMS + s] = row_sums[s] * share;
    }
    team.template all<Sum>(all);
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE * SUMS; ++i) means[i / SUMS][i % SUMS] = all[i];
  }
  __device__ __forceinline__ void add_row(const typename TileStages::Row& row, float (&row_sums)[SUMS]) {
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      const Chunk gradients = shared_chunk<Chunk>(row.dy + offset(j)), values = shared_chunk<Chunk>(row.x + offset(j));
      add_chunk(row.of, gradients, values, scale[j], row_sums, sums[j]);
    }
  }
  __device__ __forceinline__ void store_row(const typename TileStages::Row& row, const float (&means)[SUMS]) const {
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      const Chunk gradients = shared_chunk<Chunk>(row.dy + offset(j)), values = shared_chunk<Chunk>(row.x + offset(j));
      store_chunk(dx + row.begin + offset(j), chunk_gradient(row.of, gradients, values, scale[j], means));
    }
  }

  TileTeam team;
  TileStages stages;
  Element* dx;
  Chunk scale[KEPT];
  float sums[KEPT][SIZE][SUMS] = {};
};

template <bool Centred, typename Element>
__device__ __forceinline__ void tile_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                               const Element* __restrict__ gamma, const float* __restrict__ mean,
                                               const float* __restrict__ rstd, Element* __restrict__ dx,
                                               Element* __restrict__ dgamma, Element* __restrict__ dbeta,
                                               float* __restrict__ partial, long long rows, unsigned columns,
                                               Tiling tiling) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  OnTiles<Centred, Element> tiles(dy, x, gamma, mean, rstd, dx, reinterpret_cast<char*>(shared), rows, columns, tiling);
  tiles.run();
  tiles.put(ColumnSums<Element>::of_blocks(dgamma, dbeta, partial, columns, tiles.team_blocks()));
#endif
}
#endif  // STAGES
