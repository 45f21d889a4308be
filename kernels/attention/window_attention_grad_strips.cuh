// The backward of attention over one window and head, part 2: the five products on tensor cores, and the order of all
// steps. Part 1, the softmax and its gradient, is window_attention_grad_softmax.cuh.
//
// Why this is written by hand: P and dS, the (TOKENS, TOKENS) matrices, would be written to memory and read again
// between separate products. Here they stay in registers, and go through shared memory only where a product needs
// columns of P or dS that other warps hold.
//
// Terms, for a window with TOKENS tokens and heads of HEAD elements (window_attention_grad.cu has the formulas):
//   stage    q, k, v and dout of the window and head in shared memory; a row is a token
//   strip    16 rows (queries) of S, P, dP or dS, by all keys. Warp w has the strip of queries 16 * w .. 16 * w + 15, or,
//            with SHARERS = 2, one half of the keys of strip w % STRIPS
//   tile     16 queries by 8 keys of a strip: the shape of one result of the tensor cores
//   pair     two neighbouring tiles: 16 keys, the depth of one product of the tensor cores
//   chunk    16 bytes, 8 halves, of a row of q, k, v or dout
//   square   P or dS of all warps, rounded to halves, in shared memory
//   room     16 rows of a result in shared memory, where warps prepare their stores; each strip has its own
//
//     block = 1 window and head                  warp 1's strip: 16 queries by all keys
//
//            keys 0 .. TOKENS - 1                 tile 0  tile 1  tile 2  tile 3  ..
//     warp 0 [ strip 0          ]                +-------+-------+-------+-------+
//     warp 1 [ strip 1          ]     ------>    | 16x8  |       |       |       |
//     warp 2 [ strip 2          ]                +-------+-------+-------+-------+
//     warp 3 [ strip 3          ]                 \___ pair 0 __/ \___ pair 1 __/
//
// Steps of backward(), all by every warp:
//   1. S = q k^T, dP = dout v^T           the warp's strip, in registers                   strip_by_rows
//   2. P = softmax(S)                     in the same registers                            to_probabilities
//   3. P, rounded, into a square          for the columns of step 6                        share_strip
//   4. dS * BEFORE from dP and P          in the registers of dP; added to the sum         to_gradients
//   5. dQ = dS k                          the warp's strip of dS is the left operand       strip_product
//   -- barrier: squares are complete
//   6. dV = P^T dout, dK = dS^T q         columns of the squares are the left operand      columns_product
//
// With SHARERS = 2 no warp has a whole strip. So the two warps of a strip exchange the largest score, the sum of powers and
// delta of each query; step 5 follows the barrier, with rows of the square of dS as the left operand; and each warp has
// half of the columns of a result.
//
// Macros: as in window_attention_grad.cu.
#pragma once

#include "window_attention_grad_softmax.cuh"

// Short windows have a square for P and a square for dS; long windows have one square, which dS takes after P.
constexpr unsigned SQUARES = SHORT ? 2 : 1;
constexpr unsigned STRIP_PAIRS = STRIPS > 1 ? STRIPS / 2 : 1;  // two strips of keys each

// What a lane has of a strip rounded to halves, two halves a word: of each tile, a word for each of the lane's two
// queries. If the number of tiles is odd, one more tile of zeros completes the last pair.
constexpr unsigned ROUNDED_TILES = SHARERS == 1 ? 2 * STRIPS : OWN_TILES;
using RoundedStrip = unsigned[ROUNDED_TILES][2];

// Step 1: the strip's 16 rows of `left` times the transpose of the rows of the warp's keys of `right`. left, right:
// addresses of tensors of a stage.
__device__ __forceinline__ void strip_by_rows(Strip& sums, unsigned left, unsigned right) {
  const unsigned lane = threadIdx.x % WARP;
  unsigned a[DIM / 16][4];
  const unsigned strip = left + own_strip() * 16 * PITCH + place_in_16(PITCH);
#pragma unroll
  for (unsigned k = 0; k < DIM / 16; ++k) load_matrices(a[k], strip + 2 * k * PACK_BYTES);
  const unsigned rows = right + (own_part() * OWN_TILES * 8 + lane % 8) * PITCH + lane / 8 * PACK_BYTES;
#pragma unroll
  for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
#pragma unroll
    for (unsigned e = 0; e < 4; ++e) sums[tile][e] = 0.0f;
#pragma unroll
    for (unsigned k = 0; k < DIM / 16; k += 2) {
      unsigned b[4];  // 8 keys, 32 columns
      load_matrices(b, rows + tile * 8 * PITCH + 2 * k * PACK_BYTES);
      multiply_add<T>(sums[tile], a[k], {b[0], b[1]});
      multiply_add<T>(sums[tile], a[k + 1], {b[2], b[3]});
    }
  }
}

// Rounds a strip to halves. mma.cuh says why a pair of tiles then is the left operand of a product, in the same lanes.
__device__ __forceinline__ void round_strip(RoundedStrip& rounded, const Strip& strip) {
#pragma unroll
  for (unsigned tile = 0; tile < ROUNDED_TILES; ++tile) {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      rounded[tile][half] = tile < OWN_TILES ? rounded_pair<T>(strip[tile][2 * half], strip[tile][2 * half + 1]) : 0u;
    }
  }
}

// Step 3: stores the warp's strip of P or dS in a square, where other warps find columns of the strip.
__device__ __forceinline__ void share_strip(unsigned square, const RoundedStrip& rounded) {
  const unsigned begin = square + own_strip() * 16 * SQUARE_PITCH + own_part() * OWN_TILES * PACK_BYTES;
  const unsigned at = begin + place_in_16(SQUARE_PITCH), lane = threadIdx.x % WARP;
#pragma unroll
  for (unsigned pair = 0; pair < ROUNDED_TILES / 2; ++pair) {
    const unsigned words[4] = {rounded[2 * pair][0], rounded[2 * pair][1], rounded[2 * pair + 1][0],
                               rounded[2 * pair + 1][1]};
    store_matrices(at + 2 * pair * PACK_BYTES, words);
  }
  if constexpr (ROUNDED_TILES % 2 == 1) {
    const unsigned last = begin + lane / 4 * SQUARE_PITCH + (ROUNDED_TILES - 1) * PACK_BYTES + lane % 4 * 4;
#pragma unroll
    for (unsigned half = 0; half < 2; ++half) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(last + 8 * half * SQUARE_PITCH),
                   "r"(rounded[ROUNDED_TILES - 1][half])
                   : "memory");
    }
  }
}

// Adds the products of COUNT left operands (16 x 16 each) with the warp's chunks of the same 16 rows of a tensor. right:
// the lane's address in these chunks. What is loaded of the tensor serves all COUNT products.
template <unsigned COUNT>
__device__ __forceinline__ void add_products(float (&sums)[COUNT][OWN_CHUNKS][4], const unsigned (&a)[COUNT][4],
                                             unsigned right) {
#pragma unroll
  for (unsigned chunk = 0; chunk < OWN_CHUNKS; chunk += 2) {
    unsigned b[4];
    load_matrices_transposed(b, right + chunk * PACK_BYTES);
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      multiply_add<T>(sums[i][chunk], a[i], {b[0], b[1]});
      multiply_add<T>(sums[i][chunk + 1], a[i], {b[2], b[3]});
    }
  }
}

// The lane's address in the warp's chunks of the first 16 rows of a tensor.
__device__ __forceinline__ unsigned own_chunks(unsigned tensor) {
  return tensor + place_in_16(PITCH) + own_part() * OWN_CHUNKS * PACK_BYTES;
}

// Step 5 where two warps share a strip: the warp's strip, of all keys, from the square, times all rows of `right`.
__device__ __forceinline__ void square_product(float (&sums)[1][OWN_CHUNKS][4], unsigned square, unsigned right) {
  const unsigned left = square + own_strip() * 16 * SQUARE_PITCH + place_in_16(SQUARE_PITCH);
#pragma unroll
  for (unsigned pair = 0; pair < STRIPS; ++pair) {
    unsigned a[1][4];
    load_matrices(a[0], left + 2 * pair * PACK_BYTES);
    add_products<1>(sums, a, own_chunks(right) + pair * 16 * PITCH);
  }
}

// Step 5: the warp's strip, from registers, times all rows of `right`: dQ = dS k.
__device__ __forceinline__ void strip_product(float (&sums)[1][OWN_CHUNKS][4], const RoundedStrip& left,
                                              unsigned right) {
  const unsigned rows = right + place_in_16(PITCH);
#pragma unroll
  for (unsigned pair = 0; pair < STRIPS; ++pair) {
    const unsigned a[1][4] = {{left[2 * pair][0], left[2 * pair][1], left[2 * pair + 1][0], left[2 * pair + 1][1]}};
    add_products<1>(sums, a, rows + pair * 16 * PITCH);
  }
}

// Step 6: the transpose of a square times all rows of `right`, for the keys of COUNT strips from `first_strip` on:
// dV = P^T dout, dK = dS^T q. Columns of the square are loaded as rows, by ldmatrix with .trans.
template <unsigned COUNT>
__device__ __forceinline__ void columns_product(float (&sums)[COUNT][OWN_CHUNKS][4], unsigned square,
                                                unsigned first_strip, unsigned right) {
  const unsigned lane = threadIdx.x % WARP, rows = own_chunks(right);
  const unsigned columns = square + (lane % 8 + lane / 16 * 8) * SQUARE_PITCH +
                           (2 * first_strip + lane / 8 % 2) * PACK_BYTES;
#pragma unroll
  for (unsigned queries = 0; queries < STRIPS; ++queries) {  // a strip of queries: 16 rows of the square and of `right`
    unsigned a[COUNT][4];
#pragma unroll
    for (unsigned i = 0; i < COUNT; ++i) {
      load_matrices_transposed(a[i], columns + queries * 16 * SQUARE_PITCH + 2 * i * PACK_BYTES);
    }
    add_products<COUNT>(sums, a, rows + queries * 16 * PITCH);
  }
}

// Step 6 and its stores: COUNT strips of keys of dV or dK, times `factor`, whose first element is at `to`.
template <unsigned COUNT>
__device__ __forceinline__ void write_columns(unsigned room, T* to, unsigned square, unsigned first_strip,
                                              unsigned right, float factor, bool aligned) {
  float sums[COUNT][OWN_CHUNKS][4] = {};
  columns_product<COUNT>(sums, square, first_strip, right);
#pragma unroll
  for (unsigned i = 0; i < COUNT; ++i) write_strip(room, to, first_strip + i, sums[i], factor, aligned);
}

// The first element of dq, dk and dv of one window and head.
struct Results {
  T *dq, *dk, *dv;
};
__device__ __forceinline__ Results results_at(T* dq, T* dk, T* dv, const Offsets& offsets) {
  if constexpr (PACKED != 0) dk = dq + BETWEEN, dv = dq + 2 * BETWEEN;
  return {dq + offsets.qkv, dk + offsets.qkv, dv + offsets.qkv};
}

// Steps 1 to 4: leaves the warp's part of dS in `rounded`, and of P in the square of P. place: for exchanges.
template <typename Added, typename Sums>
__device__ __forceinline__ void scores(RoundedStrip& rounded, unsigned stage, unsigned square, unsigned place,
                                       const Added& added, Sums& sums) {
  const unsigned dout = stage + DOUT * TENSOR_BYTES, q = stage + Q * TENSOR_BYTES;
  const unsigned k = stage + K * TENSOR_BYTES, v = stage + V * TENSOR_BYTES;
  Strip p, ds;
  strip_by_rows(p, q, k);
  if (SHORT) strip_by_rows(ds, dout, v);  // this early, so that tensor cores work on dP during the softmax
  to_probabilities(p, added, place);
  round_strip(rounded, p);
  share_strip(square, rounded);
  if (!SHORT) strip_by_rows(ds, dout, v);
  if constexpr (SHORT || SHARERS > 1) {
    to_gradients(ds, FromRegisters{p}, place + EXCHANGE_BYTES);
  } else {
    // Strips of P and dP of a long window don't fit into registers together: P is read back from its square.
    __syncwarp();
    to_gradients(ds, FromSquare{square + own_strip() * 16 * SQUARE_PITCH + place_in_16(SQUARE_PITCH)}, place + EXCHANGE_BYTES);
  }
  sums.add(ds);
  round_strip(rounded, ds);
}

// Steps 1 to 6 for one window and head, whose tensors are complete in `stage`.
// squares: room for SQUARES squares. rooms: room for 16 rows of each strip. added: AddedFromMemory or AddedInRegisters.
// sums.add(strip) is called once, with the warp's part of dS * BEFORE. aligned: results begin on 16 bytes.
template <typename Added, typename Sums>
__device__ __forceinline__ void backward(unsigned stage, unsigned squares, unsigned rooms, const Added& added,
                                         Sums& sums, const Results& to, bool aligned) {
  const unsigned strip = own_strip(), room = rooms + strip * 16 * PITCH;
  const unsigned dout = stage + DOUT * TENSOR_BYTES, q = stage + Q * TENSOR_BYTES, k = stage + K * TENSOR_BYTES;
  RoundedStrip rounded;
  scores(rounded, stage, squares, room, added, sums);
  if (SHORT) share_strip(squares + SQUARE_BYTES, rounded);
  float dq[1][OWN_CHUNKS][4] = {};
  if constexpr (SHARERS == 1) {
    strip_product(dq, rounded, k);
    write_strip(room, to.dq, strip, dq[0], AFTER, aligned);
  }
  __syncthreads();
  if constexpr (SHORT && STRIPS % 2 == 0) {
    // Half of the warps make dV, the other half dK, of two strips of keys each: a loaded part of dout or q serves both
    // strips.
    const bool of_k = strip / STRIP_PAIRS == 1;
    write_columns<2>(room, of_k ? to.dk : to.dv, of_k ? squares + SQUARE_BYTES : squares, strip % STRIP_PAIRS * 2,
                     of_k ? q : dout, of_k ? AFTER : 1.0f, aligned);
    return;
  }
  // Each warp makes its chunks of one strip of keys of dV, and then of dK.
  write_columns<1>(room, to.dv, squares, strip, dout, 1.0f, aligned);
  if (!SHORT) {
    __syncthreads();  // P was read by all warps
    share_strip(squares, rounded);
    __syncthreads();
  }
  if constexpr (SHARERS > 1) {
    square_product(dq, squares, k);
    write_strip(room, to.dq, strip, dq[0], AFTER, aligned);
  }
  write_columns<1>(room, to.dk, squares + (SQUARES - 1) * SQUARE_BYTES, strip, q, AFTER, aligned);
}
