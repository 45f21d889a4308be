// The backward of LayerNorm and RMSNorm on tiles of rows. Some tiles are on their way to shared memory while another
// one is worked on.
//
// NormGradPlan of harness/collection/ops/rows/_norm_grad_plan.py chooses the macros: LANES (threads of a warp that are
// a team; 0 where the team is a block, or a cluster of blocks), THREADS (of a block), BLOCKS (that a multiprocessor is
// to hold), CLUSTER (blocks that share a row), KEPT (chunks of a row that a thread has), AT_ONCE (rows that a team
// reduces together), STAGES (tiles for which there is room), and 0 or 1: SINGLES (chunks are single elements, not
// packs), FLOATS (rows stay in registers, as floats, until they are reduced; always so where lanes of a warp are a
// team).
#pragma once

#ifdef STAGES

#include "norm_grad.cuh"
#include "norm_grad_stages.cuh"
#include "norm_grad_sums.cuh"

#if LANES > 0
constexpr unsigned TEAMS = THREADS / LANES, TEAM_THREADS = LANES;  // of a block
#else
constexpr unsigned TEAMS = 1, TEAM_THREADS = THREADS;
#endif
static_assert(FLOATS || !LANES, "no such kernel");
// Whether dx of a tile is made only when the next tile has been read. Then blocks needn't wait for each other's sums.
// That takes a third stage, for the tile that is under way meanwhile.
#define LATE (!FLOATS && STAGES > 2)

template <bool First, typename A, typename B>
struct Either {
  using Type = A;
};
template <typename A, typename B>
struct Either<false, A, B> {
  using Type = B;
};

// Blocks, or clusters, take tiles in turn. While one tile is worked on, the next ones are under way, so that memory
// isn't idle while rows are reduced. Threads alone wouldn't keep it busy: there are few of them, since the sums of
// columns take many registers.
template <bool Centred, typename Element>
class OnTiles {
 public:
  using Chunk = typename ChunkOf<Element, SINGLES>::Type;
  using TileStages = Stages<Centred, Element>;
  using Tile = typename TileStages::Tile;
  static constexpr unsigned SUMS = NormRow<Centred>::SUMS, SIZE = Chunk::SIZE;

  __device__ __forceinline__ OnTiles(const Element* dy, const Element* x, const Element* gamma, const float* mean,
                                     const float* rstd, Element* dx, char* memory, long long rows, unsigned columns,
                                     Tiling tiling)
      : dx(dx) {
    const unsigned first = blockIdx.x % CLUSTER * tiling.piece;
    stages = {dy, x, mean, rstd, memory, rows, columns, first, min(tiling.piece, columns - first), tiling};
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      Chunk chunk{};
      if (has(j)) load_chunk(gamma + first + offset(j), chunk);
      if constexpr (FLOATS) {
        widen(chunk, scale[j]);
      } else {
        scale[j] = chunk;
      }
    }
  }

  __device__ __forceinline__ void run() {
    // Tiles that are fetched before the first one is worked on. Where a tile's stage is free as soon as the sums of its
    // own rows are known, that is one more than where the sums of the next tile's rows must be known.
    constexpr unsigned AHEAD = FLOATS && LANES == 0 ? STAGES : STAGES - 1;
    const long long tiles = stages.tiles(), step = gridDim.x / CLUSTER;
    const long long at = blockIdx.x / CLUSTER;
    const Fetches fetches;
    for (int s = 0; s < static_cast<int>(AHEAD); ++s) stages.fetch(fetches, at + s * step, s);
    team.start();
    Tile tile = stages.tile(dx, at), last = tile;
    unsigned stage = 0, before = STAGES - 1, phase = 0;
    for (; tile.number < tiles;) {
      if constexpr (AHEAD == 0) {
        __syncthreads();
        stages.fetch(fetches, tile.number, 0);
        stages.announce(fetches, tile.number + step);
      }
      fetches.template wait<AHEAD ? AHEAD - 1 : 0>(stage, phase);
      stages.fetch_rest(tile.number, stage);
      work(tile, last, [&] {
        if constexpr (AHEAD > 0) stages.fetch(fetches, tile.number + AHEAD * step, AHEAD == STAGES ? stage : before);
        if constexpr (AHEAD == 1) stages.announce(fetches, tile.number + 2 * step);
      });
      before = stage++;
      if (stage == STAGES) {
        stage = 0;
        ++phase;
      }
      last = tile;
      stages.advance(tile, step, stage);
    }
#if LATE
    if (last.number < tiles) finish(Turn(*this, last), 0);
#endif
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
  // The thread's elements of a row: dy and xhat.
  struct Floats {
    float dy[KEPT][SIZE], xhat[KEPT][SIZE];
  };
  struct Nothing {};
  // The rows of a tile that a team reduces together, from row `first` of the tile on.
  struct Turn {
    typename TileStages::Row rows[AT_ONCE];
    typename Either<FLOATS, Floats, Nothing>::Type floats[AT_ONCE];

    __device__ __forceinline__ Turn(const OnTiles& of, const Tile& tile, unsigned first = 0) {
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        rows[i] = of.stages.row(tile, first + threadIdx.x / TEAM_THREADS + i * TEAMS, of.offset(0));
      }
    }
  };

  static constexpr unsigned STEP = TEAM_THREADS * SIZE;  // elements from one of a thread's chunks to the next

  // Elements from the block's first column to the thread's chunk j.
  __device__ __forceinline__ unsigned offset(unsigned j) const {
    return (threadIdx.x % TEAM_THREADS + j * TEAM_THREADS) * SIZE;
  }
  // Whether the block's columns have the thread's chunk j. Only the last one may be missing.
  __device__ __forceinline__ bool has(unsigned j) const { return j + 1 < KEPT || offset(j) < stages.here; }

  // Works on a tile. refill() fetches another tile; it is called when there is room for it. Where lanes are a team, a
  // tile takes several turns; elsewhere it takes one.
  template <typename Refill>
  __device__ __forceinline__ void work(const Tile& tile, const Tile& last, Refill refill) {
    float values[AT_ONCE * SUMS];
#if LANES > 0
    // From here on no thread reads the last tile any more.
    __syncthreads();
    refill();
    const unsigned count = stages.rows_of(tile);
    // Teams without a row take part in the last turn too, since shuffles need all lanes.
#pragma unroll 1
    for (unsigned first = 0; first < count; first += TEAMS * AT_ONCE) {
      Turn turn(*this, tile, first);
      reduce(turn, values);
      team.all(values);
      store(turn, values);
    }
    if constexpr (IN_PLACE) stages.write_dx(tile);
#elif LATE
    Turn turn(*this, tile);
    reduce(turn, values);
    team.begin(values);
    if (last.number < tile.number) finish(Turn(*this, last), 1);
    __syncthreads();
    refill();
#else
    Turn turn(*this, tile);
    reduce(turn, values);
    team.begin(values);
    team.settle();
    // All warps of the block have sent their sums, and each has sent them after its last read of the stage. So the stage
    // is free without a barrier. (compute-sanitizer's racecheck doesn't follow this order, and names these reads.)
    team.finish(values);
    refill();
    store(turn, values);
#endif
  }
#if LATE
  __device__ __forceinline__ void finish(const Turn& turn, unsigned since) {
    float values[AT_ONCE * SUMS];
    team.finish(values, since);
    store(turn, values);
  }
#endif

  // Makes this thread's part of the rows' sums, divided by the number of columns, and adds the rows' elements to the
  // sums of their columns.
  __device__ __forceinline__ void reduce(Turn& turn, float (&values)[AT_ONCE * SUMS]) {
    const float share = 1.0f / stages.columns;
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      float of_row[SUMS] = {};
#pragma unroll
      for (unsigned j = 0; j < KEPT; ++j) {
        if (turn.rows[i].has && has(j)) add(turn.rows[i], turn.floats[i], j, of_row);
      }
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) values[i * SUMS + s] = of_row[s] * share;
    }
  }
  // gamma of chunk j. Where there is no room, the asm hides that it is the same for each row: otherwise the compiler
  // keeps it as floats.
  __device__ __forceinline__ Chunk packed_scale(unsigned j) const {
    Chunk chunk = scale[j];
    if constexpr (!ROOM && !SINGLES) {
      uint4& raw = reinterpret_cast<uint4&>(chunk);
      asm volatile("" : "+r"(raw.x), "+r"(raw.y), "+r"(raw.z), "+r"(raw.w));
    }
    return chunk;
  }
  template <typename Kept>
  __device__ __forceinline__ void add(const typename TileStages::Row& row, Kept& floats, unsigned j,
                                      float (&of_row)[SUMS]) {
    const Chunk dy = shared_chunk<Chunk>(row.dy + j * STEP), x = shared_chunk<Chunk>(row.x + j * STEP);
    if constexpr (FLOATS) {
      widen(dy, floats.dy[j]);
      widen(x, floats.xhat[j]);
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        floats.xhat[j][e] = row.of.normalised(floats.xhat[j][e]);
        row.of.add(floats.dy[j][e], floats.xhat[j][e], scale[j][e], of_row, sums[j][e]);
      }
    } else {
      add_chunk(row.of, dy, x, packed_scale(j), of_row, sums[j]);
    }
  }
  __device__ __forceinline__ void store(const Turn& turn, const float (&values)[AT_ONCE * SUMS]) const {
    // Chunks that aren't kept are read from the tile once more, since the registers are for the sums of columns.
    if constexpr (!FLOATS) asm volatile("" ::: "memory");
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      float means[SUMS];
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) means[s] = values[i * SUMS + s];
#pragma unroll
      for (unsigned j = 0; j < KEPT; ++j) {
        const typename TileStages::Row& row = turn.rows[i];
        if (row.has && has(j)) store_chunk(row.dx + j * STEP, gradient(row, turn.floats[i], j, means));
      }
    }
  }
  template <typename Kept>
  __device__ __forceinline__ Chunk gradient(const typename TileStages::Row& row, const Kept& floats, unsigned j,
                                            const float (&means)[SUMS]) const {
    if constexpr (FLOATS) {
      float gradients[SIZE];
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        gradients[e] = row.of.gradient_at(floats.dy[j][e], floats.xhat[j][e], scale[j][e], means);
      }
      Chunk chunk;
      narrow(gradients, chunk);
      return chunk;
    } else {
      const Chunk dy = shared_chunk<Chunk>(row.dy + j * STEP), x = shared_chunk<Chunk>(row.x + j * STEP);
      return chunk_gradient(row.of, dy, x, packed_scale(j), means);
    }
  }

  TeamSums<AT_ONCE * SUMS> team;
  TileStages stages;
  Element* dx;
  typename Either<FLOATS, float[SIZE], Chunk>::Type scale[KEPT];  // gamma
  float sums[KEPT][SIZE][SUMS] = {};
};

template <bool Centred, typename Element>
__device__ __forceinline__ void tile_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                               const Element* __restrict__ gamma, const float* __restrict__ mean,
                                               const float* __restrict__ rstd, Element* __restrict__ dx,
                                               Element* __restrict__ dgamma, Element* __restrict__ dbeta,
                                               float* __restrict__ partial, long long rows, unsigned columns,
                                               Tiling tiling) {
#if CLUSTER == 1 || __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  OnTiles<Centred, Element> tiles(dy, x, gamma, mean, rstd, dx, reinterpret_cast<char*>(shared), rows, columns, tiling);
  tiles.run();
  tiles.put(ColumnSums<Element>::of_blocks(dgamma, dbeta, partial, columns, CLUSTER));
#endif
}
#endif  // STAGES
