// LayerNorm of long rows, of whole packs, by teams that stay on the chip and take rows in turn. Macros: those at the
// end of rows.cuh, and WHOLE (0 or 1: no thread's pack is missing).
#pragma once

#include "norm.cuh"

// A row whose packs have come to registers. As the rows of rows.cuh, but store() is told where the thread's first pack
// goes.
template <typename Element>
struct StagedRow {
  using Chunk = Pack<Element>;
  static constexpr unsigned CHUNKS = COUNT, CHUNK = Chunk::SIZE;
  static __device__ __forceinline__ constexpr unsigned elements(unsigned) { return CHUNK; }

  Team& team;
  unsigned packs;
  long long rows, row;

  __device__ __forceinline__ bool has(unsigned j, unsigned) const {
    return WHOLE || team.template part<COUNT>(j) < packs;
  }
  __device__ __forceinline__ void store(Element* __restrict__ y, unsigned j, const Chunk& chunk) const {
    if (has(j, 0)) store_pack(y + j * Team::STEP * CHUNK, chunk);
  }
};

// Gamma and beta come to shared memory once, as far as the block needs them, and the next row is on its way there while
// one, in registers, is worked on: so memory has something to do while threads reduce. A thread copies what it reads
// itself, so no barrier of the block is needed.
template <typename Element>
class InTurn {
 public:
  using TurnRow = StagedRow<Element>;
  static constexpr unsigned CHUNK = Pack<Element>::SIZE;

  __device__ __forceinline__ InTurn(const Element* __restrict__ x, uint4* shared, long long rows, unsigned columns)
      : x(x), rows(rows), columns(columns), packs(columns / CHUNK) {
    stage = shared + threadIdx.x;
    // Behind the thread's own packs each warp has the row's first one.
    first = shared + COUNT * THREADS + threadIdx.x / WARP;
    vectors = shared + COUNT * THREADS + THREADS / WARP + threadIdx.x;
  }

  // What gamma and beta have for the thread's chunk j.
  __device__ __forceinline__ Pack<Element> scale(unsigned j) const { return pack_at(vectors + j * THREADS); }
  __device__ __forceinline__ Pack<Element> shift(unsigned j) const { return scale(COUNT + j); }

  __device__ __forceinline__ void run(const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                      Element* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd) {
    long long number = team_number(blockIdx.x);
    const long long step = team_number(gridDim.x), stride = step * columns, begin = number * columns;
    const Element* from = x + begin;
    y += begin + team.template part<COUNT>(0) * CHUNK;
    fetch_vectors(gamma, beta);
    fetch(number, from);
    fetch_first(number, from);
    const Normaliser<true> kind(columns, 0.0f);
    for (; number < rows; number += step, y += stride) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      const TurnRow row[] = {{team, packs, rows, number}};
      Pack<Element> chunks[1][COUNT];
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) chunks[0][j] = pack_at(stage + j * THREADS);
      from += stride;
      fetch(number + step, from);
      // Another lane copied it, and is about to copy the next one there. To read it only now keeps the compiler from
      // putting off the copies: it wants the element for all that follows.
      __syncwarp();
      const float value = to_float(*reinterpret_cast<const Element*>(first));
      __syncwarp();
      fetch_first(number + step, from);
      Normaliser<true> normalised[] = {{kind, value}};
      // Without packs of the next row in registers, there is room for the floats.
      measure_rows<true, false>(row, chunks, normalised);
      normalise_rows<true, false>(row, chunks, normalised, *this, y, mean, rstd);
    }
  }

 private:
  __device__ __forceinline__ long long team_number(unsigned block) const { return block / team.blocks(); }
  // from: where the row begins, if there is one.
  __device__ __forceinline__ void fetch(long long row, const Element* from) const {
    const unsigned to = shared_address(stage);
    const Element* own = from + team.template part<COUNT>(0) * CHUNK;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      copy_async_16_if(row < rows && has(j), to + j * THREADS * PACK_BYTES, own + j * Team::STEP * CHUNK);
    }
  }
  __device__ __forceinline__ void fetch_first(long long row, const Element* from) const {
    copy_async_16_if(row < rows && threadIdx.x % WARP == 0, shared_address(first), from);
  }
  __device__ __forceinline__ bool has(unsigned j) const { return WHOLE || team.template part<COUNT>(j) < packs; }
  __device__ __forceinline__ void fetch_vectors(const Element* __restrict__ gamma, const Element* __restrict__ beta) {
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      if (!has(j)) continue;
      const unsigned column = team.template part<COUNT>(j) * CHUNK;
      copy_async_16(shared_address(vectors + j * THREADS), gamma + column);
      copy_async_16(shared_address(vectors + (COUNT + j) * THREADS), beta + column);
    }
  }
  __device__ __forceinline__ static Pack<Element> pack_at(const uint4* at) {
    const uint4 raw = *at;
    return reinterpret_cast<const Pack<Element>&>(raw);
  }

  Team team;
  const Element* __restrict__ x;
  uint4 *stage, *first, *vectors;  // stage, vectors: where the thread's first packs are
  long long rows;
  unsigned columns, packs;
};
