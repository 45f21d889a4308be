// A linear layer in int8: y[m, n] = (the sum over k of x[m, k] * weight[n, k]) * x_scale[m] * weight_scale[n], in
// float16.
//
// Macros: PER_CHANNEL and PER_ROW (a scale for each column of y, and for each row, or one for all), and
//   1.  WIDTH (8, 4 or 1 elements a thread), INDEX (unsigned, or unsigned long long where WIDTH is 1), BY_32 (the sums are
//       in cuBLASLt's order COL32)
//   2.  as in int8_tiles.cuh
//   3.  as in int8_few.cuh
//
// 1. The text before: the product is cuBLASLt's, and writes its exact sums in int32; `dequantise` reads four bytes an
//    element and writes two. For a layer of M = 401408, K = 128, N = 384 the sums are written and read in 617 MB each,
//    where the operands have 51 MB: what int8 saves in the product is lost many times over. That is why the text also
//    lets the product scale its sums by itself and write int8, a quarter of these bytes, at the price of one more
//    rounding. cuBLASLt takes one scale there, not one for each channel, and no sizes that aren't multiples of 4.
//
//    A thread takes WIDTH neighbours of one row: two loads of 16 bytes and one store of 16 if the length of a row is a
//    multiple of 8; one load of 16 and a store of 8 if it is a multiple of 4; else, and at unaligned addresses, single
//    elements. It finds its row by a multiplication. Counting in units of WIDTH, 32 bits are enough for all that fits
//    into a GPU.
//
// 2. A product of ours that scales sums where they were made, in registers (int8_tiles.cuh). Of the layer above, 51 MB
//    are read and 308 MB written: a quarter of what 1. moves. A block makes tiles of y, 128 x 256 where there are many.
//
//    - Both operands come to shared memory by cp.async, STAGES parts of DEPTH bytes a row. Blocks stay, and go from tile
//      to tile: the next tile's first parts are on their way while this tile is stored. With K = 128 a tile has two
//      parts only, so without that the copies would begin anew for each.
//    - Chunks of 16 bytes change places by a function of their row, so ldmatrix reads eight rows from all banks, and
//      cp.async writes all banks. A warp makes 64 x 64 of y: for 32 products (16 x 8 x 32) it loads eight times four
//      matrices, 4 KB. At 2560 multiply-adds a cycle the products of four warps take 205 cycles, the loads 128. That
//      rate is 62% of an H100's peak, about what mma.sync reaches there (Luo et al. 2024, by microbenchmarks).
//    - The rows of the weight are put into shared memory in another order. Then a lane's sums of four products are
//      eight neighbours of y, which it stores as 16 bytes; four lanes store 64 bytes of a row. Sums don't pass through
//      shared memory, and lanes exchange nothing.
//    - Tiles come eight below each other, then the next column: the blocks that run at a time share both operands in L2.
//    - Where y has fewer tiles than the GPU has multiprocessors, a cluster of SPLIT blocks shares a tile: each takes a
//      part of K, and adds up a part of the tile from the others' shared memory. Integers are exact in any order.
//    - Rows that are multiples of 8 or 4 bytes come in copies of 8 or 4. Where rows begin at any byte, threads load the
//      words around a chunk to registers before the products of the part before, and shift and store them after. Rows
//      of y that aren't whole packs go through a strip of shared memory of their warp, so that neighbours are stored
//      together.
//
// 3. Few rows, as in decoding: the weight has to come once, and all else is small (int8_few.cuh). For K = N = 4096 it
//    has 16.8 MB: 3.5 us at 4.8 TB/s. So no tensor core matters, but how many bytes are under way. The weight's rows are
//    the left operand, 16 of them at a time, and rows of x the right one, 8 at a time: with one row of x seven eighths
//    of the products are for nothing, and none of it is waited for.
//
//    The order of columns within a product doesn't matter if both operands have the same. So lane l takes 16 bytes from
//    16 * (l % 4) on of rows l / 4 and l / 4 + 8, which are its parts of two products, straight from memory to registers:
//    64 bytes of each row in one load, four of them next to each other. The loads of the next 256 bytes are issued
//    before the products of these: 4 KB of the weight a warp, 64 KB a multiprocessor, where 40 KB would do. The warps of
//    a block, and the blocks of a cluster, take parts of the same 16 or 32 rows in turn, and add their sums at the end.
//
// All of 2. and 3. is by count: neither has been timed yet.
//
// What each step gained on an NVIDIA H200 (reports/h200/gemm), float16 M401408-K128-N384 scales=tensor,data=normal.
// At least 51.43 MB are read and 154.1 MB written. The ceiling is 47.45 us, by memory.
//   eager: PyTorch
//       1.003 ms    4.7% of ceiling
//   int32_out: cuBLASLt's product with sums of int32, then a kernel of ours that scales them
//       424.6 us   11.2% of ceiling  moves 1.593 GB  2.36x the speed of eager
//   int32_out_col4: the same in the orders COL32 and COL4_4R2_8C
//   int32_out_col32: the same in the orders COL32 and COL32_2R_4R4
//   fused: a product of ours, which scales its sums in registers and writes float16; scales for rows and channels, any
//     sizes
//   int8_out: cuBLASLt's product, which scales its sums and writes int8
//       74.22 us   63.9% of ceiling  moves 205.6 MB  5.72x the speed of int32_out
//   tuned: as int8_out, by the fastest of the 24 algorithms that cuBLASLt proposes
//       74.32 us   63.8% of ceiling  moves 205.6 MB  1.00x the speed of int8_out

// Defaults for compiling this file alone.
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef BY_32
#define BY_32 0
#endif
#ifndef PER_CHANNEL
#define PER_CHANNEL 0
#endif
#ifndef PER_ROW
#define PER_ROW 0
#endif

#if defined(TILE_M)
#include "int8_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    int8_linear_tiles(const signed char* __restrict__ x, const signed char* __restrict__ weight,
                      const float* __restrict__ x_scale, const float* __restrict__ weight_scale, __half* __restrict__ y,
                      long long rows, long long columns, unsigned depth, unsigned down, unsigned across, int whole) {
  const Matrix of_x{x, rows, depth}, of_weight{weight, columns, depth};
  multiply_tiles(of_x, of_weight, {x_scale, weight_scale, y, rows, columns}, Work(of_x, down, across), whole);
}

#elif defined(ROWS)
#include "int8_few.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    int8_linear_few(const signed char* __restrict__ x, const signed char* __restrict__ weight,
                    const float* __restrict__ x_scale, const float* __restrict__ weight_scale, __half* __restrict__ y,
                    long long rows, long long columns, unsigned depth) {
  multiply_few({x, rows, depth}, {weight, columns, depth}, {x_scale, weight_scale, y, rows, columns});
}

#else
#include "../include/fastdiv.cuh"
#include "../include/pack.cuh"

struct alignas(WIDTH * sizeof(__half)) Halves {
  __half at[WIDTH];
};

// The sums of a unit, at any column that is a multiple of WIDTH.
__device__ __forceinline__ void load_sums(int (&to)[WIDTH], const int* from) {
  if constexpr (WIDTH == 1) {
    to[0] = from[0];
  } else {
#pragma unroll
    for (unsigned j = 0; j < WIDTH; j += 4) {
      // The sums aren't needed again: they should not push what follows out of the cache.
      const int4 four = __ldcs(reinterpret_cast<const int4*>(from + j));
      to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
    }
  }
}

__device__ __forceinline__ void load_scales(float (&to)[WIDTH], const float* __restrict__ from) {
  if constexpr (WIDTH == 1) {
    to[0] = from[0];
  } else {
#pragma unroll
    for (unsigned j = 0; j < WIDTH; j += 4) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(from + j));
      to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
    }
  }
}

// Where an element's sum lies. COL32 keeps 32 columns together: 32 elements of row 0, then 32 elements of row 1, and so
// on.
__device__ __forceinline__ long long place(long long row, unsigned column, long long rows, long long in_order) {
  if constexpr (BY_32) {
    return (column / 32 * rows + row) * 32 + column % 32;
  } else {
    return in_order;
  }
}

// units: of WIDTH elements, in all and in a row; rows: of y.
extern "C" __global__ void dequantise(const int* __restrict__ sums, const float* __restrict__ x_scale,
                                      const float* __restrict__ weight_scale, __half* __restrict__ y, INDEX units,
                                      INDEX units_in_a_row, INDEX multiplier, unsigned shift, long long rows) {
  const INDEX unit = static_cast<INDEX>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (unit >= units) return;
  const Divisor<INDEX> of{units_in_a_row, multiplier, shift};
  const INDEX row = of.quotient(unit);
  const unsigned column = static_cast<unsigned>(unit - row * units_in_a_row) * WIDTH;
  const long long first = static_cast<long long>(unit) * WIDTH;

  int sum[WIDTH];
  load_sums(sum, sums + place(row, column, rows, first));
  float scale[WIDTH];
  if constexpr (PER_CHANNEL) {
    load_scales(scale, weight_scale + column);
  } else {
#pragma unroll
    for (unsigned j = 0; j < WIDTH; ++j) scale[j] = weight_scale[0];
  }
  const float of_x = x_scale[PER_ROW ? row : 0];
  Halves result;
#pragma unroll
  for (unsigned j = 0; j < WIDTH; ++j) {
    result.at[j] = __float2half_rn(static_cast<float>(sum[j]) * (of_x * scale[j]));
  }
  *reinterpret_cast<Halves*>(y + first) = result;
}
#endif
