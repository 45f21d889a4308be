// The small layers of prelu_grad in one kernel, which writes dx and the sums of whole channels.
//
// The two kernels of prelu_grad.cu take two launches, and the second one waits for sums that the first one wrote. A layer of
// a few megabytes takes longer to wait than to move. Here a block, or a cluster of up to eight blocks (sm_90 and later),
// owns a group of neighbouring channels: see bn_whole.cuh. Its threads ask for all that they need of x and dy at
// once, write dx, and add up the products of a channel in shared memory. No sums are written to memory.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); WHOLE: packs of x, and as many of dy, that a thread keeps.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef WHOLE
#define WHOLE 4
#endif

#include "prelu_grad_packs.cuh"

// What bn_whole.cuh adds up for each channel, which is a pair.
struct Sums {
  float products, none;

  __device__ __forceinline__ void add(const Sums& other) { products += other.products; }
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) products += __shfl_down_sync(ALL_LANES, products, step, lanes);
  }
};

#include "../batch_norm/bn_whole.cuh"

template <typename Form>
__device__ __forceinline__ void whole(const Form& form, const T* __restrict__ x, const T* __restrict__ dy,
                                      const T* __restrict__ alpha, T* __restrict__ dx, T* __restrict__ dalpha,
                                      const Cut& cut) {
  // All loads come before anything that needs one of them.
  unsigned first[WHOLE];
  Pack<T> values[WHOLE] = {}, gradients[WHOLE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    first[j] = form.element(j);
    if (!form.has(j)) continue;
    values[j] = load_pack(x + first[j]);
    gradients[j] = load_pack(dy + first[j]);
  }
  const unsigned group = (blockIdx.x >> cut.split) * cut.group;
  const auto slopes = form.each([&](unsigned c) { return alpha[group + c]; });
  const Blocks blocks(cut);

  Word with[WORDS];
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) with[w] = alphas(slopes.at(w * LANES), slopes.at(w * LANES + LANES - 1));
  float products[SIZE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    if (!form.has(j)) continue;
    backward_pack(values[j], gradients[j], with, products);
    store_pack(dx + first[j], gradients[j]);
  }

  Sums at[SIZE];
#pragma unroll
  for (unsigned k = 0; k < SIZE; ++k) at[k] = {products[k], 0.0f};
  blocks.meet();
  Sums sum = form.reduce(at);
  if (form.owns()) {
    blocks.add(sum, form.channel());
    if (cut.rank() == 0) dalpha[group + form.channel()] = T(sum.products);
  }
}

#define KERNEL(NAME, FORM)                                                                                   \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)                                              \
      NAME(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ alpha, T* __restrict__ dx, \
           T* __restrict__ dalpha, const Cut cut) {                                                          \
    whole(FORM{{cut}}, x, dy, alpha, dx, dalpha, cut);                                                       \
  }
KERNEL(prelu_grad_whole_one, OneChannel)
KERNEL(prelu_grad_whole_few, FewChannels)
KERNEL(prelu_grad_whole_many, ManyChannels)
