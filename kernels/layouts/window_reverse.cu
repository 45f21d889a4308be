// Windows put back into images, which are then rolled down and to the right, in one kernel: the way back from
// window_partition.cu, which tells the story of these kernels. Here y is images, so neighbouring threads write
// neighbouring pixels, and a row of y comes from all windows that lie beside each other.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element), INDEX (unsigned, or unsigned long long from 2^31
// units on), TO_WINDOWS (0 in the forward, 1 in the backward), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/counters_more), float16 B256-H56-W56-C96-window7-shift3
// direction=forward.
// At least 154.1 MB are read and 154.1 MB written. The ceiling is 73.49 us, by memory.
//   eager: PyTorch
//       870.1 us    8.4% of ceiling
//   index_map: one element a thread, with divisions and remainders
//       465.5 us   15.8% of ceiling  moves 308.3 MB  1.87x the speed of eager
//   tuned: 16 or 8 bytes an access at any sizes, multiplications in place of divisions
//       74.90 us   98.1% of ceiling  moves 308.3 MB  6.22x the speed of index_map

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR unsigned
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef TO_WINDOWS
#define TO_WINDOWS 0
#endif

#include "windows.cuh"

using T = SCALAR;

// 1. The text's kernel: an element of y a thread, whose place in x is found by divisions and remainders.
#if !(defined WIDTH || defined SEVERAL)
extern "C" __global__ void window_reverse_index_map(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX height,
                                                    INDEX width, INDEX channels, INDEX side, INDEX rows_shifted,
                                                    INDEX columns_shifted) {
  move_element<TO_WINDOWS>(x, y, n, height, width, channels, side, rows_shifted, columns_shifted);
}
#endif

// 2. Units of 16 or 8 bytes, several a thread. Macros: WIDTH (bytes of a unit), UNROLL (units a thread), BLOCK (threads).
//    Both tensors must be aligned to units.
#ifdef WIDTH
#if WIDTH == 16
using Unit = uint4;
#else
using Unit = uint2;
#endif
extern "C" __global__ void __launch_bounds__(BLOCK)
    window_reverse_units(const Unit* __restrict__ x, Unit* __restrict__ y, INDEX units, WINDOW_PARAMETERS) {
  move_units<TO_WINDOWS, UNROLL>(x, y, units, WINDOWS);
}
#endif

// 3. Any sizes and addresses: stores of 16 bytes that are put together from what is loaded. Macros: SEVERAL (0 or 1),
//    BLOCK (threads).
#if defined SEVERAL && !defined RUN
extern "C" __global__ void __launch_bounds__(BLOCK)
    window_reverse_ragged(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX head, INDEX packs,
                          WINDOW_PARAMETERS) {
  move_ragged<TO_WINDOWS, SEVERAL>(x, y, n, head, packs, WINDOWS);
}
#endif

// 4. The same through shared memory, for windows of which at least one fits. Macros: as in window_tiles.cuh.
#ifdef RUN
#include "window_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    window_reverse_tiles(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX bands) {
  move_tile(x, y, n, bands);
}
#endif
