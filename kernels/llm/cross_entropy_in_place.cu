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
// Each element then costs as few instructions as it can, or memory waits for them. No element asks whether it is the
// target's, nor whether its row counts: the thread that has the target's logit writes it once more, and rows that don't
// count are zeros on a path of their own. An exponential takes one multiply-add. What else a row needs (its target, how many
// rows count, the target's logit) is loaded beside the row, not behind the exchange of sums.
//
// Macros: as in cross_entropy.cuh, and the macros of `tuned`.
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-V151936.
// At least 2.489 GB are read and 2.489 GB written. The ceiling is 1.165 ms, by memory.
//   two_pass: a block a row, which reads it again; any length and address
//   tuned: one read: a row in the registers of a warp, a block or a cluster
//       1.265 ms   92.0% of ceiling  moves 4.979 GB

#include "cross_entropy.cuh"

#ifndef COUNT

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

// Exponentials below the number `most`, by one multiply-add and one instruction each: e^(x - most) = at(x) * scale. `most`
// times log2(e) is rounded, and `scale` takes back by how much, so that a result is as exact as that of exp_below(). Where
// `most` is so large that what is taken back isn't near 1, the difference comes first.
struct Below {
  float most, minus, scale;
  bool near;

  __device__ __forceinline__ explicit Below(float most)
      : most(most), minus(-(most * LOG2_E)), near(fabsf(most) < 32768.0f) {
    scale = near ? exp2_fast(-fmaf(most, LOG2_E, minus)) : 1.0f;
  }
  template <bool Near>
  __device__ __forceinline__ float at(float x) const {
    return Near ? exp2_fast(fmaf(x, LOG2_E, minus)) : exp_below(x, most);
  }
};

template <bool Near>
__device__ __forceinline__ float sum_chunks(const Below& below, const OwnRow::Chunk (&chunks)[OwnRow::CHUNKS]) {
  float sum = 0.0f, values[OwnRow::CHUNK];
#pragma unroll
  for (unsigned j = 0; j < OwnRow::CHUNKS; ++j) {
    widen(chunks[j], values);
#pragma unroll
    for (unsigned e = 0; e < OwnRow::elements(j); ++e) sum += below.at<Near>(values[e]);
  }
  return sum;
}
// The largest logit of a row and the sum below it, from a row in registers, in which what a thread lacks is -inf. A warp
// takes the largest of its own logits, so that the warps of a team have to exchange numbers only once.
__device__ __forceinline__ void sum_registers(const OwnRow& row, const OwnRow::Chunk (&chunks)[OwnRow::CHUNKS],
                                              float (&both)[2]) {
  float most[1] = {MINUS_INFINITY}, sum[1];
#pragma unroll
  for (unsigned j = 0; j < OwnRow::CHUNKS; ++j) most[0] = fmaxf(most[0], largest(chunks[j]));
  row.team.in_warp<Max>(most);
  const Below below(base_of(most[0]));
  sum[0] = below.near ? sum_chunks<true>(below, chunks) : sum_chunks<false>(below, chunks);
  row.team.in_warp<Sum>(sum);
  both[0] = most[0], both[1] = sum[0] * below.scale;
  row.team.across_warps<Exponentials>(both);
}

// Whether this thread has a column of its row, in one of its packs or as a single element.
__device__ __forceinline__ bool has_column(const OwnRow& row, unsigned column) {
  const unsigned pack = (column - row.head) / OwnRow::CHUNK;
  if (column < row.head || pack >= row.packs) return RAGGED && row.column_of(COUNT) == column;
  const unsigned apart = pack - row.pack(0);
  return apart % Team::STEP == 0 && apart / Team::STEP < COUNT;
}

// What a row's logits become: their shares of the sum, or zeros.
template <bool Near>
struct Share {
  const Below& below;
  float unit;

  __device__ __forceinline__ float operator()(float x) const { return below.at<Near>(x) * unit; }
};
struct Zero {
  __device__ __forceinline__ float operator()(float) const { return 0.0f; }
};

// zero: as for forget_floats().
template <typename Of>
__device__ __forceinline__ void put_row(const OwnRow& row, OwnRow::Chunk (&chunks)[OwnRow::CHUNKS], T* logits,
                                        unsigned zero, Of of) {
#pragma unroll
  for (unsigned j = 0; j < OwnRow::CHUNKS; ++j) {
    float values[OwnRow::CHUNK];
    forget_floats(chunks[j], zero);
    widen(chunks[j], values);
#pragma unroll
    for (unsigned e = 0; e < OwnRow::elements(j); ++e) values[e] = of(values[e]);
    narrow(values, chunks[j]);
    row.store(logits, j, chunks[j]);
  }
}

// Threads that a multiprocessor is to hold at least: with 64 registers each.
constexpr unsigned KEPT = 1024;
extern "C" __global__ void __launch_bounds__(THREADS, KEPT / THREADS)
    cross_entropy_in_place_tuned(T* logits, const long long* __restrict__ targets, const float* __restrict__ valid,
                                 float* __restrict__ losses, long long rows, unsigned columns) {
#if !CLUSTER || __CUDA_ARCH__ >= 900
  constexpr unsigned NO_COLUMN = 0xffffffffu;
  Team team;
  const OwnRow row(team, rows, columns);
  const bool exists = row.row < rows;
  const long long target = exists ? targets[row.row] : IGNORED;
  const float all = *valid;
  OwnRow::Chunk chunks[OwnRow::CHUNKS];
  row.load(logits, chunks, MINUS_INFINITY);
  // By how much shares are divided: in a row that doesn't count nothing is left.
  const float count = counts(target) ? all : -MINUS_INFINITY;
  const bool has_target = counts(target) && target >= 0 && target < columns;
  const unsigned column = has_target && has_column(row, static_cast<unsigned>(target)) ? target : NO_COLUMN;
  float of_target;  // of no use in another thread
  if (column != NO_COLUMN) of_target = to_float(logits[row.begin + column]);
  if (exists && team.rank == 0 && !has_target) losses[row.row] = loss_without_target(target);
  float both[2];
  sum_registers(row, chunks, both);
  const float factor = 1.0f / count;
  const Below below(base_of(both[0]));
  const float unit = below.scale * (factor / both[1]);
  // Always 0, which the compiler doesn't know: for forget_floats().
  const unsigned zero = __float_as_uint(both[1]) >> 31;
  // A row that doesn't count may have numbers of any kind.
  if (factor == 0.0f) {
    put_row(row, chunks, logits, zero, Zero{});
  } else if (below.near) {
    put_row(row, chunks, logits, zero, Share<true>{below, unit});
  } else {
    put_row(row, chunks, logits, zero, Share<false>{below, unit});
  }
  if (column == NO_COLUMN) return;
  losses[row.row] = loss_of(both, of_target);
  // Behind this thread's own write of the element. The quotient comes first: it is 1 where no other logit counts.
  const float exponential = below.scale * (below.near ? below.at<true>(of_target) : below.at<false>(of_target));
  logits[row.begin + column] = T(factor == 0.0f ? 0.0f : exponential / both[1] * factor - factor);
#endif
}
#endif
