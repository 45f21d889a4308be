// The backward of softmax, dx = y * (dy - sum(dy * y)), over rows of whole packs that are too long for the last step of
// softmax_grad.cu: the registers of a cluster have room for a row of one matrix. So y lies in registers and dy in shared
// memory, and both are read once. A thread reads in shared memory what it has fetched itself, so no thread waits for
// another one before the sum.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), KEPT (packs of each matrix that a thread has), THREADS (of a block).

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef KEPT
#define KEPT 8
#endif
#ifndef THREADS
#define THREADS 1024
#endif

#include "rows.cuh"

using T = SCALAR;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    softmax_grad_shared(const T* __restrict__ dy, const T* __restrict__ y, T* __restrict__ dx, long long rows,
                        unsigned columns) {
#if __CUDA_ARCH__ >= 900  // elsewhere never launched
  using Row = PackedRow<T, KEPT, false, ClusterTeam<THREADS>>;
  extern __shared__ uint4 fetched[];
  ClusterTeam<THREADS> team;
  const Row row(team, rows, columns);
  uint4* own = fetched + threadIdx.x;
  const T* from = row.own(dy);
#pragma unroll
  for (unsigned j = 0; j < KEPT; ++j) {
    if (row.has(j, 0)) copy_async_16(shared_address(own + j * THREADS), from + j * THREADS * Row::CHUNK);
  }
  Pack<T> results[KEPT];
  row.load(y, results, 0.0f);
  asm volatile("cp.async.wait_all;" ::: "memory");
  float a[Row::CHUNK], b[Row::CHUNK], sum[1] = {0.0f};
  const auto gradients = [&](unsigned j) { widen(reinterpret_cast<const Pack<T>&>(own[j * THREADS]), a); };
#pragma unroll
  for (unsigned j = 0; j < KEPT; ++j) {
    if (!row.has(j, 0)) continue;
    gradients(j);
    widen(results[j], b);
#pragma unroll
    for (unsigned e = 0; e < Row::CHUNK; ++e) sum[0] = fmaf(b[e], a[e], sum[0]);
  }
  team.template all<Sum>(sum);
  const unsigned zero = columns >> 31;  // rows that fit are shorter
#pragma unroll
  for (unsigned j = 0; j < KEPT; ++j) {
    forget_floats(results[j], zero);
    gradients(j);
    widen(results[j], b);
#pragma unroll
    for (unsigned e = 0; e < Row::CHUNK; ++e) a[e] = fmaf(-b[e], sum[0], b[e] * a[e]);
    narrow(a, results[j]);
    row.store(dx, j, results[j]);
  }
#endif
}
