// y = (x weight^T) * scales by tensor cores, for any number of rows. The story is in int8_linear.cu.
//
// Macros: as in int8_rows.cuh, and
//   TILE_M, TILE_N    rows and columns of y that a block makes at a time.
//   WARPS_M, WARPS_N  warps of a block, down and across the tile.
//   DEPTH             bytes of a row that a stage has: 64 or 128.
//   STAGES            parts of both operands that are in shared memory at a time.
//   SPLIT             blocks that share a tile, each with a part of the columns of x. They are a cluster.
//   BLOCKS            blocks of a multiprocessor, for which the compiler saves registers.
#pragma once

#include "int8_rows.cuh"

constexpr unsigned WARPS = WARPS_M * WARPS_N, THREADS = WARPS * WARP;
constexpr unsigned WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;  // of y, of a warp
constexpr unsigned MMA_M = 16, MMA_N = 8, MMA_K = 32;
constexpr unsigned DOWN = WARP_M / MMA_M, ACROSS = WARP_N / MMA_N;  // products of a warp
constexpr unsigned GROUP = 32;     // columns whose order is changed within the group
constexpr unsigned GROUPS = WARP_N / GROUP;
constexpr unsigned PACK = 8;       // halves of 16 bytes
constexpr unsigned CHUNKS = DEPTH / CHUNK;                  // of a row in a stage
constexpr unsigned ROWS_AT_A_TIME = THREADS / CHUNKS;       // that the threads copy
constexpr unsigned STAGE_BYTES = (TILE_M + TILE_N) * DEPTH;
constexpr unsigned STAGED_PITCH = WARP_N * 2 + CHUNK;       // bytes of a row of y in shared memory
constexpr unsigned SUMS_PITCH = TILE_N + CHUNK / 4;         // integers of a row of sums in shared memory
constexpr unsigned TOGETHER = 8;                            // tiles, one below the other, whose columns come in turn

static_assert(WARP_M % MMA_M == 0 && WARP_N % GROUP == 0, "a warp has whole products");
static_assert(ROWS_AT_A_TIME % 8 == 0 && TILE_M % ROWS_AT_A_TIME == 0 && TILE_N % ROWS_AT_A_TIME == 0,
              "threads copy equal parts");

__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ uint4 chunks[];
  return reinterpret_cast<unsigned char*>(chunks);
}
__device__ __forceinline__ unsigned shared_address() {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared_memory()));
}

// Where a chunk of a row lies in its operand's part of a stage. Eight rows that follow each other have the same chunk in
// all banks, and so have all chunks of eight neighbours.
__device__ __forceinline__ unsigned place_of(unsigned row, unsigned chunk) {
  const unsigned turned = CHUNKS == 8 ? row % 8 : row / 2 % 4;
  return row * DEPTH + (chunk ^ turned) * CHUNK;
}

// The row of the weight, and column of y, that lies in row `place` of a stage. A lane has columns 2 c and 2 c + 1 of each
// product (c = l % 4). So the four products of a group take columns 8 c + 2 j and 8 c + 2 j + 1 for product j: together
// they give a lane eight neighbours, which it stores as one pack.
__device__ constexpr unsigned column_at(unsigned place) {
  return place / GROUP * GROUP + place % 8 / 2 * 8 + place / 8 % 4 * 2 + place % 2;
}

struct Tile {
  long long row, column;

  // Tiles come down in groups of TOGETHER, so that blocks that run at the same time share rows of both operands.
  __device__ __forceinline__ Tile(unsigned number, unsigned down, unsigned across) {
    const unsigned group = number / (TOGETHER * across), first = group * TOGETHER;
    const unsigned rest = number - first * across, height = down - first < TOGETHER ? down - first : TOGETHER;
    const unsigned right = rest / height;
    row = static_cast<long long>(first + rest - right * height) * TILE_M;
    column = static_cast<long long>(right) * TILE_N;
  }
};

// A thread's part in the copies of one operand: the same chunk of every ROWS_AT_A_TIME-th row.
template <unsigned ROWS, bool CHANGED>
struct Part {
  static constexpr unsigned COUNT = ROWS / ROWS_AT_A_TIME;
  const signed char* from;  // of its first row
  int left;                 // rows from the first one on, at most ROWS; 0 or less if there are none
  RaggedChunk ragged[COPY == 1 ? COUNT : 1];

  static __device__ constexpr unsigned row_at(unsigned place) { return CHANGED ? column_at(place) : place; }
  __device__ __forceinline__ void start(const Matrix& of, long long first) {
    const long long row = first + row_at(threadIdx.x / CHUNKS);
    left = of.rows - row < ROWS ? static_cast<int>(of.rows - row) : ROWS;
    from = of.row(row) + threadIdx.x % CHUNKS * CHUNK;
  }
  // Begin to bring columns k and on to `to`. Places of a thread differ in bits that its first place lacks, and
  // row_at only exchanges bits: so row_at of their sum is the sum.
  __device__ __forceinline__ void begin(const Matrix& of, unsigned k, unsigned to) {
    const unsigned filled = of.filled_at(k + threadIdx.x % CHUNKS * CHUNK);
    const unsigned place = to + place_of(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      constexpr unsigned STEP = ROWS_AT_A_TIME;
      const unsigned row = row_at(i * STEP), count = static_cast<int>(row) < left ? filled : 0;
      const signed char* chunk = from + k + static_cast<long long>(row) * of.columns;
      if constexpr (COPY == 1) {
        ragged[i] = RaggedChunk{};
        ragged[i].load(of, chunk, count);
      } else {
        copy_chunk(place + i * STEP * DEPTH, chunk, count);
      }
    }
  }
  // Put what came to registers to `to`.
  __device__ __forceinline__ void end(const Matrix& of, unsigned k, unsigned char* to) const {
    if constexpr (COPY == 1) {
      const unsigned filled = of.filled_at(k + threadIdx.x % CHUNKS * CHUNK);
#pragma unroll
      for (unsigned i = 0; i < COUNT; ++i) {
        const unsigned place = place_of(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS) + i * ROWS_AT_A_TIME * DEPTH;
        *reinterpret_cast<uint4*>(to + place) = ragged[i].shifted(filled);
      }
    }
  }
};

// What a block works on: tiles number, number + step, ... below `count`, and of each the stages [begin, end) of columns.
struct Work {
  unsigned down, across, begin, end, first, step;

  __device__ __forceinline__ Work(const Matrix& x, unsigned down, unsigned across) : down(down), across(across) {
    const unsigned rank = rank_in_split(), all = (x.columns + DEPTH - 1) / DEPTH;
    begin = static_cast<unsigned long long>(all) * rank / SPLIT;
    end = static_cast<unsigned long long>(all) * (rank + 1) / SPLIT;
    first = blockIdx.x / SPLIT, step = gridDim.x / SPLIT;
  }
  __device__ __forceinline__ unsigned count() const { return down * across; }
};

// Brings both operands, stage by stage, also those of the next tile.
struct Feeder {
  const Matrix &x, &weight;
  const Work& work;
  unsigned tile, stage;
  Part<TILE_M, false> of_x;
  Part<TILE_N, true> of_weight;

  __device__ __forceinline__ Feeder(const Matrix& x, const Matrix& weight, const Work& work)
      : x(x), weight(weight), work(work), tile(work.first), stage(work.begin) {
    start();
  }
  __device__ __forceinline__ void start() {
    if (tile >= work.count()) return;
    const Tile at(tile, work.down, work.across);
    of_x.start(x, at.row);
    of_weight.start(weight, at.column);
  }
  __device__ __forceinline__ void begin(unsigned slot) {
    if (tile < work.count()) {
      const unsigned to = shared_address() + slot * STAGE_BYTES;
      of_x.begin(x, stage * DEPTH, to);
      of_weight.begin(weight, stage * DEPTH, to + TILE_M * DEPTH);
    }
    close_copies();
  }
  __device__ __forceinline__ void end(unsigned slot) {
    if (tile >= work.count()) return;
    unsigned char* to = shared_memory() + slot * STAGE_BYTES;
    of_x.end(x, stage * DEPTH, to);
    of_weight.end(weight, stage * DEPTH, to + TILE_M * DEPTH);
    if (++stage < work.end) return;
    stage = work.begin;
    tile += work.step;
    start();
  }
};

using Sums = int[DOWN][ACROSS][4];

// Where a lane's rows of both operands lie in a stage, at the first chunk that it reads. The chunk's number changes by
// 2 from product to product, in bits that the row's place doesn't have.
struct Lane {
  unsigned a, b, row, column;  // row, column: of y, of its first pack, in the tile

  __device__ __forceinline__ Lane() {
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, matrix = lane / 8;
    const unsigned m = warp % WARPS_M * WARP_M, n = warp / WARPS_M * WARP_N;
    a = place_of(m + matrix % 2 * 8 + lane % 8, matrix / 2);
    b = TILE_M * DEPTH + place_of(n + matrix / 2 * 8 + lane % 8, matrix % 2);
    row = m + lane / 4, column = n + lane % 4 * PACK;
  }
};

__device__ __forceinline__ void multiply(Sums& sums, unsigned stage, const Lane& lane) {
#pragma unroll
  for (unsigned k = 0; k < DEPTH / MMA_K; ++k) {
    unsigned a[DOWN][4], b[ACROSS / 2][4];
#pragma unroll
    for (unsigned i = 0; i < DOWN; ++i) load_matrices(a[i], stage + (lane.a ^ k * MMA_K) + i * MMA_M * DEPTH);
#pragma unroll
    for (unsigned j = 0; j < ACROSS / 2; ++j) load_matrices(b[j], stage + (lane.b ^ k * MMA_K) + j * 2 * MMA_N * DEPTH);
#pragma unroll
    for (unsigned i = 0; i < DOWN; ++i) {
#pragma unroll
      for (unsigned j = 0; j < ACROSS; ++j) {
        multiply_add(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

// ---- From sums to y.

__device__ __forceinline__ void load_scales(float (&to)[PACK], const Result& result, long long column) {
#pragma unroll
  for (unsigned e = 0; e < PACK; ++e) to[e] = result.of_column(column + e);
}

// The lane's pack in rows 8 * half and on of product i, and in group g of the columns. scales: of the columns.
__device__ __forceinline__ Pack<__half> pack_of(const Sums& sums, unsigned i, unsigned g, unsigned half,
                                                const float (&scales)[PACK], float of_row) {
  Pack<__half> pack;
#pragma unroll
  for (unsigned e = 0; e < PACK; ++e) {
    pack.at[e] = scaled(sums[i][4 * g + e / 2][2 * half + e % 2], of_row * scales[e]);
  }
  return pack;
}

// Rows of y begin at multiples of 16 bytes.
__device__ __forceinline__ void store_packs(const Sums& sums, const Result& result, const Tile& at, const Lane& lane) {
#pragma unroll
  for (unsigned g = 0; g < GROUPS; ++g) {
    const long long column = at.column + lane.column + g * GROUP;
    if (column >= result.columns) continue;
    float scales[PACK];
    load_scales(scales, result, column);
    __half* to = result.y + (at.row + lane.row) * result.columns + column;
#pragma unroll
    for (unsigned i = 0; i < 2 * DOWN; ++i) {
      if (at.row + lane.row + i * 8 >= result.rows) break;
      const float of_row = result.of_row(at.row + lane.row + i * 8);
      const Pack<__half> pack = pack_of(sums, i / 2, g, i % 2, scales, of_row);
      store_whole(to + i * 8 * result.columns, reinterpret_cast<const uint4&>(pack));
    }
  }
}

// Rows of y begin anywhere: a warp puts 16 of them into shared memory, and stores neighbours together.
__device__ __forceinline__ void store_elements(const Sums& sums, const Result& result, const Tile& at,
                                               const Lane& lane) {
  unsigned char* own = shared_memory() + STAGES * STAGE_BYTES + threadIdx.x / WARP * (MMA_M * STAGED_PITCH);
  const unsigned thread = threadIdx.x % WARP;
  const long long first_row = at.row + lane.row - thread / 4;
  const long long first_column = at.column + lane.column - thread % 4 * PACK;
#pragma unroll
  for (unsigned i = 0; i < DOWN; ++i) {
    __syncwarp();
#pragma unroll
    for (unsigned g = 0; g < GROUPS; ++g) {
      float scales[PACK];
      load_scales(scales, result, at.column + lane.column + g * GROUP);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        unsigned char* to = own + (thread / 4 + 8 * half) * STAGED_PITCH + (g * GROUP + thread % 4 * PACK) * 2;
        const float of_row = result.of_row(at.row + lane.row + i * MMA_M + half * 8);
        *reinterpret_cast<Pack<__half>*>(to) = pack_of(sums, i, g, half, scales, of_row);
      }
    }
    __syncwarp();
#pragma unroll 1
    for (unsigned r = 0; r < MMA_M; ++r) {
      const long long row = first_row + i * MMA_M + r;
      if (row >= result.rows) break;
      const __half* from = reinterpret_cast<const __half*>(own + r * STAGED_PITCH);
#pragma unroll
      for (unsigned c = thread; c < WARP_N; c += WARP) {
        if (first_column + c < result.columns) result.y[row * result.columns + first_column + c] = from[c];
      }
    }
  }
}

// Blocks of a cluster put their sums into shared memory. Each of them adds up a part of the tile, and stores that.
__device__ __forceinline__ void store_shared(const Sums& sums, const Result& result, const Tile& at, const Lane& lane) {
  wait_for_copies<0>();
  __syncthreads();  // nobody reads the last stage any more
  int* own = reinterpret_cast<int*>(shared_memory());
#pragma unroll
  for (unsigned i = 0; i < 2 * DOWN; ++i) {
#pragma unroll
    for (unsigned j = 0; j < ACROSS; ++j) {
      int* to = own + (lane.row + i * 8) * SUMS_PITCH + lane.column + j / 4 * GROUP + j % 4 * 2;
      *reinterpret_cast<int2*>(to) = make_int2(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
    }
  }
  meet_split();
#pragma unroll 1
  for (unsigned i = rank_in_split() * THREADS + threadIdx.x; i < TILE_M * TILE_N; i += SPLIT * THREADS) {
    const long long row = at.row + i / TILE_N, column = at.column + i % TILE_N;
    if (row >= result.rows || column >= result.columns) continue;
    const unsigned from = shared_address() + (i / TILE_N * SUMS_PITCH + i % TILE_N) * sizeof(int);
    int sum = 0;
#pragma unroll
    for (unsigned rank = 0; rank < SPLIT; ++rank) sum += load_remote(address_in(rank, from));
    result.y[row * result.columns + column] = scaled(sum, result.of_row(row) * result.of_column(column));
  }
  meet_split();  // the others may still read here
}

// whole: rows of y begin at multiples of 16 bytes.
__device__ __forceinline__ void multiply_tiles(const Matrix& x, const Matrix& weight, const Result& result,
                                               const Work& work, bool whole) {
  Feeder feeder(x, weight, work);
#pragma unroll
  for (unsigned slot = 0; slot + 1 < STAGES; ++slot) feeder.begin(slot), feeder.end(slot);
  const Lane lane;
  unsigned slot = 0;
#pragma unroll 1
  for (unsigned tile = work.first; tile < work.count(); tile += work.step) {
    Sums sums = {};
#pragma unroll 1
    for (unsigned stage = work.begin; stage < work.end; ++stage) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();  // the stage is there, and nobody reads the one before it any more
      const unsigned before = slot ? slot - 1 : STAGES - 1;
      feeder.begin(before);
      multiply(sums, shared_address() + slot * STAGE_BYTES, lane);
      feeder.end(before);
      slot = slot + 1 < STAGES ? slot + 1 : 0;
    }
    const Tile at(tile, work.down, work.across);
    if constexpr (SPLIT > 1) {
      store_shared(sums, result, at, lane);
    } else if (whole) {
      store_packs(sums, result, at, lane);
    } else {
      store_elements(sums, result, at, lane);
    }
  }
}
