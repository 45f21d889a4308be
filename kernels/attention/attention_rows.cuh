// Attention over windows without tensor cores, a warp a row: steps 1 and 2 of window_attention.cu. Rows of any length
// at any address. Macros: as in attention.cuh.
#pragma once

#include "attention.cuh"
#include "../include/fastdiv.cuh"

constexpr unsigned WARPS = 8;                             // of a block of step 2
constexpr unsigned COLUMNS = (TOKENS + WARP - 1) / WARP;  // of a row that a lane has
constexpr unsigned PADDED = HEAD + 2;                     // so that the lanes' rows begin in different banks

// The softmax of a row whose scores lanes have in turn, with scale, bias and mask. Columns that don't exist become 0.
__device__ __forceinline__ void softmax_row(float (&row)[COLUMNS], const Operands& t, unsigned head, unsigned mask,
                                            unsigned query) {
  const unsigned lane = threadIdx.x % WARP;
  float largest = -infinity(), sum = 0.0f;
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; ++j) {
    const unsigned key = j * WARP + lane;
    row[j] = key < TOKENS ? row[j] * rsqrtf(HEAD) + added(t, head, mask, query, key) : -infinity();
    largest = fmaxf(largest, row[j]);
  }
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; ++j) {
    // A row of -infinity alone is not a number, as torch has it, but in columns that don't exist.
    row[j] = j * WARP + lane < TOKENS ? power_of_2((row[j] - largest) * LOG2_E) : 0.0f;
    sum += row[j];
  }
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; ++j) row[j] /= sum;
}

// The softmax of scores (W, H, T, T) in place.
__device__ __forceinline__ void softmax(const Operands& t, Element* scores, unsigned rows, unsigned masks,
                                        const Divisor<unsigned>& heads) {
  const unsigned row = thread_index() / WARP, lane = threadIdx.x % WARP;
  if (row >= rows) return;
  const unsigned item = row / TOKENS, window = heads.quotient(item);
  Element* own = scores + static_cast<long long>(row) * TOKENS;
  float values[COLUMNS];
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; ++j) {
    if (j * WARP + lane < TOKENS) values[j] = to_float(own[j * WARP + lane]);
  }
  softmax_row(values, t, item - window * heads.size, window % masks, row - item * TOKENS);
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; ++j) {
    if (j * WARP + lane < TOKENS) own[j * WARP + lane] = Element(values[j]);
  }
}

// A window and a head a block.
__device__ __forceinline__ void attend_rows(const Operands& t, unsigned heads, unsigned masks) {
  const unsigned window = blockIdx.x / heads, head = blockIdx.x % heads;
  const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const Rows in = input_rows(window, head, heads), to = output_rows(window, head, heads);
  float* weights = reinterpret_cast<float*>(shared_memory) + warp * TOKENS;
  Element* q = reinterpret_cast<Element*>(reinterpret_cast<float*>(shared_memory) + WARPS * TOKENS);
  Element *k = q + TOKENS * PADDED, *v = k + TOKENS * PADDED;
  for (unsigned i = threadIdx.x; i < TOKENS * HEAD; i += WARPS * WARP) {
    const unsigned token = i / HEAD, column = i % HEAD, place = token * PADDED + column;
    const long long from = in.first + static_cast<long long>(token) * in.step + column;
    q[place] = t.q[from], k[place] = t.k[from], v[place] = t.v[from];
  }
  __syncthreads();
  for (unsigned query = warp; query < TOKENS; query += WARPS) {
    float row[COLUMNS] = {};
#pragma unroll
    for (unsigned j = 0; j < COLUMNS; ++j) {
      const unsigned key = min(j * WARP + lane, TOKENS - 1u);
#pragma unroll 8
      for (unsigned d = 0; d < HEAD; ++d) row[j] += to_float(q[query * PADDED + d]) * to_float(k[key * PADDED + d]);
    }
    softmax_row(row, t, head, window % masks, query);
#pragma unroll
    for (unsigned j = 0; j < COLUMNS; ++j) {
      if (j * WARP + lane < TOKENS) weights[j * WARP + lane] = row[j];
    }
    __syncwarp();
    for (unsigned d = lane; d < HEAD; d += WARP) {
      float sum = 0.0f;
#pragma unroll 8
      for (unsigned key = 0; key < TOKENS; ++key) sum += weights[key] * to_float(v[key * PADDED + d]);
      t.out[to.first + static_cast<long long>(query) * to.step + d] = Element(sum);
    }
    __syncwarp();  // the next row's weights take the same place
  }
}
