// LayerNorm and RMSNorm of the rows of a matrix. `Centred` tells them apart: LayerNorm takes a row's mean away and
// adds beta; RMSNorm has neither mean nor beta, and null pointers stand for them.
#pragma once

#include "rows.cuh"

constexpr float EPSILON = 1e-5f;
constexpr float PLUS_INFINITY = -MINUS_INFINITY;

// The statistics of a row, from sums over its elements, and then the elements normalised with them.
//
// Sums of x and x * x would lose everything where the mean is far larger than the deviation. Sums of distances from a
// point lose nothing while that point is within a few deviations of the mean, and a row's first element nearly always
// is. Where it isn't, the sums are made again about the mean that they gave. So one reduction does where two passes,
// for the mean and then for the variance, need two. In a row of equal values all distances are exactly zero.
//
// Distances are taken times a power of two, at most 1 / (2 sqrt(N)), which rounds nothing: no difference of two
// finite elements overflows then, and no sum of squares does unless the variance does.
template <bool Centred>
class Normaliser {
 public:
  static constexpr unsigned SUMS = Centred ? 2 : 1;
  float mean;

  __device__ __forceinline__ Normaliser() {}
  // first: the row's first element; 0 without a mean.
  template <typename Count>
  __device__ __forceinline__ Normaliser(Count columns, float first)
      : mean(first), share(__fdividef(1.0f, columns)) {
    const unsigned half_log2 = (bits_of(columns - 1) + 1) / 2;  // of N, both rounded up
    down = __uint_as_float((126 - half_log2) << 23);
    point = -mean * down;
  }

  // Of another row of the same length.
  __device__ __forceinline__ Normaliser(const Normaliser& like, float first)
      : mean(first), share(like.share), down(like.down), point(-first * like.down) {}

  // Adds an element to this thread's part of the sums.
  __device__ __forceinline__ void add(float x, float (&sums)[SUMS]) const {
    const float d = distance(x);
    sums[0] = fmaf(d, d, sums[0]);
    if constexpr (Centred) sums[1] = fmaf(d, share, sums[1]);
  }

  // Takes the sums over the row for all that follows, and tells whether they must be made again, after recentre(): at
  // most once. All threads that share a warp or a row get the same answer.
  __device__ __forceinline__ bool again(const float (&sums)[SUMS]) {
    // 1 / down, by its exponent.
    const float up = __uint_as_float((254u << 23) - __float_as_uint(down)), square = sums[0] * share;
    if constexpr (!Centred) {
      scale = root(square * up * up + EPSILON) * up;
      return false;
    } else {
      const float off = sums[1], off_square = off * off;
      float variance = square - off_square;
      // Rounding must not make it negative. Of an infinity or no number at all, it's the same.
      if (!(off_square < square)) variance = square < PLUS_INFINITY ? 0.0f : square;
      scale = root(variance * up * up + EPSILON) * up;
      offset = -off * scale;
      mean = fmaf(off, up, mean);
      const bool near = off_square <= 8.0f * variance && square < PLUS_INFINITY;
      return !last && __any_sync(ALL_LANES, !near);
    }
  }
  __device__ __forceinline__ void recentre() {
    point = -mean * down;
    last = true;
  }

  // What another lane of `Lanes` found out about the same row.
  template <unsigned Lanes>
  __device__ __forceinline__ void take_point(const Normaliser& from, unsigned lane) {
    point = __shfl_sync(ALL_LANES, from.point, lane, Lanes);
  }
  template <unsigned Lanes>
  __device__ __forceinline__ void take_scale(const Normaliser& from, unsigned lane) {
    scale = __shfl_sync(ALL_LANES, from.scale, lane, Lanes);
    if constexpr (Centred) offset = __shfl_sync(ALL_LANES, from.offset, lane, Lanes);
  }

  __device__ __forceinline__ float rstd() const { return scale * down; }
  // No compiler knows that it's always zero.
  __device__ __forceinline__ unsigned zero() const { return __float_as_uint(scale) >> 31; }

  // x without the mean, times rstd.
  __device__ __forceinline__ float operator()(float x) const {
    return Centred ? fmaf(distance(x), scale, offset) : x * rstd();
  }

 private:
  static __device__ __forceinline__ unsigned bits_of(unsigned n) { return 32 - __clz(n); }
  static __device__ __forceinline__ unsigned bits_of(long long n) { return 64 - __clzll(n); }
  // 1 / sqrt(x). What is at least epsilon isn't denormal, for which rsqrtf() looks.
  static __device__ __forceinline__ float root(float x) {
    float result;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
  __device__ __forceinline__ float distance(float x) const { return Centred ? fmaf(x, down, point) : x * down; }

  float share;  // 1 / N
  float down;   // the power of two
  float point;  // minus the point's place, times `down`
  float scale, offset;
  bool last = false;
};

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

template <typename Element>
__device__ __forceinline__ void forget_floats(Pair<Element>& pair, unsigned zero) {
  reinterpret_cast<unsigned&>(pair) += zero;
}

// Two neighbours an access, in rows of an even number of halves that begin on 4 bytes. As the rows of rows.cuh.
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

// Fills a chunk with a value unless it has elements.
template <typename Element>
__device__ __forceinline__ void fill_unless(bool exists, Pack<Element>& pack, float value) {
  // In whole words, selected one by one.
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

// The first `elements` of a chunk normalised, scaled and shifted.
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

// ---- Some rows of one team and of any kind, which it keeps as they were loaded, so that gamma and beta are loaded
// once for all of them. Their columns must lie alike.

// Makes the elements that don't exist like the row's first one.
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
  // Many of them apart, so that loads needn't come to other registers than those in which their packs stay.
  if (Together * Row::CHUNKS > 4 && all) return;
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
#pragma unroll
    for (unsigned j = 0; j < Row::CHUNKS; ++j) fill_unless(rows[r].has(j, 0), chunks[r][j], normalised[r].mean);
  }
}

// The statistics of their elements.
template <bool Centred, unsigned Together, typename Row>
__device__ __forceinline__ void measure_rows(const Row (&rows)[Together],
                                             typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                             Normaliser<Centred> (&normalised)[Together]) {
  constexpr unsigned SUMS = Normaliser<Centred>::SUMS;
  float sums[Together * SUMS], values[Row::CHUNK];
  // What was loaded for an element that doesn't exist isn't to count. About the first element, that's an element like
  // it: a branch around a pack's arithmetic would hold up loads behind it. About another point it's checked; so is a
  // single element always, which takes no branch.
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

// Gamma and beta: what they have for the thread's chunk j. Here from memory, when it is asked for.
template <typename Row, typename Element>
struct VectorsInMemory {
  const Row& row;
  const Element *__restrict__ gamma, *__restrict__ beta;
  __device__ __forceinline__ typename Row::Chunk scale(unsigned j) const { return row.column(gamma, j); }
  __device__ __forceinline__ typename Row::Chunk shift(unsigned j) const { return row.column(beta, j); }
};

// The same, gamma on its way since before the statistics: where a thread keeps little, it has the registers.
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

// Writes the statistics and y.
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

// Loads the rows, and does both. x and y are matrices, or both the tile that the rows lie in.
template <bool Centred, unsigned Together, typename Row, typename Element>
__device__ __forceinline__ void normalise_from(const Row (&rows)[Together], const Element* x,
                                               const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                               Element* y, float* __restrict__ mean, float* __restrict__ rstd) {
  Normaliser<Centred> normalised[Together];
  typename Row::Chunk chunks[Together][Row::CHUNKS];
#pragma unroll
  for (unsigned r = 0; r < Together; ++r) {
    const float first = Centred && rows[r].row < rows[r].rows ? to_float(x[rows[r].begin]) : 0.0f;
    normalised[r] = {rows[r].columns, first};
    rows[r].load(x, chunks[r], 0.0f);
  }
  if constexpr ((!Centred || IS_WHOLE<Row>) && Together * Row::CHUNKS <= 4) {
    const GammaAhead<Row, Element> vectors(rows[0], gamma, beta);
    measure_rows<Centred>(rows, chunks, normalised);
    normalise_rows<Centred>(rows, chunks, normalised, vectors, y, mean, rstd);
  } else {
    measure_rows<Centred>(rows, chunks, normalised);
    const VectorsInMemory<Row, Element> vectors{rows[0], gamma, beta};
    normalise_rows<Centred>(rows, chunks, normalised, vectors, y, mean, rstd);
  }
}

// ---- Bodies of kernels.

// Rows of any length at any address, a block a row: nothing is kept, so x is read again for y.
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
      // Over 64-bit indices the compiler would take 16 elements at a time, in the kernel that is to be the plainest.
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

// A block a row, in a Row of single elements or of pairs.
template <bool Centred, typename Row, typename Element>
__device__ __forceinline__ void normalise_in_registers(const Element* x, const Element* __restrict__ gamma,
                                                       const Element* __restrict__ beta, Element* y,
                                                       float* __restrict__ mean, float* __restrict__ rstd,
                                                       long long rows, unsigned columns) {
  typename Row::Team team;
  const Row row[1] = {{team, columns, rows, team.row(), team.row() * columns}};
  normalise_from<Centred>(row, x, gamma, beta, y, mean, rstd);
}
