// The two textbook transposes of a batch of matrices (rows, cols) through a tile in shared memory: by single elements,
// and by pairs of halves. Blocks have TILE_LANES times TILE_LINES threads.
#pragma once

constexpr unsigned TILE_LANES = 32, TILE_LINES = 8;

struct Corner {
  long long matrix;          // of the batch
  unsigned row, col;         // of x
  unsigned lane, line;       // of the thread
};

// The corner of the block's tile of side `side`: matrix by matrix, and in a matrix row by row.
template <unsigned SIDE>
__device__ __forceinline__ Corner corner_of(unsigned rows, unsigned cols) {
  const unsigned across = (cols - 1) / SIDE + 1, down = (rows - 1) / SIDE + 1;
  const unsigned row = blockIdx.x / across, matrix = row / down;
  return {matrix, row % down * SIDE, blockIdx.x % across * SIDE, threadIdx.x % TILE_LANES, threadIdx.x / TILE_LANES};
}

// A tile of 32 x 32: a warp reads 32 neighbours of a row of x and writes 32 neighbours of a row of y. A column of the
// tile lies in 32 banks, since rows of the tile are 33 elements apart.
template <typename Element>
__device__ __forceinline__ void transpose_tile(const Element* __restrict__ x, Element* __restrict__ y, unsigned rows,
                                               unsigned cols) {
  constexpr unsigned SIDE = TILE_LANES;
  __shared__ Element tile[SIDE][SIDE + 1];
  const Corner at = corner_of<SIDE>(rows, cols);
  const long long offset = at.matrix * rows * cols;
#pragma unroll
  for (unsigned line = 0; line < SIDE; line += TILE_LINES) {
    const unsigned r = at.row + at.line + line, c = at.col + at.lane;
    if (r < rows && c < cols) tile[at.line + line][at.lane] = x[offset + static_cast<long long>(r) * cols + c];
  }
  __syncthreads();
#pragma unroll
  for (unsigned line = 0; line < SIDE; line += TILE_LINES) {
    const unsigned c = at.col + at.line + line, r = at.row + at.lane;
    if (r < rows && c < cols) y[offset + static_cast<long long>(c) * rows + r] = tile[at.lane][at.line + line];
  }
}

// A tile of 64 x 64 halves, two of which are one access of device memory: the index arithmetic of a lane serves a pair.
// rows and cols are even, and both tensors begin on 4 bytes. Rows of the tile are 33 words apart; the lanes of a warp
// read pairs of rows, which are 66 words apart, so two lanes share a bank.
__device__ __forceinline__ void transpose_tile_of_pairs(const unsigned short* __restrict__ x,
                                                        unsigned short* __restrict__ y, unsigned rows, unsigned cols) {
  constexpr unsigned SIDE = 2 * TILE_LANES;
  __shared__ unsigned tile[SIDE][TILE_LANES + 1];
  const Corner at = corner_of<SIDE>(rows, cols);
  const long long offset = at.matrix * rows * cols;
#pragma unroll
  for (unsigned line = 0; line < SIDE; line += TILE_LINES) {
    const unsigned r = at.row + at.line + line, c = at.col + 2 * at.lane;
    if (r < rows && c < cols) {
      const unsigned short* from = x + offset + static_cast<long long>(r) * cols + c;
      tile[at.line + line][at.lane] = *reinterpret_cast<const unsigned*>(from);
    }
  }
  __syncthreads();
  const unsigned short* halves = reinterpret_cast<const unsigned short*>(tile);
  constexpr unsigned PITCH = 2 * (TILE_LANES + 1);
#pragma unroll
  for (unsigned line = 0; line < SIDE; line += TILE_LINES) {
    const unsigned column = at.line + line, c = at.col + column, r = at.row + 2 * at.lane;
    if (r < rows && c < cols) {
      const unsigned low = halves[2 * at.lane * PITCH + column], high = halves[(2 * at.lane + 1) * PITCH + column];
      unsigned short* to = y + offset + static_cast<long long>(c) * rows + r;
      *reinterpret_cast<unsigned*>(to) = low | high << 16;
    }
  }
}
