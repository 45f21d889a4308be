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
// Online normalizer calculation for softmax, 2018). An access of one element leaves memory waiting, so a thread has several
// packs of 16 bytes under way (2). Nothing is needed twice, so nothing of a row is kept: threads need few registers, and
// their warps meet only at the end of a row. So loads of some warps are under way while other warps compute. Teams that
// keep rows in registers, as for the gradient, load, compute and exchange sums one after the other. Few rows are spread
// over more of the chip, by clusters; of short rows a block has several, each by lanes of a warp. Rows of an odd vocabulary
// begin inside of packs.
//
// The mean is a kernel of its own, of one block: a sum by atomics would differ from run to run.
//
// Macros: as in cross_entropy.cuh, and of `tuned`: THREADS (of a block), UNITS (packs that a thread has under way), RESIDENT
// (threads that a multiprocessor is to hold at least, which limits registers), CLUSTER (0 or 1: a cluster shares a row),
// LANES (that share a row, 16 or 32; 0: a block or a cluster does).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-V151936.
// At least 2.489 GB are read and 32.78 kB written. The ceiling is 530.4 us, by memory.
//   online: a block a row, one element an access; any length and address
//   tuned: lanes, a block or a cluster a row, which keep nothing of it; 16 bytes an access, several under way in a
//     thread
//       541.4 us   98.0% of ceiling  moves 2.489 GB

#include "cross_entropy.cuh"

#ifndef UNITS

// Writes what a row gives. x: the row.
__device__ __forceinline__ void put_row(const T* x, long long columns, long long target, const float (&both)[2],
                                        float& lse, float& loss) {
  lse = log_of(both);
  const bool has_target = counts(target) && target >= 0 && target < columns;
  loss = has_target ? loss_of(both, to_float(x[target])) : loss_without_target(target);
}

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

// 2. Lanes of a warp, a block, or each block of a cluster read their contiguous part of a row in groups of packs. Each
// thread keeps the sum below its largest logit so far.

#if CLUSTER && __CUDA_ARCH__ >= 900  // elsewhere never launched
using Team = ClusterTeam<THREADS>;
__device__ __forceinline__ unsigned block_of_team() { return __clusterRelativeBlockRank(); }
__device__ __forceinline__ unsigned blocks_of_team() { return __clusterSizeInBlocks(); }
#else
#if LANES
using Team = WarpTeam<LANES>;
static_assert(LANES >= 2 * Pack<T>::SIZE - 2, "a lane has one of the single elements of a row");
#else
using Team = BlockTeam<THREADS>;
#endif
__device__ __forceinline__ unsigned block_of_team() { return 0; }
__device__ __forceinline__ unsigned blocks_of_team() { return 1; }
#endif

using Group = Pack<T>[UNITS];
constexpr unsigned ACROSS = LANES ? LANES : THREADS;  // threads of a block that share a row

// The larger ones of the elements of two packs. NaN is ignored.
__device__ __forceinline__ void keep_larger(Pack<float>& a, const Pack<float>& b) {
#pragma unroll
  for (unsigned e = 0; e < Pack<float>::SIZE; ++e) a.at[e] = fmaxf(a.at[e], b.at[e]);
}
template <typename Two, typename Half>
__device__ __forceinline__ void keep_larger_pairs(Pack<Half>& a, const Pack<Half>& b) {
  Two(&to)[4] = reinterpret_cast<Two(&)[4]>(a);
  const Two(&from)[4] = reinterpret_cast<const Two(&)[4]>(b);
#pragma unroll
  for (unsigned w = 0; w < 4; ++w) to[w] = __hmax2(to[w], from[w]);
}
__device__ __forceinline__ void keep_larger(Pack<__half>& a, const Pack<__half>& b) {
  keep_larger_pairs<__half2>(a, b);
}
__device__ __forceinline__ void keep_larger(Pack<__nv_bfloat16>& a, const Pack<__nv_bfloat16>& b) {
  keep_larger_pairs<__nv_bfloat162>(a, b);
}

// A thread's largest logit so far, and the sum below it. The search starts as that of sum_online().
struct Online {
  float most = LOWEST, sum = 0.0f;

  // Elements that the group lacks are -inf.
  __device__ __forceinline__ void take(const Group& group) {
    Pack<T> larger = group[0];
#pragma unroll
    for (unsigned u = 1; u < UNITS; ++u) keep_larger(larger, group[u]);
    const float higher = fmaxf(most, largest(larger));
    sum *= exp_below(most, higher);
    most = higher;
    float of_group = 0.0f, values[Pack<T>::SIZE];
#pragma unroll
    for (unsigned u = 0; u < UNITS; ++u) {
      widen(group[u], values);
#pragma unroll
      for (float value : values) of_group += exp_below(value, most);
    }
    sum += of_group;
  }
  __device__ __forceinline__ void take_one(float x) {
    const float higher = fmaxf(most, x);
    sum = sum * exp_below(most, higher) + exp_below(x, higher);
    most = higher;
  }
};

// A thread's packs of a group, the first one at `from`. packs: from there to the end. In whole words, as in rows.cuh.
__device__ __forceinline__ void load_packs(const uint4* from, unsigned packs, Group& group) {
  uint4(&raw)[UNITS] = reinterpret_cast<uint4(&)[UNITS]>(group);
  if ((UNITS - 1) * ACROSS < packs) {
#pragma unroll
    for (unsigned u = 0; u < UNITS; ++u) raw[u] = load_16<false>(from + u * ACROSS);
    return;
  }
  const unsigned word = splat(T(MINUS_INFINITY));
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    raw[u] = make_uint4(word, word, word, word);
    if (u * ACROSS < packs) raw[u] = load_16<false>(from + u * ACROSS);
  }
}

// Where the packs of a row are. The elements before the first pack, and those behind the last one, are single.
struct Parts {
  long long begin;
  unsigned head, packs;

  __device__ __forceinline__ Parts(unsigned row, unsigned columns)
      : begin(static_cast<long long>(row) * columns),
        head(min(columns, static_cast<unsigned>(-begin) % Pack<T>::SIZE)),
        packs((columns - head) / Pack<T>::SIZE) {}
};

// What isn't a column: no row is as long.
constexpr unsigned NO_COLUMN = 0xfffffffeu, IGNORED_COLUMN = 0xffffffffu;
// A target in 32 bits, which are kept while the row is read.
__device__ __forceinline__ unsigned column_of(long long target, unsigned columns) {
  if (!counts(target)) return IGNORED_COLUMN;
  return target >= 0 && target < columns ? static_cast<unsigned>(target) : NO_COLUMN;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    cross_entropy_tuned(const T* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ losses,
                        float* __restrict__ lse, unsigned rows, unsigned columns) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  constexpr unsigned SIZE = Pack<T>::SIZE;
  constexpr int STEP = UNITS * ACROSS;
  Team team;
  unsigned row = static_cast<unsigned>(team.row());
  const bool has_row = !LANES || row < rows;
  if (!has_row) row = rows - 1;  // lanes without a row take part in exchanges
  const unsigned column = team.rank == 0 ? column_of(targets[row], columns) : IGNORED_COLUMN;
  Online online;
  {
    const Parts parts(row, columns);
    const unsigned share = (parts.packs + blocks_of_team() - 1) / blocks_of_team(), first = block_of_team() * share;
    const unsigned place = threadIdx.x % ACROSS;
    const uint4* from = reinterpret_cast<const uint4*>(logits + parts.begin + parts.head) + first + place;
    const int own = min(share, parts.packs - min(parts.packs, first));
#pragma unroll 1
    for (int left = own - static_cast<int>(place); left > 0; left -= STEP, from += STEP) {
      asm("" : "+l"(from));  // so that a row's last groups don't get a pointer of their own
      Group group;
      load_packs(from, left, group);
      online.take(group);
    }
  }
  // What was known of the row is made anew: kept through the loop, it would take registers that loads need.
  asm("" : "+r"(row));
  const Parts parts(row, columns);
  const T* x = logits + parts.begin;
  float of_target;  // of no use without a target
  if (column < columns) of_target = to_float(x[column]);
  // Single elements, one a thread.
  const unsigned after = parts.packs * SIZE;
  if (team.rank < columns - after) online.take_one(to_float(x[team.rank + (team.rank < parts.head ? 0 : after)]));
  float both[2] = {online.most, online.sum};
  team.template all<Exponentials>(both);
  if (team.rank == 0 && has_row) {
    lse[row] = log_of(both);
    losses[row] = column < columns ? loss_of(both, of_target) : column == IGNORED_COLUMN ? 0.0f : NO_NUMBER;
  }
#endif
}
#endif
