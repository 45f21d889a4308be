// The sums of bn_add_relu_grad in packs of 16 bytes: section 3 of bn_add_relu_grad.cu, which includes this file after
// its type Sums and its functions for packs. Twin of harness/collection/ops/batch_norm/_bn_add_relu_grad_cut.py, which
// cuts the tensor.
//
// The tensor is cut into periods, each a whole number of packs and of outer places (channels * inner elements). So an
// element and the one a period behind it are of the same channel. A block takes a tile: `across` packs at the same
// place of several neighbouring periods. `along` threads share the packs at one place, and take different periods. A
// thread finds the means of its channels once, keeps two sums for each element of its pack, and has two packs of each
// tensor under way at a time. Only then are the sums added by channel, in shared memory. Blocks go through memory from
// its beginning to its end.
#pragma once

// How the tensor is cut, and what of it this thread has.
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

// Adds up the thread's elements over its rounds. sums[j]: the sum over element j of all its packs.
__device__ __forceinline__ void sum_rounds(const T* __restrict__ dy, const T* __restrict__ x,
                                           const unsigned char* __restrict__ mask, long long n, bool aligned,
                                           const Cut& cut, const float (&mean)[SIZE], Sums (&sums)[SIZE]) {
  const unsigned along = cut.along, first = cut.first(), segment = cut.segment() * cut.rounds * along;
  const unsigned end = min(segment + cut.rounds * along, cut.all_rounds);
  // Only the tensor's last period can lack elements.
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

// 3a. Rows of a pack or more. A pack meets two rows at most, so its sums become two: `own` for the row in which it
//     begins, `next` for the next row. `lanes` threads, a power of two, add the sums of a row. A row has a slot for
//     each tile that it lies in.
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

// 3b. Rows shorter than a pack, such as single elements where channels are last. A tile has whole rows. Each element's
//     sums go to shared memory, where `lanes` threads add the sums of a slot. If a period is one tile, a slot is all
//     rows of a channel. Otherwise a tile is narrow, and a slot is one row, which several threads have summed.
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
