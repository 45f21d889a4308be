// The backward of LayerNorm and RMSNorm over the rows of a matrix (rows, columns). `Centred` tells them apart:
// LayerNorm took a row's mean away and added beta; RMSNorm has neither, and null pointers stand for what belongs to
// them.
//
//   xhat = (x - mean) * rstd, g = dy * gamma
//   dx = rstd * (g - mean of g - xhat * mean of g * xhat)     means over the row; RMSNorm has the second one only
//   dgamma = sum of dy * xhat, dbeta = sum of dy              over the rows
//
// Sums over a row and sums over columns cross each other. No sum is made with atomics: blocks, or groups of rows, write
// theirs side by side as floats, (parts, columns), and column_total adds these in a fixed order, so that results repeat
// bit by bit. Where there is a single part, it is the result.
#pragma once

#include "rows.cuh"

// Threads of a multiprocessor, where they keep sums of columns in their registers: up to 128 each.
constexpr unsigned RESIDENT = 512;

// A row's statistics, and what its elements add to sums. Sums of a row: of g * xhat, then of g. Sums of a column: of
// dy * xhat, then of dy.
template <bool Centred>
struct NormRow {
  static constexpr unsigned SUMS = Centred ? 2 : 1;
  float mean, rstd;

  __device__ __forceinline__ static NormRow load(const float* __restrict__ mean, const float* __restrict__ rstd,
                                                 long long row) {
    return {Centred ? mean[row] : 0.0f, rstd[row]};
  }
  __device__ __forceinline__ float centred(float x) const { return Centred ? x - mean : x; }
  __device__ __forceinline__ float normalised(float x) const { return centred(x) * rstd; }
  __device__ __forceinline__ void add_to_row(float dy, float x, float gamma, float (&sums)[SUMS]) const {
    const float g = dy * gamma;
    sums[0] = fmaf(g, normalised(x), sums[0]);
    if constexpr (Centred) sums[1] += g;
  }
  __device__ __forceinline__ void add_to_column(float dy, float x, float (&sums)[SUMS]) const {
    sums[0] = fmaf(dy, normalised(x), sums[0]);
    if constexpr (Centred) sums[1] += dy;
  }
  // dx, from the row's sums divided by the columns.
  __device__ __forceinline__ float gradient(float dy, float x, float gamma, const float (&means)[SUMS]) const {
    float g = dy * gamma;
    if constexpr (Centred) g -= means[1];
    return rstd * fmaf(-means[0] * rstd, centred(x), g);
  }
};

// Sums of columns as they lie in memory. Threads have packs, of eight halves at most, and write quads of floats. Where
// rows are packs of halves, the first quads of all packs come first, then the second ones, so that threads with
// neighbouring packs write neighbouring quads.
struct ColumnOrder {
  unsigned columns;
  bool split;

  __device__ __forceinline__ unsigned place(unsigned column) const {
    return split ? column % 8 / 4 * (columns / 2) + column / 8 * 4 + column % 4 : column;
  }
  __device__ __forceinline__ unsigned column(unsigned place) const {
    if (!split) return place;
    const unsigned second = place >= columns / 2, quad = place - second * (columns / 2);
    return quad / 4 * 8 + second * 4 + quad % 4;
  }
};
template <typename Element>
__device__ __forceinline__ ColumnOrder order_of(unsigned columns) {
  return {columns, Pack<Element>::SIZE == 8 && columns % 8 == 0};
}

// Where sums of columns go: `part` of `partial`, or the result, if there is a single part and so no `partial`.
template <typename Element>
struct ColumnSums {
  Element *dgamma, *dbeta;
  float* partial;
  unsigned columns;
  long long part, parts;

  // Of blocks, or of teams of them.
  __device__ __forceinline__ static ColumnSums of_blocks(Element* dgamma, Element* dbeta, float* partial,
                                                         unsigned columns, unsigned a_team = 1) {
    return {dgamma, dbeta, partial, columns, blockIdx.x / a_team, gridDim.x / a_team};
  }
  // Of groups of rows, one for each blockIdx.y.
  __device__ __forceinline__ static ColumnSums of_groups(Element* dgamma, Element* dbeta, float* partial,
                                                         unsigned columns) {
    return {dgamma, dbeta, partial, columns, blockIdx.y, gridDim.y};
  }

  // which: 0 for dgamma, 1 for dbeta.
  __device__ __forceinline__ void put(unsigned which, unsigned column, float sum) const {
    if (partial) {
      own(which)[order_of<Element>(columns).place(column)] = sum;
    } else {
      result(which)[column] = Element(sum);
    }
  }
  // Those of a pack; the results are aligned.
  template <unsigned Size>
  __device__ __forceinline__ void put_pack(unsigned which, unsigned column, const float (&sums)[Size]) const {
    if (partial) {
      const ColumnOrder order = order_of<Element>(columns);
#pragma unroll
      for (unsigned e = 0; e < Size; e += 4) {
        *reinterpret_cast<float4*>(own(which) + order.place(column + e)) =
            make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
      }
    } else {
      Pack<Element> pack;
      narrow(sums, pack);
      store_pack(result(which) + column, pack);
    }
  }

 private:
  __device__ __forceinline__ float* own(unsigned which) const { return partial + (which * parts + part) * columns; }
  __device__ __forceinline__ Element* result(unsigned which) const { return which ? dbeta : dgamma; }
};

// A block of TOTAL_BLOCK adds the parts of 32 columns.
constexpr unsigned TOTAL_BLOCK = 1024;
template <typename Element>
__device__ __forceinline__ void column_total(const float* __restrict__ partial, Element* __restrict__ to,
                                             unsigned which, unsigned parts, unsigned columns) {
  __shared__ float sums[TOTAL_BLOCK / WARP][WARP];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, place = blockIdx.x * WARP + lane;
  float sum = 0.0f;
  if (place < columns) {
    const float* from = partial + static_cast<long long>(which) * parts * columns + place;
#pragma unroll 4
    for (unsigned part = warp; part < parts; part += TOTAL_BLOCK / WARP) {
      sum += from[static_cast<long long>(part) * columns];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || place >= columns) return;
#pragma unroll
  for (unsigned w = 1; w < TOTAL_BLOCK / WARP; ++w) sum += sums[w][lane];
  to[order_of<Element>(columns).column(place)] = Element(sum);
}

// ---- One sum or one result a kernel: nothing is kept between them, so dy is read three times and x twice.

constexpr unsigned ROW_BLOCK = 256;

// dx, a block a row: first the sums, then dy and x come again, at best from a cache.
template <bool Centred, typename Element>
__device__ __forceinline__ void row_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                              const Element* __restrict__ gamma, const float* __restrict__ mean,
                                              const float* __restrict__ rstd, Element* __restrict__ dx, long long rows,
                                              unsigned columns) {
  BlockTeam<ROW_BLOCK> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto of = NormRow<Centred>::load(mean, rstd, row);
    const long long begin = row * columns;
    float sums[of.SUMS] = {};
    for (unsigned c = threadIdx.x; c < columns; c += ROW_BLOCK) {
      of.add_to_row(to_float(dy[begin + c]), to_float(x[begin + c]), to_float(gamma[c]), sums);
    }
    team.template all<Sum>(sums);
#pragma unroll
    for (float& sum : sums) sum /= columns;
    for (unsigned c = threadIdx.x; c < columns; c += ROW_BLOCK) {
      dx[begin + c] = Element(of.gradient(to_float(dy[begin + c]), to_float(x[begin + c]), to_float(gamma[c]), sums));
    }
  }
}

// The sum of term(row, column) over the group of rows blockIdx.y; a block takes 32 columns, each warp another row.
template <typename Element, typename Term>
__device__ __forceinline__ void sum_columns(long long rows, const ColumnSums<Element>& to, Term term) {
  constexpr unsigned WARPS = ROW_BLOCK / WARP;
  __shared__ float sums[WARPS][WARP];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
  float sum = 0.0f;
  if (column < to.columns) {
#pragma unroll 4
    for (long long row = blockIdx.y * WARPS + warp; row < rows; row += gridDim.y * WARPS) sum += term(row, column);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= to.columns) return;
#pragma unroll
  for (unsigned w = 1; w < WARPS; ++w) sum += sums[w][lane];
  to.put(0, column, sum);
}
template <bool Centred, typename Element>
__device__ __forceinline__ void sum_dgamma(const Element* __restrict__ dy, const Element* __restrict__ x,
                                           const float* __restrict__ mean, const float* __restrict__ rstd,
                                           long long rows, const ColumnSums<Element>& to) {
  sum_columns(rows, to, [&](long long row, unsigned column) {
    const long long i = row * to.columns + column;
    return to_float(dy[i]) * NormRow<Centred>::load(mean, rstd, row).normalised(to_float(x[i]));
  });
}

// ---- Chunks: a pack, or a single element. A thread owns the same chunks of all its rows.

template <typename Element>
struct Single {
  static constexpr unsigned SIZE = 1;
  Element at[1];
};
template <typename Element, bool Singles>
struct ChunkOf {
  using Type = Pack<Element>;
};
template <typename Element>
struct ChunkOf<Element, true> {
  using Type = Single<Element>;
};
template <typename Element>
__device__ __forceinline__ void load_chunk(const Element* from, Pack<Element>& chunk) {
  chunk = load_pack(from);
}
template <typename Element>
__device__ __forceinline__ void load_chunk(const Element* from, Single<Element>& chunk) {
  chunk.at[0] = *from;
}
// A plain store of a pack is sometimes taken apart here. What it writes is read by no one, so it may pass any load.
template <typename Element>
__device__ __forceinline__ void store_chunk(Element* to, const Pack<Element>& chunk) {
  const uint4& raw = reinterpret_cast<const uint4&>(chunk);
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x), "r"(raw.y),
               "r"(raw.z), "r"(raw.w));
}
template <typename Element>
__device__ __forceinline__ void store_chunk(Element* to, const Single<Element>& chunk) {
  *to = chunk.at[0];
}

// From shared memory, in one access.
template <typename Chunk, typename Element>
__device__ __forceinline__ Chunk shared_chunk(const Element* from) {
  if constexpr (Chunk::SIZE == 1) return {*from};
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  return reinterpret_cast<const Chunk&>(raw);
}

// What the elements of a chunk add to the sums of the row, and of their columns.
template <bool Centred, typename Chunk, unsigned Sums>
__device__ __forceinline__ void add_chunk(const NormRow<Centred>& of, const Chunk& dy, const Chunk& x,
                                          const Chunk& gamma, float (&of_row)[Sums],
                                          float (&of_columns)[Chunk::SIZE][Sums]) {
  float gradients[Chunk::SIZE], values[Chunk::SIZE], scale[Chunk::SIZE];
  widen(dy, gradients);
  widen(x, values);
  widen(gamma, scale);
#pragma unroll
  for (unsigned e = 0; e < Chunk::SIZE; ++e) {
    of.add_to_row(gradients[e], values[e], scale[e], of_row);
    of.add_to_column(gradients[e], values[e], of_columns[e]);
  }
}
// dx of a chunk.
template <bool Centred, typename Chunk, unsigned Sums>
__device__ __forceinline__ Chunk chunk_gradient(const NormRow<Centred>& of, const Chunk& dy, const Chunk& x,
                                                const Chunk& gamma, const float (&means)[Sums]) {
  float gradients[Chunk::SIZE], values[Chunk::SIZE], scale[Chunk::SIZE];
  widen(dy, gradients);
  widen(x, values);
  widen(gamma, scale);
#pragma unroll
  for (unsigned e = 0; e < Chunk::SIZE; ++e) {
    gradients[e] = of.gradient(gradients[e], values[e], scale[e], means);
  }
  Chunk dx;
  narrow(gradients, dx);
  return dx;
}

// The sums `which` of a thread's chunk.
template <unsigned Size, unsigned Sums>
__device__ __forceinline__ void sums_of(const float (&sums)[Size][Sums], unsigned which, float (&chosen)[Size]) {
#pragma unroll
  for (unsigned e = 0; e < Size; ++e) chosen[e] = sums[e][which];
}

// Adds the column sums of the block's teams of `Lanes` threads, each of which has all of `columns` columns from `first`
// on, and puts the results. shared: columns * warps floats.
template <unsigned Lanes, unsigned Chunks, unsigned Size, unsigned Sums, typename Element>
__device__ __forceinline__ void put_team_sums(float* shared, const float (&sums)[Chunks][Size][Sums], unsigned first,
                                              unsigned columns, const ColumnSums<Element>& to) {
  const unsigned warps = blockDim.x / WARP, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const ColumnOrder order{columns, Size == 8};
#pragma unroll
  for (unsigned s = 0; s < Sums; ++s) {
#pragma unroll
    for (unsigned j = 0; j < Chunks; ++j) {
      float team[Size];
      sums_of(sums[j], s, team);
#pragma unroll
      for (unsigned step = Lanes; step < WARP; step *= 2) {
#pragma unroll
        for (unsigned e = 0; e < Size; ++e) team[e] += __shfl_xor_sync(ALL_LANES, team[e], step);
      }
      const unsigned column = (lane + j * Lanes) * Size;
      if (lane >= Lanes || column >= columns) continue;
      if constexpr (Size == 1) {
        shared[warp * columns + column] = team[0];
      } else {
#pragma unroll
        for (unsigned e = 0; e < Size; e += 4) {
          *reinterpret_cast<float4*>(shared + warp * columns + order.place(column + e)) =
              make_float4(team[e], team[e + 1], team[e + 2], team[e + 3]);
        }
      }
    }
    __syncthreads();
    for (unsigned place = threadIdx.x; place < columns; place += blockDim.x) {
      float sum = 0.0f;
      for (unsigned w = 0; w < warps; ++w) sum += shared[w * columns + place];
      to.put(s, first + order.column(place), sum);
    }
    __syncthreads();
  }
}

// ---- One read of dy and x: a block works on whole rows, one after the other, and keeps the sums of its columns.

// Each thread has up to `Count` single elements of a row, in registers while the row's sums are being made.
template <bool Centred, unsigned Threads, unsigned Count, typename Element>
__device__ __forceinline__ void fused_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                                const Element* __restrict__ gamma, const float* __restrict__ mean,
                                                const float* __restrict__ rstd, Element* __restrict__ dx,
                                                long long rows, const ColumnSums<Element>& to) {
  using Of = NormRow<Centred>;
  using Chunk = Single<Element>;
  BlockTeam<Threads> team;
  float sums[Count][1][Of::SUMS] = {};
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const Of of = Of::load(mean, rstd, row);
    const long long begin = row * to.columns;
    Chunk gradients[Count], values[Count];
    float means[Of::SUMS] = {};
#pragma unroll
    for (unsigned j = 0; j < Count; ++j) {
      if (j * Threads >= to.columns) break;
      const unsigned column = j * Threads + threadIdx.x;
      if (column >= to.columns) continue;
      gradients[j].at[0] = dy[begin + column];
      values[j].at[0] = x[begin + column];
    }
#pragma unroll
    for (unsigned j = 0; j < Count; ++j) {
      if (j * Threads >= to.columns) break;
      const unsigned column = j * Threads + threadIdx.x;
      if (column < to.columns) add_chunk(of, gradients[j], values[j], Chunk{gamma[column]}, means, sums[j]);
    }
    team.template all<Sum>(means);
#pragma unroll
    for (float& value : means) value /= to.columns;
#pragma unroll
    for (unsigned j = 0; j < Count; ++j) {
      if (j * Threads >= to.columns) break;
      const unsigned column = j * Threads + threadIdx.x;
      if (column >= to.columns) continue;
      dx[begin + column] = chunk_gradient(of, gradients[j], values[j], Chunk{gamma[column]}, means).at[0];
    }
  }
#pragma unroll
  for (unsigned j = 0; j < Count; ++j) {
    const unsigned column = j * Threads + threadIdx.x;
#pragma unroll
    for (unsigned s = 0; s < Of::SUMS; ++s) {
      if (column < to.columns) to.put(s, column, sums[j][0][s]);
    }
  }
}

// ---- Tiles of rows on their way to shared memory while others are worked on.

// Macros, where harness/ops/_norm_grad.py chooses a kernel on tiles: LANES (threads of a warp that are a team; 0: the
// team is a block, or a cluster of blocks), THREADS (of a block), KEPT (chunks of a row that a thread has), AT_ONCE
// (rows that a team reduces together), STAGES (tiles for which there is room), and 0 or 1: CLUSTER, SINGLES (chunks are
// elements).
#ifdef STAGES
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

// How tiles lie in memory and in the stages. A tile has `rows` rows; in a cluster each block has its `piece` of their
// columns. A stage has the tile's dy and x, `bytes` each, and behind them its statistics, `row_bytes` each.
struct Tiling {
  unsigned rows, piece, bytes, row_bytes;
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// How packs come to a stage.
#if __CUDA_ARCH__ >= 900
// One thread starts bulk copies, which spares the others the instructions. A barrier a stage counts the bytes.
class Fetches {
 public:
  __device__ __forceinline__ Fetches() : barriers(of_block()) {
    if (threadIdx.x == 0) {
      for (unsigned s = 0; s < STAGES; ++s) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * s) : "memory");
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
  }
  __device__ __forceinline__ static bool mine() { return threadIdx.x == 0; }
  // What is started for the stage after this, and before the next call, has that many packs.
  __device__ __forceinline__ void expect(unsigned stage, unsigned packs) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barriers + 8 * stage),
                 "r"(packs * PACK_BYTES)
                 : "memory");
  }
  __device__ __forceinline__ void start(unsigned stage, char* to, const char* from, unsigned packs) const {
    if (packs == 0) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(packs * PACK_BYTES), "r"(barriers + 8 * stage)
        : "memory");
  }
  __device__ __forceinline__ void close() const {}
  // phase: how many times the stage was used before.
  __device__ __forceinline__ void wait(unsigned stage, unsigned phase) const {
    unsigned done = 0;
    while (!done) {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(barriers + 8 * stage), "r"(phase % 2)
          : "memory");
    }
  }

 private:
  __device__ __forceinline__ static unsigned of_block() {
    __shared__ unsigned long long barriers[STAGES];
    return shared_address(barriers);
  }
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
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + k * PACK_BYTES)),
                   "l"(from + k * PACK_BYTES));
    }
  }
  __device__ __forceinline__ void close() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ __forceinline__ void wait(unsigned, unsigned) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES > 2 ? STAGES - 2 : 0) : "memory");
  }
};
#endif

// Blocks, or clusters, take tiles in turn. While one is worked on, the next ones are under way: memory isn't idle while
// rows are reduced, although few threads have the registers that the sums of columns take.
template <bool Centred, typename Element>
class OnTiles {
 public:
  using Chunk = typename ChunkOf<Element, SINGLES>::Type;
  using Of = NormRow<Centred>;
  static constexpr unsigned SUMS = Of::SUMS, SIZE = Chunk::SIZE;

  __device__ __forceinline__ OnTiles(const Element* dy, const Element* x, const Element* gamma, const float* mean,
                                     const float* rstd, Element* dx, char* stages, long long rows, unsigned columns,
                                     Tiling tiling)
      : dy(dy), x(x), mean(mean), rstd(rstd), dx(dx), stages(stages), rows(rows), columns(columns), tiling(tiling) {
    first = blockIdx.x % team_blocks() * tiling.piece;
    here = min(tiling.piece, columns - first);
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
    const long long tiles = (rows + tiling.rows - 1) / tiling.rows, step = gridDim.x / team_blocks();
    long long at = blockIdx.x / team_blocks();
    const Fetches fetches;
    for (unsigned s = 0; s + 1 < STAGES; ++s) fetch(fetches, at + s * step, tiles, s);
    for (unsigned stage = 0, phase = 0; at < tiles; at += step) {
      if constexpr (STAGES == 1) {
        __syncthreads();
        fetch(fetches, at, tiles, 0);
      }
      fetches.wait(stage, phase);
      // Only of the last rows: their statistics share a pack, which may not be full.
      if (at + Pack<float>::SIZE >= tiles) fetch_rest(at, stage);
      // From here on all threads see the tile, and none reads the one before any more, whose place is free.
      __syncthreads();
      if constexpr (STAGES > 1) fetch(fetches, at + (STAGES - 1) * step, tiles, stage ? stage - 1 : STAGES - 1);
      work(at, stage);
      phase += ++stage == STAGES;
      stage = stage == STAGES ? 0 : stage;
    }
  }

  __device__ __forceinline__ void put(const ColumnSums<Element>& to) {
#if LANES > 0
    __syncthreads();
    put_team_sums<LANES>(reinterpret_cast<float*>(stages), sums, 0, columns, to);
#else
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) {
        float chosen[SIZE];
        sums_of(sums[j], s, chosen);
        if constexpr (SINGLES) {
          to.put(s, first + offset(j), chosen[0]);
        } else {
          to.put_pack(s, first + offset(j), chosen);
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
  __device__ __forceinline__ char* place(unsigned stage, unsigned matrices, unsigned statistics) const {
    return stages + stage * (2 * tiling.bytes + SUMS * tiling.row_bytes) + matrices * tiling.bytes +
           statistics * tiling.row_bytes;
  }
  __device__ __forceinline__ unsigned rows_of(long long tile) const {
    return static_cast<unsigned>(min(static_cast<long long>(tiling.rows), rows - tile * tiling.rows));
  }

  // Calls copy(to, from, packs, rest) for what a stage takes from each tensor: so many packs, from an aligned address,
  // and then `rest` bytes, where the tensor ends within a pack. What else is in its packs comes along: element `begin`
  // comes to lie at begin % SIZE.
  template <typename Copy>
  __device__ __forceinline__ void each(long long tile, unsigned stage, Copy copy) const {
    const long long row = tile * tiling.rows, begin = row * columns + first, all = rows * columns;
    const unsigned count = rows_of(tile), elements = (count - 1) * columns + here;
    span<SINGLES>(place(stage, 0, 0), dy, begin, elements, all, copy);
    span<SINGLES>(place(stage, 1, 0), x, begin, elements, all, copy);
    span<true>(place(stage, 2, 0), rstd, row, count, rows, copy);
    if constexpr (Centred) span<true>(place(stage, 2, 1), mean, row, count, rows, copy);
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

  __device__ __forceinline__ void fetch(const Fetches& fetches, long long tile, long long tiles, unsigned stage) const {
    if (tile < tiles && Fetches::mine()) {
      unsigned packs = 0;
      each(tile, stage, [&](char*, const char*, unsigned count, unsigned) { packs += count; });
      fetches.expect(stage, packs);
      each(tile, stage, [&](char* to, const char* from, unsigned count, unsigned) {
        fetches.start(stage, to, from, count);
      });
    }
    fetches.close();
  }
  __device__ __forceinline__ void fetch_rest(long long tile, unsigned stage) const {
    each(tile, stage, [&](char* to, const char* from, unsigned packs, unsigned rest) {
      const unsigned i = packs * PACK_BYTES + threadIdx.x * 2;
      if (threadIdx.x * 2 < rest) *reinterpret_cast<short*>(to + i) = *reinterpret_cast<const short*>(from + i);
    });
  }

  // A row of the tile, in shared memory, and its dx; `has` tells whether there is such a row.
  struct TileRow {
    Of of;
    const Element *dy, *x;
    Element* dx;
    bool has;
  };
  __device__ __forceinline__ TileRow row_of(long long tile, unsigned stage, unsigned row, unsigned count) const {
    const long long first_row = tile * tiling.rows, begin = first_row * columns + first;
    const unsigned head = SINGLES ? static_cast<unsigned>(begin) % Pack<Element>::SIZE : 0;
    const unsigned at = head + row * columns, row_at = static_cast<unsigned>(first_row) % Pack<float>::SIZE + row;
    // Where there is no row there is still some number to read.
    const float of_rstd = reinterpret_cast<const float*>(place(stage, 2, 0))[row_at];
    const float of_mean = Centred ? reinterpret_cast<const float*>(place(stage, 2, 1))[row_at] : 0.0f;
    return {{of_mean, of_rstd},
            reinterpret_cast<const Element*>(place(stage, 0, 0)) + at,
            reinterpret_cast<const Element*>(place(stage, 1, 0)) + at,
            dx + begin + static_cast<long long>(row) * columns,
            row < count};
  }
  // Whether the block's columns have the thread's chunk j. Only the last one may be missing.
  __device__ __forceinline__ bool has(unsigned j) const { return j + 1 < KEPT || offset(j) < here; }

  __device__ __forceinline__ void work(long long tile, unsigned stage) {
    const unsigned count = rows_of(tile);
    const float share = 1.0f / columns;
    // Teams without a row take the turn too, for the shuffles.
    for (unsigned turn = 0; turn < count; turn += TEAMS * AT_ONCE) {
      TileRow own[AT_ONCE];
      float means[AT_ONCE * SUMS];
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        own[i] = row_of(tile, stage, turn + threadIdx.x / TEAM_THREADS + i, count);
        float row_sums[SUMS] = {};
        if (own[i].has) add_row(own[i], row_sums);
#pragma unroll
        for (unsigned s = 0; s < SUMS; ++s) means[i * SUMS + s] = row_sums[s] * share;
      }
      team.template all<Sum>(means);
      // Chunks are read from the tile once more: to keep them would take registers that the sums of columns need.
      asm volatile("" ::: "memory");
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        float row_means[SUMS];
#pragma unroll
        for (unsigned s = 0; s < SUMS; ++s) row_means[s] = means[i * SUMS + s];
        if (own[i].has) store_row(own[i], row_means);
      }
    }
  }
  __device__ __forceinline__ void add_row(const TileRow& row, float (&row_sums)[SUMS]) {
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      const Chunk gradients = shared_chunk<Chunk>(row.dy + offset(j)), values = shared_chunk<Chunk>(row.x + offset(j));
      add_chunk(row.of, gradients, values, scale[j], row_sums, sums[j]);
    }
  }
  __device__ __forceinline__ void store_row(const TileRow& row, const float (&means)[SUMS]) const {
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      const Chunk gradients = shared_chunk<Chunk>(row.dy + offset(j)), values = shared_chunk<Chunk>(row.x + offset(j));
      store_chunk(row.dx + offset(j), chunk_gradient(row.of, gradients, values, scale[j], means));
    }
  }

  TileTeam team;
  const Element *dy, *x;
  const float *mean, *rstd;
  Element* dx;
  char* stages;
  long long rows;
  unsigned columns, first, here;  // this block has columns [first, first + here)
  Tiling tiling;
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

// ---- dy and x twice, but spread over the whole chip even if there are few rows, and rows of any length: first the
// sums of each row, in up to 32 parts; then dx and the sums of columns together.

constexpr unsigned SPREAD_BLOCK = 256, SPREAD_WARPS = SPREAD_BLOCK / WARP, SPREAD_ROWS = 4;
constexpr unsigned SUM_BLOCK = 128;

// A warp for each part of a row. row_sums: (rows, parts, SUMS).
template <bool Centred, bool Singles, typename Element>
__device__ __forceinline__ void sum_rows(const Element* __restrict__ dy, const Element* __restrict__ x,
                                         const Element* __restrict__ gamma, const float* __restrict__ mean,
                                         const float* __restrict__ rstd, float* __restrict__ row_sums, long long rows,
                                         unsigned columns, unsigned parts) {
  using Chunk = typename ChunkOf<Element, Singles>::Type;
  const long long number = static_cast<long long>(blockIdx.x) * (SUM_BLOCK / WARP) + threadIdx.x / WARP;
  if (number >= rows * parts) return;
  const long long row = number / parts;
  const unsigned part = static_cast<unsigned>(number - row * parts), chunks = columns / Chunk::SIZE;
  const unsigned a_part = (chunks + parts - 1) / parts, end = min(chunks, (part + 1) * a_part);
  const WarpTeam<WARP> team;
  const auto of = NormRow<Centred>::load(mean, rstd, row);
  const Element *gradients = dy + row * columns, *values = x + row * columns;
  float sums[of.SUMS] = {};
#pragma unroll 4
  for (unsigned k = part * a_part + team.rank; k < end; k += WARP) {
    Chunk a, b, c;
    load_chunk(gradients + k * Chunk::SIZE, a);
    load_chunk(values + k * Chunk::SIZE, b);
    load_chunk(gamma + k * Chunk::SIZE, c);
    float unused[Chunk::SIZE][of.SUMS] = {};
    add_chunk(of, a, b, c, sums, unused);
  }
  team.template all<Sum>(sums);
  if (team.rank > 0) return;
#pragma unroll
  for (unsigned s = 0; s < of.SUMS; ++s) row_sums[number * of.SUMS + s] = sums[s];
}

// A block has 32 chunks of columns and the group of rows blockIdx.y, each warp another row, SPREAD_ROWS at a time.
template <bool Centred, bool Singles, typename Element>
__device__ __forceinline__ void spread_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                                 const Element* __restrict__ gamma, const float* __restrict__ mean,
                                                 const float* __restrict__ rstd, const float* __restrict__ row_sums,
                                                 Element* __restrict__ dx, long long rows, unsigned parts,
                                                 const ColumnSums<Element>& to) {
  using Chunk = typename ChunkOf<Element, Singles>::Type;
  using Of = NormRow<Centred>;
  constexpr unsigned SUMS = Of::SUMS, SIZE = Chunk::SIZE;
  alignas(16) __shared__ float shared[SPREAD_WARPS * WARP * SIZE];
  const WarpTeam<WARP> team;
  const unsigned first = blockIdx.x * WARP * SIZE, column = first + team.rank * SIZE;
  const bool has = column < to.columns;
  const float share = 1.0f / to.columns;
  const long long step = gridDim.y * SPREAD_WARPS;
  Chunk scale{};
  if (has) load_chunk(gamma + column, scale);
  float sums[1][SIZE][SUMS] = {};
  for (long long row = blockIdx.y * SPREAD_WARPS + threadIdx.x / WARP; row < rows; row += SPREAD_ROWS * step) {
    Chunk a[SPREAD_ROWS], b[SPREAD_ROWS];
    Of of[SPREAD_ROWS];
    float means[SPREAD_ROWS * SUMS] = {};
#pragma unroll
    for (unsigned i = 0; i < SPREAD_ROWS; ++i) {
      const long long at = row + i * step;
      if (at >= rows) continue;
      of[i] = Of::load(mean, rstd, at);
      if (team.rank < parts) {
#pragma unroll
        for (unsigned s = 0; s < SUMS; ++s) means[i * SUMS + s] = row_sums[(at * parts + team.rank) * SUMS + s];
      }
      if (!has) continue;
      load_chunk(dy + at * to.columns + column, a[i]);
      load_chunk(x + at * to.columns + column, b[i]);
    }
    team.template all<Sum>(means);
#pragma unroll
    for (unsigned i = 0; i < SPREAD_ROWS; ++i) {
      const long long at = row + i * step;
      if (at >= rows || !has) continue;
      float row_means[SUMS], unused[SUMS] = {};
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) row_means[s] = means[i * SUMS + s] * share;
      add_chunk(of[i], a[i], b[i], scale, unused, sums[0]);
      store_chunk(dx + at * to.columns + column, chunk_gradient(of[i], a[i], b[i], scale, row_means));
    }
  }
  put_team_sums<WARP>(shared, sums, first, min(WARP * SIZE, to.columns - first), to);
}
