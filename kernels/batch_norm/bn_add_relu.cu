// Batch norm in training, a residual and ReLU: y = relu((x - mean[c]) * invstd[c] * gamma[c] + beta[c] + z), with a bit
// for each y > 0. mean and invstd are those of the channel's elements; running_mean and running_var follow them.
// Tensors are contiguous, (outer, channels, inner): inner is 1 where channels are last. A row is the `inner` elements
// of one channel at one outer place, a sample the rows of all channels.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX (unsigned, or unsigned long long from about 2^31 elements on).
//
// y needs its channel's statistics, so x is read twice whatever one does: by a kernel that adds, and by one that
// applies. A small one between them makes of the sums what a channel needs. None adds with atomics: partial sums have
// slots of their own, (channel, slot), and are added in a fixed order, so that a result repeats bit by bit.
//
// The sums are those of x - shift and of its square, in float. With a shift that lies among the values little is lost
// when the mean's square is subtracted, however far the mean is from zero; without one, a mean of 100 standard
// deviations would cost 13 of a float's 24 bits. Each partial sum has the shift that it found first.

#include "batch_norm.cuh"
#include "bitmask.cuh"
#include "fastdiv.cuh"
#include "number.cuh"
#include "pack.cuh"
#include "relu.cuh"

using T = SCALAR;
using Index = INDEX;

constexpr unsigned BLOCK = 256;
constexpr unsigned SIZE = Pack<T>::SIZE;
constexpr unsigned WORDS = PACK_BYTES / 4;  // registers of a pack
constexpr unsigned LANES = Lanes<T>::SIZE;  // elements of a register

// Of elements of one channel: how many, and the sums of x - shift and its square.
struct alignas(16) Partial {
  float count, shift, sum, squares;
};

struct Sums {
  float sum, squares;

  __device__ __forceinline__ void add(const Sums& other) {
    sum += other.sum;
    squares += other.squares;
  }
  __device__ __forceinline__ void add_value(float value, float shift) {
    const float distance = value - shift;
    sum += distance;
    squares = fmaf(distance, distance, squares);
  }
  // Of `lanes` neighbouring lanes, a power of two, in the first one.
  __device__ __forceinline__ void add_lanes(unsigned lanes) {
    for (unsigned step = lanes / 2; step; step /= 2) {
      sum += __shfl_down_sync(ALL_LANES, sum, step, lanes);
      squares += __shfl_down_sync(ALL_LANES, squares, step, lanes);
    }
  }
};

// ---- 1. The statistics, one element a thread and step.

// A block for each slot of `across` neighbouring channels, a power of two: 1, or 32 where channels are last, for a warp
// to read neighbours. Its other threads take other elements of the same channels.
extern "C" __global__ void __launch_bounds__(BLOCK)
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
    shift = element(first);
    for (Index k = first + threadIdx.x / across; k < samples; k += stride) sum.add_value(element(k), shift);
  }
  add_across(sums, sum, across);
  if (threadIdx.x < across && channel < channels) {
    // Whole strides, and what the last one has for this slot.
    const Index whole = samples / stride, left = samples - whole * stride;
    const Index count = whole * along + (left > first ? min(left - first, static_cast<Index>(along)) : 0);
    partial[static_cast<unsigned long long>(channel) * slots + slot] = {static_cast<float>(count), shift,
                                                                        sums[threadIdx.x].sum,
                                                                        sums[threadIdx.x].squares};
  }
}

// Of all elements of a channel: the sums of x - shift and of its square, in double.
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
constexpr double EPSILON = 1e-5, MOMENTUM = 0.1;

// What all ways share: the slots of a channel are added, about one shift and in double, by a warp, or by a block where
// there are many. It writes the outputs, and the factor and the term by which the channel's elements become normal.
// threads: of a channel, WARP or BLOCK; packed: factors and terms in the order of `Columns`.
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
    // Rounding may leave a little less than nothing; a NaN stays.
    const double difference = moments.squares / count - distance * distance;
    const double variance = difference < 0.0 ? 0.0 : difference;
    const double unbiased = samples > 1 ? variance * (count / (count - 1.0)) : variance;
    const double invstd = 1.0 / sqrt(variance + EPSILON), scale = gamma[channel] * invstd;
    mean_out[channel] = static_cast<float>(mean);
    invstd_out[channel] = static_cast<float>(invstd);
    running_mean[channel] = static_cast<float>((1.0 - MOMENTUM) * running_mean[channel] + MOMENTUM * mean);
    running_var[channel] = static_cast<float>((1.0 - MOMENTUM) * running_var[channel] + MOMENTUM * unbiased);
    // Of two channels side by side in a pack, all packs' first pairs come first, then all second ones.
    const unsigned pair = channel % SIZE / 2 * (channels / SIZE) + channel / SIZE;
    scale_shift[packed ? 2 * pair + channel % 2 : channel] =
        make_float2(static_cast<float>(scale), static_cast<float>(beta[channel] - mean * scale));
  }
}

// ---- 2. Kernels of one step each, as eager has them. y is the tensor between them: eight tensors move in all.

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

// ---- 3. The three steps in one kernel: after the statistics x and z are read and y is written, once each.

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

// ---- 4. The statistics in packs of 16 bytes, in three ways. Whatever the rows, a thread keeps a sum for each element
//         of its pack and finds its channels once, so that a pack costs its load and three or four instructions an
//         element.

// Sums of the elements at one place of each pack.
struct PackSums {
  Sums at[SIZE];

  __device__ __forceinline__ PackSums() : at{} {}
  __device__ __forceinline__ void add(const Pack<T>& pack, const float (&shift)[SIZE]) {
    const unsigned(&words)[WORDS] = reinterpret_cast<const unsigned(&)[WORDS]>(pack);
#pragma unroll
    for (unsigned w = 0; w < WORDS; ++w) {
      const Lanes<T> values(words[w]);
#pragma unroll
      for (unsigned l = 0; l < LANES; ++l) at[w * LANES + l].add_value(values.at[l], shift[w * LANES + l]);
    }
  }
  // Packs at `from`, `from + stride` and so on; several are loaded before the first is used.
  __device__ __forceinline__ void add_packs(const T* __restrict__ from, long long stride, unsigned count,
                                            const float (&shift)[SIZE]) {
    constexpr unsigned IN_FLIGHT = 4;
#pragma unroll 1
    for (; count >= IN_FLIGHT; count -= IN_FLIGHT) {
      Pack<T> packs[IN_FLIGHT];
#pragma unroll
      for (unsigned k = 0; k < IN_FLIGHT; ++k, from += stride) packs[k] = load_pack(from);
#pragma unroll
      for (unsigned k = 0; k < IN_FLIGHT; ++k) add(packs[k], shift);
    }
#pragma unroll 1
    for (; count > 0; --count, from += stride) add(load_pack(from), shift);
  }
};

// 4a. Long rows: a block for each piece of a row, wherever it begins. pieces: of a row, all but the last of `piece`
//     elements.
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_statistics_pieces(const T* __restrict__ x, Partial* __restrict__ partial, long long inner, unsigned channels,
                         unsigned pieces, unsigned piece, long long slots) {
  const unsigned row = blockIdx.x / pieces, number = blockIdx.x - row * pieces;
  const long long begin = static_cast<long long>(number) * piece;
  const unsigned length = static_cast<unsigned>(min(inner - begin, static_cast<long long>(piece)));
  const T* from = x + row * inner + begin;
  const unsigned misaligned = static_cast<unsigned>(reinterpret_cast<unsigned long long>(from) % PACK_BYTES);
  const unsigned head = min(length, (PACK_BYTES - misaligned) % PACK_BYTES / static_cast<unsigned>(sizeof(T)));
  const unsigned packs = (length - head) / SIZE, tail = length - head - packs * SIZE;

  const float shift = to_float(*from);
  float shifts[SIZE];
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) shifts[j] = shift;
  PackSums sums;
  const unsigned count = packs > threadIdx.x ? (packs - threadIdx.x + BLOCK - 1) / BLOCK : 0;
  sums.add_packs(from + head + threadIdx.x * SIZE, BLOCK * SIZE, count, shifts);
  if (threadIdx.x < head) sums.at[0].add_value(to_float(from[threadIdx.x]), shift);
  if (threadIdx.x < tail) sums.at[0].add_value(to_float(from[length - tail + threadIdx.x]), shift);

  Sums sum = sums.at[0];
#pragma unroll
  for (unsigned j = 1; j < SIZE; ++j) sum.add(sums.at[j]);
  sum = sum_of_block<BLOCK>(sum);
  if (threadIdx.x == 0) {
    const unsigned outer = row / channels, channel = row - outer * channels;
    partial[channel * slots + static_cast<long long>(outer) * pieces + number] = {static_cast<float>(length), shift,
                                                                                  sum.sum, sum.squares};
  }
}

// For shorter rows the tensor is cut into `rounds` equal periods, each a whole number of samples and of packs, so that
// what lies one period further is of the same channel. Only the last period may lack samples. A block takes a tile at
// the same place of several periods, which are neighbours, so that all blocks together go through the memory from its
// beginning to its end.
struct Rounds {
  const T* x;
  long long n;      // elements
  unsigned period;  // elements, below 2^31
  unsigned begin, end;

  __device__ __forceinline__ long long element(unsigned round, unsigned place) const {
    return static_cast<long long>(round) * period + place;
  }
  // How many rounds have an element at this place.
  __device__ __forceinline__ unsigned with(unsigned place) const {
    return end - begin - (element(end - 1, place) >= n);
  }
  // The value at a place in the first round, if there is one.
  __device__ __forceinline__ float first_value(unsigned place) const {
    const long long i = element(begin, place);
    return i < n ? to_float(x[i]) : 0.0f;
  }
  // Adds the pack at `place` of every step-th round from `round` on. aligned: x begins on 16 bytes; otherwise, and in
  // the last pack of the tensor, elements are read one by one.
  __device__ __forceinline__ void add(PackSums& sums, unsigned place, unsigned round, unsigned step, bool aligned,
                                      const float (&shift)[SIZE]) const {
    if (place >= period || round >= end) return;
    const unsigned count = (end - round + step - 1) / step, last = round + (count - 1) * step;
    const unsigned whole = aligned ? count - (element(last, place) + SIZE > n) : 0;
    sums.add_packs(x + element(round, place), element(step, 0), whole, shift);
#pragma unroll 1
    for (unsigned k = whole; k < count; ++k) {
      const long long first = element(round + k * step, place);
      const unsigned exist = filled<T>(n, first);
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) {
        if (j < exist) sums.at[j].add_value(to_float(x[first + j]), shift[j]);
      }
    }
  }
};

// 4b. Rows of a pack or more, which may begin anywhere: a tile is BLOCK packs. A pack meets two rows at most; in the
//     end its sums become two, of the row in which it begins and of the next one, and `lanes` threads, a power of two,
//     add those of a row. A row's shift is its first element in the tile. slots: of a channel; slots_a_row: the most
//     tiles that a row lies in; samples: of a period.
constexpr unsigned TILE = BLOCK * SIZE;
struct Segment : Sums {
  float shift;
};
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_statistics_rows(const T* __restrict__ x, Partial* __restrict__ partial, long long n, unsigned period,
                       unsigned rounds, unsigned rounds_a_block, unsigned aligned, unsigned samples, unsigned slots,
                       unsigned slots_a_row, unsigned lanes, unsigned channels, unsigned channels_multiplier,
                       unsigned channels_shift, unsigned inner, unsigned inner_multiplier, unsigned inner_shift) {
  __shared__ Segment own[BLOCK], next[BLOCK];
  const Divisor<unsigned> of_channels{channels, channels_multiplier, channels_shift};
  const Divisor<unsigned> rows{inner, inner_multiplier, inner_shift};
  const unsigned begin = blockIdx.y * rounds_a_block;
  const Rounds mine{x, n, period, begin, min(begin + rounds_a_block, rounds)};
  const unsigned tile = blockIdx.x * TILE, tile_end = min(tile + TILE, period);
  {
    const unsigned place = tile + threadIdx.x * SIZE, row_begin = rows.quotient(place) * inner;
    const unsigned left = row_begin + inner - place;
    const float own_shift = mine.first_value(max(row_begin, tile));
    const float next_shift = left < SIZE ? mine.first_value(row_begin + inner) : 0.0f;
    float shift[SIZE];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) shift[j] = j < left ? own_shift : next_shift;
    PackSums sums;
    mine.add(sums, place, mine.begin, 1, aligned, shift);
    Segment both[2] = {{{}, own_shift}, {{}, next_shift}};
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      if (j < left) both[0].add(sums.at[j]);
      if (j >= left) both[1].add(sums.at[j]);
    }
    own[threadIdx.x] = both[0];
    next[threadIdx.x] = both[1];
  }
  __syncthreads();
  const auto store = [&](const RowPart& part, const Sums& sum) {
    const unsigned elements = min(part.end, tile_end) - max(part.begin, tile);
    const float count = static_cast<float>(elements) * static_cast<float>(mine.with(part.begin));
    const float shift = part.from < part.to ? own[part.from].shift : next[part.from - 1].shift;
    const unsigned sample = of_channels.quotient(part.row), channel = part.row - sample * channels;
    Partial* to = partial + static_cast<unsigned long long>(channel) * slots +
                  (blockIdx.y * samples + sample) * slots_a_row;
    const Partial of_part{count, shift, sum.sum, sum.squares};
    store_slot(to, blockIdx.x - part.begin / TILE, slots_a_row, part.end <= tile_end, of_part);
  };
  sum_rows<BLOCK, SIZE, Sums>(own, next, tile, tile_end, rows, lanes, store);
}

// 4c. Rows shorter than a pack, as where channels are last. Each place of a period has its own slot and its own shift.
//     A tile is `across` packs, few enough that their slots are little next to what is added into them; `along` threads
//     take other rounds of the same pack.
constexpr unsigned MOST_ACROSS = 8;
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_statistics_columns(const T* __restrict__ x, Partial* __restrict__ partial, long long n, unsigned period,
                          unsigned rounds, unsigned rounds_a_block, unsigned aligned, unsigned samples, unsigned slots,
                          unsigned across, unsigned along, unsigned channels, unsigned channels_multiplier,
                          unsigned channels_shift, unsigned inner, unsigned inner_multiplier, unsigned inner_shift) {
  __shared__ float sum[TILE], squares[TILE], shifts[MOST_ACROSS * SIZE];
  const Divisor<unsigned> of_channels{channels, channels_multiplier, channels_shift};
  const Divisor<unsigned> rows{inner, inner_multiplier, inner_shift};
  const unsigned begin = blockIdx.y * rounds_a_block;
  const Rounds mine{x, n, period, begin, min(begin + rounds_a_block, rounds)};
  const unsigned width = across * SIZE, tile = blockIdx.x * width;
  const unsigned first_round = threadIdx.x / across, pack = threadIdx.x - first_round * across;
  if (first_round < along) {
    const unsigned place = tile + pack * SIZE;
    const unsigned exist = place < period ? filled<T>(n, mine.element(begin, place)) : 0;
    const Pack<T> values = load_filled(x + mine.element(begin, place), exist, aligned);
    float shift[SIZE];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) shift[j] = to_float(values.at[j]);
    PackSums sums;
    mine.add(sums, place, begin + first_round, along, aligned, shift);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      sum[threadIdx.x * SIZE + j] = sums.at[j].sum;
      squares[threadIdx.x * SIZE + j] = sums.at[j].squares;
      if (first_round == 0) shifts[pack * SIZE + j] = shift[j];
    }
  }
  __syncthreads();
  const unsigned place = tile + threadIdx.x;
  if (threadIdx.x >= width || place >= period) return;
  Sums all{};
#pragma unroll 8
  for (unsigned k = 0; k < along; ++k) all.add({sum[k * width + threadIdx.x], squares[k * width + threadIdx.x]});
  const unsigned row = rows.quotient(place), sample = of_channels.quotient(row), channel = row - sample * channels;
  partial[static_cast<unsigned long long>(channel) * slots + (blockIdx.y * samples + sample) * inner +
          (place - row * inner)] = {static_cast<float>(mine.with(place)), shifts[threadIdx.x], all.sum, all.squares};
}

// ---- 5. The application in packs too, one of each tensor a thread. The blocks go from the end of the memory to its
//         beginning: the part of x that the statistics read last may be in the L2 yet. z and y are marked as the first
//         to be given up, so that they don't push it out.

struct OneRow {  // inner is a multiple of the pack
  float2 own;
  __device__ __forceinline__ OneRow(const float2* __restrict__ scale_shift, Index first, const Divisor<Index>& channels,
                                    const Divisor<Index>& inner)
      : own(scale_shift[channels.remainder(inner.quotient(first))]) {}
  __device__ __forceinline__ float2 at(unsigned) const { return own; }
};

struct TwoRows {  // inner is a pack or more
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
  // In the packed order of bn_finish neighbouring lanes read neighbouring 16 bytes. In that of the channels, lanes that
  // are 64 bytes apart would make each of these loads as dear as four of x.
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

struct AnyRows {
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

// x becomes y; the bits are returned.
template <typename Rows>
__device__ __forceinline__ unsigned apply_pack(Pack<T>& x, const Pack<T>& z, const Rows& rows) {
  unsigned(&words)[WORDS] = reinterpret_cast<unsigned(&)[WORDS]>(x);
  const unsigned(&z_words)[WORDS] = reinterpret_cast<const unsigned(&)[WORDS]>(z);
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    Lanes<T> values(words[w]);
    const Lanes<T> residual(z_words[w]);
#pragma unroll
    for (unsigned l = 0; l < LANES; ++l) {
      const float2 with = rows.at(w * LANES + l);
      values.at[l] = fmaf(values.at[l], with.x, with.y) + residual.at[l];
    }
    words[w] = values.word();
  }
  return relu_pack(x);
}

template <typename Rows>
__device__ __forceinline__ void apply(const T* __restrict__ x, const T* __restrict__ z,
                                      const float2* __restrict__ scale_shift, T* __restrict__ y,
                                      unsigned char* __restrict__ mask, long long n, long long mask_bytes, bool aligned,
                                      const Divisor<Index>& channels, const Divisor<Index>& inner) {
  const Index pack = static_cast<Index>(gridDim.x - 1 - blockIdx.x) * BLOCK + threadIdx.x, first = pack * SIZE;
  unsigned bits;
  if (aligned && static_cast<long long>(first) + SIZE <= n) {
    Pack<T> values = load_pack(x + first);
    const Pack<T> residual = load_pack<true>(z + first);
    const Rows rows(scale_shift, first, channels, inner);
    bits = apply_pack(values, residual, rows);
    store_pack<true>(y + first, values);
  } else {
    const unsigned count = filled<T>(n, first);
    Pack<T> values = load_filled(x + first, count, false);
    const Pack<T> residual = load_filled(z + first, count, false);
    const Rows rows(scale_shift, first, channels, inner);
    bits = apply_pack(values, residual, rows) & ((1u << count) - 1);
    store_filled(y + first, values, count, false);
  }
  store_bits_of_pack<T>(mask, pack, bits, mask_bytes);
}

// aligned: x, z and y begin on 16 bytes; otherwise, and in the last pack, elements move one by one. RESIDENT: blocks
// that an SM is to hold at least; with eight there are no registers for all of the coefficients of a pack of `Columns`,
// whose loads then wait for one another, nor for long indices.
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
