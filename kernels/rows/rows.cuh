// Rows of a contiguous matrix (rows, columns). A team of threads works on a row and keeps it in registers, so that it
// is read from memory once. Two things depend on the length of the rows: the team (lanes of a warp, a block, or a
// cluster of blocks), and how elements come to it (packs from memory, or single elements from a tile in shared memory).
// What is computed is written once, as a template over rows of any kind.
#pragma once

#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "teams.cuh"

// Macro: STREAM (0 or 1: loads and stores of packs ask the caches to give their lines up first).
#ifndef STREAM
#define STREAM 0
#endif

// ---- Kinds of rows. A thread has `CHUNKS` chunks of a row. Of chunk j elements(j) are in use, CHUNK at most. load()
// and store() move chunks. column() loads the part of a vector of `columns` elements that belongs to a chunk. has()
// says whether an element exists.

// A 32-bit word that is filled with an element.
__device__ __forceinline__ unsigned splat(float value) { return __float_as_uint(value); }
template <typename Half>
__device__ __forceinline__ unsigned splat(Half value) {
  return reinterpret_cast<const unsigned short&>(value) * 0x10001u;
}

// Packs from memory, of tensors that are aligned to 16 bytes. Without `Ragged`, rows are whole packs. With `Ragged`,
// rows begin inside of packs: a row's first whole pack is its pack from element `head` on. The elements before it, and
// the elements behind the last whole pack, are single: each of the team's first threads has one single element, in a
// chunk of its own. Then a team needs a thread for each element of two packs. `Whole`: no thread of a row that exists
// lacks a pack.
template <typename Element, unsigned Count, bool Ragged, typename TeamOfRow, bool Whole = false>
struct PackedRow {
  using Team = TeamOfRow;
  using Chunk = Pack<Element>;
  static constexpr unsigned CHUNKS = Count + Ragged, CHUNK = Chunk::SIZE;

  Team& team;
  unsigned columns;
  long long rows, row, begin;  // begin: of the row, in elements
  unsigned head, packs, singles;

  __device__ __forceinline__ PackedRow(Team& team, long long rows, unsigned columns)
      : PackedRow(team, rows, columns, team.row()) {}
  __device__ __forceinline__ PackedRow(Team& team, long long rows, unsigned columns, long long row)
      : team(team), columns(columns), rows(rows), row(row), begin(row * columns) {
    head = Ragged ? min(columns, static_cast<unsigned>(-begin) % CHUNK) : 0;
    packs = row < rows ? (columns - head) / CHUNK : 0;
    singles = Ragged && row < rows ? columns - packs * CHUNK : 0;
  }

  static __device__ __forceinline__ constexpr unsigned elements(unsigned j) { return j < Count ? CHUNK : 1; }
  __device__ __forceinline__ unsigned pack(unsigned j) const { return team.template part<Count>(j); }
  // The column of a chunk's first element.
  __device__ __forceinline__ unsigned column_of(unsigned j) const {
    if (j < Count) return head + pack(j) * CHUNK;
    return team.rank + (team.rank < head ? 0 : packs * CHUNK);
  }
  __device__ __forceinline__ bool has(unsigned j, unsigned) const {
    if (Whole) return row < rows;
    return j < Count ? pack(j) < packs : team.rank < singles;
  }

  // The address of the thread's first pack. The asm hides how it is made: otherwise the compiler makes the address of
  // each pack anew.
  template <typename Pointer>
  __device__ __forceinline__ Pointer own(Pointer matrix) const {
    matrix += begin + head + pack(0) * CHUNK;
    asm("" : "+l"(matrix));
    return matrix;
  }
  // In a trial on an H200, which no committed run has, kernels were slower where the loads alone asked caches to give
  // their lines up first, and some were faster where loads and stores did: see STREAM.
  __device__ __forceinline__ void load(const Element* __restrict__ x, Chunk (&chunks)[CHUNKS], float missing) const {
    const Element* from = own(x);
    // In whole words. If words were taken apart here, the compiler would keep their halves in registers of their own.
    const unsigned word = splat(Element(missing));
#pragma unroll
    for (unsigned j = 0; j < CHUNKS; ++j) {
      uint4 raw = make_uint4(word, word, word, word);
      if (j < Count && has(j, 0)) raw = load_16<STREAM>(reinterpret_cast<const uint4*>(from + j * Team::STEP * CHUNK));
      chunks[j] = reinterpret_cast<const Chunk&>(raw);
      if (j == Count && has(j, 0)) chunks[j].at[0] = x[begin + column_of(j)];
    }
  }
  __device__ __forceinline__ void store(Element* __restrict__ y, unsigned j, const Chunk& chunk) const {
    Element* to = own(y);
    if (!has(j, 0)) return;
    if (j < Count) {
      store_pack<STREAM>(to + j * Team::STEP * CHUNK, chunk);
    } else {
      y[begin + column_of(j)] = chunk.at[0];
    }
  }

  // The vector must be aligned to 16 bytes. Where rows are ragged, its packs don't begin where the row's do, and a
  // chunk is made of two of them.
  __device__ __forceinline__ Chunk column(const Element* __restrict__ vector, unsigned j) const {
    if constexpr (!Ragged) {
      // In whole words, as above.
      uint4 raw = make_uint4(0, 0, 0, 0);
      if (has(j, 0)) raw = load_16<false>(reinterpret_cast<const uint4*>(vector + column_of(j)));
      return reinterpret_cast<const Chunk&>(raw);
    }
    Chunk chunk{};
    if (!has(j, 0)) return chunk;
    const Element* from = vector + column_of(j);
    if (j == Count) {
      chunk.at[0] = *from;
    } else if (head == 0) {
      chunk = load_pack(from);
    } else if ((pack(j) + 2) * CHUNK <= columns) {
      chunk = load_pack_shifted(from, head * sizeof(Element));
    } else {
#pragma unroll
      for (unsigned e = 0; e < CHUNK; ++e) chunk.at[e] = from[e];
    }
    return chunk;
  }
};

// Whether the compiler knows that no thread of any row lacks a chunk.
template <typename Row>
constexpr bool IS_WHOLE = false;
template <typename Element, unsigned Count, typename Team>
constexpr bool IS_WHOLE<PackedRow<Element, Count, false, Team, true>> = true;

// Single elements, from memory or from a tile in shared memory. `begin`: where the row begins, in elements from the
// pointer to the matrix or to the tile that load() and store() are given. `Least`: with one chunk fewer a team wouldn't
// cover a row, so a thread has all chunks of a row but the last one.
template <typename Element, unsigned Count, typename TeamOfRow, bool Least = false>
struct ElementRow {
  using Team = TeamOfRow;
  static constexpr unsigned CHUNKS = Count, CHUNK = 1;
  static __device__ __forceinline__ constexpr unsigned elements(unsigned) { return 1; }
  struct Chunk {
    Element at[1];
  };

  Team& team;
  unsigned columns;
  long long rows, row, begin;

  __device__ __forceinline__ unsigned column_of(unsigned j) const { return team.template part<Count>(j); }
  __device__ __forceinline__ bool has(unsigned j, unsigned) const {
    return row < rows && ((Least && j + 1 < Count) || column_of(j) < columns);
  }
  __device__ __forceinline__ void load(const Element* x, Chunk (&chunks)[Count], float missing) const {
#pragma unroll
    for (unsigned j = 0; j < Count; ++j) chunks[j].at[0] = has(j, 0) ? x[begin + column_of(j)] : Element(missing);
  }
  __device__ __forceinline__ void store(Element* y, unsigned j, const Chunk& chunk) const {
    if (has(j, 0)) y[begin + column_of(j)] = chunk.at[0];
  }
  __device__ __forceinline__ Chunk column(const Element* __restrict__ vector, unsigned j) const {
    return {has(j, 0) ? vector[column_of(j)] : Element(0.0f)};
  }
};

// The elements of a chunk as floats, and back.
template <typename Element>
__device__ __forceinline__ void widen(const Pack<Element>& pack, float (&values)[Pack<Element>::SIZE]) {
  constexpr unsigned SIZE = Lanes<Element>::SIZE;
  const unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<const unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) {
    const Lanes<Element> lanes(words[w]);
#pragma unroll
    for (unsigned l = 0; l < SIZE; ++l) values[w * SIZE + l] = lanes.at[l];
  }
}
template <typename Element>
__device__ __forceinline__ void narrow(const float (&values)[Pack<Element>::SIZE], Pack<Element>& pack) {
  constexpr unsigned SIZE = Lanes<Element>::SIZE;
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) {
    Lanes<Element> lanes;
#pragma unroll
    for (unsigned l = 0; l < SIZE; ++l) lanes.at[l] = values[w * SIZE + l];
    words[w] = lanes.word();
  }
}
template <typename Chunk>
__device__ __forceinline__ void widen(const Chunk& chunk, float (&values)[1]) {
  values[0] = to_float(chunk.at[0]);
}
template <typename Chunk>
__device__ __forceinline__ void narrow(const float (&values)[1], Chunk& chunk) {
  chunk.at[0] = values[0];
}

// The floats of a pack of halves may be needed twice, with a reduction in between. Meanwhile the compiler would keep
// the floats, which take twice the registers of the halves. To prevent that, `zero` is added to the halves: it is
// always 0, but the compiler doesn't know that, and widens them again.
template <typename Chunk>
__device__ __forceinline__ void forget_floats(Chunk&, unsigned) {}
__device__ __forceinline__ void forget_floats(Pack<float>&, unsigned) {}
template <typename Half>
__device__ __forceinline__ void forget_floats(Pack<Half>& pack, unsigned zero) {
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) words[w] += zero;
}

// ---- Tiles: a whole block moves contiguous elements between memory and shared memory, in packs where `aligned`.
// from, to: in global memory. tile: in shared memory, aligned to 16 bytes.
template <typename Element>
__device__ __forceinline__ void fetch_tile(Element* tile, const Element* __restrict__ from, unsigned elements,
                                           bool aligned) {
  const unsigned packs = aligned ? elements / Pack<Element>::SIZE : 0;
  for (unsigned k = threadIdx.x; k < packs; k += blockDim.x) {
    // Straight into shared memory, so that all of a thread's packs are under way at once.
    copy_async_16(shared_address(tile + k * Pack<Element>::SIZE), from + k * Pack<Element>::SIZE);
  }
  for (unsigned i = packs * Pack<Element>::SIZE + threadIdx.x; i < elements; i += blockDim.x) tile[i] = from[i];
}
__device__ __forceinline__ void wait_for_tiles() {
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
}
template <typename Element>
__device__ __forceinline__ void put_tile(Element* __restrict__ to, const Element* tile, unsigned elements,
                                         bool aligned) {
  const unsigned packs = aligned ? elements / Pack<Element>::SIZE : 0;
  for (unsigned k = threadIdx.x; k < packs; k += blockDim.x) {
    store_pack(to + k * Pack<Element>::SIZE, reinterpret_cast<const Pack<Element>*>(tile)[k]);
  }
  for (unsigned i = packs * Pack<Element>::SIZE + threadIdx.x; i < elements; i += blockDim.x) to[i] = tile[i];
}

// A block's work on a tile of `tile_rows` rows of each of `Inputs` matrices. It fetches the tiles, one after the other
// into `tiles`. It calls work(row, stride) for each row: the tile of matrix i begins at tiles + i * stride, and the
// result overwrites the row in the first tile. Then it writes the results to y. Row is an ElementRow of a WarpTeam.
// tile_rows * columns must be whole packs, so that each tile begins on a pack.
template <typename Row, unsigned Inputs, typename Element, typename Work>
__device__ __forceinline__ void on_tiles(Element* tiles, const Element* const (&x)[Inputs], Element* __restrict__ y,
                                         long long rows, unsigned columns, unsigned tile_rows, bool aligned,
                                         Work work) {
  const long long first = static_cast<long long>(blockIdx.x) * tile_rows;
  const unsigned here = static_cast<unsigned>(min(static_cast<long long>(tile_rows), rows - first));
  const unsigned elements = here * columns, stride = tile_rows * columns;
#pragma unroll
  for (unsigned i = 0; i < Inputs; ++i) fetch_tile(tiles + i * stride, x[i] + first * columns, elements, aligned);
  wait_for_tiles();
  typename Row::Team team;
  const unsigned teams = blockDim.x / team.size();
  // Teams without a row take part in the last turn too, since shuffles need all lanes.
  for (unsigned turn = 0; turn < here; turn += teams) {
    const unsigned in_tile = turn + threadIdx.x / team.size();
    Row row{team, columns, in_tile < here ? rows : 0, first + in_tile, static_cast<long long>(in_tile) * columns};
    work(row, stride);
  }
  __syncthreads();
  put_tile(y + first * columns, tiles, elements, aligned);
}

// ---- What a `tuned` kernel is compiled for. RowPlan of harness/collection/ops/rows/_rows.py chooses these macros:
// COUNT (packs a thread; of a tile, elements), LANES (threads of a warp that share a row; 0 where a block or a cluster
// does), THREADS (of a block), TOGETHER (rows that a team works on at once: more than 1 only where rows share vectors,
// see norm.cuh), and 0 or 1: CLUSTER (whether a cluster shares a row), RAGGED (whether rows begin inside of packs),
// TILE (elements of a tile in place of packs).
#ifdef COUNT
// Threads that a multiprocessor is to hold at least, if a block doesn't have more. It limits the registers of a thread.
constexpr unsigned RESIDENT = THREADS > 768 ? 1024 : 768;
#if LANES > 0
using Team = WarpTeam<LANES>;
#elif CLUSTER && __CUDA_ARCH__ >= 900  // elsewhere never launched
using Team = ClusterTeam<THREADS>;
#else
using Team = BlockTeam<THREADS>;
#endif
#if TILE
using Row = ElementRow<SCALAR, COUNT, Team, true>;
#else
using Row = PackedRow<SCALAR, COUNT, RAGGED, Team>;
#endif
#endif
