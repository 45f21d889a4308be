// How tiles of rows come to shared memory, and how dx leaves it, for norm_grad_tiles.cuh, whose macros it needs. A stage is
// room for one tile.
#pragma once

#include "mbarrier.cuh"
#include "norm_grad.cuh"

// Whether dx of a tile takes the place of its dy, until all of the tile is there. Lanes that share a row of single elements
// would write a few bytes of each of their rows at a time; packs of a tile are written as they lie.
#define IN_PLACE (SINGLES && LANES > 0)

// Where tiles lie in memory and in the stages. A tile has `rows` rows; in a cluster each block has a `piece` of their
// columns. A stage has the tile's dy and x, `bytes` each, and behind them its statistics, `row_bytes` each.
struct Tiling {
  unsigned rows, piece, bytes, row_bytes;
};

// Copies of packs to the stages.
#if __CUDA_ARCH__ >= 900
// One thread starts bulk copies, so that the other threads need no instructions for copies. A barrier for each stage
// counts the bytes.
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
  // Announces the packs that are started for the stage from now to the next call.
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
  // Waits until a stage is full. phase: how many times it was used before. Ahead: how many later stages may be under
  // way.
  template <unsigned Ahead>
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
// Every thread copies packs; the copies of a stage are a group (cp.async.commit_group).
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
  template <unsigned Ahead>
  __device__ __forceinline__ void wait(unsigned, unsigned) const {
    asm volatile("cp.async.wait_group %0;" ::"n"(Ahead) : "memory");
    __syncthreads();
  }
};
#endif

// A block's stages: fetches tiles to them, and tells where a tile's rows lie.
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
  // The same for a whole tile with more rows behind it. It is short, since all threads may have to wait for it.
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
  // Fetches a later tile to the L2 only. Where there are few stages, too few bytes would be under way without this.
  __device__ __forceinline__ void announce(const Fetches& fetches, long long tile) const {
    if (tile >= tiles() || !Fetches::mine()) return;
    each(tile, 0, [&](char*, const char* from, unsigned packs, unsigned) { fetches.to_l2(from, packs); });
  }
  // Fetches the elements of a tile that aren't a whole pack, where a tensor ends.
  __device__ __forceinline__ void fetch_rest(long long tile, unsigned stage) const {
    // There are some only in the last rows, whose statistics share a pack that may not be full.
    if (tile + Pack<float>::SIZE < tiles()) return;
    each(tile, stage, [&](char* to, const char* from, unsigned packs, unsigned rest) {
      const unsigned i = packs * PACK_BYTES + threadIdx.x * 2;
      if (threadIdx.x * 2 < rest) *reinterpret_cast<short*>(to + i) = *reinterpret_cast<const short*>(from + i);
    });
    __syncthreads();
  }

  // A tile that is worked on, and where it lies. advance() moves it on, since to find it anew takes longer.
  struct Tile {
    long long number;
    char* stage;
    Element* dx;  // from the block's first column on
  };
  // Rows of the matrix from the tile's first row on.
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

  // The place in a stage of the tile's first element, which may lie inside of a pack.
  __device__ __forceinline__ unsigned head(const Tile& tile) const {
    return SINGLES ? (static_cast<unsigned>(tile.number) * tiling.rows * columns + first) % Pack<Element>::SIZE : 0;
  }
  // Writes dx, which is in place of the tile's dy: in packs, but for what both ends share with other tiles.
  __device__ __forceinline__ void write_dx(const Tile& tile) const {
    using Packed = Pack<Element>;
    const unsigned begin = head(tile), end = begin + rows_of(tile) * columns, whole = end / Packed::SIZE;
    const Element* from = reinterpret_cast<const Element*>(tile.stage);
    Element* to = tile.dx - begin;
    __syncthreads();
    for (unsigned p = threadIdx.x + (begin > 0); p < whole; p += THREADS) {
      store_pack(to + p * Packed::SIZE, reinterpret_cast<const Packed*>(from)[p]);
    }
    const unsigned i = threadIdx.x, behind = whole * Packed::SIZE + i - Packed::SIZE;
    if (i >= begin && i < min(end, begin > 0 ? Packed::SIZE : 0)) to[i] = from[i];
    if (i >= Packed::SIZE && behind < end && (whole > 0 || begin == 0)) to[behind] = from[behind];
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the stage is filled by copies again
#endif
  }

  // A row of the tile, from column `own` of the block on. dx: in memory, or in place of dy. has: whether there is such a row.
  struct Row {
    NormRow<Centred> of;
    const Element *dy, *x;
    Element* dx;
    bool has;
  };
  __device__ __forceinline__ Row row(const Tile& tile, unsigned number, unsigned own) const {
    const unsigned first_row = static_cast<unsigned>(tile.number) * tiling.rows;
    const unsigned at = head(tile) + number * (CLUSTER > 1 ? tiling.piece : columns) + own;
    const float* of_rows = reinterpret_cast<const float*>(tile.stage + 2 * tiling.bytes) +
                           (first_row % Pack<float>::SIZE + number);
    // Where there is no such row, the memory can still be read, and holds some numbers.
    return {{Centred ? of_rows[tiling.row_bytes / sizeof(float)] : 0.0f, of_rows[0]},
            reinterpret_cast<const Element*>(tile.stage) + at,
            reinterpret_cast<const Element*>(tile.stage + tiling.bytes) + at,
            IN_PLACE ? reinterpret_cast<Element*>(tile.stage) + at : tile.dx + (number * columns + own),
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

  // Calls copy(to, from, packs, rest) for each tensor's part of a stage: so many packs, from an aligned address, and
  // then `rest` bytes, where the tensor ends inside of a pack. Other elements of these packs come along, so element
  // `begin` of the tensor comes to lie at element begin % SIZE of the stage.
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
