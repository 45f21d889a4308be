// Cross-entropy of rows of logits with a target each, as the mean over the rows that count:
//
//   lse = log(sum of e^x over a row),  loss = mean of lse - x[target]
//
// A row whose target is the ignored one doesn't count. The backward needs lse, and by how many rows was divided, so these
// are outputs, too. Logits are by far the largest tensor of a language model: 8192 tokens of 128256 bfloat16 are 2.1 GB.
//
// Memory bounds it: logits have to be read once. Torch makes float32 of them, and the logarithms of the softmax, and keeps
// these for the backward: it reads and writes them five times, at twice the bytes. To read a row once, its largest number
// and its sum are made together: when a larger number comes, the sum so far is scaled down (1; Milakov and Gimelshein,
// Online normalizer calculation for softmax, 2018). An access of one element leaves memory waiting, so a team of threads
// loads its whole row into registers, 16 bytes an access, before it computes (2). Then no sum has to be scaled down, and
// few rows are spread over more of the chip, by clusters. Rows of an odd vocabulary begin inside of packs.
//
// The mean is a kernel of its own, of one block: a sum by atomics would differ from run to run.
//
// Macros: as in cross_entropy.cuh, and the macros of `tuned`.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-V50257.
// At least 823.5 MB are read and 32.78 kB written. The ceiling is 176.4 us, by memory.
//   online: a block a row, one element an access; any length and address
//   tuned: a row in the registers of a warp, a block or a cluster, as its length asks
//       225.5 us   78.2% of ceiling  moves 823.5 MB

#include "cross_entropy.cuh"

// Writes what a row gives. x: the row.
__device__ __forceinline__ void put_row(const T* x, long long columns, long long target, const float (&both)[2],
                                        float& lse, float& loss) {
  lse = log_of(both);
  const bool has_target = counts(target) && target >= 0 && target < columns;
  loss = has_target ? loss_of(both, to_float(x[target])) : loss_without_target(target);
}

#ifndef COUNT

// 1. A block a row, one element an access, of any length and at any address.
extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    cross_entropy_online(const T* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ losses,
                         float* __restrict__ lse, long long rows, long long columns) {
  BlockTeam<ANY_BLOCK> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* x = logits + row * columns;
    float both[2];
    sum_online(team, x, columns, both);
    if (threadIdx.x == 0) put_row(x, columns, targets[row], both, lse[row], losses[row]);
  }
}

// The mean, and how many rows count. One block.
constexpr unsigned MEAN_BLOCK = 1024;
extern "C" __global__ void __launch_bounds__(MEAN_BLOCK)
    cross_entropy_mean(const float* __restrict__ losses, const long long* __restrict__ targets,
                       float* __restrict__ loss, float* __restrict__ valid, long long rows) {
  BlockTeam<MEAN_BLOCK> team;
  float sum[1] = {0.0f};
  unsigned count = 0;
#pragma unroll 8
  for (long long row = threadIdx.x; row < rows; row += MEAN_BLOCK) {
    sum[0] += losses[row];
    count += counts(targets[row]);
  }
  // The rows of a thread are few enough for a float; the sum of all is rounded like any sum.
  float counted[1] = {static_cast<float>(count)};
  team.all<Sum>(sum);
  team.all<Sum>(counted);
  if (threadIdx.x == 0) {
    *loss = sum[0] / counted[0];
    *valid = counted[0];
  }
}

#else

// 2. A row in the registers of a warp's lanes, a block, or a cluster. Macros: as at the end of rows.cuh.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    cross_entropy_tuned(const T* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ losses,
                        float* __restrict__ lse, long long rows, unsigned columns) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  Team team;
  const Row row(team, rows, columns);
  Row::Chunk chunks[Row::CHUNKS];
  row.load(logits, chunks, MINUS_INFINITY);
  float both[2];
  sum_registers(row, chunks, both);
  if (team.rank == 0 && row.row < rows) {
    put_row(logits + row.begin, columns, targets[row.row], both, lse[row.row], losses[row.row]);
  }
#endif
}
#endif
