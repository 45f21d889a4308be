// A step of AdamW on a list of float32 weights: the moments and the weights are updated in place. With COPY the weights
// are the masters of parameters in another type, which get the rounded weights in the same pass.
//
// Macros: SCALAR (float, __half, __nv_bfloat16: the type of gradients and copies), COPY (0 or 1), FOURS (times four
// elements of a thread: 1), SCALED (0; 1: the loss was multiplied by *scale, so gradients are divided by *scale here).
// A gradient in halves that is divided by the scale before the step loses what halves can't hold; floats lose nothing.
//
// A parameter takes 28 bytes in float32: weight, gradient and two moments are read, all but the gradient are written.
// Nothing is left to save there, so one launch and accesses as wide as a copy's are all that counts. The table has a row
// for each piece of the tensors, as in unscale.cu, with an address for each list.
// The betas are float32 numbers, as in the fused kernel of torch; 1 - beta is what follows from them.
//
// What each step gained on an NVIDIA H200 (reports/h200/lists), float32 T0-N0
// tensors=resnet50,weight_decay=0.01,master=none.
// At least 408.9 MB are read and 306.7 MB written. The ceiling is 166.7 us, by memory.
//   eager: PyTorch
//       255.3 us   65.3% of ceiling
//   fused: one launch for the whole list, one element of each tensor at a time
//       189.4 us   88.0% of ceiling  moves 715.6 MB  1.35x the speed of eager
//   tuned: the same, in packs of 16 bytes, one of each list a thread
//       172.0 us   96.9% of ceiling  moves 715.6 MB  1.10x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef COPY
#define COPY 0
#endif
#ifndef FOURS
#define FOURS 1
#endif

#include "../include/number.cuh"
#include "pieces.cuh"

#ifndef SCALED
#define SCALED 0
#endif

using T = SCALAR;

// Blocks of a multiprocessor at least: with more, a thread has too few registers for its loads.
constexpr unsigned BLOCKS = FOURS == 1 ? 5 : 3;

// A piece of a tensor, at the same place in each list. copy: null without COPY.
struct alignas(16) Row {
  float* weight;
  const T* grad;
  float* mean;
  float* square;
  T* copy;
  unsigned long long length;
};

__device__ __forceinline__ Row row_of(const uint4* table, unsigned long long index) {
  uint4 raw[sizeof(Row) / 16];
#pragma unroll
  for (unsigned k = 0; k < sizeof(Row) / 16; ++k) raw[k] = __ldg(table + index * (sizeof(Row) / 16) + k);
  return reinterpret_cast<const Row&>(raw);
}

// What a step is made with. t: its number, counted from 1. decay: learning rate times weight decay. log_beta1, log_beta2:
// of the betas, made on the host: 1 - beta^t is made of them without the loss of digits that a subtraction from 1 has.
// scale: of the gradients; null without SCALED.
struct Settings {
  const float* t;
  float rate, decay, beta1, beta2, log_beta1, log_beta2, eps;
  const float* scale;
};

// The step, with the corrections of the moments' bias, 1 - beta^t.
struct Step {
  float decay, beta1, beta2, eps, size, inverse_root, unscaling;

  __device__ __forceinline__ explicit Step(const Settings& s)
      : decay(s.decay),
        beta1(s.beta1),
        beta2(s.beta2),
        eps(s.eps),
        size(s.rate / -expm1f(*s.t * s.log_beta1)),
        inverse_root(1.0f / sqrtf(-expm1f(*s.t * s.log_beta2))),
        unscaling(SCALED ? 1.0f / *s.scale : 1.0f) {}

  __device__ __forceinline__ void update(float& weight, float grad, float& mean, float& square) const {
    if constexpr (SCALED) grad *= unscaling;
    const float squared = grad * grad;
    mean = fmaf(beta1, mean, fmaf(-beta1, grad, grad));
    square = fmaf(beta2, square, fmaf(-beta2, squared, squared));
    const float decayed = fmaf(-decay, weight, weight);
    weight = decayed - size * mean / fmaf(sqrtf(square), inverse_root, eps);
  }
};

// 1. The text's idea, one launch for all tensors, in its plainest form: a thread takes element by element, as far apart
//    as its team is wide.
__device__ __forceinline__ void step_one(const Row& row, const Step& step, unsigned e) {
  float weight = row.weight[e], mean = row.mean[e], square = row.square[e];
  step.update(weight, to_float(row.grad[e]), mean, square);
  row.weight[e] = weight;
  row.mean[e] = mean;
  row.square[e] = square;
  if constexpr (COPY) row.copy[e] = T(weight);
}

__device__ __forceinline__ void step_one_by_one(const Row& row, const Settings& settings, const Team& team) {
  const Step step(settings);
#pragma unroll 1
  for (unsigned e = team.rank; e < row.length; e += team.size) step_one(row, step, e);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    adamw_fused(const uint4* __restrict__ table, const float* __restrict__ t, unsigned whole, float rate, float decay,
                float beta1, float beta2, float log_beta1, float log_beta2, float eps,
                const float* __restrict__ scale) {
  const Team team(whole);
  const Row row = row_of(table, team.row);
  step_one_by_one(row, {t, rate, decay, beta1, beta2, log_beta1, log_beta2, eps, scale}, team);
}

// 2. Ours: four elements an access, which are 16 bytes in float32. A thread has FOURS such accesses to each of the four
//    lists in flight before it uses the first: 64 bytes with one. More of them only queue up, and spread what is under
//    way at one time over more of the memory, which costs a plain copy some percent, too. Accesses pass by the L1, and
//    don't ask the L2 to evict first, as a stream might: a line that is read is written a moment later.
struct alignas(16) Four {
  float at[4];
};

__device__ __forceinline__ Four load_four(const float* from) {
  const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(from));
  return reinterpret_cast<const Four&>(raw);
}
template <typename Half>
__device__ __forceinline__ Four load_four(const Half* from) {
  const uint2 raw = __ldcg(reinterpret_cast<const uint2*>(from));
  const Lanes<Half> low(raw.x), high(raw.y);
  return {low.at[0], low.at[1], high.at[0], high.at[1]};
}
__device__ __forceinline__ void store_four(float* to, const Four& four) {
  __stcg(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(four));
}
template <typename Half>
__device__ __forceinline__ void store_four(Half* to, const Four& four) {
  Lanes<Half> low, high;
  low.at[0] = four.at[0], low.at[1] = four.at[1], high.at[0] = four.at[2], high.at[1] = four.at[3];
  __stcg(reinterpret_cast<uint2*>(to), make_uint2(low.word(), high.word()));
}

// ALL: the piece is as long as a team's pieces get; otherwise the last elements, fewer than four, go one by one. The step
// is made after the loads have begun, so that they don't wait for its logarithms.
template <bool ALL>
__device__ __forceinline__ void step_by_fours(const Row& row, const Settings& settings, const Team& team) {
  Four weight[FOURS], grad[FOURS], mean[FOURS], square[FOURS];
  bool there[FOURS];
#pragma unroll
  for (unsigned j = 0; j < FOURS; ++j) {
    const unsigned first = 4 * (team.rank + j * team.size);
    there[j] = ALL || first + 4 <= row.length;
    if (there[j]) {
      grad[j] = load_four(row.grad + first);
      weight[j] = load_four(row.weight + first);
      mean[j] = load_four(row.mean + first);
      square[j] = load_four(row.square + first);
    }
  }
  const Step step(settings);
#pragma unroll
  for (unsigned j = 0; j < FOURS; ++j) {
    const unsigned first = 4 * (team.rank + j * team.size);
    if (there[j]) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) step.update(weight[j].at[k], grad[j].at[k], mean[j].at[k], square[j].at[k]);
      store_four(row.weight + first, weight[j]);
      store_four(row.mean + first, mean[j]);
      store_four(row.square + first, square[j]);
      if constexpr (COPY) store_four(row.copy + first, weight[j]);
    }
  }
  if constexpr (!ALL) {
    const unsigned rest = row.length % 4;
    if (team.rank < rest) step_one(row, step, row.length - rest + team.rank);
  }
}

// Whether four elements of every list can be accessed at once.
__device__ __forceinline__ bool aligned(const Row& row) {
  const auto address = [](const void* pointer) { return reinterpret_cast<unsigned long long>(pointer); };
  const unsigned long long floats = address(row.weight) | address(row.mean) | address(row.square);
  return floats % 16 == 0 && (address(row.grad) | address(row.copy)) % (4 * sizeof(T)) == 0;
}

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS)
    adamw_tuned(const uint4* __restrict__ table, const float* __restrict__ t, unsigned whole, float rate, float decay,
                float beta1, float beta2, float log_beta1, float log_beta2, float eps,
                const float* __restrict__ scale) {
  const Team team(whole);
  const Row row = row_of(table, team.row);
  const Settings settings{t, rate, decay, beta1, beta2, log_beta1, log_beta2, eps, scale};
  if (!aligned(row)) {
    step_one_by_one(row, settings, team);
  } else if (row.length == 4 * FOURS * team.size) {
    step_by_fours<true>(row, settings, team);
  } else {
    step_by_fours<false>(row, settings, team);
  }
}
