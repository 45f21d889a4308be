// LayerNorm over the channels of images, the cyclic shift, and the partition into windows (windows.cuh) in one kernel:
// y = windows of ((x - mean) * rstd * gamma + beta). A row is the C channels of a pixel. D is the bytes of the images.
//
// LayerNorm writes its result (2 D), the partition reads it and writes it elsewhere (2 D). But a row stays a row: only the
// place where it is written is another one, and to find it takes some arithmetic a row. So 2 D are enough.
//
// All sums are float32. The variance is the mean of squares of distances from the mean, in a second sum, since a
// difference of two means would lose its places where the mean is large.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), INDEX (unsigned, or unsigned long long from 2^31 pixels on), EPS
// (epsilon, 1e-5f unless told), THREADS (of a block), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/windows), float16 B256-H56-W56-C97-window7-shift3.
// At least 155.7 MB are read and 155.7 MB written. The ceiling is 74.24 us, by memory.
//   eager: PyTorch
//       4.947 ms    1.5% of ceiling
//   unfused: layer_norm/tuned, then window_partition/tuned
//       185.1 us   40.1% of ceiling  moves 623.0 MB  26.72x the speed of eager
//   fused: one kernel: lanes of a warp share a row, which they keep in registers, an element an access
//       512.9 us   14.5% of ceiling  moves 311.5 MB  0.36x the speed of unfused
//   tuned: one kernel: rows in registers, or in shared memory if they aren't whole packs of 16 bytes
//       81.18 us   91.5% of ceiling  moves 311.5 MB  6.32x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif
#ifndef THREADS
#define THREADS 128
#endif

#include "layer_norm_tiles.cuh"
#include "../include/number.cuh"
#include "windows.cuh"

using T = SCALAR;

// 1. Lanes of a warp share a row, an element a lane at a time. A lane keeps its elements in registers, so that the row is
//    read once, and all of its loads are under way before the first one is waited for. Any address will do. It counts
//    instructions: a row of 96 halves is 192 bytes, in which a multiprocessor may spend some 90 instructions of warps
//    before memory waits for it. With a whole warp for each row, the sums over lanes and the row's place take about so
//    many alone; 16 lanes halve them.
//
// Macros: LANES (that share a row), EACH (elements that a lane has).
#ifdef EACH
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_window_partition_fused(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                                      T* __restrict__ y, INDEX pixels, unsigned channels, WINDOW_PARAMETERS) {
  const INDEX pixel = static_cast<INDEX>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
  const unsigned lane = threadIdx.x % LANES;
  // Only the last element may be missing.
  const auto has = [=](unsigned j) { return j + 1 < EACH || lane + j * LANES < channels; };
  // The last row stands for rows behind it, since the sums need all lanes.
  const T* from = x + static_cast<long long>(min(pixel, pixels - 1)) * channels + lane;
  float values[EACH], sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (unsigned j = 0; j < EACH; ++j) values[j] = has(j) ? to_float(from[j * LANES]) : 0.0f;
#pragma unroll
  for (unsigned j = 0; j < EACH; ++j) sum += values[j];
  const float share = __fdividef(1.0f, channels), mean = sum_of_lanes<LANES>(sum) * share;
#pragma unroll
  for (unsigned j = 0; j < EACH; ++j) {
    values[j] = has(j) ? values[j] - mean : 0.0f;
    squares = fmaf(values[j], values[j], squares);
  }
  const float rstd = rsqrtf(fmaf(sum_of_lanes<LANES>(squares), share, EPSILON));
  if (pixel >= pixels) return;
  T* to = y + static_cast<long long>(WINDOWS.in_windows(pixel).at) * channels + lane;
  gamma += lane, beta += lane;
#pragma unroll
  for (unsigned j = 0; j < EACH; ++j) {
    if (has(j)) to[j * LANES] = T(fmaf(values[j] * rstd, to_float(gamma[j * LANES]), to_float(beta[j * LANES])));
  }
}
#endif

// Rows that are too long for any kernel's registers: a warp a row, which reads it for the mean, for the variance and for
// y. The loops are the compiler's to unroll.
#if !(defined EACH || defined BYTES || defined TILE_WORDS)
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_window_partition_long(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                                     T* __restrict__ y, INDEX pixels, unsigned channels, WINDOW_PARAMETERS) {
  const INDEX pixel = static_cast<INDEX>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
  const unsigned lane = threadIdx.x % WARP;
  if (pixel >= pixels) return;
  const T* from = x + static_cast<long long>(pixel) * channels;
  float sum = 0.0f, squares = 0.0f;
  for (unsigned c = lane; c < channels; c += WARP) sum += to_float(from[c]);
  const float mean = sum_of_lanes<WARP>(sum) / channels;
  for (unsigned c = lane; c < channels; c += WARP) {
    const float distance = to_float(from[c]) - mean;
    squares = fmaf(distance, distance, squares);
  }
  const float rstd = rsqrtf(sum_of_lanes<WARP>(squares) / channels + EPSILON);
  T* to = y + static_cast<long long>(WINDOWS.in_windows(pixel).at) * channels;
  for (unsigned c = lane; c < channels; c += WARP) {
    to[c] = T(fmaf((to_float(from[c]) - mean) * rstd, to_float(gamma[c]), to_float(beta[c])));
  }
}
#endif

// 2. A row is read once, in chunks of up to 16 bytes, and kept in registers. Rows are 200 bytes to 6 KB, so some lanes
//    of a warp share a row, and each lane has a few chunks: then a warp has several rows under way, and a sum takes few
//    shuffles. Lanes with few chunks work on TOGETHER rows at once, which share the loads of gamma and beta. Long rows
//    have a whole block.
//
// Macros: BYTES (of a chunk: 16, 8, 4 or 2, which all tensors and rows are aligned to), COUNT (chunks of a row that a
// thread has), LANES (threads of a warp that share a row; 0 where the block does), TOGETHER, WHOLE (0 or 1: no thread
// lacks a chunk), RESIDENT (threads that a multiprocessor is to hold at least, which limits the registers of a thread).
#ifdef BYTES

constexpr unsigned SIZE = BYTES / sizeof(T);  // elements of a chunk
constexpr unsigned TEAM = LANES ? LANES : THREADS;

// A chunk as it lies in memory. A single half is in the lower part of its word.
struct Chunk {
  static constexpr unsigned WORDS = BYTES < 4 ? 1 : BYTES / 4;
  unsigned word[WORDS];

  __device__ __forceinline__ void load(const T* __restrict__ from) {
    if constexpr (BYTES == 16) {
      const uint4 raw = __ldg(reinterpret_cast<const uint4*>(from));
      word[0] = raw.x, word[1 % WORDS] = raw.y, word[2 % WORDS] = raw.z, word[3 % WORDS] = raw.w;
    } else if constexpr (BYTES == 8) {
      const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
      word[0] = raw.x, word[1 % WORDS] = raw.y;
    } else if constexpr (BYTES == 4) {
      word[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else {
      word[0] = __ldg(reinterpret_cast<const unsigned short*>(from));
    }
  }
  __device__ __forceinline__ void store(T* __restrict__ to) const {
    if constexpr (BYTES == 16) {
      *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1 % WORDS], word[2 % WORDS], word[3 % WORDS]);
    } else if constexpr (BYTES == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(word[0], word[1 % WORDS]);
    } else if constexpr (BYTES == 4) {
      *reinterpret_cast<unsigned*>(to) = word[0];
    } else {
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(word[0]);
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) word[w] = 0;
  }
  // The compiler would keep a chunk's floats from one use to the next, which take twice the registers of halves. To
  // prevent that, a 0 is added which the compiler doesn't know, so that it widens the words again.
  __device__ __forceinline__ void forget_floats(unsigned zero) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (unsigned w = 0; w < WORDS; ++w) word[w] += zero;
    }
  }
  __device__ __forceinline__ void widen(float (&values)[SIZE]) const {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      const Lanes<T> lanes(word[w]);
#pragma unroll
      for (unsigned l = 0; l < Lanes<T>::SIZE && l < SIZE; ++l) values[w * Lanes<T>::SIZE + l] = lanes.at[l];
    }
  }
  __device__ __forceinline__ void narrow(const float (&values)[SIZE]) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      Lanes<T> lanes;
#pragma unroll
      for (unsigned l = 0; l < Lanes<T>::SIZE; ++l) lanes.at[l] = l < SIZE ? values[w * Lanes<T>::SIZE + l] : 0.0f;
      word[w] = lanes.word();
    }
  }
};

// The sums over a team, for all of its threads. A block's are kept in `partial`, which each call must have its own of.
__device__ __forceinline__ void sum_of_team(float (&sums)[TOGETHER], float (&partial)[WARP]) {
  constexpr unsigned NEIGHBOURS = LANES ? LANES : WARP;
#pragma unroll
  for (unsigned r = 0; r < TOGETHER; ++r) sums[r] = sum_of_lanes<NEIGHBOURS>(sums[r]);
  if constexpr (LANES == 0) {
    const unsigned lane = threadIdx.x % WARP;
    if (lane == 0) partial[threadIdx.x / WARP] = sums[0];
    __syncthreads();
    sums[0] = sum_of_lanes<WARP>(lane < THREADS / WARP ? partial[lane] : 0.0f);
  }
}

// Some rows of a team, which lie TEAMS apart, so that each access of a warp has neighbouring rows.
struct Rows {
  static constexpr unsigned TEAMS = LANES ? WARP / LANES : 1;  // of a warp
  const unsigned rank = threadIdx.x % TEAM, channels;
  const INDEX pixels;
  INDEX first;
  Chunk chunks[TOGETHER][COUNT];
  float rstd[TOGETHER], offset[TOGETHER];  // offset: minus the mean, times rstd

  __device__ __forceinline__ Rows(INDEX pixels, unsigned channels) : channels(channels), pixels(pixels) {
    if constexpr (LANES == 0) {
      first = blockIdx.x;
    } else {
      const INDEX warp = static_cast<INDEX>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
      first = warp * (TEAMS * TOGETHER) + threadIdx.x % WARP / TEAM;
    }
  }
  __device__ __forceinline__ INDEX row(unsigned r) const { return first + r * TEAMS; }
  // Whether the thread's chunk j exists. Only the last one may not.
  __device__ __forceinline__ bool has(unsigned j) const {
    return WHOLE || j + 1 < COUNT || (rank + j * TEAM) * SIZE < channels;
  }
  // Where chunk j begins in a row. The first chunk stands for one that doesn't exist, so that no load needs a condition.
  __device__ __forceinline__ unsigned column(unsigned j) const { return has(j) ? (rank + j * TEAM) * SIZE : 0; }

  __device__ __forceinline__ void load(const T* __restrict__ x) {
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      // The last row stands for rows behind it.
      const T* from = x + static_cast<long long>(min(row(r), pixels - 1)) * channels;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) chunks[r][j].load(from + column(j));
    }
  }

  // The sign bit. Squares and roots have none, nor has the NaN that arithmetic gives.
  static __device__ __forceinline__ unsigned sign(float value) { return __float_as_uint(value) >> 31; }

  __device__ __forceinline__ void measure() {
    __shared__ float partial[2][WARP];
    const float share = __fdividef(1.0f, channels);
    float mean[TOGETHER], values[SIZE];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      if (!has(COUNT - 1)) chunks[r][COUNT - 1].clear();
      mean[r] = 0.0f;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        chunks[r][j].widen(values);
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) mean[r] += values[e];
      }
    }
    sum_of_team(mean, partial[0]);
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      mean[r] *= share;
      rstd[r] = 0.0f;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        chunks[r][j].forget_floats(sign(mean[r] * mean[r]));
        chunks[r][j].widen(values);
        float squares = 0.0f;
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) squares = fmaf(values[e] - mean[r], values[e] - mean[r], squares);
        rstd[r] += has(j) ? squares : 0.0f;
      }
    }
    sum_of_team(rstd, partial[1]);
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      rstd[r] = rsqrtf(fmaf(rstd[r], share, EPSILON));
      offset[r] = -mean[r] * rstd[r];
    }
  }

  __device__ __forceinline__ void write(const T* __restrict__ gamma, const T* __restrict__ beta, T* __restrict__ y,
                                        const Windows<INDEX>& windows) {
    T* to[TOGETHER];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      to[r] = y + static_cast<long long>(windows.in_windows(min(row(r), pixels - 1)).at) * channels;
    }
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      Chunk raw;
      float scale[SIZE], shift[SIZE], values[SIZE];
      raw.load(gamma + column(j));
      raw.widen(scale);
      raw.load(beta + column(j));
      raw.widen(shift);
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) {
        chunks[r][j].forget_floats(sign(rstd[r]));
        chunks[r][j].widen(values);
#pragma unroll
        for (unsigned e = 0; e < SIZE; ++e) values[e] = fmaf(fmaf(values[e], rstd[r], offset[r]), scale[e], shift[e]);
        chunks[r][j].narrow(values);
        if (has(j) && row(r) < pixels) chunks[r][j].store(to[r] + column(j));
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    layer_norm_window_partition_tuned(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                                      T* __restrict__ y, INDEX pixels, unsigned channels, WINDOW_PARAMETERS) {
  Rows rows(pixels, channels);
  rows.load(x);
  rows.measure();
  rows.write(gamma, beta, y, WINDOWS);
}
#endif

// 3. Rows that aren't whole packs have chunks of few bytes in step 2, and so a few elements an instruction. But pixels
//    follow each other in x, so some rows together are whole packs. Here they come to shared memory in packs, and a row
//    is normalised there, in words, by one lane or by few. So a row's sums and its place in y take the instructions of
//    few lanes. Rows that are neighbours in y, too, leave in packs, which are shifted to where packs begin in y.
//
// Macros, of WindowTilePlan: TILE_CHANNELS, TILE_WORDS (of a unit), TILE_TEAM, TILE_WARPS, TILE_GROUP (threads that
// write a piece), TILE_STEP (rows of a piece at most), TILE_COUNT (tiles of a block), RESIDENT (as above).
#ifdef TILE_WORDS
extern "C" __global__ void __launch_bounds__(TILE_WARPS* WARP, RESIDENT / (TILE_WARPS * WARP))
    layer_norm_window_partition_tiles(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                                      T* __restrict__ y, INDEX pixels, WINDOW_PARAMETERS) {
  extern __shared__ uint4 shared[];
  using Shape = Tile<T, TILE_CHANNELS, TILE_WORDS, TILE_TEAM, TILE_WARPS>;
  normalise_tiles<Shape, TILE_GROUP, TILE_STEP, TILE_COUNT>(reinterpret_cast<T*>(shared), x, gamma, beta, y, pixels,
                                                            WINDOWS);
}
#endif
