// The backward of LayerNorm and RMSNorm on tiles of rows, which are on their way to shared memory while others are
// worked on.
//
// Macros, where harness/ops/_norm_grad_plan.py chooses this kernel: LANES (threads of a warp that are a team; 0: the
// team is a block, or a cluster of blocks), THREADS (of a block), BLOCKS (that a multiprocessor is to hold), CLUSTER
// (blocks that share a row), KEPT (chunks of a row that a thread has), AT_ONCE (rows that a team reduces together),
// STAGES (tiles for which there is room), and 0 or 1: SINGLES (chunks are elements), FLOATS (rows stay in registers, as
// floats, until they are reduced; always where lanes of a warp are a team).
#pragma once

#ifdef STAGES

#include "mbarrier.cuh"
#include "norm_grad.cuh"

#if LANES > 0
constexpr unsigned TEAMS = THREADS / LANES, TEAM_THREADS = LANES;  // of a block
#else
constexpr unsigned TEAMS = 1, TEAM_THREADS = THREADS;
#endif
static_assert(FLOATS || !LANES, "no such kernel");
// Whether a tile's dx waits until the next tile was read: so blocks needn't wait for each other's sums. That takes a
// third stage, for what is under way meanwhile.
#define LATE (!FLOATS && STAGES > 2)

// ---- Sums over a team of the values that its threads have. begin() takes them, finish() gives them to all threads:
// after settle(), or, for sums that are LATE, after a barrier of the block; `since` (0 or 1) sums later.

// Of `Lanes` neighbours, with half the shuffles that a butterfly takes: with each step a thread keeps half of its
// values and gives the others away, until it has one. The threads of a group, of which there are as many as values,
// agree.
template <unsigned Lanes, unsigned Count>
__device__ __forceinline__ float scattered_sum(const float (&values)[Count]) {
  constexpr unsigned STEP = Lanes / 2;
  if constexpr (Count == 1) {
    float sum = values[0];
#pragma unroll
    for (unsigned step = STEP; step; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return sum;
  } else {
    const bool upper = threadIdx.x & STEP;
    float kept[Count / 2];
#pragma unroll
    for (unsigned i = 0; i < Count / 2; ++i) {
      const float given = upper ? values[i] : values[i + Count / 2];
      kept[i] = (upper ? values[i + Count / 2] : values[i]) + __shfl_xor_sync(ALL_LANES, given, STEP);
    }
    return scattered_sum<STEP>(kept);
  }
}
// To all threads, from the groups of threads.
template <unsigned Lanes, unsigned Count>
__device__ __forceinline__ void gather(float sum, float (&values)[Count]) {
  const unsigned first = threadIdx.x % WARP / Lanes * Lanes;
#pragma unroll
  for (unsigned i = 0; i < Count; ++i) values[i] = __shfl_sync(ALL_LANES, sum, first + i * (Lanes / Count));
}

// Whether a thread has registers left, beside its sums of columns.
constexpr bool ROOM = KEPT * (SINGLES ? 1 : PACK_BYTES / sizeof(SCALAR)) <= 24;
// Addresses in shared memory are kept in registers: the compiler isn't to see what they're made of, or makes them anew
// for each row.
__device__ __forceinline__ unsigned kept_address(unsigned address) {
  if constexpr (ROOM) asm volatile("" : "+r"(address));
  return address;
}
__device__ __forceinline__ float load_shared(unsigned address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Of `Warps` warps, for each of `Count` values, of which every group of threads has one.
template <unsigned Count, unsigned Warps>
struct WarpSums {
  static constexpr unsigned GROUP = WARP / Count;
  static_assert(GROUP >= 8, "a group has a thread for each block of a cluster");

  __device__ __forceinline__ static unsigned value() { return threadIdx.x % WARP / GROUP; }
  __device__ __forceinline__ static unsigned in_group() { return threadIdx.x % GROUP; }
  // With zeros behind, so that every thread of a group has as many to add.
  static constexpr unsigned PLACES = (Warps + GROUP - 1) / GROUP * GROUP;
  using Partial = float[Count][PLACES];
  // Bytes to the sum of a warp.
  __device__ __forceinline__ static unsigned place(unsigned value, unsigned warp) {
    return (value * PLACES + warp) * static_cast<unsigned>(sizeof(float));
  }
  // own: address of the value's partial sums, from that of warp in_group() on.
  __device__ __forceinline__ static void finish(unsigned own, float (&values)[Count]) {
    float sum = load_shared(own);
#pragma unroll
    for (unsigned from = GROUP; from < PLACES; from += GROUP) sum += load_shared(own + from * sizeof(float));
#pragma unroll
    for (unsigned step = GROUP / 2; step; step /= 2) {
      if (step < Warps) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    }
    gather<WARP>(sum, values);
  }
};

#if LANES > 0
template <unsigned Count>
struct TeamSums {
  __device__ __forceinline__ void start() const {}
  __device__ __forceinline__ unsigned blocks() const { return 1; }
  // With few lanes to go through, giving away takes as long.
  __device__ __forceinline__ void all(float (&values)[Count]) const {
    if constexpr (LANES >= 16 && Count > 1) {
      gather<LANES>(scattered_sum<LANES>(values), values);
    } else {
      WarpTeam<LANES>().template all<Sum>(values);
    }
  }
};
#elif CLUSTER > 1 && __CUDA_ARCH__ >= 900  // elsewhere never launched
// Each warp sends its sums to all blocks of the cluster. A block may begin sums, and even the ones after, while another
// one hasn't finished those before: hence four sets of partial sums.
template <unsigned Count>
class TeamSums {
 public:
  // No block may send anything to one that hasn't started: start() waits for what is announced here.
  __device__ __forceinline__ TeamSums() {
    __shared__ unsigned long long barriers[SETS];
    __shared__ Partial sets[SETS];
    for (unsigned i = threadIdx.x; i < sizeof(sets) / sizeof(float); i += THREADS) sets[0][0][i] = 0.0f;
    __syncthreads();  // before others send anything: they wait for what is announced here
    arrivals = shared_address(barriers);
    if (threadIdx.x == 0) {
      for (unsigned set = 0; set < SETS; ++set) mbarrier::init(arrivals + set * mbarrier::BYTES);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __cluster_barrier_arrive_relaxed();
    partial = shared_address(sets);
    if constexpr (ROOM) {
      own = kept_address(own_address());
      place = there(place_address());
      arrival = there(arrivals);
    }
  }
  __device__ __forceinline__ void start() const { __cluster_barrier_wait(); }
  __device__ __forceinline__ unsigned blocks() const { return CLUSTER; }
  __device__ __forceinline__ void begin(const float (&values)[Count]) {
    const float sum = scattered_sum<WARP>(values);
    const unsigned set = begun % SETS, after = set * mbarrier::BYTES;
    if (threadIdx.x == 0) mbarrier::expect(arrivals + after, WARPS * sizeof(values));
    if (Sums::in_group() < CLUSTER) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                       (ROOM ? place : there(place_address())) + set * SET),
                   "f"(sum), "r"((ROOM ? arrival : there(arrivals)) + after)
                   : "memory");
    }
    ++begun;
  }
  __device__ __forceinline__ void settle() const {}
  __device__ __forceinline__ void finish(float (&values)[Count], unsigned since = 0) const {
    const unsigned finished = begun - 1 - since, set = finished % SETS;
    mbarrier::wait_for_cluster(arrivals + set * mbarrier::BYTES, finished / SETS);
    Sums::finish((ROOM ? own : own_address()) + set * SET, values);
  }

 private:
  static constexpr unsigned SETS = 4, WARPS = CLUSTER * (THREADS / WARP);
  using Sums = WarpSums<Count, WARPS>;
  using Partial = typename Sums::Partial;
  static constexpr unsigned SET = sizeof(Partial);

  // Of the first set.
  __device__ __forceinline__ unsigned own_address() const {
    return partial + Sums::place(Sums::value(), Sums::in_group());
  }
  __device__ __forceinline__ unsigned place_address() const {
    const unsigned warp = __clusterRelativeBlockRank() * (THREADS / WARP) + threadIdx.x / WARP;
    return partial + Sums::place(Sums::value(), warp);
  }
  // The same address in the block that this thread sends to. Where there is no room, it isn't to be kept: at its worst
  // a spilled register comes from the L2, while all blocks of the cluster wait.
  __device__ __forceinline__ static unsigned there(unsigned address) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(Sums::in_group() % CLUSTER));
    return remote;
  }

  unsigned arrivals, partial, begun = 0;
  unsigned own, place, arrival;  // where there is room
};
#else
// Two sets of partial sums take turns, so that one barrier for each is enough.
template <unsigned Count>
class TeamSums {
 public:
  __device__ __forceinline__ TeamSums() {
    __shared__ Partial sets[2];
    for (unsigned i = threadIdx.x; i < sizeof(sets) / sizeof(float); i += THREADS) sets[0][0][i] = 0.0f;
    __syncthreads();
    own = kept_address(shared_address(sets) + Sums::place(Sums::value(), Sums::in_group()));
    place = kept_address(shared_address(sets) + Sums::place(Sums::value(), threadIdx.x / WARP));
  }
  __device__ __forceinline__ void start() const {}
  __device__ __forceinline__ unsigned blocks() const { return 1; }
  __device__ __forceinline__ void begin(const float (&values)[Count]) {
    const float sum = scattered_sum<WARP>(values);
    if (Sums::in_group() == 0) asm volatile("st.shared.f32 [%0], %1;" ::"r"(place + begun), "f"(sum) : "memory");
    begun ^= SET;
  }
  __device__ __forceinline__ void settle() const { __syncthreads(); }
  __device__ __forceinline__ void finish(float (&values)[Count], unsigned since = 0) const {
    Sums::finish(own + (since ? begun : begun ^ SET), values);
  }

 private:
  using Sums = WarpSums<Count, THREADS / WARP>;
  using Partial = typename Sums::Partial;
  static constexpr unsigned SET = sizeof(Partial);
  unsigned own, place, begun = 0;  // begun: where the next one's set begins
};
#endif

template <bool First, typename A, typename B>
struct Either {
  using Type = A;
};
template <typename A, typename B>
struct Either<false, A, B> {
  using Type = B;
};

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
  __device__ __forceinline__ void to_l2(const char* from, unsigned packs) const {
    if (packs == 0) return;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(packs * PACK_BYTES) : "memory");
  }
  // phase: how many times the stage was used before.
  // AHEAD: how many stages more may have been started.
  template <unsigned AHEAD>
  __device__ __forceinline__ void wait(unsigned stage, unsigned phase) const {
    mbarrier::wait(barrier(stage), phase);
  }

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
  __device__ __forceinline__ void to_l2(const char*, unsigned) const {}
  template <unsigned AHEAD>
  __device__ __forceinline__ void wait(unsigned, unsigned) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
    __syncthreads();
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
    if (!SINGLES && Fetches::mine() && (tile + 1) * tiling.rows + Pack<float>::SIZE <= rows) {
      fetch_whole(fetches, tile * tiling.rows, stage);
    } else if (tile < tiles() && Fetches::mine()) {
      unsigned packs = 0;
      each(tile, stage, [&](char*, const char*, unsigned count, unsigned) { packs += count; });
      fetches.expect(stage, packs);
      each(tile, stage, [&](char* to, const char* from, unsigned count, unsigned) {
        fetches.start(stage, to, from, count);
      });
    }
    fetches.close();
  }
  // A whole tile, after which there are still rows. On this all threads may wait.
  __device__ __forceinline__ void fetch_whole(const Fetches& fetches, long long row, unsigned stage) const {
    const unsigned head = static_cast<unsigned>(row) % Pack<float>::SIZE;
    const unsigned packs = (CLUSTER > 1 ? here : (tiling.rows - 1) * columns + here) / Pack<Element>::SIZE;
    const unsigned pieces = CLUSTER > 1 ? tiling.rows : 1;
    const unsigned of_rows = (head + tiling.rows + Pack<float>::SIZE - 1) / Pack<float>::SIZE;
    const long long begin = row * columns + first;
    fetches.expect(stage, 2 * pieces * packs + NormRow<Centred>::SUMS * of_rows);
#pragma unroll 1
    for (unsigned i = 0; i < pieces; ++i) {
      const unsigned at = i * tiling.piece * sizeof(Element);
      const long long from = begin + static_cast<long long>(i) * columns;
      fetches.start(stage, dy_of(stage) + at, reinterpret_cast<const char*>(dy + from), packs);
      fetches.start(stage, x_of(stage) + at, reinterpret_cast<const char*>(x + from), packs);
    }
    fetches.start(stage, rstd_of(stage), reinterpret_cast<const char*>(rstd + (row - head)), of_rows);
    if constexpr (Centred) {
      fetches.start(stage, mean_of(stage), reinterpret_cast<const char*>(mean + (row - head)), of_rows);
    }
  }
  // A tile that isn't asked for yet comes as far as the L2: for where few stages keep few bytes under way.
  __device__ __forceinline__ void announce(const Fetches& fetches, long long tile) const {
    if (tile >= tiles() || !Fetches::mine()) return;
    each(tile, 0, [&](char*, const char* from, unsigned packs, unsigned) { fetches.to_l2(from, packs); });
  }
  // What isn't a whole pack of it, where a tensor ends.
  __device__ __forceinline__ void fetch_rest(long long tile, unsigned stage) const {
    // Only of the last rows: their statistics share a pack, which may not be full.
    if (tile + Pack<float>::SIZE < tiles()) return;
    each(tile, stage, [&](char* to, const char* from, unsigned packs, unsigned rest) {
      const unsigned i = packs * PACK_BYTES + threadIdx.x * 2;
      if (threadIdx.x * 2 < rest) *reinterpret_cast<short*>(to + i) = *reinterpret_cast<const short*>(from + i);
    });
    __syncthreads();
  }

  // A tile that is worked on, and where it lies in a stage. Carried along: to find it anew takes long.
  struct Tile {
    long long number;
    char* stage;
    Element* dx;  // from the block's first column on
  };
  // Rows from the tile's first one on.
  __device__ __forceinline__ long long left(const Tile& tile) const { return rows - tile.number * tiling.rows; }
  __device__ __forceinline__ unsigned rows_of(const Tile& tile) const {
    return static_cast<unsigned>(min(static_cast<long long>(tiling.rows), left(tile)));
  }
  __device__ __forceinline__ Tile tile(Element* dx, long long number) const {
    return {number, memory, dx + (number * tiling.rows * columns + first)};
  }
  __device__ __forceinline__ void advance(Tile& tile, long long step, unsigned stage) const {
    tile.number += step;
    tile.dx += step * tiling.rows * columns;
    tile.stage = memory + stage * stage_bytes();
  }

  // A row of the tile, from column `own` of the block on; `has` tells whether there is such a row.
  struct Row {
    NormRow<Centred> of;
    const Element *dy, *x;
    Element* dx;
    bool has;
  };
  __device__ __forceinline__ Row row(const Tile& tile, unsigned number, unsigned own) const {
    const unsigned first_row = static_cast<unsigned>(tile.number) * tiling.rows;
    const unsigned head = SINGLES ? (first_row * columns + first) % Pack<Element>::SIZE : 0;
    const unsigned at = number * (CLUSTER > 1 ? tiling.piece : columns) + own;
    const float* of_rows = reinterpret_cast<const float*>(tile.stage + 2 * tiling.bytes) +
                           (first_row % Pack<float>::SIZE + number);
    // Where there is no row there is still some number to read.
    return {{Centred ? of_rows[tiling.row_bytes / sizeof(float)] : 0.0f, of_rows[0]},
            reinterpret_cast<const Element*>(tile.stage) + head + at,
            reinterpret_cast<const Element*>(tile.stage + tiling.bytes) + head + at,
            tile.dx + (number * columns + own),
            (LANES == 0 && AT_ONCE == 1) || number < left(tile)};
  }

 private:
  __device__ __forceinline__ unsigned stage_bytes() const {
    return 2 * tiling.bytes + NormRow<Centred>::SUMS * tiling.row_bytes;
  }
  __device__ __forceinline__ char* dy_of(unsigned stage) const { return memory + stage * stage_bytes(); }
  __device__ __forceinline__ char* x_of(unsigned stage) const { return dy_of(stage) + tiling.bytes; }
  __device__ __forceinline__ char* rstd_of(unsigned stage) const { return dy_of(stage) + 2 * tiling.bytes; }
  __device__ __forceinline__ char* mean_of(unsigned stage) const { return rstd_of(stage) + tiling.row_bytes; }

  // Calls copy(to, from, packs, rest) for what a stage takes from each tensor: so many packs, from an aligned address,
  // and then `rest` bytes, where the tensor ends within a pack. What else is in its packs comes along: element `begin`
  // comes to lie at begin % SIZE.
  template <typename Copy>
  __device__ __forceinline__ void each(long long tile, unsigned stage, Copy copy) const {
    const long long row = tile * tiling.rows, begin = row * columns + first, all = rows * columns;
    const unsigned count = rows_of(tile), elements = CLUSTER > 1 ? here : (count - 1) * columns + here;
#pragma unroll 1
    for (unsigned i = 0; i < (CLUSTER > 1 ? count : 1); ++i) {
      const unsigned at = i * tiling.piece * sizeof(Element);
      const long long from = begin + static_cast<long long>(i) * columns;
      span<SINGLES>(dy_of(stage) + at, dy, from, elements, all, copy);
      span<SINGLES>(x_of(stage) + at, x, from, elements, all, copy);
    }
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
  using Tile = typename TileStages::Tile;
  static constexpr unsigned SUMS = NormRow<Centred>::SUMS, SIZE = Chunk::SIZE;

  __device__ __forceinline__ OnTiles(const Element* dy, const Element* x, const Element* gamma, const float* mean,
                                     const float* rstd, Element* dx, char* memory, long long rows, unsigned columns,
                                     Tiling tiling)
      : dx(dx) {
    const unsigned first = blockIdx.x % team.blocks() * tiling.piece;
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
  __device__ __forceinline__ unsigned team_blocks() const { return team.blocks(); }

  __device__ __forceinline__ void run() {
    // Tiles that are asked for before the first one is worked on. One more where a tile's place is free as soon as its
    // rows' sums are known; elsewhere it's free when those of the next tile are.
    constexpr unsigned AHEAD = FLOATS && LANES == 0 ? STAGES : STAGES - 1;
    const long long tiles = stages.tiles(), step = gridDim.x / team.blocks();
    const long long at = blockIdx.x / team.blocks();
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
  // A row's dy and xhat.
  struct Floats {
    float dy[KEPT][SIZE], xhat[KEPT][SIZE];
  };
  struct Nothing {};
  // The rows of a tile that a team reduces together, from its row `first` on.
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

  // Of chunk j, from the first of this block's columns.
  __device__ __forceinline__ unsigned offset(unsigned j) const {
    return (threadIdx.x % TEAM_THREADS + j * TEAM_THREADS) * SIZE;
  }
  // Whether the block's columns have the thread's chunk j. Only the last one may be missing.
  __device__ __forceinline__ bool has(unsigned j) const { return j + 1 < KEPT || offset(j) < stages.here; }

  // `refill` asks for another tile, where there is room for it by then. Teams of lanes take turns; else a tile is one.
  template <typename Refill>
  __device__ __forceinline__ void work(const Tile& tile, const Tile& last, Refill refill) {
    float values[AT_ONCE * SUMS];
#if LANES > 0
    // From here on none reads the last tile any more.
    __syncthreads();
    refill();
    const unsigned count = stages.rows_of(tile);
    // Teams without a row take the turn too, for the shuffles.
#pragma unroll 1
    for (unsigned first = 0; first < count; first += TEAMS * AT_ONCE) {
      Turn turn(*this, tile, first);
      reduce(turn, values);
      team.all(values);
      store(turn, values);
    }
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

  // This thread's part of the rows' sums, divided by the columns. On the way the rows' elements are added to the sums
  // of their columns.
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
  // Where there is no room, the compiler isn't to see that a pack is the same for each row: it would keep its halves as
  // floats.
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
    // Unless they are kept, chunks are read from the tile once more: the registers are for the sums of columns.
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
  tiles.put(ColumnSums<Element>::of_blocks(dgamma, dbeta, partial, columns, tiles.team_blocks()));
#endif
}
#endif  // STAGES
