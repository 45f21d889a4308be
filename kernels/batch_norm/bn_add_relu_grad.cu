// The backward of y = relu(batch_norm(x) * gamma + beta + z) in training. With a channel's mean and invstd, xhat =
// (x - mean) * invstd, and m elements a channel:
//   dz = dy where y > 0, else 0        dbeta = sum of dz        dgamma = sum of dz * xhat
//   dx = gamma * invstd * (dz - dbeta / m - xhat * dgamma / m) = k1 * dz + k2 * x + k3
// Tensors are contiguous, (outer, channels, inner); inner is 1 where channels are last. A row is the `inner` elements
// of one channel at one outer place. A pack is 16 bytes.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from about 2^31 elements on);
// RESIDUAL (1; 0: there is no z, and dz isn't written).
//
// dx needs both sums of its channel, so every variant reads its inputs twice: in a kernel that makes the sums, and in a
// kernel that makes dx and dz. A small kernel between them turns the sums of a channel into the coefficients k1, k2 and
// k3. Only small layers, whose dy and x multiprocessors can keep, are made by one kernel in `tuned`
// (bn_add_relu_grad_whole.cu). No kernel adds with atomics: partial sums have slots of their own, (channel, slot), and
// are added in a fixed order, so that a result repeats bit by bit. The mean is subtracted from x before the product with
// dz. After the sum, the difference would have lost most of its bits.
//
// What each step gained on an NVIDIA H200 (reports/h200/bn), float32 N656-C64-H56-W56 layout=nchw.
// At least 2.140 GB are read and 1.053 GB written. The ceiling is 715.6 us, by memory.
//   eager: PyTorch
//       3.317 ms   21.6% of ceiling
//   from_y: two passes, one element a thread, each reads dy, x and y
//       1.213 ms   59.0% of ceiling  moves 4.213 GB  2.73x the speed of eager
//   from_bitset: the same with the forward's bits in place of y
//       1.072 ms   66.7% of ceiling  moves 3.193 GB  1.13x the speed of from_y
//   tuned: 16-byte packs in both layouts at any sizes, the second pass from the end of memory; small layers in one
//     kernel
//       746.9 us   95.8% of ceiling  moves 3.193 GB  1.44x the speed of from_bitset

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "batch_norm.cuh"
#include "bn_add_relu_grad_parts.cuh"
#include "../include/bitmask.cuh"
#include "../include/fastdiv.cuh"

using Index = INDEX;

constexpr unsigned BLOCK = 256;

// ---- 1. One element a thread and step; y says where dz is dy. Three tensors are read twice, and two are written.

struct Outputs {
  const T* __restrict__ y;
  __device__ __forceinline__ bool positive(Index i) const { return to_float(y[i]) > 0.0f; }
};

// A block makes one slot of `across` neighbouring channels, a power of two: 1, or 32 where channels are last, so that a
// warp reads neighbours. The block's other threads take other elements of the same channels.
template <typename Source>
__device__ __forceinline__ void sum_elements(const T* __restrict__ dy, const T* __restrict__ x, Source source,
                                             const float* __restrict__ mean, Sums* __restrict__ partial, Index samples,
                                             unsigned channels, unsigned across, unsigned slots,
                                             const Divisor<unsigned>& groups, const Divisor<Index>& inner) {
  __shared__ Sums sums[BLOCK];
  const unsigned slot = groups.quotient(blockIdx.x), along = BLOCK / across;
  const unsigned channel = groups.remainder(blockIdx.x) * across + threadIdx.x % across;
  Sums sum{};
  if (channel < channels) {
    const float channel_mean = mean[channel];
    for (Index k = static_cast<Index>(slot) * along + threadIdx.x / across; k < samples;
         k += static_cast<Index>(slots) * along) {
      const Index outer = inner.quotient(k);
      const Index i = (outer * channels + channel) * inner.size + (k - outer * inner.size);
      const float dz = source.positive(i) ? to_float(dy[i]) : 0.0f;
      sum.add({dz, dz * (to_float(x[i]) - channel_mean)});
    }
  }
  add_across(sums, sum, across);
  if (threadIdx.x < across && channel < channels) {
    partial[static_cast<unsigned long long>(channel) * slots + slot] = sums[threadIdx.x];
  }
}

// dx of an element. k: its channel's k1, k2 and k3; the fourth float is there for the alignment.
__device__ __forceinline__ T apply(float dz, float x, const float4& k) { return T(fmaf(k.x, dz, fmaf(k.y, x, k.z))); }

template <typename Source>
__device__ __forceinline__ void apply_elements(const T* __restrict__ dy, const T* __restrict__ x, Source source,
                                               const float4* __restrict__ coefficients, T* __restrict__ dx,
                                               T* __restrict__ dz, Index n, const Divisor<Index>& channels,
                                               const Divisor<Index>& inner) {
  const Index i = thread_index<Index>();
  if (i >= n) return;
  const T kept = source.positive(i) ? dy[i] : T(0.0f);
  if constexpr (RESIDUAL) dz[i] = kept;
  dx[i] = apply(to_float(kept), to_float(x[i]), coefficients[channels.remainder(inner.quotient(i))]);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_sums_y(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                            const float* __restrict__ mean, Sums* __restrict__ partial, Index samples,
                            unsigned channels, unsigned across, unsigned slots, unsigned groups,
                            unsigned groups_multiplier, unsigned groups_shift, Index inner, Index inner_multiplier,
                            unsigned inner_shift) {
  sum_elements(dy, x, Outputs{y}, mean, partial, samples, channels, across, slots,
               {groups, groups_multiplier, groups_shift}, {inner, inner_multiplier, inner_shift});
}
extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_apply_y(const T* __restrict__ dy, const T* __restrict__ x, const T* __restrict__ y,
                             const float4* __restrict__ coefficients, T* __restrict__ dx, T* __restrict__ dz, Index n,
                             Index channels, Index channels_multiplier, unsigned channels_shift, Index inner,
                             Index inner_multiplier, unsigned inner_shift) {
  apply_elements(dy, x, Outputs{y}, coefficients, dx, dz, n, {channels, channels_multiplier, channels_shift},
                 {inner, inner_multiplier, inner_shift});
}

// ---- 2. The same with the bits that the forward wrote in place of y. They are a 32nd of a tensor of floats, a 16th of
//         one of halves: two tensors are read twice, and two are written. Neighbouring elements of a warp share a word
//         or two of bits.

struct Bits {
  const unsigned* __restrict__ mask;
  __device__ __forceinline__ bool positive(Index i) const { return mask[i / 32] >> (i % 32) & 1u; }
};

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_sums_bits(const T* __restrict__ dy, const T* __restrict__ x, const unsigned* __restrict__ mask,
                               const float* __restrict__ mean, Sums* __restrict__ partial, Index samples,
                               unsigned channels, unsigned across, unsigned slots, unsigned groups,
                               unsigned groups_multiplier, unsigned groups_shift, Index inner, Index inner_multiplier,
                               unsigned inner_shift) {
  sum_elements(dy, x, Bits{mask}, mean, partial, samples, channels, across, slots,
               {groups, groups_multiplier, groups_shift}, {inner, inner_multiplier, inner_shift});
}
extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_apply_bits(const T* __restrict__ dy, const T* __restrict__ x, const unsigned* __restrict__ mask,
                                const float4* __restrict__ coefficients, T* __restrict__ dx, T* __restrict__ dz,
                                Index n, Index channels, Index channels_multiplier, unsigned channels_shift,
                                Index inner, Index inner_multiplier, unsigned inner_shift) {
  apply_elements(dy, x, Bits{mask}, coefficients, dx, dz, n, {channels, channels_multiplier, channels_shift},
                 {inner, inner_multiplier, inner_shift});
}

// ---- 3. The sums from packs of 16 bytes, with a quarter or an eighth of the accesses. The header has two kernels: for
//         rows of a pack or more, and for shorter rows.

#include "bn_add_relu_grad_sums.cuh"

// ---- 4. dx and dz from packs: a thread loads one of dy and one of x before it uses either. Blocks go through memory
//         from its end to its beginning, since what the sums' kernel read last may still be in the L2. What is written
//         is marked as the first to be evicted, so that it doesn't evict that.

__device__ __forceinline__ Index pack_from_the_end() {
  return static_cast<Index>(gridDim.x - 1 - blockIdx.x) * BLOCK + threadIdx.x;
}

// Short: rows are shorter than a pack, so that a pack may meet more than two of them.
template <bool Short>
__device__ __forceinline__ void apply_rows(const T* __restrict__ dy, const T* __restrict__ x,
                                           const unsigned char* __restrict__ mask,
                                           const float4* __restrict__ coefficients, T* __restrict__ dx,
                                           T* __restrict__ dz, Index n, bool aligned, const Divisor<Index>& inner,
                                           const Divisor<Index>& channels) {
  const Index pack = pack_from_the_end(), first = pack * SIZE;
  if (first >= n) return;
  const Index row = inner.quotient(first);
  Index left = inner.size - (first - row * inner.size), channel = channels.remainder(row);
  const auto next = [&](Index c) { return c + 1 == channels.size ? 0 : c + 1; };
  if (!aligned || n - first < SIZE) {
    const Index end = min(first + SIZE, n);
    unsigned bits = bits_of_pack<T>(mask, pack);
#pragma unroll 1
    for (Index i = first; i < end; ++i, --left, bits >>= 1) {
      channel = left == 0 ? next(channel) : channel;
      left = left == 0 ? inner.size : left;
      const T kept = bits & 1u ? dy[i] : T(0.0f);
      dx[i] = apply(to_float(kept), to_float(x[i]), coefficients[channel]);
      if constexpr (RESIDUAL) dz[i] = kept;
    }
    return;
  }
  Pack<T> gradient = load_pack(dy + first), value = load_pack(x + first);
  const unsigned bits = bits_of_pack<T>(mask, pack);
  if constexpr (Short) {
    float4 of[SIZE];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j, --left) {
      channel = left == 0 ? next(channel) : channel;
      left = left == 0 ? inner.size : left;
      of[j] = coefficients[channel];
    }
    apply_pack(gradient, value, bits, [&](unsigned j) { return of[j]; });
  } else {
    const float4 a = coefficients[channel], b = coefficients[next(channel)];
    apply_pack(gradient, value, bits, [&](unsigned j) {
      return make_float4(j < left ? a.x : b.x, j < left ? a.y : b.y, j < left ? a.z : b.z, 0.0f);
    });
  }
  if constexpr (RESIDUAL) store_pack<true>(dz + first, gradient);
  store_pack<true>(dx + first, value);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_apply_rows(const T* __restrict__ dy, const T* __restrict__ x,
                                const unsigned char* __restrict__ mask, const float4* __restrict__ coefficients,
                                T* __restrict__ dx, T* __restrict__ dz, Index n, unsigned aligned, Index inner,
                                Index inner_multiplier, unsigned inner_shift, Index channels,
                                Index channels_multiplier, unsigned channels_shift) {
  apply_rows<false>(dy, x, mask, coefficients, dx, dz, n, aligned, {inner, inner_multiplier, inner_shift},
                    {channels, channels_multiplier, channels_shift});
}
extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_apply_short(const T* __restrict__ dy, const T* __restrict__ x,
                                 const unsigned char* __restrict__ mask, const float4* __restrict__ coefficients,
                                 T* __restrict__ dx, T* __restrict__ dz, Index n, unsigned aligned, Index inner,
                                 Index inner_multiplier, unsigned inner_shift, Index channels,
                                 Index channels_multiplier, unsigned channels_shift) {
  apply_rows<true>(dy, x, mask, coefficients, dx, dz, n, aligned, {inner, inner_multiplier, inner_shift},
                   {channels, channels_multiplier, channels_shift});
}

// Channels are last, in whole packs, and tensors are aligned. Coefficients are packed, too: quad q of a pack has k1, k2
// or k3 of four of its channels, and the quads q of all packs lie together, so that neighbouring lanes read neighbours.
constexpr unsigned QUADS = SIZE / 4;

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_add_relu_grad_apply_columns(const T* __restrict__ dy, const T* __restrict__ x,
                                   const unsigned char* __restrict__ mask, const float4* __restrict__ coefficients,
                                   T* __restrict__ dx, T* __restrict__ dz, Index packs, Index across,
                                   Index across_multiplier, unsigned across_shift) {
  const Index pack = pack_from_the_end();
  if (pack >= packs) return;
  Pack<T> gradient = load_pack(dy + pack * SIZE), value = load_pack(x + pack * SIZE);
  const unsigned bits = bits_of_pack<T>(mask, pack);
  const float4* own = coefficients + Divisor<Index>{across, across_multiplier, across_shift}.remainder(pack);
  float k[3][SIZE];
#pragma unroll
  for (unsigned q = 0; q < 3 * QUADS; ++q) {
    const float4 quad = own[q * across];
    float* to = k[q / QUADS] + q % QUADS * 4;
    to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
  }
  apply_pack(gradient, value, bits, [&](unsigned j) { return make_float4(k[0][j], k[1][j], k[2][j], 0.0f); });
  if constexpr (RESIDUAL) store_pack<true>(dz + pack * SIZE, gradient);
  store_pack<true>(dx + pack * SIZE, value);
}

// ---- The kernel between the sums and dx, in every variant. A block adds the `count` partial sums of a channel, and
//      writes dgamma, dbeta and the coefficients. m: elements of a channel. packed: the order that apply_columns wants.
constexpr unsigned TOTAL_BLOCK = 512;

extern "C" __global__ void __launch_bounds__(TOTAL_BLOCK)
    bn_add_relu_grad_total(const Sums* __restrict__ partial, const float* __restrict__ gamma,
                           const float* __restrict__ mean, const float* __restrict__ invstd,
                           float* __restrict__ dgamma, float* __restrict__ dbeta, float* __restrict__ coefficients,
                           long long m, unsigned channels, unsigned count, unsigned packed) {
  const unsigned c = blockIdx.x;
  const Sums* own = partial + static_cast<unsigned long long>(c) * count;
  Sums sum{};
#pragma unroll 8
  for (unsigned slot = threadIdx.x; slot < count; slot += TOTAL_BLOCK) sum.add(own[slot]);
  sum = sum_of_block<TOTAL_BLOCK>(sum);
  if (threadIdx.x > 0) return;
  const float scale = invstd[c], share = 1.0f / static_cast<float>(m);
  const float of_gamma = sum.product * scale, k1 = gamma[c] * scale, k2 = -k1 * scale * (of_gamma * share);
  dgamma[c] = of_gamma;
  dbeta[c] = sum.dz;
  const float k[3] = {k1, k2, -k1 * (sum.dz * share) - k2 * mean[c]};
#pragma unroll
  for (unsigned i = 0; i < 3; ++i) {
    const unsigned quad = (i * QUADS + c % SIZE / 4) * (channels / SIZE) + c / SIZE;
    coefficients[packed ? quad * 4 + c % 4 : c * 4 + i] = k[i];
  }
}
