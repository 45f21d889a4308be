// Tiles of Q, K and V of attention over windows: their sizes, their place in shared memory, and how a warp gets them.
//
// Macros: as in attention_tiles.cuh.
#pragma once

#include "attention.cuh"
#include "../include/pack.cuh"
#include "../rows/teams.cuh"

__device__ constexpr unsigned up(unsigned n, unsigned d) { return (n + d - 1) / d; }

// Rows are filled with zeros to whole tiles in shared memory. In memory they come in packs of 16 bytes, or in words.
constexpr unsigned WIDTH = up(HEAD, 16) * 16;  // columns of a row
constexpr unsigned CHUNK = PACK_BYTES / sizeof(Element), CHUNKS = WIDTH / CHUNK;  // elements of one, chunks of a row
static_assert(HEAD % 2 == 0, "rows are words");
constexpr unsigned ACCESS = HEAD % CHUNK == 0 ? PACK_BYTES : 4;          // bytes
constexpr unsigned ACCESSES = HEAD * sizeof(Element) / ACCESS;           // of a row
constexpr unsigned ROW_LANES = HEAD == WIDTH ? CHUNKS : power_of_2_from(ACCESSES);  // that take a row's accesses
constexpr unsigned ROW_BYTES = CHUNKS * PACK_BYTES;
constexpr unsigned MATRIX_BYTES = TOKENS * ROW_BYTES;  // q, k, v or out of a window and a head
constexpr unsigned ALL_TILES = up(TOKENS, 16);         // of 16 queries
constexpr unsigned QUERY_TILES = up(ALL_TILES, PARTS);  // of an item; the last part may have fewer
constexpr unsigned QUERIES = PARTS == 1 ? TOKENS : 16 * QUERY_TILES, QUERY_BYTES = QUERIES * ROW_BYTES;
constexpr unsigned STEPS = WIDTH / 16;  // of 16 columns of Q and K, and pairs of tiles of 8 columns of V
// Keys are taken in bands, whose scores a warp has in registers at a time: all keys where it holds K and V, else 48
// where that leaves no part of a band empty, or 32, or the 16 that there are. Only a single band may have an odd number
// of tiles of 8 keys.
constexpr unsigned ALL_PAIRS = up(TOKENS, 16);  // of tiles of 8 keys
constexpr unsigned PAIRS = HOLD || ALL_PAIRS == 1 ? ALL_PAIRS : ALL_PAIRS % 3 == 0 ? 3 : 2;  // of a band
constexpr unsigned BANDS = up(ALL_PAIRS, PAIRS);
constexpr unsigned TILES = BANDS == 1 ? up(TOKENS, 8) : 2 * PAIRS;
static_assert(TILES == 2 * PAIRS || TILES == 2 * PAIRS - 1, "each pair of a band has scores");
constexpr bool FULL = BANDS * PAIRS * 16 == TOKENS;  // no tile has rows or columns that don't exist
constexpr unsigned THREADS_OF_TEAM = TEAM * WARP, THREADS = TEAMS * THREADS_OF_TEAM;
constexpr unsigned TABLE_BYTES = QUERY_TILES * BANDS * TILES * WARP * sizeof(float4);
constexpr unsigned TEAM_BYTES = HOLD ? 4 * MATRIX_BYTES : STAGES * (QUERY_BYTES + 2 * MATRIX_BYTES);
static_assert(!HOLD || (PARTS == 1 && STAGES == 2), "a warp that holds K and V has all queries");
static_assert(TABLES * TABLE_BYTES + TEAMS * TEAM_BYTES == SHARED, "the plan counts shared memory in another way");

// ---- Accesses to shared memory, by its own addresses.

__device__ __forceinline__ void copy(unsigned to, const Element* from) {
  if constexpr (ACCESS == PACK_BYTES) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(ACCESS) : "memory");
  }
}
__device__ __forceinline__ void touch(const Element* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void store_word(unsigned to, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ unsigned load_word(unsigned from) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ __forceinline__ uint4 load_shared(unsigned from) {
  uint4 raw;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "r"(from)
               : "memory");
  return raw;
}
__device__ __forceinline__ void load_floats(float (&to)[4], unsigned from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "r"(from)
               : "memory");
}

// Address of a chunk of 16 bytes of a row. Chunks change places, so that chunk c of eight rows lies in eight different
// groups of four banks, which a load of an 8 x 8 matrix needs.
__device__ __forceinline__ unsigned chunk_at(unsigned matrix, unsigned row, unsigned chunk) {
  const unsigned other = CHUNKS % 8 == 0 ? row % 8 : CHUNKS % 4 == 0 ? row / 2 % 4 : row / 4 % 2;
  return matrix + row * ROW_BYTES + (chunk ^ other) * PACK_BYTES;
}

// Address of an access of a row.
__device__ __forceinline__ unsigned access_at(unsigned matrix, unsigned row, unsigned access) {
  const unsigned at = access * ACCESS;
  return chunk_at(matrix, row, at / PACK_BYTES) + at % PACK_BYTES;
}

// The same for a load of matrices. A row past the last token stands for the row of the last token.
__device__ __forceinline__ unsigned row_at(unsigned matrix, unsigned first, unsigned row, unsigned chunk) {
  return chunk_at(matrix, FULL || first + 16 <= TOKENS ? first + row : min(first + row, TOKENS - 1u), chunk);
}

// ---- Operands in registers, as mma.cuh draws them. With m = lane / 8, a lane gives row lane % 8 of matrix m.

// Tile `tile` of Q: rows of its 16 tokens, and columns 16 * step and the next 15.
__device__ __forceinline__ void load_queries(unsigned (&to)[4], unsigned q, unsigned tile, unsigned step,
                                             unsigned lane) {
  // A part of the queries has whole tiles in shared memory: rows past the last token have anything there.
  const unsigned row = lane % 16, chunk = 2 * step + lane / 16;
  load_matrices(to, PARTS == 1 ? row_at(q, 16 * tile, row, chunk) : chunk_at(q, 16 * tile + row, chunk));
}
// The transposed of K, columns of two tiles of 8 tokens: registers 0 and 1 for the first tile, 2 and 3 for the second.
__device__ __forceinline__ void load_keys(unsigned (&to)[4], unsigned k, unsigned pair, unsigned step, unsigned lane) {
  load_matrices(to, row_at(k, 16 * pair, lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
}
// V, rows of 16 tokens, columns of two tiles of 8: registers as above. Tokens that don't exist are zero: their weights
// are zero too, but the product of zero and an infinity, or a not-a-number, isn't.
__device__ __forceinline__ void load_values(unsigned (&to)[4], unsigned v, unsigned step, unsigned pair,
                                            unsigned lane) {
  load_matrices_transposed(to, row_at(v, 16 * step, lane % 16, 2 * pair + lane / 16));
  if (!FULL && 16 * step + 16 > TOKENS) {
#pragma unroll
    for (unsigned part = 0; part < 2; ++part) {
      const unsigned token = 16 * step + 8 * part + 2 * (lane % 4);
      const unsigned present = token + 1 < TOKENS ? ~0u : token < TOKENS ? 0xffffu : 0;
      to[part] &= present, to[part + 2] &= present;
    }
  }
}

// multiply_add with 8 columns of A and 8 rows of B: the first two registers of A, and the first of B.
__device__ __forceinline__ void multiply_add_8(float (&d)[4], const unsigned (&a)[4], unsigned b) {
  if constexpr (is_bfloat16(Element{})) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}
