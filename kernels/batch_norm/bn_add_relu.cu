// Batch norm in training, a residual and ReLU: y = relu((x - mean[c]) * invstd[c] * gamma[c] + beta[c] + z), with a bit
// for each y > 0. mean and invstd are of the channel's elements; running_mean and running_var follow them.
//
// Tensors are contiguous, (outer, channels, inner); inner is 1 where channels are last. A row is the `inner` elements
// of one channel at one outer place. A sample is the rows of all channels at one outer place. A pack is 16 bytes.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from about 2^31 elements on);
// RESIDUAL (1; 0: there is no z, and step 5 reads none).
//
// y needs its channel's statistics, so every variant reads x twice: in a kernel that makes sums, and in a kernel that
// makes y. A small kernel between them turns the sums of a channel into its scale and its shift. Only small layers, whose
// x a multiprocessor can keep, are made by one kernel in `tuned` (bn_add_relu_whole.cu). No kernel adds with atomics:
// partial sums have slots of their own, (channel, slot), and are added in a fixed order, so that a result repeats bit by
// bit.
//
// The sums are of x - shift and of its square, in float. The shift lies among the values, so that little is lost when
// the mean's square is subtracted, however far the mean is from zero. Without a shift, a mean of 100 standard
// deviations would cost 13 of a float's 24 bits, and so would a shift that is an outlier, 100 deviations from the mean.
// So each partial sum takes the median of three of the values that it reads first. At most one value of 144 is more
// than 12 deviations from the mean (Chebyshev's inequality); two of the three must be, for invstd to be off by about
// 1e-5. This holds but for the parts of one or two elements that a tile may have of a row (bn_statistics_rows): there
// at least two of the three are the same value, so one outlier is enough. It is the shift of that part alone.
//
// What each step gained on an NVIDIA H200 (reports/h200/bn), float32 N334-C512-H28-W28 layout=nchw.
// At least 1.609 GB are read and 553.0 MB written. The ceiling is 473.1 us, by memory.
//   eager: PyTorch
//       1.132 ms   41.8% of ceiling
//   unfused: statistics; then normalise, add, ReLU with its bits: a kernel each
//       1.539 ms   30.7% of ceiling  moves 4.307 GB  0.74x the speed of eager
//   fused_apply: statistics; then one kernel that normalises, adds, clamps and writes bits
//       746.2 us   63.4% of ceiling  moves 2.162 GB  2.06x the speed of unfused
//   tuned: 16-byte packs; y from the end of the memory on, while x is still in the L2; small layers in one kernel
//       508.2 us   93.1% of ceiling  moves 2.162 GB  1.47x the speed of fused_apply

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef INDEX
#define INDEX unsigned
#endif

#include "batch_norm.cuh"
#include "bn_add_relu_parts.cuh"
#include "../include/bitmask.cuh"
#include "../include/fastdiv.cuh"

using Index = INDEX;

constexpr unsigned BLOCK = 256;

// A partial sum: of `count` elements of one channel, the sums of x - shift and of its square.
struct alignas(16) Partial {
  float count, shift, sum, squares;
};

// ---- 1. The statistics, one element a thread and step.

// A block makes one slot of `across` neighbouring channels, a power of two: 1, or 32 where channels are last, so that a
// warp reads neighbours. The block's other threads take other elements of the same channels.
extern "C" __global__ void __launch_bounds__(BLOCK, 8)
    bn_statistics(const T* __restrict__ x, Partial* __restrict__ partial, Index samples, unsigned channels,
                  unsigned across, unsigned slots, unsigned groups, unsigned groups_multiplier, unsigned groups_shift,
                  Index inner, Index inner_multiplier, unsigned inner_shift) {
  __shared__ Sums sums[BLOCK];
  const Divisor<unsigned> of_groups{groups, groups_multiplier, groups_shift};
  const Divisor<Index> rows{inner, inner_multiplier, inner_shift};
  const unsigned slot = of_groups.quotient(blockIdx.x), along = BLOCK / across;
  const unsigned channel = of_groups.remainder(blockIdx.x) * across + threadIdx.x % across;
  const Index first = static_cast<Index>(slot) * along, stride = static_cast<Index>(slots) * along;
  const auto element = [&](Index k) {  // number k of the channel
    const Index outer = rows.quotient(k);
    return to_float(x[(outer * channels + channel) * inner + (k - outer * inner)]);
  };
  Sums sum{};
  float shift = 0.0f;
  if (channel < channels) {
    // If a channel has fewer elements, its last element stands for the missing ones.
    const auto other = [&](unsigned k) { return element(min(first + k, samples - 1)); };
    shift = median(element(first), other(along / 2), other(along - 1));
    for (Index k = first + threadIdx.x / across; k < samples; k += stride) sum.add_value(element(k), shift);
  }
  add_across(sums, sum, across);
  if (threadIdx.x < across && channel < channels) {
    // The slot's elements: its part of all whole strides, and its part of the last stride.
    const Index whole = samples / stride, left = samples - whole * stride;
    const Index count = whole * along + (left > first ? min(left - first, static_cast<Index>(along)) : 0);
    partial[static_cast<unsigned long long>(channel) * slots + slot] = {static_cast<float>(count), shift,
                                                                        sums[threadIdx.x].sum,
                                                                        sums[threadIdx.x].squares};
  }
}

// The sums over all elements of a channel, in double: of x - shift and of its square.
struct Moments {
  double sum, squares;

  __device__ __forceinline__ void add(const Moments& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) {
      sum += __shfl_down_sync(ALL_LANES, sum, step, lanes);
      squares += __shfl_down_sync(ALL_LANES, squares, step, lanes);
    }
  }
};

// The kernel between the sums and y, in every variant. It adds the slots of a channel, about one shift and in double,
// and writes the statistics, and the scale and the shift that normalise the channel's elements. threads: of a channel,
// WARP or, where a channel has many slots, BLOCK. packed: scales and shifts in the order of `Columns`.
extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_finish(const Partial* __restrict__ partial, const float* __restrict__ gamma, const float* __restrict__ beta,
              float* __restrict__ running_mean, float* __restrict__ running_var, float* __restrict__ mean_out,
              float* __restrict__ invstd_out, float2* __restrict__ scale_shift, long long samples, long long slots,
              unsigned channels, unsigned threads, unsigned packed) {
  const unsigned channel = blockIdx.x * (BLOCK / threads) + threadIdx.x / threads, rank = threadIdx.x % threads;
  // All lanes of a warp have the same channel.
  if (channel >= channels) return;
  const Partial* row = partial + channel * slots;
  const double shift = row[0].shift;
  Moments moments{};
#pragma unroll 4
  for (long long slot = rank; slot < slots; slot += threads) {
    const Partial part = row[slot];
    // A slot without elements has no shift.
    const double count = part.count, further = count > 0.0 ? part.shift - shift : 0.0;
    moments.add({part.sum + count * further, part.squares + further * (2.0 * part.sum + count * further)});
  }
  if (threads == BLOCK) {
    moments = sum_of_block<BLOCK>(moments);
  } else {
    moments.add_lanes(WARP);
  }
  if (rank == 0) {
    const double count = static_cast<double>(samples), distance = moments.sum / count, mean = shift + distance;
    // Rounding may make a small variance negative; a NaN stays.
    const double difference = moments.squares / count - distance * distance;
    const double variance = difference < 0.0 ? 0.0 : difference;
    const double unbiased = samples > 1 ? variance * (count / (count - 1.0)) : variance;
    const double invstd = 1.0 / sqrt(variance + EPSILON), scale = gamma[channel] * invstd;
    mean_out[channel] = static_cast<float>(mean);
    invstd_out[channel] = static_cast<float>(invstd);
    running_mean[channel] = static_cast<float>((1.0 - MOMENTUM) * running_mean[channel] + MOMENTUM * mean);
    running_var[channel] = static_cast<float>((1.0 - MOMENTUM) * running_var[channel] + MOMENTUM * unbiased);
    // Packed: a pack's channels are in pairs. First come the first pairs of all packs, then the second ones, and so on.
    const unsigned pair = channel % SIZE / 2 * (channels / SIZE) + channel / SIZE;
    scale_shift[packed ? 2 * pair + channel % 2 : channel] =
        make_float2(static_cast<float>(scale), static_cast<float>(beta[channel] - mean * scale));
  }
}

// ---- 2. Kernels of one step each, as eager has them. They hand y from one to the next: with the statistics, eight
//         tensors are read or written.

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_normalise(const T* __restrict__ x, const float2* __restrict__ scale_shift, T* __restrict__ y, Index n,
                 Index channels, Index channels_multiplier, unsigned channels_shift, Index inner,
                 Index inner_multiplier, unsigned inner_shift) {
  const Divisor<Index> of_channels{channels, channels_multiplier, channels_shift};
  const Divisor<Index> rows{inner, inner_multiplier, inner_shift};
  const Index i = thread_index<Index>();
  if (i >= n) return;
  const float2 with = scale_shift[of_channels.remainder(rows.quotient(i))];
  y[i] = T(fmaf(to_float(x[i]), with.x, with.y));
}

extern "C" __global__ void __launch_bounds__(BLOCK) bn_add(const T* __restrict__ z, T* __restrict__ y, Index n) {
  const Index i = thread_index<Index>();
  if (i < n) y[i] = T(to_float(y[i]) + to_float(z[i]));
}

// Stores relu(value) and the warp's word of bits; lanes past the end take part in the ballot.
__device__ __forceinline__ void store_relu(T value, T* __restrict__ y, unsigned* __restrict__ mask, Index i, Index n) {
  if (i < n) y[i] = relu(value);
  const unsigned word = __ballot_sync(ALL_LANES, positive(value));
  if (i % WARP == 0 && i < n) mask[i / WARP] = word;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_relu(T* __restrict__ y, unsigned* __restrict__ mask, Index n) {
  const Index i = thread_index<Index>();
  store_relu(i < n ? y[i] : T(0.0f), y, mask, i, n);
}

// ---- 3. The three steps in one kernel, which reads x and z and writes y, once each. With the statistics, four tensors
//         are read or written.

extern "C" __global__ void __launch_bounds__(BLOCK)
    bn_apply(const T* __restrict__ x, const T* __restrict__ z, const float2* __restrict__ scale_shift,
             T* __restrict__ y, unsigned* __restrict__ mask, Index n, Index channels, Index channels_multiplier,
             unsigned channels_shift, Index inner, Index inner_multiplier, unsigned inner_shift) {
  const Divisor<Index> of_channels{channels, channels_multiplier, channels_shift};
  const Divisor<Index> rows{inner, inner_multiplier, inner_shift};
  const Index i = thread_index<Index>();
  T value(0.0f);
  if (i < n) {
    const float2 with = scale_shift[of_channels.remainder(rows.quotient(i))];
    value = T(fmaf(to_float(x[i]), with.x, with.y) + to_float(z[i]));
  }
  store_relu(value, y, mask, i, n);
}

// ---- 4. The statistics in packs, with a quarter or an eighth of the accesses. The header has three kernels: for long
//         rows, for rows of a pack or more, and for shorter rows.
#include "bn_add_relu_statistics.cuh"

// ---- 5. y in packs too, one of each tensor a thread. The blocks go from the end of the memory to its beginning, since
//         the part of x that the statistics read last may still be in the L2. z and y are marked as the first to be
//         evicted, so that they don't evict this part of x. Four kernels differ in how a pack finds the scales and the
//         shifts of its elements: at(j): the scale and the shift for element j.

struct OneRow {  // inner is a multiple of the pack, so that a pack lies in one row
  float2 own;
  __device__ __forceinline__ OneRow(const float2* __restrict__ scale_shift, Index first, const Divisor<Index>& channels,
                                    const Divisor<Index>& inner)
      : own(scale_shift[channels.remainder(inner.quotient(first))]) {}
  __device__ __forceinline__ float2 at(unsigned) const { return own; }
};

struct TwoRows {  // inner is a pack or more, so that a pack meets two rows at most
  float2 own, next;
  Index left;
  __device__ __forceinline__ TwoRows(const float2* __restrict__ scale_shift, Index first,
                                     const Divisor<Index>& channels, const Divisor<Index>& inner) {
    const Index row = inner.quotient(first), channel = channels.remainder(row);
    left = (row + 1) * inner.size - first;
    own = scale_shift[channel];
    next = scale_shift[channel + 1 == channels.size ? 0 : channel + 1];
  }
  __device__ __forceinline__ float2 at(unsigned j) const { return j < left ? own : next; }
};

struct Columns {  // inner is 1 and the channels are a multiple of the pack
  float4 pairs[SIZE / 2];
  // In the packed order of bn_finish, neighbouring lanes read neighbouring 16 bytes. In the order of the channels they
  // would read 64 bytes apart, and each of these loads would cost as much as four of x.
  __device__ __forceinline__ Columns(const float2* __restrict__ scale_shift, Index first,
                                     const Divisor<Index>& channels, const Divisor<Index>&) {
    const float4* from = reinterpret_cast<const float4*>(scale_shift) + channels.remainder(first) / SIZE;
    const Index packs = channels.size / SIZE;
#pragma unroll
    for (unsigned k = 0; k < SIZE / 2; ++k) pairs[k] = from[k * packs];
  }
  __device__ __forceinline__ float2 at(unsigned j) const {
    const float4& pair = pairs[j / 2];
    return j % 2 ? make_float2(pair.z, pair.w) : make_float2(pair.x, pair.y);
  }
};

struct AnyRows {  // a pack may meet many rows
  float2 own[SIZE];
  __device__ __forceinline__ AnyRows(const float2* __restrict__ scale_shift, Index first,
                                     const Divisor<Index>& channels, const Divisor<Index>& inner) {
    const Index row = inner.quotient(first);
    Index channel = channels.remainder(row), left = (row + 1) * inner.size - first;
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      own[j] = scale_shift[channel];
      const bool ends = --left == 0;
      channel = ends ? channel + 1 == channels.size ? 0 : channel + 1 : channel;
      left = ends ? inner.size : left;
    }
  }
  __device__ __forceinline__ float2 at(unsigned j) const { return own[j]; }
};

template <typename Rows>
__device__ __forceinline__ void apply(const T* __restrict__ x, const T* __restrict__ z,
                                      const float2* __restrict__ scale_shift, T* __restrict__ y,
                                      unsigned char* __restrict__ mask, long long n, long long mask_bytes, bool aligned,
                                      const Divisor<Index>& channels, const Divisor<Index>& inner) {
  const Index pack = static_cast<Index>(gridDim.x - 1 - blockIdx.x) * BLOCK + threadIdx.x, first = pack * SIZE;
  unsigned bits;
  if (aligned && static_cast<long long>(first) + SIZE <= n) {
    Pack<T> values = load_pack(x + first);
    Pack<T> residual{};
    if constexpr (RESIDUAL) residual = load_pack<true>(z + first);
    const Rows rows(scale_shift, first, channels, inner);
    bits = apply_pack(values, residual, rows);
    store_pack<true>(y + first, values);
  } else {
    const unsigned count = filled<T>(n, first);
    Pack<T> values = load_filled(x + first, count, false);
    Pack<T> residual{};
    if constexpr (RESIDUAL) residual = load_filled(z + first, count, false);
    const Rows rows(scale_shift, first, channels, inner);
    bits = apply_pack(values, residual, rows) & ((1u << count) - 1);
    store_filled(y + first, values, count, false);
  }
  store_bits_of_pack<T>(mask, pack, bits, mask_bytes);
}

// aligned: x, z and y begin on 16 bytes; otherwise, and in the last pack, elements move one by one. RESIDENT: blocks
// that a multiprocessor is to hold at least. Eight leave a thread too few registers for 64-bit indices, and for all
// scales and shifts of a pack of `Columns`, whose loads would then wait for each other.
#define APPLY(NAME, ROWS, RESIDENT)                                                                                  \
  extern "C" __global__ void __launch_bounds__(BLOCK, sizeof(Index) > 4 ? 5 : RESIDENT)                              \
      NAME(const T* __restrict__ x, const T* __restrict__ z, const float2* __restrict__ scale_shift,                 \
           T* __restrict__ y, unsigned char* __restrict__ mask, long long n, long long mask_bytes, unsigned aligned, \
           Index channels, Index channels_multiplier, unsigned channels_shift, Index inner, Index inner_multiplier,  \
           unsigned inner_shift) {                                                                                   \
    apply<ROWS>(x, z, scale_shift, y, mask, n, mask_bytes, aligned, {channels, channels_multiplier, channels_shift}, \
                {inner, inner_multiplier, inner_shift});                                                             \
  }
APPLY(bn_apply_one_row, OneRow, 8)
APPLY(bn_apply_two_rows, TwoRows, 8)
APPLY(bn_apply_columns, Columns, 6)
APPLY(bn_apply_any_rows, AnyRows, 8)
