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

// Some rows of one team and of any kind, which it keeps as they were loaded, so that gamma and beta are loaded once for
// all of them. Their columns must lie alike.
//
// The statistics of their elements. Forgets: as forget_floats() has it.
template <bool Centred, bool Forgets, unsigned Together, typename Row>
__device__ __forceinline__ void measure_rows(const Row (&rows)[Together],
                                             typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                             Normaliser<Centred> (&normalised)[Together]) {
  constexpr unsigned SUMS = Normaliser<Centred>::SUMS;
  float sums[Together * SUMS], values[Row::CHUNK];
  const auto add_up = [&]() {
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
          // What was loaded for an element that doesn't exist is zero, which has a distance, too.
          if (!Centred || rows[r].has(j, e)) normalised[r].add(values[e], own);
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
  add_up();
  if (again()) {
#pragma unroll
    for (unsigned r = 0; r < Together; ++r) {
      normalised[r].recentre();
#pragma unroll
      for (unsigned j = 0; j < Row::CHUNKS; ++j) {
        if (Forgets) forget_floats(chunks[r][j], normalised[r].zero());
      }
    }
    add_up();
    again();
  }
}

// Gamma and beta in memory: what they have for the thread's chunk j.
template <typename Row, typename Element>
struct VectorsInMemory {
  const Row& row;
  const Element *__restrict__ gamma, *__restrict__ beta;
  __device__ __forceinline__ typename Row::Chunk scale(unsigned j) const { return row.column(gamma, j); }
  __device__ __forceinline__ typename Row::Chunk shift(unsigned j) const { return row.column(beta, j); }
};

// y and the statistics, as they go to memory.
template <bool Centred, bool Forgets, unsigned Together, typename Row, typename Vectors, typename Element>
__device__ __forceinline__ void normalise_rows(const Row (&rows)[Together],
                                               typename Row::Chunk (&chunks)[Together][Row::CHUNKS],
                                               const Normaliser<Centred> (&normalised)[Together],
                                               const Vectors& vectors, Element* y, float* __restrict__ mean,
                                               float* __restrict__ rstd) {
  float values[Row::CHUNK];
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
      if (Forgets) forget_floats(chunks[r][j], normalised[r].zero());
      widen(chunks[r][j], values);
#pragma unroll
      for (unsigned e = 0; e < Row::elements(j); ++e) {
        const float normal = normalised[r](values[e]);
        values[e] = Centred ? fmaf(normal, scale[e], shift[e]) : normal * scale[e];
      }
      narrow(values, chunks[r][j]);
      rows[r].store(y, j, chunks[r][j]);
    }
  }
}

// Both, from loading the rows on. x and y are matrices, or both the tile that the rows lie in.
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
  measure_rows<Centred, true>(rows, chunks, normalised);
  const VectorsInMemory<Row, Element> vectors{rows[0], gamma, beta};
  normalise_rows<Centred, true>(rows, chunks, normalised, vectors, y, mean, rstd);
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

#ifdef COUNT
// Threads that an SM is to hold at least: so many registers a thread may take.
__device__ constexpr unsigned resident() {
  constexpr unsigned KEPT = COUNT * TOGETHER;  // packs, or elements of a tile, that a thread keeps
  // With few, more threads hide more of the way to gamma and beta.
  if (KEPT <= 4) return 1024;
  // With many, and those of the vectors beside them, there aren't the registers for as many threads.
  if (KEPT >= 8 && THREADS <= 512) return 512;
  return RESIDENT;
}
#if AHEAD
constexpr unsigned BLOCKS_OF_SM = BLOCKS;
#else
constexpr unsigned BLOCKS_OF_SM = resident() / THREADS;
#endif

#if AHEAD
// A row that is in shared memory. As the rows of rows.cuh, but where it goes to, its thread's first pack is.
template <typename Element>
struct StagedRow {
  using Chunk = Pack<Element>;
  static constexpr unsigned CHUNKS = COUNT, CHUNK = Chunk::SIZE;
  static __device__ __forceinline__ constexpr unsigned elements(unsigned) { return CHUNK; }

  Team& team;
  unsigned columns, packs;
  long long rows, row;

  __device__ __forceinline__ bool has(unsigned j, unsigned) const {
    return WHOLE || team.template part<COUNT>(j) < packs;
  }
  __device__ __forceinline__ void store(Element* __restrict__ y, unsigned j, const Chunk& chunk) const {
    if (row < rows && has(j, 0)) store_pack(y + j * Team::STEP * CHUNK, chunk);
  }
};

// Teams that stay on the chip and take rows in turn. Gamma and beta come to shared memory once, as far as the block
// needs them, and the next AHEAD rows are on their way there while one, in registers, is worked on: so memory has
// something to do while threads reduce. A thread copies what it reads itself, so no barrier of the block is needed.
template <bool Centred, typename Element>
class InTurn {
 public:
  using TurnRow = StagedRow<Element>;
  static constexpr unsigned CHUNK = Pack<Element>::SIZE, TEAM_THREADS = LANES ? LANES : THREADS;
  // Beside its packs, a stage has the row's first pack for each warp of a block, where other warps have that.
  static constexpr unsigned STAGE = COUNT * THREADS + (LANES || !Centred ? 0 : THREADS / WARP);

  __device__ __forceinline__ InTurn(const Element* __restrict__ x, uint4* shared, long long rows, unsigned columns)
      : x(x), rows(rows), columns(columns), packs(columns / CHUNK) {
    stages = shared + threadIdx.x;
    firsts = LANES ? stages - team.rank : shared + COUNT * THREADS + threadIdx.x / WARP;
    vectors = shared + AHEAD * STAGE + threadIdx.x % TEAM_THREADS;
  }

  // What gamma and beta have for the thread's chunk j.
  __device__ __forceinline__ Pack<Element> scale(unsigned j) const { return pack_at(vectors + j * TEAM_THREADS); }
  __device__ __forceinline__ Pack<Element> shift(unsigned j) const { return scale(COUNT + j); }

  __device__ __forceinline__ void run(const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                      Element* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd) {
    const long long step = block_row(gridDim.x), stride = step * columns;
    // Of the block's first team: all lanes of a warp take as many turns.
    long long begin = block_row(blockIdx.x);
    const unsigned team_of_block = LANES ? threadIdx.x / TEAM_THREADS : 0;
    const long long offset = (begin + team_of_block) * columns;
    const Element* from = x + offset;
    y += offset + team.template part<COUNT>(0) * CHUNK;
    fetch_vectors(gamma, beta);
#pragma unroll
    for (unsigned s = 0; s < AHEAD; ++s) {
      fetch(begin + s * step + team_of_block, from, s);
      if constexpr (Centred && !LANES) fetch_first(begin + s * step, from, s);
      close();
      from += stride;
    }
    if constexpr (LANES > 0) {
      // Other threads fetched some of the vectors.
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
    }
    const Normaliser<Centred> kind(columns, 0.0f);
    unsigned s = 0;
    for (; begin < rows; begin += step) {
      asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
      const TurnRow row[] = {{team, columns, packs, rows, begin + team_of_block}};
      Pack<Element> chunks[1][COUNT];
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        // Packs that don't exist are to be zero where they count.
        chunks[0][j] = Centred || has(j) ? pack_at(stages + s * STAGE + j * THREADS) : Pack<Element>{};
      }
      float first = 0.0f;
      // Another lane copied it, and is about to copy the next one there.
      if constexpr (Centred && LANES) {
        __syncwarp();
        first = first_element(s);
        __syncwarp();
      }
      const long long next = begin + AHEAD * step + team_of_block;
      fetch(next, from, s);
      // To read it only now keeps the compiler from putting off the copies: it wants the element for all that follows.
      if constexpr (Centred && !LANES) {
        __syncwarp();
        first = first_element(s);
        __syncwarp();
        fetch_first(next, from, s);
      }
      close();
      Normaliser<Centred> normalised[] = {{kind, first}};
      // Without packs of the next row in registers, there is room for the floats.
      measure_rows<Centred, false>(row, chunks, normalised);
      normalise_rows<Centred, false>(row, chunks, normalised, *this, y, mean, rstd);
      from += stride, y += stride;
      s = s + 1 == AHEAD ? 0 : s + 1;
    }
  }

 private:
  // The first row of a block's first team.
  __device__ __forceinline__ long long block_row(unsigned block) const {
#if CLUSTER
    return block / team.blocks();
#else
    return static_cast<long long>(block) * (THREADS / TEAM_THREADS);
#endif
  }
  // from: where the row begins, if there is one.
  __device__ __forceinline__ void fetch(long long row, const Element* from, unsigned s) const {
    const unsigned to = shared_address(stages + s * STAGE);
    const Element* own = from + team.template part<COUNT>(0) * CHUNK;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      copy_async_16_if(row < rows && has(j), to + j * THREADS * PACK_BYTES, own + j * Team::STEP * CHUNK);
    }
  }
  __device__ __forceinline__ void fetch_first(long long row, const Element* from, unsigned s) const {
    copy_async_16_if(row < rows && threadIdx.x % WARP == 0, shared_address(firsts + s * STAGE), from);
  }
  __device__ __forceinline__ static void close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  __device__ __forceinline__ float first_element(unsigned s) const {
    return to_float(*reinterpret_cast<const Element*>(firsts + s * STAGE));
  }
  __device__ __forceinline__ bool has(unsigned j) const { return WHOLE || team.template part<COUNT>(j) < packs; }
  __device__ __forceinline__ void fetch_vectors(const Element* __restrict__ gamma, const Element* __restrict__ beta) {
    if (threadIdx.x >= TEAM_THREADS) return;
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      if (!has(j)) continue;
      const unsigned column = team.template part<COUNT>(j) * CHUNK;
      copy_async_16(shared_address(vectors + j * TEAM_THREADS), gamma + column);
      if (Centred) copy_async_16(shared_address(vectors + (COUNT + j) * TEAM_THREADS), beta + column);
    }
  }
  __device__ __forceinline__ static Pack<Element> pack_at(const uint4* at) {
    const uint4 raw = *at;
    return reinterpret_cast<const Pack<Element>&>(raw);
  }

  Team team;
  const Element* __restrict__ x;
  uint4 *stages, *firsts, *vectors;  // stages, vectors: where the thread's first packs are
  long long rows;
  unsigned columns, packs;
};
#endif

// As rows.cuh has it for the macros.
template <bool Centred, typename Element>
__device__ __forceinline__ void normalise_as_planned(const Element* __restrict__ x, const Element* __restrict__ gamma,
                                                     const Element* __restrict__ beta, Element* __restrict__ y,
                                                     float* __restrict__ mean, float* __restrict__ rstd,
                                                     long long rows, unsigned columns, unsigned tile_rows,
                                                     bool aligned) {
#if TILE
  extern __shared__ uint4 shared[];
  Element* tile = reinterpret_cast<Element*>(shared);
  on_tiles<Row>(tile, {x}, y, rows, columns, tile_rows, aligned, [&](const Row& row, unsigned) {
    normalise_from<Centred>(reinterpret_cast<const Row(&)[1]>(row), tile, gamma, beta, tile, mean, rstd);
  });
#elif CLUSTER && __CUDA_ARCH__ < 900
#elif AHEAD
  extern __shared__ uint4 shared[];
  InTurn<Centred, Element>(x, shared, rows, columns).run(gamma, beta, y, mean, rstd);
#else
  Team team;
  const long long first = team.row() * TOGETHER;
#if TOGETHER == 2
  const Row some[] = {{team, rows, columns, first}, {team, rows, columns, first + 1}};
#else
  const Row some[] = {{team, rows, columns, first}};
#endif
  normalise_from<Centred>(some, x, gamma, beta, y, mean, rstd);
#endif
}
#endif
