// Rows of a matrix (rows, columns) that lies gapless in memory, each worked on by a team of threads which keeps it in
// registers, so that memory sees it once. What differs from one length of rows to another is the team (lanes of a warp,
// a block, a cluster of blocks) and the way to the elements (packs from memory, or single elements from a tile in
// shared memory); what is computed is written once, on a row of either kind.
#pragma once

#include "number.cuh"
#include "pack.cuh"
#include "teams.cuh"

// ---- Rows. `CHUNKS` chunks of this thread; elements(j) of chunk j are in use, CHUNK at most. load() and store() move
// them; column() loads what a vector of `columns` elements has for one of them; has() says whether an element exists.

// A word full of an element.
__device__ __forceinline__ unsigned splat(float value) { return __float_as_uint(value); }
template <typename Half>
__device__ __forceinline__ unsigned splat(Half value) {
  return reinterpret_cast<const unsigned short&>(value) * 0x10001u;
}

// Packs from memory, of tensors that are aligned to 16 bytes. Without `Ragged`, rows are whole packs. With it, a row's
// first whole pack begins `head` elements into it. Those elements, and those behind the last whole pack, are single
// ones: the first threads of the team have one each, in a chunk of its own. A team must have two packs' of threads
// then. `Whole`: no thread of a row that exists lacks a pack.
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

  // Of the thread's first pack. The compiler isn't to see what it's made of, or it makes each pack's address anew.
  template <typename Pointer>
  __device__ __forceinline__ Pointer own(Pointer matrix) const {
    matrix += begin + head + pack(0) * CHUNK;
    asm("" : "+l"(matrix));
    return matrix;
  }
  // What is read once isn't kept out of the L1 (L1::no_allocate): softmax was slower for it on an H200.
  __device__ __forceinline__ void load(const Element* __restrict__ x, Chunk (&chunks)[CHUNKS], float missing) const {
    const Element* from = own(x);
    // In whole words: taken apart, their halves would stay apart.
    const unsigned word = splat(Element(missing));
#pragma unroll
    for (unsigned j = 0; j < CHUNKS; ++j) {
      uint4 raw = make_uint4(word, word, word, word);
      if (j < Count && has(j, 0)) raw = load_16<false>(reinterpret_cast<const uint4*>(from + j * Team::STEP * CHUNK));
      chunks[j] = reinterpret_cast<const Chunk&>(raw);
      if (j == Count && has(j, 0)) chunks[j].at[0] = x[begin + column_of(j)];
    }
  }
  __device__ __forceinline__ void store(Element* __restrict__ y, unsigned j, const Chunk& chunk) const {
    Element* to = own(y);
    if (!has(j, 0)) return;
    if (j < Count) {
      store_pack(to + j * Team::STEP * CHUNK, chunk);
    } else {
      y[begin + column_of(j)] = chunk.at[0];
    }
  }

  // The vector must be aligned to 16 bytes. Its packs begin elsewhere than the row's: two of them together give one.
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

// Whether no thread of any row lacks anything, as far as the compiler knows.
template <typename Row>
constexpr bool IS_WHOLE = false;
template <typename Element, unsigned Count, typename Team>
constexpr bool IS_WHOLE<PackedRow<Element, Count, false, Team, true>> = true;

// Single elements, from memory or from a tile in shared memory. `begin`: of the row, in elements from where load() and
// store() are told that the matrix or the tile is.
template <typename Element, unsigned Count, typename TeamOfRow>
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
  __device__ __forceinline__ bool has(unsigned j, unsigned) const { return row < rows && column_of(j) < columns; }
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

// The floats of a pack of halves may be needed twice, with a reduction in between. The compiler would keep them for
// that long, in twice the registers of the halves, if it saw that they stay the same: so it isn't to know that `zero`
// is.
template <typename Chunk>
__device__ __forceinline__ void forget_floats(Chunk&, unsigned) {}
__device__ __forceinline__ void forget_floats(Pack<float>&, unsigned) {}
template <typename Half>
__device__ __forceinline__ void forget_floats(Pack<Half>& pack, unsigned zero) {
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) words[w] += zero;
}

// ---- Tiles: contiguous elements between memory and shared memory, by a whole block, in packs where `aligned`.
// from, to: global; tile: in shared memory, aligned to 16 bytes.
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

// A block's tile of `tile_rows` rows of each of `Inputs` matrices, one after the other in `tiles`: fetches them, calls
// work(row, stride) for each row, which finds it in matrix i at tiles + i * stride and overwrites that of the first one
// with the result, and puts the results where `y` has them. Row is an ElementRow of a WarpTeam. tile_rows * columns
// must be whole packs, for all tiles to begin on one.
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
  // Teams without a row take the turn too, for the shuffles.
  for (unsigned turn = 0; turn < here; turn += teams) {
    const unsigned in_tile = turn + threadIdx.x / team.size();
    Row row{team, columns, in_tile < here ? rows : 0, first + in_tile, static_cast<long long>(in_tile) * columns};
    work(row, stride);
  }
  __syncthreads();
  put_tile(y + first * columns, tiles, elements, aligned);
}

// ---- What a kernel is compiled for, where harness/ops/rows/_rows.py chooses it. Macros: COUNT (packs or elements a
// thread), LANES (threads of a warp that share a row; 0: a block does, or a cluster), THREADS (of a block), TOGETHER
// (rows that a team works on at once: more than 1 only where norm.cuh has vectors to share), and 0 or 1: CLUSTER, RAGGED,
// TILE (elements of a tile in place of packs).
#ifdef COUNT
// Threads that an SM is to hold at least, if a block doesn't have more: so many registers a thread may take.
constexpr unsigned RESIDENT = THREADS > 768 ? 1024 : 768;
#if LANES > 0
using Team = WarpTeam<LANES>;
#elif CLUSTER && __CUDA_ARCH__ >= 900  // elsewhere never launched
using Team = ClusterTeam<THREADS>;
#else
using Team = BlockTeam<THREADS>;
#endif
#if TILE
using Row = ElementRow<SCALAR, COUNT, Team>;
#else
using Row = PackedRow<SCALAR, COUNT, RAGGED, Team>;
#endif
#endif
