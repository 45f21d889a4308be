// Images (N, C, H, W) to (N, H, W, C) and back: in memory, transposes of a batch of matrices (C, H * W), or (H * W, C).
//
// Memory bounds it: each byte is read once and written once. Neighbours of x are far from each other in y.
//
// Macros: ELEMENT (unsigned, or unsigned short for halves), since nothing is computed. INDEX for nchw_to_nhwc_naive;
// the macros of register_blocks.cuh, narrow.cuh, pack_tile.cuh and word_tile.cuh for the kernels with their names.
//
// transpose.cu tells what each step is about. Here matrices are many, and may be small or narrow: 3 channels, or images
// of 7 x 7. rows and cols: of one matrix of x.
//
// What each step gained on an NVIDIA H200 (reports/h200/layouts), float16 N256-C64-H112-W112 direction=to_nchw.
// At least 411.0 MB are read and 411.0 MB written. The ceiling is 193.7 us, by memory.
//   eager: PyTorch
//       1.349 ms   14.4% of ceiling
//   naive: one element a thread, three divisions for its coordinates
//       1.237 ms   15.7% of ceiling  moves 822.1 MB  1.09x the speed of eager
//   tiled: 32 x 32 elements through shared memory
//       343.6 us   56.4% of ceiling  moves 822.1 MB  3.60x the speed of naive
//   packed: 64 x 64 halves through shared memory, two an access
//       206.6 us   93.7% of ceiling  moves 822.1 MB  1.66x the speed of tiled
//   tuned: packs of 16 bytes through registers or shared memory, or words
//       199.4 us   97.1% of ceiling  moves 822.1 MB  1.04x the speed of packed

// Defaults for compiling this file alone.
#ifndef ELEMENT
#define ELEMENT unsigned
#endif

#include "coordinates.cuh"
#include "tile.cuh"
#include "transposes.cuh"

// 1. The text before: one element a thread, in the order of y, with all four coordinates. size: of y's dimensions but
//    the outermost one, the outer ones first; stride: what a step along each of all four is in x.
#ifdef INDEX
extern "C" __global__ void nchw_to_nhwc_naive(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, INDEX n,
                                              INDEX size1, INDEX size2, INDEX size3, INDEX stride0, INDEX stride1,
                                              INDEX stride2, INDEX stride3) {
  move_one(x, y, n, Coordinates<INDEX, 4>{{size1, size2, size3}, {stride0, stride1, stride2, stride3}});
}
#else

// 2. Through a tile in shared memory.
extern "C" __global__ void __launch_bounds__(TILE_LANES* TILE_LINES)
    nchw_to_nhwc_tiled(const ELEMENT* __restrict__ x, ELEMENT* __restrict__ y, unsigned rows, unsigned cols) {
  transpose_tile(x, y, rows, cols);
}

// 3. The text after: pairs of halves. The dimension within which packs lie in x isn't the one of y's packs, so pairs
//    are as far as it goes.
extern "C" __global__ void __launch_bounds__(TILE_LANES* TILE_LINES)
    nchw_to_nhwc_packed(const unsigned short* __restrict__ x, unsigned short* __restrict__ y, unsigned rows,
                        unsigned cols) {
  transpose_tile_of_pairs(x, y, rows, cols);
}

// 4. In registers, where a few megabytes have channels and images of whole sectors.
#ifdef WARPS_ACROSS
REGISTER_BLOCKS(nchw_to_nhwc_register_blocks)
#endif

// 5. With three, five or seven rows or columns, of whole packs, it happens in registers, too. A warp puts the packs of
//    the side where elements of few rows take turns in order, in shared memory of its own.
#ifdef NARROW
NARROW_MATRICES(nchw_to_nhwc_narrow)
#endif

// 6. By packs through shared memory, where there are many channels and pixels.
#ifdef PACKS_ACROSS
PACK_TILES(nchw_to_nhwc_pack_tiles)
#endif

// 7. By words of 4 bytes, for all other sizes and addresses. With few channels a block has one piece of memory on the
//    side of NHWC. With small images it has one piece on the side of NCHW. With very small images a block has several
//    images, and one piece on both sides.
#ifdef TILE_ROWS
WORD_TILES(nchw_to_nhwc_word_tiles)
#endif

#endif  // INDEX
