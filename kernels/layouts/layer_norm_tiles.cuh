// LayerNorm of pixels in shared memory, and their way to windows: for rows that aren't whole packs. A row is the
// channels of a pixel.
#pragma once

#include "number.cuh"
#include "windows.cuh"

constexpr float EPSILON = 1e-5f;

// The sum over `Count` neighbours of a warp, for all of them.
template <unsigned Count>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (unsigned step = Count / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

// What a compilation knows of a tile, which is some rows that follow each other. Twin of WindowTilePlan in
// harness/ops/layouts/layer_norm_window_partition.py. A unit is as many words as a thread reads at once: the most that
// a row is an odd number of. An odd number of halves is an odd number of words for two rows; then each row is whole
// words and a single half, which is the last one of even rows and the first one of odd rows.
//
// Team: lanes of a warp that share a row.
template <typename Element, unsigned Channels, unsigned Words, unsigned Team, unsigned Warps>
struct Tile {
  static constexpr unsigned CHANNELS = Channels, WORDS = Words, TEAM = Team, BLOCK = Warps * WARP;
  static constexpr unsigned UNIT = Words * 4 / sizeof(Element), UNITS = Channels / UNIT;
  static constexpr bool SINGLE = Channels % UNIT;
  static constexpr unsigned ROWS = BLOCK / Team;
  // Teams of a warp have rows that lie APART. So neighbouring teams begin an odd number of teams' units apart, and no
  // two lanes of an access need the same bank. All rows of a warp are even, or all are odd, where that matters.
  static constexpr unsigned APART = (SINGLE ? 2 : 1) * Team;
  static_assert(!SINGLE || (UNIT == 2 && Words == 1), "only rows of odd numbers of halves have a single one");
  static_assert(Warps % APART == 0 || Team == WARP, "the warps of a block must have whole groups of rows");

  static __device__ __forceinline__ unsigned row() {
    const unsigned warp = threadIdx.x / WARP, group = warp / APART;
    return group * (APART * (WARP / Team)) + threadIdx.x % WARP / Team * APART + warp % APART;
  }
};

template <unsigned Words>
struct alignas(4 * Words) Unit {
  unsigned word[Words];
};

// A row of a tile, which a team normalises where it lies.
template <typename Element, typename Shape>
class RowOfTile {
  static constexpr unsigned UNIT = Shape::UNIT, UNITS = Shape::UNITS, TEAM = Shape::TEAM, TURNS = UNITS / TEAM;
  static constexpr unsigned BATCH = 8 / Shape::WORDS;  // units that a thread loads at once
  using Words = Unit<Shape::WORDS>;

 public:
  __device__ __forceinline__ RowOfTile(Element* tile, unsigned row)
      : first(Shape::SINGLE ? row % 2 : 0), rank(threadIdx.x % TEAM) {
    Element* begin = tile + row * Shape::CHANNELS;
    units = reinterpret_cast<Words*>(begin + first) + rank;
    single = Shape::SINGLE && !first ? Shape::CHANNELS - 1 : 0;
    lone = begin + single;
  }

  // vectors: gamma and beta of each channel.
  __device__ __forceinline__ void normalise(const float2* vectors) {
    constexpr float SHARE = 1.0f / Shape::CHANNELS;
    const float alone = Shape::SINGLE ? to_float(*lone) : 0.0f;
    const float mean = sum(alone, [](float value) { return value; }) * SHARE;
    const float variance = sum(alone, [&](float value) { return (value - mean) * (value - mean); }) * SHARE;
    const float rstd = rsqrtf(variance + EPSILON), offset = -mean * rstd;
    const auto normal = [&](float value, float2 vector) {
      return fmaf(fmaf(value, rstd, offset), vector.x, vector.y);
    };
    const float2* own = vectors + first + rank * UNIT;
#pragma unroll 1
    for (unsigned j = 0; j + BATCH <= TURNS; j += BATCH) write<BATCH>(j, own, normal);
    write<TURNS % BATCH>(TURNS / BATCH * BATCH, own, normal);
    if constexpr (UNITS % TEAM > 0) {
      if (rank < UNITS % TEAM) write<1>(TURNS, own, normal);
    }
    if (Shape::SINGLE && rank == 0) *lone = Element(normal(alone, vectors[single]));
  }

 private:
  // The sum of a function of all elements of the row. Each half of a word has a sum of its own, so that additions wait
  // less for each other.
  template <typename Function>
  __device__ __forceinline__ float sum(float alone, Function function) const {
    float sums[UNIT];
#pragma unroll
    for (unsigned e = 0; e < UNIT; ++e) sums[e] = 0.0f;
    if (Shape::SINGLE && rank == 0) sums[0] = function(alone);
    const auto add = [&](unsigned j) {
      const Words raw = units[j * TEAM];
      float values[UNIT];
      widen(raw, values);
#pragma unroll
      for (unsigned e = 0; e < UNIT; ++e) sums[e] += function(values[e]);
    };
#pragma unroll 16
    for (unsigned j = 0; j < TURNS; ++j) add(j);
    if constexpr (UNITS % TEAM > 0) {
      if (rank < UNITS % TEAM) add(TURNS);
    }
#pragma unroll
    for (unsigned e = 1; e < UNIT; ++e) sums[0] += sums[e];
    return sum_of_lanes<TEAM>(sums[0]);
  }
  // Normalises `Count` units from the thread's unit j on. All of them are loaded before the first one is stored.
  template <unsigned Count, typename Normal>
  __device__ __forceinline__ void write(unsigned j, const float2* vectors, Normal normal) {
    if constexpr (Count > 0) {
      Words raw[Count];
#pragma unroll
      for (unsigned k = 0; k < Count; ++k) raw[k] = units[(j + k) * TEAM];
#pragma unroll
      for (unsigned k = 0; k < Count; ++k) {
        float values[UNIT];
        widen(raw[k], values);
#pragma unroll
        for (unsigned e = 0; e < UNIT; ++e) values[e] = normal(values[e], vectors[(j + k) * TEAM * UNIT + e]);
        units[(j + k) * TEAM] = narrow(values);
      }
    }
  }
  static __device__ __forceinline__ void widen(const Words& raw, float (&values)[UNIT]) {
    constexpr unsigned SIZE = Lanes<Element>::SIZE;
#pragma unroll
    for (unsigned w = 0; w < Shape::WORDS; ++w) {
      const Lanes<Element> lanes(raw.word[w]);
#pragma unroll
      for (unsigned l = 0; l < SIZE; ++l) values[w * SIZE + l] = lanes.at[l];
    }
  }
  static __device__ __forceinline__ Words narrow(const float (&values)[UNIT]) {
    constexpr unsigned SIZE = Lanes<Element>::SIZE;
    Words raw;
#pragma unroll
    for (unsigned w = 0; w < Shape::WORDS; ++w) {
      Lanes<Element> lanes;
#pragma unroll
      for (unsigned l = 0; l < SIZE; ++l) lanes.at[l] = values[w * SIZE + l];
      raw.word[w] = lanes.word();
    }
    return raw;
  }

  const unsigned first;  // the first channel of the row's first unit
  const unsigned rank;
  Words* units;          // the thread's first one
  unsigned single;       // the channel that is in no unit
  Element* lone;         // where it is
};

// The block fetches contiguous elements of x to its tile. Both begin on 16 bytes.
template <unsigned Threads, typename Element>
__device__ __forceinline__ void fetch_rows(Element* tile, const Element* __restrict__ x, unsigned elements) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  const unsigned packs = elements / SIZE;
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(tile));
  // Straight into shared memory, so that all of a thread's packs are under way at once.
  for (unsigned i = threadIdx.x; i < packs; i += Threads) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * PACK_BYTES), "l"(x + i * SIZE) : "memory");
  }
  for (unsigned i = packs * SIZE + threadIdx.x; i < elements; i += Threads) tile[i] = x[i];
}

// `Group` threads write neighbouring elements of the tile to neighbouring elements of y: packs that are aligned in y,
// and single elements before and behind them. y must be aligned to 16 bytes. A pack behind the tile's last one may be
// read. rank: of the thread in its group.
template <unsigned Word, unsigned Group>
__device__ __forceinline__ void put_packs(uint4* __restrict__ to, const uint4* from, unsigned packs, unsigned rank,
                                          unsigned bits) {
#pragma unroll 2
  for (unsigned i = rank; i < packs; i += Group) {
    const uint4 low = from[i], high = from[i + 1];
    const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    to[i] = funnel<Word>(words, bits);
  }
}
template <unsigned Group, typename Element>
__device__ __forceinline__ void put_piece(Element* __restrict__ y, long long at, const Element* tile, unsigned from,
                                          unsigned elements, unsigned rank) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  const unsigned head = min(elements, static_cast<unsigned>(-at) % SIZE), packs = (elements - head) / SIZE;
  const unsigned middle = from + head, misaligned = middle % SIZE * sizeof(Element), bits = misaligned % 4 * 8;
  y += at;
  uint4* to = reinterpret_cast<uint4*>(y + head);
  const uint4* around = reinterpret_cast<const uint4*>(tile) + middle / SIZE;
  switch (misaligned / 4) {
    case 0: put_packs<0, Group>(to, around, packs, rank, bits); break;
    case 1: put_packs<1, Group>(to, around, packs, rank, bits); break;
    case 2: put_packs<2, Group>(to, around, packs, rank, bits); break;
    default: put_packs<3, Group>(to, around, packs, rank, bits); break;
  }
  for (unsigned i = rank; i < elements - packs * SIZE; i += Group) {
    const unsigned element = i < head ? i : i + packs * SIZE;
    y[element] = tile[from + element];
  }
}

// The block's work on `Tiles` tiles. Group: threads that write a piece together, which is up to `Step` rows that are
// neighbours in y too. x and y must be aligned to 16 bytes, and so must the tile be, which has PACK_BYTES to spare.
template <typename Shape, unsigned Group, unsigned Step, unsigned Tiles, typename Element, typename Index>
__device__ __forceinline__ void normalise_tiles(Element* tile, const Element* __restrict__ x,
                                                const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                                Element* __restrict__ y, Index pixels, const Windows<Index>& windows) {
  constexpr unsigned CHANNELS = Shape::CHANNELS, ROWS = Shape::ROWS, BLOCK = Shape::BLOCK;
  __shared__ float2 vectors[CHANNELS];
  __shared__ Index at[ROWS];
  __shared__ unsigned left[ROWS];
  Index first = static_cast<Index>(blockIdx.x) * (ROWS * Tiles);
#pragma unroll 1
  for (unsigned t = 0; t < Tiles && first < pixels; ++t, first += ROWS) {
    const unsigned rows = static_cast<unsigned>(min(pixels - first, static_cast<Index>(ROWS)));
    fetch_rows<BLOCK>(tile, x + static_cast<long long>(first) * CHANNELS, rows * CHANNELS);
    // Meanwhile:
    for (unsigned r = threadIdx.x; r < rows; r += BLOCK) {
      const Place<Index> place = windows.in_windows(first + r);
      at[r] = place.at;
      left[r] = static_cast<unsigned>(min(place.left, static_cast<Index>(min(rows - r, Step))));
    }
    if (t == 0) {
      for (unsigned c = threadIdx.x; c < CHANNELS; c += BLOCK) {
        vectors[c] = make_float2(to_float(gamma[c]), to_float(beta[c]));
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    // A row that doesn't exist has some numbers, too, and room for them: shuffles need all lanes.
    RowOfTile<Element, Shape>(tile, Shape::row()).normalise(vectors);
    __syncthreads();
    constexpr unsigned GROUPS = BLOCK / Group;
    unsigned turn = threadIdx.x / Group;
    for (unsigned r = 0; r < rows; r += left[r]) {
      if (turn == 0) {
        put_piece<Group>(y, static_cast<long long>(at[r]) * CHANNELS, tile, r * CHANNELS, left[r] * CHANNELS,
                         threadIdx.x % Group);
      }
      turn = turn ? turn - 1 : GROUPS - 1;
    }
    if (Tiles > 1) __syncthreads();
  }
}
