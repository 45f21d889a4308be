// The backward of y = relu(batch_norm(x) * gamma + beta + z) in training. With a channel's mean and invstd, xhat =
// (x - mean) * invstd, and m elements a channel:
//   dz = dy where y > 0, else 0        dbeta = sum of dz        dgamma = sum of dz * xhat
//   dx = gamma * invstd * (dz - dbeta / m - xhat * dgamma / m) = k1 * dz + k2 * x + k3
// Tensors are contiguous, (outer, channels, inner): inner is 1 where channels are last. A row is the `inner` elements
// of one channel at one outer place.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from about 2^31 elements on).
//
// dx needs both sums of its channel, so everything is read twice: a kernel for the sums, a small one that makes a
// channel's three coefficients of them, and a kernel that applies these. No kernel adds with atomics: partial sums have
// slots of their own, (channel, slot), and are added in a fixed order, so that a result repeats bit by bit. Of x its
// mean is taken before the product with dz, not after the sum, where little would be left of it.

#include "batch_norm.cuh"
#include "bitmask.cuh"
#include "fastdiv.cuh"
#include "number.cuh"
#include "pack.cuh"

using T = SCALAR;
using Index = INDEX;

constexpr unsigned BLOCK = 256;

// The two sums of a channel, or parts of them.
struct Sums {
  float dz, product;  // of dz, and of dz * (x - mean)

  __device__ __forceinline__ void add(const Sums& other) {
    dz += other.dz;
    product += other.product;
  }
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) {
      dz += __shfl_down_sync(ALL_LANES, dz, step, lanes);
      product += __shfl_down_sync(ALL_LANES, product, step, lanes);
    }
  }
};

// ---- 1. One element a thread and step; y says where dz is dy. Twice three tensors are read and two written.

struct Outputs {
  const T* __restrict__ y;
  __device__ __forceinline__ bool positive(Index i) const { return to_float(y[i]) > 0.0f; }
};

// A block for each slot of `across` neighbouring channels, a power of two: 1, or 32 where they are last, for a warp to
// read neighbours. Its other threads take other elements of the same channels.
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

// A channel's k1, k2 and k3; the last one is there for the alignment.
__device__ __forceinline__ T apply(float dz, float x, const float4& k) { return T(fmaf(k.x, dz, fmaf(k.y, x, k.z))); }

template <typename Source>
__device__ __forceinline__ void apply_elements(const T* __restrict__ dy, const T* __restrict__ x, Source source,
                                               const float4* __restrict__ coefficients, T* __restrict__ dx,
                                               T* __restrict__ dz, Index n, const Divisor<Index>& channels,
                                               const Divisor<Index>& inner) {
  const Index i = thread_index<Index>();
  if (i >= n) return;
  const T kept = source.positive(i) ? dy[i] : T(0.0f);
  dz[i] = kept;
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

// ---- 2. The same with the bits that the forward wrote in place of y, which is a 32nd of a float tensor, a 16th of a
//      half one: twice two tensors are read and two written. A warp's elements share a word or two, where they are
//      neighbours.

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

// ---- 3. The sums from packs of 16 bytes, for rows of any length. The tensor is cut into periods, each a whole number
//      of packs and of what lies between two outer places (channels * inner), so that what lies one period further is
//      of the same channel. A block takes a tile, `across` packs at the same place of several neighbouring periods,
//      which `along` threads share for each of the packs. A thread finds its channels' means once and keeps two sums
//      for each element of its pack; two packs of each tensor are under way at a time. Only then are the sums added by
//      channel, in shared memory. Blocks go through memory from its beginning to its end.

constexpr unsigned SIZE = Pack<T>::SIZE;
constexpr unsigned WORDS = PACK_BYTES / 4;  // registers of a pack
constexpr unsigned LANES = Lanes<T>::SIZE;  // elements of a register

// Register w of a pack without the elements whose bits are 0, whatever they were.
__device__ __forceinline__ unsigned kept_word(const unsigned (&words)[WORDS], unsigned bits, unsigned w) {
  if constexpr (LANES == 1) {
    return bits >> w & 1u ? words[w] : 0u;
  } else {
    return words[w] & kept_halves(bits, w);
  }
}
__device__ __forceinline__ const unsigned (&words_of(const Pack<T>& pack))[WORDS] {
  return reinterpret_cast<const unsigned(&)[WORDS]>(pack);
}
__device__ __forceinline__ unsigned (&words_of(Pack<T>& pack))[WORDS] {
  return reinterpret_cast<unsigned(&)[WORDS]>(pack);
}

struct Cut {
  unsigned period, across, along;  // elements; packs of a tile; threads that share a pack's place
  Divisor<unsigned> places;        // tiles of a period
  unsigned rounds, all_rounds;     // periods of a thread, and of the tensor
  Divisor<unsigned> inner, channels;

  __device__ __forceinline__ unsigned segment() const { return places.quotient(blockIdx.x); }
  __device__ __forceinline__ unsigned place() const { return places.remainder(blockIdx.x); }
  __device__ __forceinline__ unsigned tile() const { return across * SIZE; }
  __device__ __forceinline__ unsigned begin() const { return place() * tile(); }
  __device__ __forceinline__ unsigned end() const { return min(begin() + tile(), period); }
  __device__ __forceinline__ unsigned line() const { return along == 1 ? 0 : threadIdx.x / across; }
  __device__ __forceinline__ unsigned first() const { return begin() + (threadIdx.x - line() * across) * SIZE; }
  __device__ __forceinline__ bool works() const { return threadIdx.x < across * along && first() < period; }
  __device__ __forceinline__ unsigned next(unsigned channel) const {
    return channel + 1 == channels.size ? 0 : channel + 1;
  }
};

template <unsigned Count>
__device__ __forceinline__ void sum_packs(const T* __restrict__ dy, const T* __restrict__ x,
                                          const unsigned char* __restrict__ mask, long long pack, long long stride,
                                          const float (&mean)[SIZE], Sums (&sums)[SIZE]) {
  Pack<T> gradients[Count], values[Count];
  unsigned bits[Count];
#pragma unroll
  for (unsigned k = 0; k < Count; ++k, pack += stride) {
    gradients[k] = load_pack(dy + pack * SIZE);
    values[k] = load_pack(x + pack * SIZE);
    bits[k] = bits_of_pack<T>(mask, pack);
  }
#pragma unroll
  for (unsigned k = 0; k < Count; ++k) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      const Lanes<T> dz(kept_word(words_of(gradients[k]), bits[k], w)), value(words_of(values[k])[w]);
#pragma unroll
      for (unsigned l = 0; l < LANES; ++l) {
        const unsigned j = w * LANES + l;
        sums[j].dz += dz.at[l];
        sums[j].product = fmaf(dz.at[l], value.at[l] - mean[j], sums[j].product);
      }
    }
  }
}

// The sums of the thread's elements over its rounds.
__device__ __forceinline__ void sum_rounds(const T* __restrict__ dy, const T* __restrict__ x,
                                           const unsigned char* __restrict__ mask, long long n, bool aligned,
                                           const Cut& cut, const float (&mean)[SIZE], Sums (&sums)[SIZE]) {
  const unsigned along = cut.along, first = cut.first(), segment = cut.segment() * cut.rounds * along;
  const unsigned end = min(segment + cut.rounds * along, cut.all_rounds);
  // Only the tensor's last round can lack elements.
  const bool lacks = end == cut.all_rounds && static_cast<long long>(end - 1) * cut.period + first + SIZE > n;
  const unsigned whole = aligned ? end - lacks : 0;
  unsigned round = segment + cut.line();
  const long long stride = static_cast<long long>(along) * (cut.period / SIZE);
  long long pack = static_cast<long long>(round) * (cut.period / SIZE) + first / SIZE;
#pragma unroll 1
  for (; round + along < whole; round += 2 * along, pack += 2 * stride) {
    sum_packs<2>(dy, x, mask, pack, stride, mean, sums);
  }
  if (round < whole) {
    sum_packs<1>(dy, x, mask, pack, stride, mean, sums);
    round += along, pack += stride;
  }
#pragma unroll 1
  for (; round < end; round += along, pack += stride) {
    const unsigned count = filled<T>(n, pack * SIZE), bits = count ? bits_of_pack<T>(mask, pack) : 0;
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      if (j >= count || !(bits >> j & 1u)) continue;
      const float dz = to_float(dy[pack * SIZE + j]);
      sums[j].add({dz, dz * (to_float(x[pack * SIZE + j]) - mean[j])});
    }
  }
}

// 3a. Rows of a pack or more. A pack meets two rows at most, and two sums of it do: `own` for the row in which the pack
//     begins, `next` for the next one. `lanes` threads, a power of two, share a row, which has a slot for each of its
//     tiles.
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_add_relu_grad_sums_rows(const T* __restrict__ dy, const T* __restrict__ x,
                               const unsigned char* __restrict__ mask, const float* __restrict__ mean,
                               Sums* __restrict__ partial, long long n, unsigned aligned, unsigned lanes,
                               unsigned period, unsigned across, unsigned along, unsigned places,
                               unsigned places_multiplier, unsigned places_shift, unsigned rounds, unsigned all_rounds,
                               unsigned inner, unsigned inner_multiplier, unsigned inner_shift, unsigned channels,
                               unsigned channels_multiplier, unsigned channels_shift, unsigned slots, unsigned count) {
  const Cut cut{period,
                across,
                along,
                {places, places_multiplier, places_shift},
                rounds,
                all_rounds,
                {inner, inner_multiplier, inner_shift},
                {channels, channels_multiplier, channels_shift}};
  __shared__ Sums own[BLOCK], next[BLOCK];
  Sums in_own{}, in_next{};
  const unsigned first = cut.first();
  if (cut.works()) {
    const unsigned row = cut.inner.quotient(first), left = inner - (first - row * inner);
    const unsigned channel = cut.channels.remainder(row);
    const float own_mean = mean[channel], next_mean = mean[cut.next(channel)];
    float means[SIZE];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) means[j] = j < left ? own_mean : next_mean;
    Sums sums[SIZE] = {};
    sum_rounds(dy, x, mask, n, aligned, cut, means, sums);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      in_own.add(j < left ? sums[j] : Sums{});
      in_next.add(j < left ? Sums{} : sums[j]);
    }
  }
  own[threadIdx.x] = in_own;
  next[threadIdx.x] = in_next;
  __syncthreads();

  const unsigned tile_end = cut.end(), outers = period / inner / channels;  // of a period
  const auto store = [&](const RowPart& part, const Sums& sum) {
    const unsigned outer = cut.channels.quotient(part.row), channel = part.row - outer * channels;
    Sums* to = partial + static_cast<unsigned long long>(channel) * count + (cut.segment() * outers + outer) * slots;
    store_slot(to, cut.place() - part.begin / cut.tile(), slots, part.end <= tile_end, sum);
  };
  sum_rows<BLOCK, SIZE, Sums>(own, next, cut.begin(), tile_end, cut.inner, lanes, store);
}

// 3b. Rows shorter than a pack, so single elements where channels are last. A tile has whole rows, and each element's
//     sums go to shared memory, where `lanes` threads add those of a slot. If a period is one tile, they are all rows
//     of a channel; otherwise a tile is narrow, and they are the same row's from all threads along.
constexpr unsigned PADDED = BLOCK + 32 / SIZE;  // neighbouring elements are in different banks

extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_add_relu_grad_sums_columns(const T* __restrict__ dy, const T* __restrict__ x,
                                  const unsigned char* __restrict__ mask, const float* __restrict__ mean,
                                  Sums* __restrict__ partial, long long n, unsigned aligned, unsigned lanes,
                                  unsigned period, unsigned across, unsigned along, unsigned places,
                                  unsigned places_multiplier, unsigned places_shift, unsigned rounds,
                                  unsigned all_rounds, unsigned inner, unsigned inner_multiplier, unsigned inner_shift,
                                  unsigned channels, unsigned channels_multiplier, unsigned channels_shift,
                                  unsigned count) {
  const Cut cut{period,
                across,
                along,
                {places, places_multiplier, places_shift},
                rounds,
                all_rounds,
                {inner, inner_multiplier, inner_shift},
                {channels, channels_multiplier, channels_shift}};
  __shared__ float of_dz[SIZE * PADDED], of_product[SIZE * PADDED];
  const unsigned first = cut.first();
  if (cut.works()) {
    float means[SIZE];
    const unsigned row = cut.inner.quotient(first);
    unsigned left = inner - (first - row * inner), channel = cut.channels.remainder(row);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j, --left) {
      channel = left == 0 ? cut.next(channel) : channel;
      left = left == 0 ? inner : left;
      means[j] = mean[channel];
    }
    Sums sums[SIZE] = {};
    sum_rounds(dy, x, mask, n, aligned, cut, means, sums);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      of_dz[j * PADDED + threadIdx.x] = sums[j].dz;
      of_product[j * PADDED + threadIdx.x] = sums[j].product;
    }
  }
  __syncthreads();

  const unsigned lane = threadIdx.x % lanes, first_row = cut.inner.quotient(cut.begin());
  const unsigned rows = cut.inner.quotient(cut.tile()), step = places == 1 ? channels : rows;
  const unsigned ends = places == 1 ? channels : cut.inner.quotient(cut.end()) - first_row;
  const unsigned outers = places == 1 ? 1 : period / inner / channels;  // with slots of their own
  for (unsigned turn = 0; turn < ends; turn += BLOCK / lanes) {
    const unsigned r = turn + threadIdx.x / lanes;
    Sums sum{};
    if (r < ends) {
      for (unsigned row = r + lane * step; row < rows * along; row += lanes * step) {
        for (unsigned e = row * inner; e < row * inner + inner; ++e) {
          const unsigned at = e % SIZE * PADDED + e / SIZE;
          sum.add({of_dz[at], of_product[at]});
        }
      }
    }
    sum.add_lanes(lanes);
    if (r < ends && lane == 0) {
      const unsigned outer = cut.channels.quotient(first_row + r), channel = first_row + r - outer * channels;
      partial[static_cast<unsigned long long>(channel) * count + cut.segment() * outers + outer] = sum;
    }
  }
}

// ---- 4. dx and dz from packs: one of dy and one of x a thread, both under way before one is used. Blocks go through
//      memory from its end to its beginning, for what the sums' kernel has read last may still be in the L2; what is
//      written is marked as the first to be given up, so that it doesn't push that out.

__device__ __forceinline__ Index pack_from_the_end() {
  return static_cast<Index>(gridDim.x - 1 - blockIdx.x) * BLOCK + threadIdx.x;
}

// dz of register w in place of its dy, dx in place of its x; coefficients(j) are those of element j of the pack.
template <typename Coefficients>
__device__ __forceinline__ void apply_pack(Pack<T>& gradient, Pack<T>& value, unsigned bits,
                                           Coefficients coefficients) {
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    const unsigned kept = kept_word(words_of(gradient), bits, w);
    const Lanes<T> dz(kept), x(words_of(value)[w]);
    Lanes<T> dx;
#pragma unroll
    for (unsigned l = 0; l < LANES; ++l) {
      const float4 k = coefficients(w * LANES + l);
      dx.at[l] = fmaf(k.x, dz.at[l], fmaf(k.y, x.at[l], k.z));
    }
    words_of(gradient)[w] = kept;
    words_of(value)[w] = dx.word();
  }
}

// Short: a pack may meet more than two rows.
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
      dz[i] = kept;
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
  store_pack<true>(dz + first, gradient);
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

// Channels last, in whole packs, and tensors aligned: coefficients are packed too. Quad q of a pack has the first,
// second or third coefficients of four of its channels; quads q of all packs lie together, so that neighbouring lanes
// read neighbours.
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
  store_pack<true>(dz + pack * SIZE, gradient);
  store_pack<true>(dx + pack * SIZE, value);
}

// ---- The step between: a block adds the `count` partial sums of a channel and writes d gamma, d beta and the
//      coefficients of a channel of m elements. packed: in the order of kernel 4 for channels last.
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
