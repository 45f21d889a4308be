// Sums of rows of dy whose tokens are grouped by id: see embedding_grad.cu.
//
// Macros: SCALAR and SINGLES, as there.
#pragma once

#include "../rows/norm_grad.cuh"

using T = SCALAR;
using Chunk = ChunkOf<T, SINGLES>::Type;
using Floats = float[Chunk::SIZE];

constexpr unsigned AT_ONCE = 8;  // grouped tokens of a block that sums; all of their rows are under way

// A place of the grouped order, and where the tokens of an id lie in it.
struct alignas(8) Place {
  unsigned token, id;
};
struct alignas(8) Range {
  unsigned begin, end;
};

// Adds a chunk's elements.
__device__ __forceinline__ void add(const Chunk& chunk, Floats& sums) {
  float values[Chunk::SIZE];
  widen(chunk, values);
#pragma unroll
  for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += values[e];
}

// Adds the rows of dy of the places from `from` to the one before `to`, a chunk of columns from `column` on. All loads of
// UNDER_WAY tokens are under way before any of them is added.
template <unsigned UNDER_WAY>
__device__ __forceinline__ void add_tokens(const T* __restrict__ dy, const Place* __restrict__ order, unsigned from,
                                           unsigned to, unsigned columns, unsigned column, Floats& sums) {
#pragma unroll 1
  for (unsigned k = from; k < to; k += UNDER_WAY) {
    unsigned tokens[UNDER_WAY];
    Chunk chunks[UNDER_WAY];
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) tokens[i] = order[min(k + i, to - 1)].token;
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) {
      chunks[i] = Chunk{};
      if (k + i < to) load_chunk(dy + static_cast<long long>(tokens[i]) * columns + column, chunks[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) add(chunks[i], sums);
  }
}

// A chunk of sums of a window to memory and from there, in accesses of 16 bytes where it is a pack.
__device__ __forceinline__ void store_floats(float* to, const Floats& sums) {
  if constexpr (Chunk::SIZE == 1) {
    *to = sums[0];
  } else {
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; e += 4) {
      reinterpret_cast<float4*>(to)[e / 4] = make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
    }
  }
}
__device__ __forceinline__ void load_floats(const float* from, Floats& sums) {
  if constexpr (Chunk::SIZE == 1) {
    sums[0] = *from;
  } else {
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; e += 4) {
      const float4 four = reinterpret_cast<const float4*>(from)[e / 4];
      sums[e] = four.x, sums[e + 1] = four.y, sums[e + 2] = four.z, sums[e + 3] = four.w;
    }
  }
}

// Adds the sums of the windows from `first` to the one before `last`; as floats take more registers, fewer are under way.
__device__ __forceinline__ void add_windows(const float* __restrict__ partial, unsigned first, unsigned last,
                                            unsigned columns, unsigned column, Floats& sums) {
  constexpr unsigned UNDER_WAY = AT_ONCE / 2;
#pragma unroll 1
  for (unsigned w = first; w < last; w += UNDER_WAY) {
    Floats windows[UNDER_WAY];
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) {
      load_floats(partial + static_cast<long long>(min(w + i, last - 1)) * columns + column, windows[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) {
      if (w + i >= last) break;
#pragma unroll
      for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += windows[i][e];
    }
  }
}
