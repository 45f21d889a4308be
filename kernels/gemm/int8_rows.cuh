// Rows of int8 that follow each other in memory, in chunks of 16 bytes, and what becomes of sums of their products.
//
// Macros: COPY: bytes that one access moves. Rows begin at multiples of COPY (16, 8 or 4), and are as long; with COPY = 1
// they begin at any byte. PER_CHANNEL: a scale for each column of y, or one for all. PER_ROW: x has a scale for each of
// its rows, or one for all.
#pragma once

#include "../include/mma.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

constexpr unsigned CHUNK = 16;
constexpr unsigned WORDS = CHUNK / 4;  // of a chunk

struct Matrix {
  const signed char* __restrict__ data;
  long long rows;
  unsigned columns;

  __device__ __forceinline__ const signed char* row(long long number) const { return data + number * columns; }
  // How many bytes of the chunk at column k exist.
  __device__ __forceinline__ unsigned filled_at(unsigned k) const {
    return k >= columns ? 0 : columns - k < CHUNK ? columns - k : CHUNK;
  }
};

// A chunk that begins `bits` / 8 bytes behind a word: the words around it, and how many of its bytes exist.
struct RaggedChunk {
  unsigned words[WORDS + 1] = {};
  unsigned bits = 0;

  // The words are read as a whole where the tensor has all of them; a neighbouring row's bytes don't matter.
  __device__ __forceinline__ void load(const Matrix& of, const signed char* from, unsigned count) {
    const unsigned before = reinterpret_cast<unsigned long long>(from) % 4;
    const signed char* first = from - before;
    bits = before * 8;
    if (!count) return;
    if (first >= of.data && first + 4 * (WORDS + 1) <= of.row(of.rows)) {
#pragma unroll
      for (unsigned j = 0; j <= WORDS; ++j) words[j] = __ldg(reinterpret_cast<const unsigned*>(first) + j);
      return;
    }
#pragma unroll
    for (unsigned j = 0; j < 4 * (WORDS + 1); ++j) {
      const unsigned place = j - before;  // wraps before the chunk
      if (place < count) words[j / 4] |= static_cast<unsigned>(static_cast<unsigned char>(from[place])) << j % 4 * 8;
    }
  }
  // Its first `count` bytes, then zeros.
  __device__ __forceinline__ uint4 shifted(unsigned count) const {
    unsigned to[WORDS];
#pragma unroll
    for (unsigned j = 0; j < WORDS; ++j) {
      const unsigned word = __funnelshift_r(words[j], words[j + 1], bits);
      to[j] = count >= 4 * j + 4 ? word : count > 4 * j ? word & ((1u << (count - 4 * j) * 8) - 1) : 0;
    }
    return make_uint4(to[0], to[1], to[2], to[3]);
  }
};

// Loads 16, 8 or 4 bytes, or zeros if they aren't `there`: by a predicate, without a branch between loads. Once: what
// isn't read again takes no place in L1, which no intrinsic says.
template <bool Once>
__device__ __forceinline__ uint4 load_4_words(const signed char* from, bool there) {
  uint4 to;
  if constexpr (Once) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
        "@p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(to.x), "=&r"(to.y), "=&r"(to.z), "=&r"(to.w)
        : "l"(from), "r"(static_cast<unsigned>(there)));
  } else {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; "
        "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(to.x), "=&r"(to.y), "=&r"(to.z), "=&r"(to.w)
        : "l"(from), "r"(static_cast<unsigned>(there)));
  }
  return to;
}
__device__ __forceinline__ uint2 load_2_words(const signed char* from, bool there) {
  uint2 to;
  asm volatile(
      "{ .reg .pred p; setp.ne.u32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
      : "=&r"(to.x), "=&r"(to.y)
      : "l"(from), "r"(static_cast<unsigned>(there)));
  return to;
}
__device__ __forceinline__ unsigned load_word(const signed char* from, bool there) {
  unsigned to;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
               : "=&r"(to)
               : "l"(from), "r"(static_cast<unsigned>(there)));
  return to;
}

// The `count` bytes of a chunk, then zeros.
template <bool Once>
__device__ __forceinline__ uint4 load_chunk(const Matrix& of, const signed char* from, unsigned count) {
  if constexpr (COPY == 16) {
    return load_4_words<Once>(from, count);
  } else if constexpr (COPY == 8) {
    const uint2 low = load_2_words(from, count), high = load_2_words(from + 8, count > 8);
    return make_uint4(low.x, low.y, high.x, high.y);
  } else if constexpr (COPY == 4) {
    return make_uint4(load_word(from, count), load_word(from + 4, count > 4), load_word(from + 8, count > 8),
                      load_word(from + 12, count > 12));
  } else {
    RaggedChunk chunk;
    chunk.load(of, from, count);
    return chunk.shifted(count);
  }
}

// Begins to copy the `count` bytes of a chunk, and zeros after them, to shared memory.
__device__ __forceinline__ void copy_chunk(unsigned to, const signed char* from, unsigned count) {
#pragma unroll
  for (unsigned j = 0; j < CHUNK; j += COPY) {
    const unsigned bytes = j < count ? COPY : 0;
    if constexpr (COPY == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(COPY), "r"(bytes)
                   : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to + j), "l"(from + j), "n"(COPY), "r"(bytes)
                   : "memory");
    }
  }
}
// Closes a group of copies, and waits until at most `Ahead` groups of the thread are under way.
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <unsigned Ahead>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Ahead) : "memory");
}

// Adds the product of a (16 x 32) and b (32 x 8) to d (16 x 8), numbers of int8 and sums of int32. With r = l / 4 and
// c = 4 * (l % 4) lane l has
//
//     a[0]: row r,     columns c to c + 3         b[0]: rows c to c + 3,           d[0], d[1]: row r,
//     a[1]: row r + 8, columns c to c + 3               column r                         columns c / 2, c / 2 + 1
//     a[2]: row r,     columns c + 16 to c + 19   b[1]: rows c + 16 to c + 19,     d[2], d[3]: row r + 8,
//     a[3]: row r + 8, columns c + 16 to c + 19         column r                         columns c / 2, c / 2 + 1
__device__ __forceinline__ void multiply_add(int (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                             unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// y, and what a sum is multiplied with: the scale of the column and the scale of the row. The scale of all x is a part of
// the columns' scales.
struct Result {
  const float* __restrict__ x_scale;
  const float* __restrict__ weight_scale;
  __half* __restrict__ y;
  long long rows, columns;

  __device__ __forceinline__ float of_column(long long column) const {
    if constexpr (PER_CHANNEL) {
      return column < columns ? of_all_x() * __ldg(weight_scale + column) : 0.0f;
    } else {
      return of_all_x() * __ldg(weight_scale);
    }
  }
  __device__ __forceinline__ float of_row(long long row) const {
    if constexpr (PER_ROW) {
      return row < rows ? __ldg(x_scale + row) : 0.0f;
    } else {
      return 1.0f;
    }
  }

 private:
  __device__ __forceinline__ float of_all_x() const { return PER_ROW ? 1.0f : __ldg(x_scale); }
};
__device__ __forceinline__ __half scaled(int sum, float scale) {
  return __float2half_rn(static_cast<float>(sum) * scale);
}

// ---- Blocks that share a sum: a cluster, of one block or of SPLIT blocks.

__device__ __forceinline__ unsigned rank_in_split() {
#if __CUDA_ARCH__ >= 900
  return SPLIT > 1 ? __clusterRelativeBlockRank() : 0;
#else
  return 0;
#endif
}
// What all blocks have written to shared memory before, all of them see after.
__device__ __forceinline__ void meet_split() {
#if __CUDA_ARCH__ >= 900
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}
// The address of block `rank` that is `address` here.
__device__ __forceinline__ unsigned address_in(unsigned rank, unsigned address) {
  unsigned remote = address;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
#endif
  return remote;
}
__device__ __forceinline__ int load_remote(unsigned address) {
  int value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
#endif
  return value;
}
