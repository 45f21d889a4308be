// The statistics of bn_add_relu in packs of 16 bytes: section 4 of bn_add_relu.cu, which includes this file after its
// types T, Sums and Partial. Twin of harness/collection/ops/batch_norm/_bn_add_relu_cut.py, which cuts the tensor.
//
// There are three kernels, by the length of the rows. In each of them a thread finds its channels once and keeps a sum
// for each element of its pack, so that a pack costs its load and three or four instructions an element. The three
// values whose median is a partial sum's shift are among the values that the block reads first, which are on their way
// to the L1 anyway. They aren't neighbours, since neighbours may be outliers together.
#pragma once

// The sums of a thread's packs: at[j] is the sum over element j of each of them.
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
  static constexpr unsigned IN_FLIGHT = 4;
  // Adds `count` packs, at `from`, `from + stride` and so on. Several are loaded before the first is used.
  __device__ __forceinline__ void add_packs(const T* __restrict__ from, long long stride, unsigned count,
                                            const float (&shift)[SIZE]) {
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

// 4a. Long rows: a block for each piece of a row, at any address. A row has `pieces` pieces; all but its last one have
//     `piece` elements.
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

  const unsigned span = min(length, PackSums::IN_FLIGHT * BLOCK * SIZE);
  const auto at = [&](unsigned sixths) { return to_float(from[span * sixths / 6]); };
  const float shift = median(at(1), at(3), at(5));
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

// The sizes that elements of a period are counted by: the channels of a sample, and the elements of a row.
struct Dimensions {
  Divisor<unsigned> channels, inner;
};

// For shorter rows the tensor is cut into `rounds` equal periods, each a whole number of samples and of packs. So an
// element and the one a period behind it are of the same channel. Only the last period may lack samples. A tile is some
// neighbouring packs of a period. A block takes the same tile of several neighbouring periods, its rounds, so that all
// blocks together go through the memory from its beginning to its end.
struct Rounds {
  const T* x;
  long long n;      // elements
  unsigned period;  // elements, below 2^31
  unsigned begin, end;

  __device__ __forceinline__ long long element(unsigned round, unsigned place) const {
    return static_cast<long long>(round) * period + place;
  }
  // The number of rounds that have an element at this place.
  __device__ __forceinline__ unsigned with(unsigned place) const {
    return end - begin - (element(end - 1, place) >= n);
  }
  // The median of three values at places from `from` to `to` of the first round; 0 if these don't exist. Of one or two
  // places it is the last one's value: values of three rounds would take 52 registers of floats in place of 48 (sm_90).
  __device__ __forceinline__ float shift_of(unsigned from, unsigned to) const {
    const unsigned length = to > from ? to - from : 0;
    if (element(begin, from) >= n) return 0.0f;
    const auto at = [&](unsigned sixths) { return to_float(x[element(begin, from + length * sixths / 6)]); };
    return median(at(1), at(3), at(5));
  }
  // The shifts for the pack at `place`: medians of the values of three among the first `along` rounds. The last round
  // of the tensor may lack values, so it isn't one of the three unless there is no other.
  __device__ __forceinline__ void shifts_of(unsigned place, unsigned along, unsigned rounds, bool aligned,
                                            float (&shift)[SIZE]) const {
    const unsigned most = max(end - (end == rounds), begin + 1) - 1;
    float values[3][SIZE];
#pragma unroll
    for (unsigned k = 0; k < 3; ++k) {
      const long long first = element(min(begin + (along - 1) * k / 2, most), place);
      const Pack<T> pack = load_filled(x + first, place < period ? filled<T>(n, first) : 0, aligned);
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) values[k][j] = to_float(pack.at[j]);
    }
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) shift[j] = median(values[0][j], values[1][j], values[2][j]);
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

// 4b. Rows of a pack or more, which may begin inside of a pack. A tile is BLOCK packs. A pack meets two rows at most,
//     so in the end its sums become two: for the row in which it begins, and for the next row. `lanes` threads, a power
//     of two, add the sums of a row. A row's shift is made of its elements in the first round's tile. slots: of a
//     channel. slots_a_row: the most tiles that a row lies in. samples: of a period.
constexpr unsigned TILE = BLOCK * SIZE;
struct Segment : Sums {
  float shift;
};
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_statistics_rows(const T* __restrict__ x, Partial* __restrict__ partial, long long n, unsigned period,
                       unsigned rounds, unsigned rounds_a_block, unsigned aligned, unsigned samples, unsigned slots,
                       unsigned slots_a_row, unsigned lanes, const Dimensions dimensions) {
  __shared__ Segment own[BLOCK], next[BLOCK];
  const Divisor<unsigned>&of_channels = dimensions.channels, &rows = dimensions.inner;
  const unsigned inner = rows.size, channels = of_channels.size;
  const unsigned begin = blockIdx.y * rounds_a_block;
  const Rounds mine{x, n, period, begin, min(begin + rounds_a_block, rounds)};
  const unsigned tile = blockIdx.x * TILE, tile_end = min(tile + TILE, period);
  {
    const unsigned place = tile + threadIdx.x * SIZE, row_begin = rows.quotient(place) * inner;
    const unsigned next_begin = row_begin + inner, left = next_begin - place;
    const float own_shift = mine.shift_of(max(row_begin, tile), min(next_begin, tile_end));
    const float next_shift = left < SIZE ? mine.shift_of(next_begin, min(next_begin + inner, tile_end)) : 0.0f;
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

// 4c. Rows shorter than a pack, such as single elements where channels are last. Each place of a period has a slot and
//     a shift of its own. A tile is `across` packs, so few that writing their slots costs little beside reading the
//     elements that are added into them. `along` threads share the packs at one place, and take different rounds.
constexpr unsigned MOST_ACROSS = 8;
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    bn_statistics_columns(const T* __restrict__ x, Partial* __restrict__ partial, long long n, unsigned period,
                          unsigned rounds, unsigned rounds_a_block, unsigned aligned, unsigned samples, unsigned slots,
                          unsigned across, unsigned along, const Dimensions dimensions) {
  __shared__ float sum[TILE], squares[TILE], shifts[MOST_ACROSS * SIZE];
  const Divisor<unsigned>&of_channels = dimensions.channels, &rows = dimensions.inner;
  const unsigned inner = rows.size, channels = of_channels.size;
  const unsigned begin = blockIdx.y * rounds_a_block;
  const Rounds mine{x, n, period, begin, min(begin + rounds_a_block, rounds)};
  const unsigned width = across * SIZE, tile = blockIdx.x * width;
  const unsigned first_round = threadIdx.x / across, pack = threadIdx.x - first_round * across;
  if (first_round < along) {
    const unsigned place = tile + pack * SIZE;
    float shift[SIZE];
    mine.shifts_of(place, along, rounds, aligned, shift);
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
