// The kernels that transpose.cu, permute.cu and nchw_to_nhwc.cu make of register_blocks.cuh, narrow.cuh,
// pack_tile.cuh, cell_tile.cuh and word_tile.cuh, each by a name of its own. A compilation has the macros of one of them,
// or of none.
#pragma once

// Sizes of an Order: see order.cuh.
#define ORDER_PARAMETERS                                                                                       \
  unsigned down, unsigned across, unsigned matrix_multiplier, unsigned matrix_shift, unsigned band_multiplier, \
      unsigned band_shift
#define ORDER                                                                                           \
  (Order{down, across, {down * across, matrix_multiplier, matrix_shift}, {BAND * down, band_multiplier, \
                                                                          band_shift}})

#ifdef WARPS_ACROSS
#include "register_blocks.cuh"

#define REGISTER_BLOCKS(name)                                                                      \
  extern "C" __global__ void __launch_bounds__(THREADS)                                            \
      name(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned rows, unsigned cols) { \
    transpose_in_registers(x, y, rows, cols);                                                      \
  }
#endif

#ifdef NARROW
#include "narrow.cuh"

#define NARROW_MATRICES(name)                                                                                \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      name(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned n, unsigned row_size,            \
           unsigned row_multiplier, unsigned row_shift) {                                                    \
    transpose_narrow(x, y, n, {row_size, row_multiplier, row_shift});                                        \
  }
#endif

#ifdef PACKS_ACROSS
#include "pack_tile.cuh"

#define PACK_TILES(name)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)                                      \
      name(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned batch, unsigned rows, unsigned cols, \
           ORDER_PARAMETERS) {                                                                                   \
    transpose_pack_tiles(x, y, batch, rows, cols, ORDER);                                                        \
  }
#endif

#ifdef CELL_LINES
#include "cell_tile.cuh"

#define CELL_TILES(name)                                                                                       \
  extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)                                    \
      name(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned batch, unsigned rows, unsigned down) { \
    transpose_cell_tiles(x, y, batch, rows, down);                                                             \
  }
#endif

#ifdef TILE_ROWS
#include "word_tile.cuh"

// Registers for four blocks a multiprocessor: then up to 64 KB of its loads are in flight.
#define WORD_TILES(name)                                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 4)                                                       \
      name(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned batch, unsigned rows, unsigned cols, \
           ORDER_PARAMETERS) {                                                                                   \
    transpose_word_tiles(x, y, batch, rows, cols, ORDER);                                                        \
  }
#endif
