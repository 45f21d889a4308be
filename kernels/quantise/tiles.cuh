// Matrices whose columns have numbers of their own, such as a bias: a thread takes the same columns of several rows.
//
// A unit is a few neighbouring elements, 16 bytes of the widest type that moves. After `period` units the columns are
// the same again: that is a row, or several rows where a row isn't whole units. A tile is UNITS periods:
//
//     thread       0  1  2  ...  period - 1
//     unit         0  1  2  ...  period - 1         period 0 of the tile
//                  period + 0, ...                  period 1, in the same columns
//                  2 period + 0, ...
//
// So a thread fetches the numbers of its columns once for UNITS units, all loads of these are under way at once, and
// lanes are neighbours in each access, in rows of any length. The host makes the period a multiple of a warp, so
// that each access of a warp begins on a line of memory (harness/collection/ops/quantise/_tiles.py).
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 elements on), WHOLE
// (0 or 1: rows are whole units), TILE_UNITS (of a thread, 4 unless told), UNIT_ELEMENTS (of a unit,
// fewer than 16 bytes have: then small matrices have threads for more multiprocessors), REST (0 or 1, 1 unless told: the
// matrix may end inside a unit), ROW_THREADS (of a block, which has a part of one row; without it, units are shared out
// as above).
#pragma once

#include "../include/fastdiv.cuh"
#include "../include/row_part.cuh"
#include "few.cuh"

using T = SCALAR;

#ifndef TILE_UNITS
#define TILE_UNITS 4
#endif
constexpr unsigned UNITS = TILE_UNITS;  // of a thread
#ifndef REST
#define REST 1
#endif

// The bounds of a kernel whose body is in_tiles. If the compiler is told only how many threads a block has, it saves
// registers, and puts the loads of a thread one behind the other. With 4 blocks on a multiprocessor a thread may have
// 64 registers, and all loads come first. GELU takes many instructions, whose time more threads
// hide, so it has one block more.
constexpr unsigned THREADS = 256, RESIDENT = 4;

struct Tiles {
  INDEX elements;
  Divisor<INDEX> period, columns;
};
#ifdef ROW_THREADS
struct Rows {
  unsigned units;  // of a row
};
#define TILE_PARAMETERS unsigned row_units
#define TILES (Rows{row_units})
#else
#define TILE_PARAMETERS                                                                                           \
  INDEX elements, INDEX period, INDEX period_multiplier, unsigned period_shift, INDEX columns, INDEX multiplier, \
      unsigned shift
#define TILES (Tiles{elements, {period, period_multiplier, period_shift}, {columns, multiplier, shift}})
#endif

// The numbers of `SIZE` columns from `column` on; after the last column comes the first one.
template <typename Element, unsigned SIZE>
__device__ __forceinline__ void load_columns(const Element* __restrict__ from, INDEX column, INDEX columns,
                                             float (&values)[SIZE]) {
  if constexpr (WHOLE) {
    Few<Element, SIZE> raw;
    raw.load(from + column);
    raw.widen(values);
  } else {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      values[j] = to_float(from[column]);
      column = column + 1 == columns ? 0 : column + 1;
    }
  }
}

// y[unit] = step(x, residual) by elements, for a unit that was loaded.
template <unsigned SIZE, bool RESIDUAL, typename In, typename Out, typename Step>
__device__ __forceinline__ void finish_unit(const Few<In, SIZE>& raw, const Few<T, SIZE>& added, Out* __restrict__ y,
                                            INDEX unit, const Step& step) {
  float values[SIZE], more[SIZE] = {};
  raw.widen(values);
  if constexpr (RESIDUAL) added.widen(more);
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) values[j] = step(values[j], more[j], j);
  Few<Out, SIZE> result;
  result.narrow(values);
  result.store(y + unit * SIZE);
}

// y = step(x, residual) by elements. step.load(column, columns) fetches what it needs of `SIZE` columns, and
// step(x, residual, j) works on an element of the j-th of them. RESIDUAL: whether there is one. All tensors begin on 16
// bytes.
template <unsigned SIZE, bool RESIDUAL, typename In, typename Out, typename Step>
__device__ __forceinline__ void in_tiles(const In* __restrict__ x, const T* __restrict__ residual, Out* __restrict__ y,
                                         const Tiles& tiles, Step step) {
  const INDEX whole = tiles.elements / SIZE, thread = thread_index<INDEX>();
  INDEX first = thread, place = thread;  // with one unit a thread, the units are in the order of the threads
  if constexpr (UNITS > 1) {
    const INDEX tile = tiles.period.quotient(thread);
    place = thread - tile * tiles.period.size;
    first = tile * (UNITS * tiles.period.size) + place;
  }
  // The unit `whole` is the tensor's rest.
  if (REST ? first > whole : first >= whole) return;
  const INDEX column = tiles.columns.remainder(place * SIZE);
  // A small matrix takes little more time than its instructions. Without a rest, a unit behind the end costs a few
  // instructions that aren't executed, where a last tile of its own would cost jumps.
  constexpr bool STRAIGHT = !REST && UNITS <= 2;
  if (STRAIGHT || first + (UNITS - 1) * tiles.period.size < whole) {
    Few<In, SIZE> raws[UNITS];
    Few<T, SIZE> residuals[UNITS];
    const auto is_there = [&](unsigned u) { return !STRAIGHT || u == 0 || first + u * tiles.period.size < whole; };
#pragma unroll
    for (unsigned u = 0; u < UNITS; ++u) {
      const INDEX element = (first + u * tiles.period.size) * SIZE;
      if (!is_there(u)) continue;
      raws[u].load(x + element);
      if constexpr (RESIDUAL) residuals[u].load(residual + element);
    }
    step.load(column, tiles.columns.size);
#pragma unroll
    for (unsigned u = 0; u < UNITS; ++u) {
      if (is_there(u)) finish_unit<SIZE, RESIDUAL>(raws[u], residuals[u], y, first + u * tiles.period.size, step);
    }
    return;
  }
  // The last tile, unit by unit, and after it the rest of the tensor, which one thread comes to.
  step.load(column, tiles.columns.size);
  INDEX unit = first;
#pragma unroll 1
  for (; unit < whole; unit += tiles.period.size) {
    Few<In, SIZE> raw;
    Few<T, SIZE> added;
    raw.load(x + unit * SIZE);
    if constexpr (RESIDUAL) added.load(residual + unit * SIZE);
    finish_unit<SIZE, RESIDUAL>(raw, added, y, unit, step);
  }
  if (unit == whole) {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      const INDEX i = whole * SIZE + j;
      if (i < tiles.elements) y[i] = narrowed<Out>(step(to_float(x[i]), RESIDUAL ? to_float(residual[i]) : 0.0f, j));
    }
  }
}

// The same for a part of a row.
#ifdef ROW_THREADS
template <unsigned SIZE, bool RESIDUAL, typename In, typename Out, typename Step>
__device__ __forceinline__ void in_tiles(const In* __restrict__ x, const T* __restrict__ residual, Out* __restrict__ y,
                                         const Rows& rows, Step step) {
  const RowPart part = RowPart::of<ROW_THREADS>(rows.units);
  Few<In, SIZE> raw;
  Few<T, SIZE> added;
  raw.load(x + part.unit * SIZE);
  if constexpr (RESIDUAL) added.load(residual + part.unit * SIZE);
  step.load(part.column * SIZE, rows.units * SIZE);
  finish_unit<SIZE, RESIDUAL>(raw, added, y, part.unit, step);
}
#endif
