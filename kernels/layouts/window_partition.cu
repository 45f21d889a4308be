// The cyclic shift and the partition of images into windows, in one kernel: windows.cuh tells what they are. Its
// backward is the way back. D is the bytes of the images.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element), INDEX (unsigned, or unsigned long long from 2^31
// units on), TO_WINDOWS (1 in the forward, 0 in the backward), and the macros of each kernel. Nothing is computed, so
// all types of one width share a kernel.
//
// Torch rolls (2 D), and copies what view() and permute() made of that (2 D): 4 D and more, as its kernels for both take
// an element a thread and much index arithmetic. 2 D have to move. Where an element comes from is arithmetic alone, so
// one kernel is enough.
//
// What each step gained on an NVIDIA H200 (reports/h200/windows), float16 B256-H56-W56-C96-window7-shift3
// direction=forward.
// At least 154.1 MB are read and 154.1 MB written. The ceiling is 73.49 us, by memory.
//   eager: PyTorch
//       872.0 us    8.4% of ceiling
//   index_map: one element a thread, with divisions and remainders
//       516.0 us   14.2% of ceiling  moves 308.3 MB  1.69x the speed of eager
//   tuned: 16 or 8 bytes an access at any sizes, multiplications in place of divisions
//       74.67 us   98.4% of ceiling  moves 308.3 MB  6.91x the speed of index_map

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR unsigned
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef TO_WINDOWS
#define TO_WINDOWS 1
#endif

#include "windows.cuh"

using T = SCALAR;

// 1. The text's kernel: an element of y a thread, whose place in x is found by divisions and remainders. It moves 2 D,
//    but there are so many threads, each with so many instructions, that they take longer than the memory does.
#if !(defined WIDTH || defined SEVERAL)
extern "C" __global__ void window_partition_index_map(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX height,
                                                      INDEX width, INDEX channels, INDEX side, INDEX rows_shifted,
                                                      INDEX columns_shifted) {
  move_element<TO_WINDOWS>(x, y, n, height, width, channels, side, rows_shifted, columns_shifted);
}
#endif

// 2. A pixel's channels are neighbours in both layouts, and so are the pixels of a window's row, unless the roll cuts
//    it. So one computation serves a unit of 16 bytes, or of 8 where the sizes don't allow 16. Divisions are
//    multiplications. A thread has several units, which are all in flight at once.
//
// Macros: WIDTH (bytes of a unit), UNROLL (units a thread), BLOCK (threads). Both tensors must be aligned to units.
#ifdef WIDTH
#if WIDTH == 16
using Unit = uint4;
#else
using Unit = uint2;
#endif
extern "C" __global__ void __launch_bounds__(BLOCK)
    window_partition_units(const Unit* __restrict__ x, Unit* __restrict__ y, INDEX units, WINDOW_PARAMETERS) {
  move_units<TO_WINDOWS, UNROLL>(x, y, units, WINDOWS);
}
#endif

// 3. Any sizes and addresses, such as an odd number of channels in halves, where units would be single elements. Here a
//    thread still stores 16 bytes. It loads the two aligned words around its elements and shifts them together. Where a
//    piece of neighbours ends in the pack, it loads the elements one by one, from two places; where pieces are shorter
//    than a pack (SEVERAL), each element is looked up.
//
// Macros: SEVERAL (0 or 1), BLOCK (threads).
#if defined SEVERAL && !defined RUN
extern "C" __global__ void __launch_bounds__(BLOCK)
    window_partition_ragged(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX head, INDEX packs,
                            WINDOW_PARAMETERS) {
  move_ragged<TO_WINDOWS, SEVERAL>(x, y, n, head, packs, WINDOWS);
}
#endif

// 4. The same for windows of which at least one fits into shared memory. In step 3 nearly every warp has packs with
//    parts of two pieces: the warp loads these packs after the other packs, and computes for each 16 bytes what a whole
//    run has in common. Here all loads are of aligned packs and under way at once, and packs are put together in shared
//    memory, which answers soon. The sizes are macros, so divisions are by constants.
//
// Macros: as in window_tiles.cuh.
#ifdef RUN
#include "window_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    window_partition_tiles(const T* __restrict__ x, T* __restrict__ y, INDEX n, INDEX bands) {
  move_tile(x, y, n, bands);
}
#endif
