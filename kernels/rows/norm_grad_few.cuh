// The backward of LayerNorm and RMSNorm for few rows, by the blocks of one cluster. Each block has some of the rows, and
// all loads of a thread's rows are under way at once. The blocks add their sums of columns through distributed shared
// memory, so that no second kernel has to wait for the first one, which takes longer than all the work on few rows.
// Rows are whole packs of 16 bytes, and a thread has one pack of each of its rows.
//
// Macros: TEAM (threads that share a row, whole warps), TEAMS (of a block), ROWS (that a team works on at once).
#pragma once

#ifdef TEAMS

#include "norm_grad.cuh"

constexpr unsigned FEW_THREADS = TEAM * TEAMS, FEW_WARPS = TEAM / WARP;  // of a block; of a team

// Adds up values over the warps of each team; the threads of a warp have the warp's sums before.
template <unsigned Count>
__device__ __forceinline__ void sum_of_team(float (&values)[Count], float (&shared)[Count][FEW_THREADS / WARP]) {
  if constexpr (FEW_WARPS > 1) {
    constexpr unsigned LANES_OF_ALL = power_of_2_from(FEW_WARPS);
    const unsigned lane = threadIdx.x % WARP, from = lane % LANES_OF_ALL, team = threadIdx.x / TEAM;
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) {
      if (lane == 0) shared[i][threadIdx.x / WARP] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) values[i] = from < FEW_WARPS ? shared[i][team * FEW_WARPS + from] : 0.0f;
    WarpTeam<LANES_OF_ALL>().template in_warp<Sum>(values);
  }
}

// The sum over the blocks of the cluster of the floats at the same place of their shared memory.
__device__ __forceinline__ float sum_of_cluster(const float* place) {
  float sum = 0.0f;
#pragma unroll 4
  for (unsigned block = 0; block < gridDim.x; ++block) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(place)), "r"(block));
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
    sum += value;
  }
  return sum;
}

// The grid is one cluster. dgamma, dbeta: of `columns` elements.
template <bool Centred, typename Element>
__device__ __forceinline__ void few_gradients(const Element* __restrict__ dy, const Element* __restrict__ x,
                                              const Element* __restrict__ gamma, const float* __restrict__ mean,
                                              const float* __restrict__ rstd, Element* __restrict__ dx,
                                              Element* __restrict__ dgamma, Element* __restrict__ dbeta, unsigned rows,
                                              unsigned columns) {
#if __CUDA_ARCH__ >= 900  // elsewhere never launched
  using Of = NormRow<Centred>;
  using Packs = Pack<Element>;
  constexpr unsigned SUMS = Of::SUMS, SIZE = Packs::SIZE;
  extern __shared__ uint4 shared[];
  float* of_block = reinterpret_cast<float*>(shared);  // [TEAMS][SUMS][columns]: sums of columns
  __shared__ float of_warps[2][ROWS * SUMS][FEW_THREADS / WARP];  // which take turns
  const unsigned team = threadIdx.x / TEAM, column = threadIdx.x % TEAM * SIZE;
  const bool has = column < columns;
  const float share = 1.0f / columns;
  Packs scale{};
  if (has) scale = load_pack(gamma + column);
  float of_columns[SIZE][SUMS] = {};
  for (unsigned first = 0, turn = 0; first < rows; first += gridDim.x * TEAMS * ROWS, turn ^= 1) {
    const unsigned own = first + (blockIdx.x * TEAMS + team) * ROWS;
    Of of[ROWS];
    Packs gradients[ROWS], values[ROWS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
      of[r] = {0.0f, 0.0f};
      gradients[r] = values[r] = Packs{};
      if (own + r >= rows || !has) continue;
      const unsigned long long at = static_cast<unsigned long long>(own + r) * columns + column;
      gradients[r] = load_pack(dy + at);
      values[r] = load_pack(x + at);
      of[r] = Of::load(mean, rstd, own + r);
    }
    float sums[ROWS * SUMS];
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
      float of_row[SUMS] = {};
      add_chunk(of[r], gradients[r], values[r], scale, of_row, of_columns);
#pragma unroll
      for (unsigned s = 0; s < SUMS; ++s) sums[r * SUMS + s] = of_row[s] * share;
    }
    WarpTeam<WARP>().template in_warp<Sum>(sums);
    sum_of_team(sums, of_warps[turn]);
#pragma unroll
    for (unsigned r = 0; r < ROWS; ++r) {
      if (own + r >= rows || !has) continue;
      const float(&means)[SUMS] = reinterpret_cast<const float(&)[SUMS]>(sums[r * SUMS]);
      const unsigned long long at = static_cast<unsigned long long>(own + r) * columns + column;
      store_chunk(dx + at, chunk_gradient(of[r], gradients[r], values[r], scale, means));
    }
  }

#pragma unroll
  for (unsigned s = 0; s < SUMS; ++s) {
    if (!has) continue;
    float4* to = reinterpret_cast<float4*>(of_block + (team * SUMS + s) * columns + column);
#pragma unroll
    for (unsigned e = 0; e < SIZE; e += 4) {
      to[e / 4] = make_float4(of_columns[e][s], of_columns[e + 1][s], of_columns[e + 2][s], of_columns[e + 3][s]);
    }
  }
  if constexpr (TEAMS > 1) {
    __syncthreads();
    for (unsigned i = threadIdx.x; i < SUMS * columns; i += FEW_THREADS) {
      float sum = of_block[i];
#pragma unroll
      for (unsigned other = 1; other < TEAMS; ++other) sum += of_block[other * SUMS * columns + i];
      of_block[i] = sum;
    }
  }
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
  for (unsigned i = blockIdx.x * FEW_THREADS + threadIdx.x; i < SUMS * columns; i += gridDim.x * FEW_THREADS) {
    const float sum = sum_of_cluster(of_block + i);
    if (i < columns) {
      dgamma[i] = Element(sum);
    } else {
      dbeta[i - columns] = Element(sum);
    }
  }
  // No block ends while others read its sums.
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
#endif
}
#endif  // TEAMS
