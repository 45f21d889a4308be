// LayerNorm and RMSNorm of the rows of a matrix. `Centred` tells them apart: LayerNorm subtracts a row's mean and adds
// beta; RMSNorm has neither mean nor beta, and gets null pointers for them.
#pragma once

#include "../include/together.cuh"
#include "normaliser.cuh"
#include "rows.cuh"

template <typename Element>
struct alignas(2 * sizeof(Element)) Pair {
  Element at[2];
};
template <typename Element>
__device__ __forceinline__ void widen(const Pair<Element>& pair, float (&values)[2]) {
  const Lanes<Element> lanes(reinterpret_cast<const unsigned&>(pair));
  values[0] = lanes.at[0], values[1] = lanes.at[1];
}
template <typename Element>
__device__ __forceinline__ void narrow(const float (&values)[2], Pair<Element>& pair) {
  Lanes<Element> lanes;
  lanes.at[0] = values[0], lanes.at[1] = values[1];
  reinterpret_cast<unsigned&>(pair) = lanes.word();
}

__device__ __forceinline__ void widen(const Pair<float>& pair, float (&values)[2]) {
  values[0] = pair.at[0], values[1] = pair.at[1];
}

template <typename Element>
__device__ __forceinline__ void forget_floats(Pair<Element>& pair, unsigned zero) {
  reinterpret_cast<unsigned&>(pair) += zero;
}

// A row with two neighbouring elements an access: of an even number of halves, and aligned to 4 bytes. It has the same
// functions as the rows of rows.cuh.
template <typename Element, unsigned Count, typename TeamOfRow>
struct PairRow {
  using Team = TeamOfRow;
  using Chunk = Pair<Element>;
  static constexpr unsigned CHUNKS = Count, CHUNK = 2;
  static __device__ __forceinline__ constexpr unsigned elements(unsigned) { return 2; }

  Team& team;
  unsigned columns;
  long long rows, row, begin;

  __device__ __forceinline__ unsigned column_of(unsigned j) const { return 2 * team.template part<Count>(j); }
  __device__ __forceinline__ bool has(unsigned j, unsigned) const { return row < rows && column_of(j) < columns; }
  __device__ __forceinline__ void load(const Element* __restrict__ x, Chunk (&chunks)[Count], float missing) const {
#pragma unroll
    for (unsigned j = 0; j < Count; ++j) {
      chunks[j] = has(j, 0) ? pair(x + begin, j) : Chunk{Element(missing), Element(missing)};
    }
  }
  __device__ __forceinline__ void store(Element* __restrict__ y, unsigned j, const Chunk& chunk) const {
    if (has(j, 0)) *reinterpret_cast<Chunk*>(y + begin + column_of(j)) = chunk;
  }
  __device__ __forceinline__ Chunk column(const Element* __restrict__ vector, unsigned j) const {
    return has(j, 0) ? pair(vector, j) : Chunk{};
  }

 private:
  __device__ __forceinline__ Chunk pair(const Element* __restrict__ from, unsigned j) const {
    const unsigned word = __ldg(reinterpret_cast<const unsigned*>(from + column_of(j)));
    return reinterpret_cast<const Chunk&>(word);
  }
};

// Fills a chunk that doesn't exist with a value.
template <typename Element>
__device__ __forceinline__ void fill_unless(bool exists, Pack<Element>& pack, float value) {
  // Whole words are selected, one by one.
  Lanes<Element> lanes;
#pragma unroll
  for (float& lane : lanes.at) lane = value;
  const unsigned word = lanes.word();
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) words[w] = exists ? words[w] : word;
}
template <typename Chunk>
__device__ __forceinline__ void fill_unless(bool exists, Chunk& chunk, float value) {
#pragma unroll
  for (auto& element : chunk.at) {
    if (!exists) element = value;
  }
}

// Normalises, scales and shifts the first `elements` of a chunk.
template <bool Centred, typename Chunk, unsigned Size>
__device__ __forceinline__ void normalise_chunk(const Normaliser<Centred>& normalised, Chunk& chunk,
                                                const float (&scale)[Size], const float (&shift)[Size],
                                                unsigned elements = Size) {
  float values[Size];
  widen(chunk, values);
#pragma unroll
  for (unsigned e = 0; e < elements; ++e) {
    const float normal = normalised(values[e]);
    values[e] = Centred ? fmaf(normal, scale[e], shift[e]) : normal * scale[e];
  }
  narrow(values, chunk);
}

// ---- Some rows of any kind that one team works on at once, so that gamma and beta are loaded once for all of them. It
// keeps them in registers, in the type of memory. A thread must have the same columns of all of them.

// Fills chunks that don't exist with the row's first element.
template <bool Centred, unsigned Together, typename Row>
__device__ __forceinline__ void fill_missing(const Row (&rows)[Together],
                                             typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                             const Normaliser<Centred> (&normalised)[Together]) {
  bool all = true;
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) all &= rows[r].has(j, 0);
  }
  // Many chunks are filled behind a branch, so that packs can stay in the registers that they were loaded to.
  if (Together * Row::CHUNKS > 4 && all) return;
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) fill_unless(rows[r].has(j, 0), chunks[r][j], normalised[r].mean);
  }
}

// Makes the statistics of the rows.
template <bool Centred, unsigned Together, typename Row>
__device__ __forceinline__ void measure_rows(const Row (&rows)[Together],
                                             typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                             Normaliser<Centred> (&normalised)[Together]) {
  constexpr unsigned SUMS = Normaliser<Centred>::SUMS;
  float sums[Together * SUMS], values[Row::CHUNK];
  // An element that doesn't exist must not count. In the sums about the first element it is a copy of that element,
  // whose distance is 0: a branch around a pack's arithmetic would delay the loads behind it. In sums about another
  // point existence is checked. Single elements are always checked, which takes no branch.
  constexpr bool CHECKED = Centred && Row::CHUNK == 1;
  const auto add_up = [&](bool checked) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
#pragma unroll
    for (unsigned r = 0; r < Together; ++r) {
      float(&own)[SUMS] = reinterpret_cast<float(&)[SUMS]>(sums[r * SUMS]);
#pragma unroll
      for (unsigned j = 0; j < Row::CHUNKS; ++j) {
        widen(chunks[r][j], values);
#pragma unroll
        for (unsigned e = 0; e < Row::elements(j); ++e) {
          if (!checked || rows[r].has(j, e)) normalised[r].add(values[e], own);
        }
      }
    }
    rows[0].team.template all<Sum>(sums);
  };
  const auto again = [&]() {
    bool any = false;
#pragma unroll
    for (unsigned r = 0; r < Together; ++r) {
      any |= normalised[r].again(reinterpret_cast<const float(&)[SUMS]>(sums[r * SUMS]));
    }
    return any;
  };
  if constexpr (Centred && !IS_WHOLE<Row> && !CHECKED) fill_missing(rows, chunks, normalised);
  add_up(CHECKED);
  if (again()) {
#pragma unroll
    for (unsigned r = 0; r < Together; ++r) {
      normalised[r].recentre();
#pragma unroll
      for (unsigned j = 0; j < Row::CHUNKS; ++j) {
        forget_floats(chunks[r][j], normalised[r].zero());
      }
    }
    add_up(Centred);
    again();
  }
}

// Gamma and beta for the thread's chunk j: scale(j) and shift(j). These are loaded from memory when they are asked for.
template <typename Row, typename Element>
struct VectorsInMemory {
  const Row& row;
  const Element *__restrict__ gamma, *__restrict__ beta;
  __device__ __forceinline__ typename Row::Chunk scale(unsigned j) const { return row.column(gamma, j); }
  __device__ __forceinline__ typename Row::Chunk shift(unsigned j) const { return row.column(beta, j); }
};

// The same, but gamma is loaded before the statistics are made, or while they are made: the compiler decides. A thread
// that keeps little has the registers for gamma.
template <typename Row, typename Element>
struct GammaAhead {
  const Row& row;
  const Element* __restrict__ beta;
  typename Row::Chunk chunks[Row::CHUNKS];
  __device__ __forceinline__ GammaAhead(const Row& row, const Element* __restrict__ gamma,
                                        const Element* __restrict__ beta)
      : row(row), beta(beta) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) chunks[j] = row.column(gamma, j);
  }
  __device__ __forceinline__ const typename Row::Chunk& scale(unsigned j) const { return chunks[j]; }
  __device__ __forceinline__ typename Row::Chunk shift(unsigned j) const { return row.column(beta, j); }
};

// The same, but both are loaded once, for all rows that a thread works on.
template <bool Centred, typename Row, typename Element>
struct VectorsKept {
  typename Row::Chunk scales[Row::CHUNKS], shifts[Row::CHUNKS];
  __device__ __forceinline__ VectorsKept(const Row& row, const Element* __restrict__ gamma,
                                         const Element* __restrict__ beta) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) {
      scales[j] = row.column(gamma, j);
      if constexpr (Centred) shifts[j] = row.column(beta, j);
    }
  }
  __device__ __forceinline__ const typename Row::Chunk& scale(unsigned j) const { return scales[j]; }
  __device__ __forceinline__ const typename Row::Chunk& shift(unsigned j) const { return shifts[j]; }
};

// Writes the statistics, normalises the rows, and writes y.
template <bool Centred, unsigned Together, typename Row, typename Vectors, typename Element>
__device__ __forceinline__ void normalise_rows(const Row (&rows)[Together],
                                               typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                               const Normaliser<Centred> (&normalised)[Together],
                                               const Vectors& vectors, Element* y, float* __restrict__ mean,
                                               float* __restrict__ rstd) {
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
    if (rows[r].team.rank == 0 && rows[r].row < rows[r].rows) {
      if constexpr (Centred) mean[rows[r].row] = normalised[r].mean;
      rstd[rows[r].row] = normalised[r].rstd();
    }
  }
#pragma unroll
  for (unsigned j = 0; j < Row::CHUNKS; ++j) {
    float scale[Row::CHUNK], shift[Row::CHUNK] = {};
    widen(vectors.scale(j), scale);
    if constexpr (Centred) widen(vectors.shift(j), shift);
#pragma unroll
    for (unsigned r = 0; r < Together; ++r) {
      forget_floats(chunks[r][j], normalised[r].zero());
      normalise_chunk(normalised[r], chunks[r][j], scale, shift, Row::elements(j));
      rows[r].store(y, j, chunks[r][j]);
    }
  }
}

// Loads the rows and their first elements, about which sums are made.
template <bool Centred, unsigned Together, typename Row, typename Element>
__device__ __forceinline__ void load_rows(const Row (&rows)[Together], const Element* x,
                                          typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                          Normaliser<Centred> (&normalised)[Together]) {
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
    const float first = Centred && rows[r].row < rows[r].rows ? to_float(x[rows[r].begin]) : 0.0f;
    normalised[r] = {rows[r].columns, first};
    rows[r].load(x, chunks[r], 0.0f);
  }
}

// Makes the rows' statistics, and writes y, with vectors that were made before. x and y are matrices, or both are the tile
// that the rows lie in.
template <bool Centred, unsigned Together, typename Row, typename Vectors, typename Element>
__device__ __forceinline__ void normalise_with(const Row (&rows)[Together], const Element* x, const Vectors& vectors,
                                               Element* y, float* __restrict__ mean, float* __restrict__ rstd) {
  Normaliser<Centred> normalised[Together];
  typename Row::Chunk chunks[Together][Row::CHUNKS];
  load_rows<Centred>(rows, x, chunks, normalised);
  measure_rows<Centred>(rows, chunks, normalised);
  normalise_rows<Centred>(rows, chunks, normalised, vectors, y, mean, rstd);
}

// The same, with vectors that are made once the rows are asked for, and before the statistics.
template <typename Vectors, bool Centred, unsigned Together, typename Row, typename Element>
__device__ __forceinline__ void normalise_with_ahead(const Row (&rows)[Together], const Element* x,
                                                     const Element* __restrict__ gamma,
                                                     const Element* __restrict__ beta, Element* y,
                                                     float* __restrict__ mean, float* __restrict__ rstd) {
  Normaliser<Centred> normalised[Together];
  typename Row::Chunk chunks[Together][Row::CHUNKS];
  load_rows<Centred>(rows, x, chunks, normalised);
  const Vectors vectors(rows[0], gamma, beta);
  if constexpr (EARLY) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) {
      begin_together(chunks[0][j], vectors.scale(j));
      if constexpr (Centred) begin_together(chunks[0][j], vectors.shift(j));
    }
  }
  measure_rows<Centred>(rows, chunks, normalised);
  normalise_rows<Centred>(rows, chunks, normalised, vectors, y, mean, rstd);
}

// The same, with vectors as suit the rows.
template <bool Centred, unsigned Together, typename Row, typename Element>
__device__ __forceinline__ void normalise_from(const Row (&rows)[Together], const Element* x,
                                               const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                               Element* y, float* __restrict__ mean, float* __restrict__ rstd) {
  if constexpr (EARLY) {
    normalise_with_ahead<VectorsKept<Centred, Row, Element>, Centred>(rows, x, gamma, beta, y, mean, rstd);
  } else if constexpr ((!Centred || IS_WHOLE<Row>) && Together * Row::CHUNKS <= 4) {
    normalise_with_ahead<GammaAhead<Row, Element>, Centred>(rows, x, gamma, beta, y, mean, rstd);
  } else {
    normalise_with<Centred>(rows, x, VectorsInMemory<Row, Element>{rows[0], gamma, beta}, y, mean, rstd);
  }
}

// ---- Bodies of kernels.

// A block a row, of any length and at any address. It keeps nothing of the row, so it reads x again for y.
template <bool Centred, unsigned Threads, typename Element>
__device__ __forceinline__ void normalise_in_two_passes(const Element* __restrict__ x,
                                                        const Element* __restrict__ gamma,
                                                        const Element* __restrict__ beta, Element* __restrict__ y,
                                                        float* __restrict__ mean, float* __restrict__ rstd,
                                                        long long rows, long long columns) {
  BlockTeam<Threads> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const Element* from = x + row * columns;
    Element* to = y + row * columns;
    Normaliser<Centred> normalised(columns, Centred ? to_float(from[0]) : 0.0f);
    float sums[Normaliser<Centred>::SUMS];
    const auto add_up = [&]() {
      for (float& sum : sums) sum = 0.0f;
      // Without this the compiler takes 16 elements at a time, since indices have 64 bits. This kernel is to be plain.
#pragma unroll 4
      for (long long i = threadIdx.x; i < columns; i += Threads) normalised.add(to_float(from[i]), sums);
      team.template all<Sum>(sums);
    };
    add_up();
    if (normalised.again(sums)) {
      normalised.recentre();
      add_up();
      normalised.again(sums);
    }
    if (threadIdx.x == 0) {
      if constexpr (Centred) mean[row] = normalised.mean;
      rstd[row] = normalised.rstd();
    }
#pragma unroll 1
    for (long long i = threadIdx.x; i < columns; i += Threads) {
      const float normal = normalised(to_float(from[i])), scale = to_float(gamma[i]);
      to[i] = Element(Centred ? fmaf(normal, scale, to_float(beta[i])) : normal * scale);
    }
  }
}

// A block a row, which it keeps in registers as a Row of single elements or of pairs.
template <bool Centred, typename Row, typename Element>
__device__ __forceinline__ void normalise_in_registers(const Element* x, const Element* __restrict__ gamma,
                                                       const Element* __restrict__ beta, Element* y,
                                                       float* __restrict__ mean, float* __restrict__ rstd,
                                                       long long rows, unsigned columns) {
  typename Row::Team team;
  const Row row[1] = {{team, columns, rows, team.row(), team.row() * columns}};
  normalise_from<Centred>(row, x, gamma, beta, y, mean, rstd);
}
