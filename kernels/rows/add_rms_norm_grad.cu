// The backward of a residual connection and the RMSNorm behind it. x is the sum that the forward stored. It goes on as
// the next residual, so it has a gradient of its own, dsum, besides the one that comes through the norm:
//
//   xhat = x * rstd, g = dy * gamma
//   dx = dsum + rstd * (g - xhat * mean of g * xhat)     the gradient of both terms of the sum
//   dgamma = sum of dy * xhat                             over the rows
//
// Memory bounds it: dy, dsum and x are read and dx is written, 4 D, where D is the bytes of x. Torch's backward of the norm
// reads dy and x twice and writes a tensor that an addition reads again: 8 D. The first kernels here read dy and x twice
// as well, 6 D (1). One read is enough if a block keeps the sums of all columns while it works on row after row (2). But
// a row has to be reduced before its dx is known, and threads that keep sums are few, so memory would wait for them.
// Therefore rows are fetched to shared memory ahead of the work, by copies that need no thread; some rows are under way
// while one is worked on.
//
// Few rows leave a block one or two of them, and then its sums of columns, in float32, are as much to write and to read
// again as a row of each of two tensors. So rows whose tensors are a small part of the L2 go another way (3): sums of rows
// first, then the rest, by columns, which reads dy and x again from there.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/counters_llm), bfloat16 M8192-N4096.
// At least 201.4 MB are read and 67.12 MB written. The ceiling is 62.10 us, by memory.
//   separate: a kernel each for dx and dgamma; any address
//   tuned: one read of all; rows in shared memory, ahead of the work; few rows by columns, from the L2
//       69.97 us   88.8% of ceiling  moves 268.5 MB

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "norm_grad.cuh"
#include "norm_grad_total.cuh"

using T = SCALAR;

__device__ __forceinline__ float with_residual(const NormRow<false>& of, float dy, float x, float gamma, float dsum,
                                               const float (&means)[1]) {
  return dsum + of.gradient(dy, x, gamma, means);
}

#if !defined(STAGES) && !defined(WIDE)

// 1. A kernel for dx and one for dgamma, an element an access, at any address.
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    add_rms_norm_grad_dx(const T* __restrict__ dy, const T* __restrict__ dsum, const T* __restrict__ x,
                         const T* __restrict__ gamma, const float* __restrict__ rstd, T* __restrict__ dx,
                         long long rows, unsigned columns) {
  BlockTeam<ROW_BLOCK> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const auto of = NormRow<false>::load(nullptr, rstd, row);
    const long long begin = row * columns;
    float means[1] = {};
    for (unsigned c = threadIdx.x; c < columns; c += ROW_BLOCK) {
      const float xhat = of.normalised(to_float(x[begin + c]));
      means[0] = fmaf(to_float(dy[begin + c]) * to_float(gamma[c]), xhat, means[0]);
    }
    team.template all<Sum>(means);
    means[0] /= columns;
    for (unsigned c = threadIdx.x; c < columns; c += ROW_BLOCK) {
      const long long i = begin + c;
      dx[i] = T(with_residual(of, to_float(dy[i]), to_float(x[i]), to_float(gamma[c]), to_float(dsum[i]), means));
    }
  }
}
extern "C" __global__ void __launch_bounds__(ROW_BLOCK)
    add_rms_norm_grad_dgamma(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ rstd,
                             T* __restrict__ dgamma, float* __restrict__ partial, long long rows, unsigned columns) {
  sum_dgamma<false>(dy, x, nullptr, rstd, rows, ColumnSums<T>::of_groups(dgamma, nullptr, partial, columns));
}
// The last step of 1 and 2.
extern "C" __global__ void __launch_bounds__(TOTAL_BLOCK, TOTAL_RESIDENT)
    add_rms_norm_grad_total(const float* __restrict__ partial, T* __restrict__ dgamma, unsigned parts,
                            unsigned columns, unsigned team) {
  column_total(partial, dgamma, 0, parts, columns, team);
}

#elif defined(STAGES)

// 2. Rows in shared memory, ahead of the work. Rows are whole packs, and tensors are aligned.
//
//    Macros: THREADS (of a block), BLOCKS (that a multiprocessor is to hold), KEPT (packs of a row that a thread has),
//    STAGES (rows for which there is room). With one or two of them, the row behind those under way is fetched to the L2:
//    while a row is reduced, nothing else would be under way.
//
//    What norm_grad_stages.cuh asks for: packs, a block a row.
#define SINGLES 0
#define CLUSTER 1
#define LANES 0
#define AT_ONCE 1
#include "norm_grad_stages.cuh"

using Packs = Pack<T>;

// Where the rows of dy, x and dsum lie in a stage, and how they come there.
struct ThreeRows {
  const T *dy, *x, *dsum;
  char* memory;
  long long rows;
  unsigned columns, packs;

  __device__ __forceinline__ const T* in_stage(unsigned stage, unsigned which) const {
    return reinterpret_cast<const T*>(memory) + (stage * 3 + which) * static_cast<size_t>(columns);
  }
  __device__ __forceinline__ void fetch(const Fetches& fetches, long long row, unsigned stage) const {
    if (row < rows && Fetches::mine()) {
      fetches.expect(stage, 3 * packs);
      start(fetches, stage, 0, dy, row);
      start(fetches, stage, 1, x, row);
      start(fetches, stage, 2, dsum, row);
    }
    fetches.close();
  }
  __device__ __forceinline__ void announce(const Fetches& fetches, long long row) const {
    if (row >= rows || !Fetches::mine()) return;
    fetches.to_l2(from(dy, row), packs);
    fetches.to_l2(from(x, row), packs);
    fetches.to_l2(from(dsum, row), packs);
  }

 private:
  __device__ __forceinline__ const char* from(const T* matrix, long long row) const {
    return reinterpret_cast<const char*>(matrix + row * columns);
  }
  __device__ __forceinline__ void start(const Fetches& fetches, unsigned stage, unsigned which, const T* matrix,
                                        long long row) const {
    fetches.start(stage, reinterpret_cast<char*>(const_cast<T*>(in_stage(stage, which))), from(matrix, row), packs);
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    add_rms_norm_grad_tuned(const T* __restrict__ dy, const T* __restrict__ dsum, const T* __restrict__ x,
                            const T* __restrict__ gamma, const float* __restrict__ rstd, T* __restrict__ dx,
                            T* __restrict__ dgamma, float* __restrict__ partial, long long rows, unsigned columns) {
  constexpr unsigned SIZE = Packs::SIZE, AHEAD = STAGES - 1;
  extern __shared__ uint4 shared[];
  const ThreeRows three{dy, x, dsum, reinterpret_cast<char*>(shared), rows, columns, columns / SIZE};
  const auto has = [&](unsigned j) { return threadIdx.x + j * THREADS < three.packs; };
  const auto column = [&](unsigned j) { return (threadIdx.x + j * THREADS) * SIZE; };
  Packs scale[KEPT];
  float sums[KEPT][SIZE][1] = {};
#pragma unroll
  for (unsigned j = 0; j < KEPT; ++j) scale[j] = has(j) ? load_pack(gamma + column(j)) : Packs{};

  const long long step = gridDim.x;
  const float share = 1.0f / columns;
  const Fetches fetches;
  for (unsigned s = 0; s < AHEAD; ++s) three.fetch(fetches, blockIdx.x + s * step, s);
  if constexpr (AHEAD == 1) three.announce(fetches, blockIdx.x + step);
  BlockTeam<THREADS> team;
  unsigned stage = 0, before = AHEAD, phase = 0;
  for (long long row = blockIdx.x; row < rows; row += step) {
    const auto of = NormRow<false>::load(nullptr, rstd, row);
    if constexpr (AHEAD == 0) {
      __syncthreads();  // nobody reads the row before any more
      three.fetch(fetches, row, 0);
      three.announce(fetches, row + step);
    }
    fetches.template wait<AHEAD ? AHEAD - 1 : 0>(stage, phase);
    const T *own_dy = three.in_stage(stage, 0), *own_x = three.in_stage(stage, 1), *own_dsum = three.in_stage(stage, 2);
    float means[1] = {};
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      add_chunk(of, shared_chunk<Packs>(own_dy + column(j)), shared_chunk<Packs>(own_x + column(j)), scale[j], means,
                sums[j]);
    }
    means[0] *= share;
    team.template all<Sum>(means);
    // All threads are past the row before, whose stage is free.
    if constexpr (AHEAD > 0) three.fetch(fetches, row + AHEAD * step, before);
    if constexpr (AHEAD == 1) three.announce(fetches, row + 2 * step);
    // What isn't kept is read from the stage once more, since the registers are for the sums of columns.
    asm volatile("" ::: "memory");
#pragma unroll
    for (unsigned j = 0; j < KEPT; ++j) {
      if (!has(j)) continue;
      float slope[SIZE], value[SIZE], factor[SIZE], added[SIZE];
      widen(shared_chunk<Packs>(own_dy + column(j)), slope);
      widen(shared_chunk<Packs>(own_x + column(j)), value);
      widen(shared_chunk<Packs>(own_dsum + column(j)), added);
      widen(scale[j], factor);
#pragma unroll
      for (unsigned e = 0; e < SIZE; ++e) {
        added[e] = with_residual(of, slope[e], value[e], factor[e], added[e], means);
      }
      Packs result;
      narrow(added, result);
      store_chunk(dx + row * columns + column(j), result);
    }
    before = stage++;
    if (stage == STAGES) {
      stage = 0;
      ++phase;
    }
  }
  const auto to = ColumnSums<T>::of_blocks(dgamma, nullptr, partial, columns);
#pragma unroll
  for (unsigned j = 0; j < KEPT; ++j) {
    float own[SIZE];
    sums_of(sums[j], 0, own);
    if (has(j)) to.put_pack(0, column(j), own);
  }
}

#else

// 3. Few rows: the sums of rows, then the rest. Macros: as in add_norm_grad_few.cuh.
#include "add_norm_grad_few.cuh"

extern "C" __global__ void __launch_bounds__(FEW_SUM_BLOCK)
    add_rms_norm_grad_rows(const T* __restrict__ dy, const T* __restrict__ dsum, const T* __restrict__ x,
                           const T* __restrict__ gamma, const float* __restrict__ rstd, float* __restrict__ row_sums,
                           unsigned rows, unsigned columns) {
  sum_few_rows(dy, dsum, x, gamma, rstd, row_sums, rows, columns);
}
// 1: with fewer registers the compiler lets some loads wait for results of others.
extern "C" __global__ void __launch_bounds__(FEW_BLOCK, 1)
    add_rms_norm_grad_spread(const T* __restrict__ dy, const T* __restrict__ dsum, const T* __restrict__ x,
                             const T* __restrict__ gamma, const float* __restrict__ rstd,
                             const float* __restrict__ row_sums, T* __restrict__ dx, T* __restrict__ dgamma,
                             unsigned rows, unsigned columns) {
  spread_few_rows(dy, dsum, x, gamma, rstd, row_sums, dx, dgamma, rows, columns);
}
#endif
