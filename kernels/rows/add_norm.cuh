// Rows that are sums of two matrices' rows: the residual connection before a norm. The sum is stored as it is made, and
// stays in registers in the type of memory, so that the norm is of the numbers that are stored.
#pragma once

#include "norm.cuh"

// As PackedRow, but load() adds the row of `residual` to the row of x, and writes the sum to `sum`. If EARLY, gamma is
// loaded with x, and column() gives it.
template <typename Element, unsigned Count, typename TeamOfRow, bool Whole>
struct SummedRow : PackedRow<Element, Count, false, TeamOfRow, Whole> {
  using Packs = PackedRow<Element, Count, false, TeamOfRow, Whole>;
  using typename Packs::Chunk;
  static constexpr unsigned GROUP = 4;
  const Element* residual;
  Element* sum;
  Chunk gammas[EARLY ? Count : 1];

  __device__ __forceinline__ SummedRow(TeamOfRow& team, long long rows, unsigned columns, long long row,
                                       const Element* residual, Element* sum, const Element* __restrict__ gamma)
      : Packs(team, rows, columns, row), residual(residual), sum(sum) {
    if constexpr (EARLY) {
#pragma unroll
      for (unsigned j = 0; j < Count; ++j) gammas[j] = Packs::column(gamma, j);
    }
  }
  __device__ __forceinline__ Chunk column(const Element* __restrict__ gamma, unsigned j) const {
    return EARLY ? gammas[j] : Packs::column(gamma, j);
  }

  __device__ __forceinline__ void load(const Element* __restrict__ x, Chunk (&chunks)[Count], float missing) const {
    Packs::load(x, chunks, missing);
    if constexpr (EARLY) {
#pragma unroll
      for (unsigned j = 0; j < Count; ++j) begin_together(chunks[j], gammas[j]);
    }
    const Element* from = Packs::own(residual);
    // Some packs at a time: a row that fills the registers leaves no room for a second one.
#pragma unroll
    for (unsigned first = 0; first < Count; first += GROUP) {
      Chunk others[GROUP];
#pragma unroll
      for (unsigned g = 0; g < GROUP && first + g < Count; ++g) {
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (Packs::has(first + g, 0)) {
          raw = load_16<false>(reinterpret_cast<const uint4*>(from + (first + g) * TeamOfRow::STEP * Packs::CHUNK));
        }
        others[g] = reinterpret_cast<const Chunk&>(raw);
      }
#pragma unroll
      for (unsigned g = 0; g < GROUP && first + g < Count; ++g) {
        float values[Packs::CHUNK], added[Packs::CHUNK];
        widen(chunks[first + g], values);
        widen(others[g], added);
#pragma unroll
        for (unsigned e = 0; e < Packs::CHUNK; ++e) values[e] += added[e];
        narrow(values, chunks[first + g]);
        Packs::store(sum, first + g, chunks[first + g]);
      }
    }
  }
};

// A thread's part of the sum of a row's squares about 0, for rows of any length and address; the sum of x and residual
// is stored. A thread reads later only what it stored itself.
template <unsigned Threads, typename Element>
__device__ __forceinline__ void add_and_measure(const Element* __restrict__ x, const Element* __restrict__ residual,
                                                Element* sum, long long columns, Normaliser<false>& normalised,
                                                float (&squares)[1]) {
  squares[0] = 0.0f;
#pragma unroll 4
  for (long long i = threadIdx.x; i < columns; i += Threads) {
    const Element added = Element(to_float(x[i]) + to_float(residual[i]));
    sum[i] = added;
    normalised.add(to_float(added), squares);
  }
}

#ifdef COUNT
// Threads that a multiprocessor is to hold at least. Two matrices are under way, so a thread with many packs needs twice
// the registers that it needs for one.
constexpr unsigned RESIDENT_SUMMED = (COUNT * TOGETHER <= 4 && !EARLY) || THREADS > 512 ? 1024 : 512;
using SummedPacks = SummedRow<SCALAR, COUNT, Team, WHOLE>;
#endif
