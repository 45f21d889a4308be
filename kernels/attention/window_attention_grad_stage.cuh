// How the tensors of one window and head come to shared memory and back, for window_attention_grad.cu, whose macros
// this file needs.
//
// A chunk is 16 bytes: 8 halves of a row. Rows of each matrix in shared memory are an odd number of chunks apart, so
// the eight rows of 16 bytes that ldmatrix and stmatrix take at a time lie in different banks.
#pragma once

#include "../include/mma.cuh"
#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

#ifndef PACKED
#define PACKED 0
#endif
#ifndef HEAD
#define HEAD DIM
#endif
#ifndef SHARERS
#define SHARERS 1
#endif

static_assert(DIM == 32 || DIM == 64, "steps of 32 columns are loaded at a time");
static_assert(HEAD <= DIM && HEAD % 2 == 0, "rows are words, and zeros fill them");
static_assert(SHARERS == 1 || (SHARERS == 2 && TOKENS > 64 && HEAD == DIM), "halves are of whole tiles and chunks");

// HEAD to the power -1/2, by Newton's method.
__device__ constexpr double inverse_root(double n, double found = 0.125, int steps = 40) {
  return steps ? inverse_root(n, found * (1.5 - 0.5 * n * found * found), steps - 1) : found;
}
constexpr float SCALE = static_cast<float>(inverse_root(HEAD));

constexpr unsigned CHUNK = 8;                                // elements
constexpr unsigned CHUNKS = DIM / CHUNK;                     // of a row
constexpr unsigned STRIPS = (TOKENS + 15) / 16;              // of 16 rows; SHARERS warps share one
constexpr unsigned TILES = (TOKENS + 7) / 8;                 // of 8 columns
constexpr unsigned ROWS = 16 * STRIPS;                       // rows past TOKENS are zeros
constexpr unsigned THREADS = STRIPS * SHARERS * WARP;
// What one of the SHARERS warps of a strip has: tiles of scores, and chunks of a row of a result.
constexpr unsigned OWN_TILES = SHARERS == 1 ? TILES : STRIPS, OWN_CHUNKS = CHUNKS / SHARERS;
constexpr unsigned PITCH = (CHUNKS + 1) * PACK_BYTES;        // from row to row of a tensor
constexpr unsigned TENSOR_BYTES = ROWS * PITCH;
constexpr unsigned SQUARE_PITCH = (2 * STRIPS + 1) * PACK_BYTES;  // from row to row of P or dS
constexpr unsigned SQUARE_BYTES = ROWS * SQUARE_PITCH;
constexpr unsigned WINDOW = TOKENS * HEAD;                   // elements of a window and head
constexpr unsigned SQUARE = TOKENS * TOKENS;

// Elements from token to token, and from q to k and from k to v, of the same token.
constexpr unsigned BETWEEN = PACKED * HEAD;
constexpr unsigned OUT_ROW = PACKED ? BETWEEN : HEAD;      // of dout
constexpr unsigned QKV_ROW = PACKED ? 3 * BETWEEN : HEAD;  // of q, k, v and their gradients
static_assert(3ull * PACKED * WINDOW < 1ull << 31, "places in a window are told by 32 bits");

// Where a window and head begins: in dout, and in q and dq, of which k, v, dk and dv are BETWEEN and twice that apart.
struct Offsets {
  long long out, qkv;
};

// item: what number the window and head have where heads lie apart.
__device__ __forceinline__ Offsets offsets_of(long long item, unsigned window, unsigned head) {
  if constexpr (PACKED == 0) return {item * WINDOW, item * WINDOW};
  return {1ll * window * (TOKENS * OUT_ROW) + head * HEAD, 1ll * window * (TOKENS * QKV_ROW) + head * HEAD};
}

// The warp's strip, and which of the strip's sharers the warp is.
__device__ __forceinline__ unsigned own_strip() {
  return SHARERS == 1 ? threadIdx.x / WARP : threadIdx.x / WARP % STRIPS;
}
__device__ __forceinline__ unsigned own_part() { return SHARERS == 1 ? 0 : threadIdx.x / WARP / STRIPS; }

// The tensors of a stage, in this order.
enum Staged : unsigned { DOUT, Q, K, V, TENSORS };
constexpr unsigned STAGE_BYTES = TENSORS * TENSOR_BYTES;

// Places in shared memory are told by its own addresses, 32 bits each: what is added to them needs few instructions.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The row of a thread's chunk, where threads take COUNT chunks of each row in turn. Eight lanes access shared memory at a
// time: rows are taken in an order in which the two or four rows that the lanes have lie in different banks. To global
// memory the order makes no difference. Eight rows, or a multiple, further on the order is the same: so a thread's chunks
// lie at one address and at fixed distances from it, which cost no instruction.
template <unsigned COUNT>
__device__ __forceinline__ unsigned row_of(unsigned i) {
  const unsigned row = i / COUNT;
  if (COUNT == 2) return (row & ~7u) + row % 4 * 2 + row % 8 / 4;
  return COUNT == 4 ? (row & ~7u) + row % 8 / 2 + row % 2 * 4 : row;
}
constexpr unsigned STEP = THREADS / CHUNKS;    // rows of which a block's threads have a chunk each
constexpr unsigned WARP_STEP = WARP / CHUNKS;  // the same for a warp
static_assert(CHUNKS != 4 || WARP_STEP == 8, "the order of rows repeats");

// Copies of windows, or of their rows where heads lie side by side, that are whole lines go through L1, where blocks
// leave room for it: then a line is asked for once. Others share lines with their neighbours, which other blocks have.
constexpr bool THROUGH_L1 = TOKENS <= 64 && (PACKED ? HEAD : WINDOW) * sizeof(T) % 128 == 0;

__device__ __forceinline__ void copy_chunk(unsigned to, const T* from) {
  if constexpr (THROUGH_L1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
}

// Rows that aren't whole chunks come and leave as words. A row has as many lanes as it has words with its zeros.
constexpr bool IN_WORDS = HEAD % CHUNK != 0;
constexpr unsigned WORD = 2, ROW_LANES = DIM / WORD;  // elements of a word
__device__ __forceinline__ void copy_word(unsigned to, const T* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(4) : "memory");
}
__device__ __forceinline__ void copy_words(unsigned to, const T* from, unsigned pitch) {
  const unsigned row = threadIdx.x / ROW_LANES, word = threadIdx.x % ROW_LANES;
  if (word * WORD >= HEAD) return;
#pragma unroll 4
  for (unsigned at = row; at < TOKENS; at += THREADS / ROW_LANES) {
    copy_word(to + at * PITCH + word * 4, from + at * pitch + word * WORD);
  }
}

// Starts copies of the rows of a window and head, and doesn't wait for them: q, k, v, dout from `offsets` on. Tensors
// that aren't aligned to 16 bytes are copied by elements, which waits.
__device__ __forceinline__ void start_window(unsigned stage, const T* const (&from)[TENSORS], const Offsets& offsets,
                                             bool aligned) {
  if (aligned) {
    const unsigned row = row_of<CHUNKS>(threadIdx.x), chunk = threadIdx.x % CHUNKS;
    const unsigned to = stage + row * PITCH + chunk * PACK_BYTES;
#pragma unroll
    for (unsigned tensor = 0; tensor < TENSORS; ++tensor) {
      const unsigned pitch = tensor == DOUT ? OUT_ROW : QKV_ROW;
      const long long place = tensor == DOUT ? offsets.out : offsets.qkv;
      const T* begin = (PACKED && tensor > Q ? from[Q] + (tensor - Q) * BETWEEN : from[tensor]) + place;
      if constexpr (IN_WORDS) {
        copy_words(stage + tensor * TENSOR_BYTES, begin, pitch);
        continue;
      }
      const T* source = begin + row * pitch + chunk * CHUNK;
      if (HEAD != DIM && chunk * CHUNK >= HEAD) continue;
#pragma unroll
      for (unsigned first = 0; first < TOKENS; first += STEP) {
        if (first + STEP <= TOKENS || row < TOKENS - first) {
          copy_chunk(to + tensor * TENSOR_BYTES + first * PITCH, source + first * pitch);
        }
      }
    }
  } else {
#pragma unroll 1
    for (unsigned tensor = 0; tensor < TENSORS; ++tensor) {
      const T* source = tensor == DOUT ? from[DOUT] : tensor == Q ? from[Q] : tensor == K ? from[K] : from[V];
      const long long place = tensor == DOUT ? offsets.out : offsets.qkv + (tensor - Q) * BETWEEN;
      const unsigned pitch = tensor == DOUT ? OUT_ROW : QKV_ROW;
#pragma unroll 1
      for (unsigned i = threadIdx.x; i < WINDOW; i += THREADS) {
        const unsigned to = stage + tensor * TENSOR_BYTES + i / HEAD * PITCH + i % HEAD * sizeof(T);
        const unsigned at = PACKED ? i / HEAD * pitch + i % HEAD : i;
        const unsigned short raw = *reinterpret_cast<const unsigned short*>(source + place + at);
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(raw) : "memory");
      }
    }
  }
}

// Waits for the thread's own copies; a barrier of the block must follow.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Writes zeros into the rows past TOKENS of the first tensors, whose number is given. No copy writes there. Where rows
// have columns past HEAD, they are zeros as well; then all is written, and the block waits for it.
__device__ __forceinline__ void clear_padding(unsigned stages, unsigned tensors) {
#pragma unroll 1
  for (unsigned tensor = 0; tensor < tensors; ++tensor) {
    const unsigned first = HEAD == DIM ? TOKENS * PITCH : 0;
    for (unsigned at = first + threadIdx.x * PACK_BYTES; at < TENSOR_BYTES; at += THREADS * PACK_BYTES) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(stages + tensor * TENSOR_BYTES + at), "r"(0)
                   : "memory");
    }
  }
  if constexpr (HEAD != DIM) __syncthreads();
}

// Where a lane's eight elements of 16 rows and 16 columns are, in bytes: the first or the second eight of row l % 16.
__device__ __forceinline__ unsigned place_in_16(unsigned pitch) {
  return threadIdx.x % 16 * pitch + threadIdx.x % WARP / 16 * PACK_BYTES;
}

// Four 8 x 8 matrices to shared memory, as load_matrices() gets them from there: lane l gives the address of row l % 8
// of matrix l / 8.
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned (&words)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
#else
#pragma unroll
  for (unsigned m = 0; m < 4; ++m) {
    // The address of the lane that has the row of this matrix which this lane has two elements of.
    const unsigned row = __shfl_sync(ALL_LANES, to, 8 * m + threadIdx.x % WARP / 4);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + 4 * (threadIdx.x % 4)), "r"(words[m]) : "memory");
  }
#endif
}

__device__ __forceinline__ uint4 load_chunk(unsigned from) {
  uint4 raw;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "r"(from)
               : "memory");
  return raw;
}

// Writes 16 rows of the warp's own room as words.
__device__ __forceinline__ void write_words(unsigned room, T* to, unsigned strip) {
  const unsigned lane = threadIdx.x % WARP, word = lane % ROW_LANES;
#pragma unroll 4
  for (unsigned row = lane / ROW_LANES; row < 16; row += WARP / ROW_LANES) {
    const unsigned token = 16 * strip + row;
    if (token < TOKENS && word * WORD < HEAD) {
      unsigned both;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(both) : "r"(room + row * PITCH + word * 4) : "memory");
      *reinterpret_cast<unsigned*>(to + token * QKV_ROW + word * WORD) = both;
    }
  }
}

// Writes the warp's chunks of a strip (16 x DIM) of float32 sums, times `factor`, as rows 16 * strip and on of the window
// and head at `to`. They go through `room` (16 rows of the strip's own), so that stores have 16 bytes a lane.
__device__ __forceinline__ void write_strip(unsigned room, T* to, unsigned strip, const float (&sums)[OWN_CHUNKS][4],
                                            float factor, bool aligned) {
  const unsigned lane = threadIdx.x % WARP;
  room += own_part() * OWN_CHUNKS * PACK_BYTES, to += own_part() * OWN_CHUNKS * CHUNK;
#pragma unroll
  for (unsigned n = 0; n < OWN_CHUNKS; n += 2) {
    unsigned words[4];
#pragma unroll
    for (unsigned m = 0; m < 4; ++m) {
      const float* two = &sums[n + m / 2][m % 2 * 2];
      words[m] = rounded_pair<T>(two[0] * factor, two[1] * factor);
    }
    store_matrices(room + place_in_16(PITCH) + n * PACK_BYTES, words);
  }
  __syncwarp();
  if (IN_WORDS && aligned) {
    write_words(room, to, strip);
    __syncwarp();
    return;
  }
  constexpr unsigned OWN_STEP = WARP / OWN_CHUNKS;  // rows of which the lanes have all of the warp's chunks
  const unsigned row = row_of<OWN_CHUNKS>(lane), chunk = lane % OWN_CHUNKS;
  const unsigned token = 16 * strip + row;
  const unsigned from = room + row * PITCH + chunk * PACK_BYTES;
  T* own = to + token * QKV_ROW + chunk * CHUNK;
  if (aligned) {
#pragma unroll
    for (unsigned first = 0; first < 16; first += OWN_STEP) {
      if (token + first < TOKENS && (HEAD == DIM || chunk * CHUNK < HEAD)) {
        store_whole(own + first * QKV_ROW, load_chunk(from + first * PITCH));
      }
    }
  } else {
#pragma unroll
    for (unsigned first = 0; first < 16; first += OWN_STEP) {
      const uint4 raw = load_chunk(from + first * PITCH);
      if (token + first < TOKENS) {
        const unsigned count = HEAD == DIM ? CHUNK : filled<T>(HEAD, chunk * CHUNK);
        store_filled(own + first * QKV_ROW, reinterpret_cast<const Pack<T>&>(raw), count, false);
      }
    }
  }
  __syncwarp();
}
