// The backward of LayerNorm and RMSNorm over the rows of a matrix (rows, columns). `Centred` tells them apart:
// LayerNorm subtracted a row's mean and added beta; RMSNorm has no mean and no dbeta, and gets null pointers for them.
//
//   xhat = (x - mean) * rstd, g = dy * gamma
//   dx = rstd * (g - mean of g - xhat * mean of g * xhat)     means over the row; RMSNorm has only the second mean
//   dgamma = sum of dy * xhat, dbeta = sum of dy              over the rows
//
// One pass over the rows has to make sums over a row and sums over columns. No sum is made with atomics: blocks, or
// groups of rows, write their sums of columns side by side as floats, (parts, columns), and norm_grad_total.cuh adds
// these in a fixed order, so that results repeat bit by bit. Where there is a single part, it is the result.
//
// This file has the formulas, the sums of columns, and the kernels that read single elements. norm_grad_tiles.cuh has
// the kernel that reads dy and x once, ahead of the work; norm_grad_beside.cuh the kernel for few rows, which has no
// parts; norm_grad_spread.cuh the kernels for other few rows, and for rows that are too long for the chip.
//
// Rows have fewer than 2^31 columns.
#pragma once

#include "rows.cuh"

// Threads of a multiprocessor, where they keep sums of columns in registers: a thread may have up to 128 registers.
constexpr unsigned RESIDENT_WITH_SUMS = 512;

// A row's statistics, and the terms that its elements add to sums. Sums of a row are of g * xhat, and, if `Centred`, of
// g. Sums of a column are of dy * xhat, and, if `Centred`, of dy.
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
  // Each of the products dy * xhat and dy * gamma is part of two sums, so that an element costs one instruction a sum.
  __device__ __forceinline__ static void add(float dy, float xhat, float gamma, float (&of_row)[SUMS],
                                             float (&of_column)[SUMS]) {
    const float product = dy * xhat;
    of_row[0] = fmaf(product, gamma, of_row[0]);
    of_column[0] += product;
    if constexpr (Centred) {
      of_row[1] = fmaf(dy, gamma, of_row[1]);
      of_column[1] += dy;
    }
  }
  // dx, from xhat or from x. means: the row's sums divided by the number of columns.
  __device__ __forceinline__ float gradient_at(float dy, float xhat, float gamma, const float (&means)[SUMS]) const {
    return rstd * fmaf(-means[0], xhat, less_mean(dy, gamma, means));
  }
  __device__ __forceinline__ float gradient(float dy, float x, float gamma, const float (&means)[SUMS]) const {
    return rstd * fmaf(-means[0] * rstd, centred(x), less_mean(dy, gamma, means));
  }

 private:
  __device__ __forceinline__ static float less_mean(float dy, float gamma, const float (&means)[SUMS]) {
    if constexpr (Centred) return fmaf(dy, gamma, -means[1]);
    return dy * gamma;
  }
};

// The order in which sums of columns lie in memory. A thread has a pack of columns, eight halves at most, and writes
// their sums in quads of floats. Where rows are packs of halves, the first quads of all packs come first, and then the
// second ones, so that threads with neighbouring packs write neighbouring quads.
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

// Where sums of columns go: to `part` of `partial`; or, if there is a single part and so no `partial`, to the result.
template <typename Element>
struct ColumnSums {
  Element *dgamma, *dbeta;
  float* partial;
  unsigned columns;
  long long part, parts;

  // Each block has a part, or each cluster of `a_team` blocks.
  __device__ __forceinline__ static ColumnSums of_blocks(Element* dgamma, Element* dbeta, float* partial,
                                                         unsigned columns, unsigned a_team = 1) {
    return {dgamma, dbeta, partial, columns, blockIdx.x / a_team, gridDim.x / a_team};
  }
  // Each group of rows has a part; its number is blockIdx.y.
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
  // The sums of a pack's columns. dgamma and dbeta are aligned to 16 bytes.
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

// ---- A kernel for each result. Nothing is kept between them, so dy is read three times and x twice.

constexpr unsigned ROW_BLOCK = 256;

// dx, with a block a row: first the sums; then dy and x are read again, at best from a cache.
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
      float unused[of.SUMS] = {};
      of.add(to_float(dy[begin + c]), of.normalised(to_float(x[begin + c])), to_float(gamma[c]), sums, unused);
    }
    team.template all<Sum>(sums);
#pragma unroll
    for (float& sum : sums) sum /= columns;
    for (unsigned c = threadIdx.x; c < columns; c += ROW_BLOCK) {
      dx[begin + c] = Element(of.gradient(to_float(dy[begin + c]), to_float(x[begin + c]), to_float(gamma[c]), sums));
    }
  }
}

// Sums term(row, column) over the group of rows blockIdx.y. A block has 32 columns, and each of its warps another row.
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

// ---- Chunks: packs, or single elements. A thread has the same chunks of all its rows.

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
// In asm, since the compiler sometimes takes a plain store of a pack apart. No kernel reads a pack that it writes so, which
// goes to global memory; the compiler may move loads across it.
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

// Loads a chunk from shared memory in one access.
template <typename Chunk, typename Element>
__device__ __forceinline__ Chunk shared_chunk(const Element* from) {
  if constexpr (Chunk::SIZE == 1) return {*from};
  const uint4 raw = *reinterpret_cast<const uint4*>(from);
  return reinterpret_cast<const Chunk&>(raw);
}

// Adds the terms of a chunk's elements to the sums of the row, and to the sums of their columns.
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
    of.add(gradients[e], of.normalised(values[e]), scale[e], of_row, of_columns[e]);
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

// Picks one sum of each column of a thread's chunk: 0 for dgamma's, 1 for dbeta's.
template <unsigned Size, unsigned Sums>
__device__ __forceinline__ void sums_of(const float (&sums)[Size][Sums], unsigned which, float (&chosen)[Size]) {
#pragma unroll
  for (unsigned e = 0; e < Size; ++e) chosen[e] = sums[e][which];
}

// Adds the sums of columns of all teams of the block, and puts the results. A team is `Lanes` threads, and has
// `columns` columns from `first` on. shared: columns * warps floats.
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

// ---- One read of dy and x: a block works on whole rows, one after the other, and keeps the sums of all columns. A
// thread has up to `Count` single elements of a row, and keeps them in registers while the row's sums are made.
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
