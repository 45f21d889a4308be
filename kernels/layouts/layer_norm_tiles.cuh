// LayerNorm of pixels in shared memory, and their way to windows: for rows that aren't whole packs. A row is the
// channels of a pixel.
#pragma once

#include "../include/number.cuh"
#include "windows.cuh"

#ifndef EPS
#define EPS 1e-5f
#endif
constexpr float EPSILON = EPS;

// The sum over `Count` neighbours of a warp, for all of them.
template <unsigned Count>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (unsigned step = Count / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

// What a compilation knows of a tile, which is some rows that follow each other. Twin of WindowTilePlan in
// harness/collection/ops/layouts/layer_norm_window_partition.py. A unit is what a thread reads at once: one word or
// two, so that a row is an odd number of units. Where a row is an odd number of halves, two rows are an odd number of
// words. Then each row is whole words and a single half, which is the last one of even rows and the first one of odd
// rows.
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
    const float alone = Shape::SINGLE ? to_float(*lone) : 0.0f;
    float point = 0.0f, off, variance;
    add_up(alone, [](float value) { return value; }, off, variance);
    // Where the mean is far larger than the deviation, or squares overflow, the sums are made again about the mean.
    if (__any_sync(ALL_LANES, !(off * off <= 8.0f * variance))) {
      point = off;
      add_up(alone, [=](float value) { return value - point; }, off, variance);
    }
    // Rounding must not make it negative. NaN stays NaN.
    const float rstd = rsqrtf((variance < 0.0f ? 0.0f : variance) + EPSILON), offset = -(point + off) * rstd;
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
  // Mean and variance from one pass, by sums of distances from a point. They lose few places while the point is within
  // a few deviations of the mean. off: the mean's distance from the point. Each element of a unit has sums of its own,
  // so that additions wait less for each other.
  template <typename Distance>
  __device__ __forceinline__ void add_up(float alone, Distance distance_of, float& off, float& variance) const {
    constexpr float SHARE = 1.0f / Shape::CHANNELS;
    float sums[UNIT], squares[UNIT];
#pragma unroll
    for (unsigned e = 0; e < UNIT; ++e) {
      const float distance = Shape::SINGLE && e == 0 && rank == 0 ? distance_of(alone) : 0.0f;
      sums[e] = distance, squares[e] = distance * distance;
    }
    const auto add = [&](unsigned j) {
      float values[UNIT];
      widen(units[j * TEAM], values);
#pragma unroll
      for (unsigned e = 0; e < UNIT; ++e) {
        const float distance = distance_of(values[e]);
        sums[e] += distance, squares[e] = fmaf(distance, distance, squares[e]);
      }
    };
#pragma unroll 16
    for (unsigned j = 0; j < TURNS; ++j) add(j);
    if constexpr (UNITS % TEAM > 0) {
      if (rank < UNITS % TEAM) add(TURNS);
    }
#pragma unroll
    for (unsigned e = 1; e < UNIT; ++e) sums[0] += sums[e], squares[0] += squares[e];
    off = sum_of_lanes<TEAM>(sums[0]) * SHARE;
    variance = fmaf(-off, off, sum_of_lanes<TEAM>(squares[0]) * SHARE);
  }
  // Normalises `Count` units from the thread's unit j on. All that they need is loaded before the first one is stored,
  // since the compiler puts no load of shared memory before a store.
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
        raw[k] = narrow(values);
      }
#pragma unroll
      for (unsigned k = 0; k < Count; ++k) units[(j + k) * TEAM] = raw[k];
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
  constexpr int STRIDE = Threads * PACK_BYTES;
  const unsigned packs = elements / SIZE;
  const Element* from = x + threadIdx.x * SIZE;
  unsigned i = threadIdx.x, to = static_cast<unsigned>(__cvta_generic_to_shared(tile)) + i * PACK_BYTES;
  // Straight into shared memory, so that all of a thread's packs are under way at once; through L1, which is faster for
  // pieces that aren't whole lines.
  for (; i + 3 * Threads < packs; i += 4 * Threads, to += 4 * STRIDE, from += 4 * Threads * SIZE) {
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 16;\n"
        "cp.async.ca.shared.global [%0 + %2], [%1 + %2], 16;\n"
        "cp.async.ca.shared.global [%0 + %3], [%1 + %3], 16;\n"
        "cp.async.ca.shared.global [%0 + %4], [%1 + %4], 16;" ::"r"(to),
        "l"(from), "n"(STRIDE), "n"(2 * STRIDE), "n"(3 * STRIDE)
        : "memory");
  }
#pragma unroll 1
  for (; i < packs; i += Threads, to += STRIDE, from += Threads * SIZE) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
  const unsigned last = packs * SIZE + threadIdx.x;
  if (last < elements) tile[last] = x[last];
}

// `Group` threads write neighbouring elements of the tile to neighbouring elements of y: packs that are aligned in y,
// and single elements before and behind them. y must be aligned to 16 bytes. A pack behind the tile's last one may be
// read. Most: elements of a piece. rank: of the thread in its group.
template <unsigned Word, unsigned Group, unsigned Most>
__device__ __forceinline__ void put_packs(uint4* __restrict__ to, const uint4* from, unsigned packs, unsigned rank,
                                          unsigned bits) {
  to += rank, from += rank;
#pragma unroll 4
  for (unsigned i = 0; i < Most; i += Group) {
    if (rank + i < packs) {
      const uint4 low = from[i], high = from[i + 1];
      const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      to[i] = funnel<Word>(words, bits);
    }
  }
}
template <unsigned Group, unsigned Most, typename Element>
__device__ __forceinline__ void put_piece(Element* __restrict__ y, long long at, const Element* tile, unsigned from,
                                          unsigned elements, unsigned rank) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  const unsigned head = min(elements, static_cast<unsigned>(-at) % SIZE), packs = (elements - head) / SIZE;
  const unsigned middle = from + head, misaligned = middle % SIZE * sizeof(Element), bits = misaligned % 4 * 8;
  y += at;
  uint4* to = reinterpret_cast<uint4*>(y + head);
  const uint4* around = reinterpret_cast<const uint4*>(tile) + middle / SIZE;
  switch (misaligned / 4) {
    case 0: put_packs<0, Group, Most / SIZE>(to, around, packs, rank, bits); break;
    case 1: put_packs<1, Group, Most / SIZE>(to, around, packs, rank, bits); break;
    case 2: put_packs<2, Group, Most / SIZE>(to, around, packs, rank, bits); break;
    default: put_packs<3, Group, Most / SIZE>(to, around, packs, rank, bits); break;
  }
  static_assert(Group >= 2 * (SIZE - 1), "each thread has one of the single elements at most");
  if (rank < elements - packs * SIZE) {
    const unsigned element = rank < head ? rank : rank + packs * SIZE;
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
    if (const unsigned r = threadIdx.x; r < rows) {
      const Place<Index> place = windows.in_windows(first + r);
      at[r] = place.at;
      left[r] = static_cast<unsigned>(min(place.left, static_cast<Index>(min(rows - r, Step))));
    }
    if (t == 0) {
#pragma unroll 2
      for (unsigned c = threadIdx.x; c < CHANNELS; c += BLOCK) {
        vectors[c] = make_float2(to_float(gamma[c]), to_float(beta[c]));
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    // Teams without a row work too, since shuffles need all lanes. The tile has room for their rows.
    RowOfTile<Element, Shape>(tile, Shape::row()).normalise(vectors);
    __syncthreads();
    // Groups take the pieces in turn. Each group goes through all of them, which takes a few instructions a piece.
    unsigned others = threadIdx.x / Group, here;  // others: pieces before this group's next piece
#pragma unroll 1
    for (unsigned r = 0; r < rows; r += here) {
      here = left[r];
      if (others == 0) {
        put_piece<Group, Step * CHANNELS>(y, static_cast<long long>(at[r]) * CHANNELS, tile, r * CHANNELS,
                                          here * CHANNELS, threadIdx.x % Group);
        others = BLOCK / Group;
      }
      --others;
    }
    if (Tiles > 1) __syncthreads();
  }
}
