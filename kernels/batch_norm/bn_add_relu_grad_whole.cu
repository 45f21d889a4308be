// The small layers of bn_add_relu_grad in one kernel, which reads dy and x once: the sums of whole channels, dx and dz.
//
// As bn_add_relu_whole.cu: a block, or a cluster of blocks, owns a group of channels. Its threads ask for all that they
// need of dy, x and the bits at once, and keep it in registers until the sums of the group are known.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); WHOLE: packs of dy, and as many of x, that a thread keeps; RESIDUAL.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef WHOLE
#define WHOLE 4
#endif

#include "bn_add_relu_grad_parts.cuh"
#include "bn_whole.cuh"

// k1, k2 and k3 of a channel.
struct Coefficients {
  float of_dz, of_x, rest;
};

template <typename Form>
__device__ __forceinline__ void whole(const Form& form, const T* __restrict__ dy, const T* __restrict__ x,
                                      const unsigned char* __restrict__ mask, const float* __restrict__ gamma,
                                      const float* __restrict__ mean, const float* __restrict__ invstd,
                                      T* __restrict__ dx, T* __restrict__ dz, float* __restrict__ dgamma,
                                      float* __restrict__ dbeta, const Cut& cut) {
  __shared__ Coefficients coefficients[MOST_GROUP];
  // All loads come before anything that needs one of them: see bn_add_relu_whole.cu.
  unsigned first[WHOLE], bits[WHOLE] = {};
  Pack<T> gradients[WHOLE] = {}, values[WHOLE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    first[j] = form.element(j);
    if (!form.has(j)) continue;
    gradients[j] = load_pack(dy + first[j]);
    values[j] = load_pack(x + first[j]);
    bits[j] = bits_of_pack<T>(mask, first[j] / SIZE);
  }
  const unsigned group = (blockIdx.x >> cut.split) * cut.group, number = group + form.channel();
  const auto means = form.each([&](unsigned c) { return mean[group + c]; });
  const float own_mean = mean[number], scale = invstd[number], k1 = gamma[number] * scale;
  const Blocks blocks(cut);

  Sums at[SIZE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    if (!form.has(j)) continue;
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      const Lanes<T> kept(kept_word(words_of(gradients[j]), bits[j], w)), value(words_of(values[j])[w]);
#pragma unroll
      for (unsigned l = 0; l < LANES; ++l) {
        Sums& sum = at[w * LANES + l];
        sum.dz += kept.at[l];
        sum.product = fmaf(kept.at[l], value.at[l] - means.at(w * LANES + l), sum.product);
      }
    }
  }
  blocks.meet();
  Sums sums = form.reduce(at);
  if (form.owns()) {
    blocks.add(sums, form.channel());
    const float share = static_cast<float>(cut.share), of_gamma = sums.product * scale;
    const float k2 = -k1 * scale * (of_gamma * share);
    coefficients[form.channel()] = {k1, k2, -k1 * (sums.dz * share) - k2 * own_mean};
    if (cut.rank() == 0) {
      dgamma[number] = of_gamma;
      dbeta[number] = sums.dz;
    }
  }
  __syncthreads();

  const auto own = form.each([&](unsigned c) { return coefficients[c]; });
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    if (!form.has(j)) continue;
    apply_pack(gradients[j], values[j], bits[j], [&](unsigned k) {
      const Coefficients all = own.at(k);
      return make_float4(all.of_dz, all.of_x, all.rest, 0.0f);
    });
    if constexpr (RESIDUAL) store_pack(dz + first[j], gradients[j]);
    store_pack(dx + first[j], values[j]);
  }
}

#define KERNEL(NAME, FORM)                                                                                           \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)                                                      \
      NAME(const T* __restrict__ dy, const T* __restrict__ x, const unsigned char* __restrict__ mask,                \
           const float* __restrict__ gamma, const float* __restrict__ mean, const float* __restrict__ invstd,        \
           T* __restrict__ dx, T* __restrict__ dz, float* __restrict__ dgamma, float* __restrict__ dbeta,            \
           const Cut cut) {                                                                                          \
    whole(FORM{{cut}}, dy, x, mask, gamma, mean, invstd, dx, dz, dgamma, dbeta, cut);                                \
  }
KERNEL(bn_whole_grad_one, OneChannel)
KERNEL(bn_whole_grad_few, FewChannels)
KERNEL(bn_whole_grad_many, ManyChannels)
