// LayerNorm and RMSNorm by the teams that the host planned. Macros: as at the end of rows.cuh, WHOLE (0 or 1: no
// thread lacks a pack), and EARLY (as in together.cuh; for teams of blocks, and rows of whole packs).
#pragma once

#if LANES > 0 && !(TILE || RAGGED)
#include "norm_lanes.cuh"
#else
#include "norm.cuh"
#endif

// Threads that a multiprocessor is to hold at least. It limits the registers of a thread.
__device__ constexpr unsigned resident() {
  constexpr unsigned KEPT = COUNT * TOGETHER;  // packs, or elements of a tile, that a thread keeps
#if EARLY
  return THREADS > 512 ? 1024 : 512;
#endif
  // More threads hide more of the time that loads of gamma and beta take. Where threads keep much, or have single
  // elements besides packs, there are too few registers for so many threads; halves take some more registers on sm_100.
  if (KEPT >= 8 && sizeof(SCALAR) == 2 && __CUDA_ARCH__ >= 1000) return 512;
  if (LANES > 0 && KEPT >= (__CUDA_ARCH__ >= 1000 ? 7 : 8) && !(RAGGED || TILE)) return 768;
  if (KEPT <= 4 || !(RAGGED || TILE)) return 1024;
  if (KEPT >= 8 && THREADS <= 512) return 512;
  return RESIDENT;
}
constexpr unsigned BLOCKS_OF_SM = resident() / THREADS;

// The body of a `tuned` kernel, for the team and the kind of row that the macros choose.
template <bool Centred, typename Element>
__device__ __forceinline__ void normalise_as_planned(const Element* __restrict__ x, const Element* __restrict__ gamma,
                                                     const Element* __restrict__ beta, Element* __restrict__ y,
                                                     float* __restrict__ mean, float* __restrict__ rstd,
                                                     long long rows, unsigned columns, unsigned tile_rows,
                                                     bool aligned) {
#if TILE
  extern __shared__ uint4 shared[];
  Element* tile = reinterpret_cast<Element*>(shared);
  Team of_columns;  // a thread has the same columns of all rows
  const VectorsKept<Centred, Row, Element> vectors(Row{of_columns, columns, 1, 0, 0}, gamma, beta);
  on_tiles<Row>(tile, {x}, y, rows, columns, tile_rows, aligned, [&](const Row& row, unsigned) {
    normalise_with<Centred>(reinterpret_cast<const Row(&)[1]>(row), tile, vectors, tile, mean, rstd);
  });
#elif LANES > 0 && !RAGGED
  Team team;
  LaneRows<Centred, Element>(team, rows, columns).run(x, gamma, beta, y, mean, rstd);
#elif !CLUSTER || __CUDA_ARCH__ >= 900
  static_assert(TOGETHER <= 2, "the grid is for so many rows a team");
  Team team;
  using Packs = PackedRow<Element, COUNT, RAGGED, Team, WHOLE>;
#if TOGETHER == 2
  // Rows that begin inside of packs have the same columns in a thread if they begin alike: every eighth row does.
  constexpr unsigned APART = RAGGED ? 8 : 1;
  const long long first = team.row() / APART * (2 * APART) + team.row() % APART;
  const Packs some[] = {{team, rows, columns, first}, {team, rows, columns, first + APART}};
#else
  const Packs some[] = {{team, rows, columns, team.row()}};
#endif
  normalise_from<Centred>(some, x, gamma, beta, y, mean, rstd);
#endif
}
