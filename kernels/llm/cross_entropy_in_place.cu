// Cross-entropy's losses and its gradient in one pass, the gradient in place of the logits:
//
//   losses[row] = lse - x[target],  x = (e^(x - lse) - 1 at the target) / valid
//
// Rows whose target is the ignored one have no loss, and zeros for a gradient. valid: rows that count, in all parts of a
// batch whose logits are made part by part. So training needs no second tensor of logits, and no second pass over them:
// a linear layer and its loss take the logits of a few tokens at a time, and make of them what the layer's backward needs.
//
// Memory bounds it: logits are read once and written once, 2 D, where D is their bytes. Read again for the gradient, as in
// Liger's kernel and in step 1 here, they take 3 D. A row waits for its sum where it is cheapest: in the registers of a
// team of threads that is large enough (2): 128256 halves are 32 KB for each of eight blocks of a cluster. Exponentials are
// made twice from the logits in registers, since floats would take twice the room of halves.
//
// Macros: as in cross_entropy.cuh, and the macros of `tuned`.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-V50257.
// At least 823.5 MB are read and 823.4 MB written. The ceiling is 385.9 us, by memory.
//   two_pass: a block a row, which reads it again; any length and address
//   tuned: one read: a row in the registers of a warp, a block or a cluster
//       485.7 us   79.4% of ceiling  moves 1.647 GB

#include "cross_entropy.cuh"

// The gradient of a logit, from the sums of its row.
struct Shares {
  float base, share, factor;

  __device__ __forceinline__ Shares(const float (&both)[2], const float* valid, bool is_counted)
      : base(base_of(both[0])), share(0.0f), factor(0.0f) {
    if (!is_counted) return;
    factor = 1.0f / *valid;
    share = factor / both[1];
  }
  __device__ __forceinline__ float of(float x) const { return factor == 0.0f ? 0.0f : exp_below(x, base) * share; }
};

#ifndef COUNT

// 1. A block a row, of any length and at any address; the row is read again for its gradient.
extern "C" __global__ void __launch_bounds__(ANY_BLOCK)
    cross_entropy_in_place_two_pass(T* logits, const long long* __restrict__ targets, const float* __restrict__ valid,
                                    float* __restrict__ losses, long long rows, long long columns) {
  BlockTeam<ANY_BLOCK> team;
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    T* x = logits + row * columns;
    const long long target = targets[row];
    const bool has_target = counts(target) && target >= 0 && target < columns;
    // Before the barriers of the sum, behind which it may be overwritten.
    const float of_target = threadIdx.x == 0 && has_target ? to_float(x[target]) : 0.0f;
    float both[2], values[GROUP];
    sum_online(team, x, columns, both);
    if (threadIdx.x == 0) losses[row] = has_target ? loss_of(both, of_target) : loss_without_target(target);
    const Shares shares(both, valid, counts(target));
    for (long long first = threadIdx.x; first < columns; first += GROUP * ANY_BLOCK) {
      load_group(x, first, columns, values);
#pragma unroll
      for (unsigned e = 0; e < GROUP; ++e) {
        const long long i = first + e * ANY_BLOCK;
        if (i < columns) x[i] = T(shares.of(values[e]) - (i == target ? shares.factor : 0.0f));
      }
    }
  }
}

#else

// 2. A row in the registers of a warp's lanes, a block, or a cluster. Macros: as at the end of rows.cuh.

// As PackedRow, but loads see what this kernel writes: they don't take the path for memory that is only read.
struct OwnRow : PackedRow<T, COUNT, RAGGED, Team> {
  using Packs = PackedRow<T, COUNT, RAGGED, Team>;
  using Packs::Packs;

  __device__ __forceinline__ void load(const T* x, Chunk (&chunks)[CHUNKS], float missing) const {
    const T* from = own(x);
    const unsigned word = splat(T(missing));
#pragma unroll
    for (unsigned j = 0; j < CHUNKS; ++j) {
      uint4 raw = make_uint4(word, word, word, word);
      if (j < COUNT && has(j, 0)) raw = load_16<true>(reinterpret_cast<const uint4*>(from + j * Team::STEP * CHUNK));
      chunks[j] = reinterpret_cast<const Chunk&>(raw);
      if (j == COUNT && has(j, 0)) chunks[j].at[0] = x[begin + column_of(j)];
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
    cross_entropy_in_place_tuned(T* logits, const long long* __restrict__ targets, const float* __restrict__ valid,
                                 float* __restrict__ losses, long long rows, unsigned columns) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  Team team;
  const OwnRow row(team, rows, columns);
  OwnRow::Chunk chunks[OwnRow::CHUNKS];
  row.load(logits, chunks, MINUS_INFINITY);
  const bool exists = row.row < rows;
  const long long target = exists ? targets[row.row] : IGNORED;
  float both[2];
  sum_registers(row, chunks, both);
  const Shares shares(both, valid, counts(target));
  if (exists && team.rank == 0 && (!counts(target) || target < 0 || target >= columns)) {
    losses[row.row] = loss_without_target(target);
  }
  // Always 0, which the compiler doesn't know: for forget_floats().
  const unsigned zero = __float_as_uint(both[1]) >> 31;
  const bool may_be_here = exists && counts(target);
#pragma unroll
  for (unsigned j = 0; j < OwnRow::CHUNKS; ++j) {
    float values[OwnRow::CHUNK];
    forget_floats(chunks[j], zero);
    widen(chunks[j], values);
    const unsigned first = row.column_of(j), place = static_cast<unsigned>(target) - first;
    // One thread of the team has the target's logit, if it is a column.
    const bool is_here = may_be_here && row.has(j, 0) && target >= first && target - first < OwnRow::elements(j);
    float of_target = 0.0f;
#pragma unroll
    for (unsigned e = 0; e < OwnRow::elements(j); ++e) {
      const bool is_target = is_here && e == place;
      if (is_target) of_target = values[e];
      values[e] = shares.of(values[e]) - (is_target ? shares.factor : 0.0f);
    }
    if (is_here) losses[row.row] = loss_of(both, of_target);
    narrow(values, chunks[j]);
    row.store(logits, j, chunks[j]);
  }
#endif
}
#endif
