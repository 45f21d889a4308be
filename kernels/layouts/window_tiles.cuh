// Windows of images (windows.cuh) whose rows aren't whole packs, through tiles in shared memory. A tile is BANDS rows of
// windows, or COLUMNS windows beside each other. Its windows follow each other in memory, and so do the elements of each
// of its rows of pixels, up to where the roll goes on at the row's beginning. So aligned packs of 16 bytes are copied to
// shared memory as they lie, and only there a pack of the other layout is put together: a division by a constant serves
// 16 bytes, and what neighbours need of both sides isn't loaded twice.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element), INDEX (unsigned, or unsigned long long from 2^31
// elements on), TO_WINDOWS (0 or 1), RUN (elements of a window's row), SIDE (rows of a window), ACROSS (windows beside
// each other), HEIGHT (rows of an image), ROWS_SHIFTED, ELEMENTS_SHIFTED (the roll, below HEIGHT and below a row's
// length), COLUMNS, BANDS (1 where COLUMNS are fewer than ACROSS), THREADS (of a block), SEVERAL (1 where a pack may
// have parts of more than two pieces that are contiguous on both sides). Twin of WindowTiles in
// harness/collection/ops/layouts/_windows.py.
#pragma once

#include "../include/pack.cuh"
#include "../include/warp.cuh"

using Element = SCALAR;

constexpr unsigned SIZE = Pack<Element>::SIZE, EDGE = SIZE - 1;
constexpr INDEX ROW = static_cast<INDEX>(RUN) * ACROSS;  // elements of a row of an image
constexpr unsigned ROWS = BANDS * SIDE, LENGTH = COLUMNS * RUN;  // of a tile at most

// The most packs that L elements touch: (L + 2 * EDGE) / SIZE. Where the roll cuts a tile's rows, both parts have their
// own packs.
constexpr unsigned ROW_PACKS = (LENGTH + (ELEMENTS_SHIFTED ? 4 : 2) * EDGE) / SIZE;
constexpr bool LONG_ROWS = ROW_PACKS >= 64;  // for these store_tile() goes through the ends of pieces by themselves
constexpr unsigned ALL_PACKS = (ROWS * LENGTH + 2 * EDGE) / SIZE;
constexpr unsigned TILE_PACKS = TO_WINDOWS ? ROWS * ROW_PACKS : ALL_PACKS;
constexpr unsigned RUNS = TO_WINDOWS ? ROWS * COLUMNS : 0;

// If the roll cuts a run, it cuts it behind CUT elements.
constexpr unsigned CUT = RUN - ELEMENTS_SHIFTED % RUN;
// If runs are short, nearly every warp has packs with parts of two runs: then all lanes take the way for such packs.
constexpr bool SHORT = RUN < 8 * SIZE;

struct Shared {
  uint4 tile[TILE_PACKS + 1];  // one more, since a pack is read with the word behind it
  INDEX rows[ROWS];            // where the image's row begins that a row of the tile is in
  // Where each run of the windows lies in the tile: x for its elements before CUT, y for its elements from CUT on,
  // counted from the same one.
  uint2 runs[RUNS + 1];
};

// Elements by which an address lies behind a multiple of 16 bytes.
__device__ __forceinline__ unsigned misaligned(const Element* at) {
  return static_cast<unsigned>(reinterpret_cast<unsigned long long>(at)) / sizeof(Element) % SIZE;
}

// Through L1, which is faster for pieces that aren't whole lines.
__device__ __forceinline__ void copy_to_shared(uint4* to, const Element* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A tensor of n elements. offset: elements by which it lies behind a multiple of 16 bytes.
template <typename Pointer>
struct Side {
  Pointer data;
  INDEX n;
  unsigned offset;

  __device__ __forceinline__ Side(Pointer data, INDEX n) : data(data), n(n), offset(misaligned(data)) {}
  // The same of the element `at`.
  __device__ __forceinline__ unsigned misalignment(INDEX at) const { return (offset + static_cast<unsigned>(at)) % SIZE; }
};
using Source = Side<const Element*>;
using Target = Side<Element*>;

// A pack of 16 aligned bytes, and the piece of a tensor, of `count` elements, that it has a part of. first: which element
// of the piece the pack begins with, or less than 0. at: which one of the tensor; before the tensor's beginning, that is
// a very large number.
struct Part {
  int first, count;
  INDEX at;

  template <typename Pointer>
  __device__ __forceinline__ Part(const Side<Pointer>& side, INDEX piece, unsigned count, unsigned number)
      : first(static_cast<int>(number * SIZE) - static_cast<int>(side.misalignment(piece))),
        count(static_cast<int>(count)),
        at(piece + static_cast<INDEX>(static_cast<long long>(first))) {}
  // A piece without elements has no pack.
  __device__ __forceinline__ bool exists() const { return first < count && count > 0; }
  // Whether all elements of the pack are the piece's.
  __device__ __forceinline__ bool whole() const { return first >= 0 && first + static_cast<int>(SIZE) <= count; }

  // Only at the ends of the tensor a pack reaches out of it.
  __device__ __forceinline__ void load(uint4* to, const Source& x) const {
    if (at < (x.n < SIZE ? 0 : x.n - EDGE)) {
      copy_to_shared(to, x.data + at);
    } else {
#pragma unroll 1
      for (unsigned j = 0; j < SIZE; ++j) {
        const INDEX element = at + j;
        if (element < x.n) reinterpret_cast<Element*>(to)[j] = x.data[element];
      }
    }
  }
  __device__ __forceinline__ void store(const Target& y, const Pack<Element>& pack) const {
    if (whole()) {
      store_pack(y.data + at, pack);
    } else {
      store_elements(y, pack);
    }
  }
  // The same, element by element.
  __device__ __forceinline__ void store_elements(const Target& y, const Pack<Element>& pack) const {
#pragma unroll
    for (int j = 0; j < static_cast<int>(SIZE); ++j) {
      if (first + j >= 0 && first + j < count) y.data[static_cast<INDEX>(at + j)] = pack.at[j];
    }
  }
};

// Where an element lies in the tile, and for how many elements from there on both layouts go on side by side. run: which
// run it is of, in: which element of that.
struct Spot {
  unsigned place, left, run, in;
  bool whole;  // whether `left` ends with the run
};

// A block's tile. `first` and `column` say which it is, in rows of all rolled images and in windows.
struct Tile {
  Shared& shared;
  INDEX first, start, windows_at;  // start: of the tile's rows in rows of images. windows_at: of its windows
  unsigned rows, columns, length, cut, packs_before;  // cut: elements of a row before the roll goes on at its beginning

  __device__ __forceinline__ Tile(Shared& shared, INDEX bands) : shared(shared) {
    constexpr unsigned TILES = (ACROSS - 1) / COLUMNS + 1;
    const INDEX band = static_cast<INDEX>(blockIdx.x / TILES) * BANDS;
    const unsigned column = blockIdx.x % TILES * COLUMNS;
    rows = static_cast<unsigned>(min(bands - band, static_cast<INDEX>(BANDS))) * SIDE;
    columns = min(static_cast<unsigned>(COLUMNS), ACROSS - column);
    length = columns * RUN;
    first = band * SIDE;
    windows_at = (band * ACROSS + column) * (SIDE * RUN);
    start = static_cast<INDEX>(column) * RUN + ELEMENTS_SHIFTED;
    if (start >= ROW) start -= ROW;
    cut = static_cast<unsigned>(min(static_cast<INDEX>(length), ROW - start));
    packs_before = (cut + 2 * EDGE) / SIZE;
  }

  __device__ __forceinline__ void find_rows() const {
#pragma unroll 1
    for (unsigned r = threadIdx.x; r < rows; r += THREADS) {
      const INDEX rolled = first + r, below = rolled % HEIGHT + ROWS_SHIFTED;
      shared.rows[r] = (rolled + ROWS_SHIFTED - (below < HEIGHT ? 0 : static_cast<INDEX>(HEIGHT))) * ROW;
    }
  }

  // Calls visit(slot, part, r, t) for all packs of the tile's images that this thread has. slot: where the pack is in
  // shared memory, if it is there. t: which element of row r the piece begins with.
  template <typename Pointer, typename Visit>
  __device__ __forceinline__ void for_images(const Side<Pointer>& images, Visit visit) const {
    for (unsigned slot = threadIdx.x; slot < rows * ROW_PACKS; slot += THREADS) {
      const unsigned r = slot / ROW_PACKS, number = slot - r * ROW_PACKS;
      const bool behind = number >= packs_before;
      const INDEX piece = shared.rows[r] + (behind ? 0 : start);
      const Part part(images, piece, behind ? length - cut : cut, number - (behind ? packs_before : 0));
      if (part.exists()) visit(slot, part, r, behind ? cut : 0);
    }
  }
  // Calls visit(part, r, t) for the packs at the ends of the images' pieces that have elements of other pieces, too. A
  // thread takes an end, so that only few warps store elements one by one: for_images has such packs in nearly every
  // warp. That pays where rows are long. Short rows have so many ends that a second round takes longer.
  template <typename Visit>
  __device__ __forceinline__ void for_ends(const Target& images, Visit visit) const {
    for (unsigned end = threadIdx.x; end < 4 * rows; end += THREADS) {
      const unsigned r = end / 4;
      const bool behind = end % 4 >= 2;
      const INDEX piece = shared.rows[r] + (behind ? 0 : start);
      const unsigned count = behind ? length - cut : cut;
      const unsigned last = (images.misalignment(piece) + count - 1) / SIZE, number = end % 2 ? last : 0;
      const Part part(images, piece, count, number);
      if (count > 0 && end % 2 <= last && !part.whole()) visit(part, r, behind ? cut : 0);
    }
  }
  // The same as for_images for the windows, which are one piece.
  template <typename Pointer, typename Visit>
  __device__ __forceinline__ void for_windows(const Side<Pointer>& windows, Visit visit) const {
    const unsigned count = rows * length, packs = (count + windows.misalignment(windows_at) + EDGE) / SIZE;
    for (unsigned slot = threadIdx.x; slot < packs; slot += THREADS) {
      visit(slot, Part(windows, windows_at, count, slot));
    }
  }

  __device__ __forceinline__ void find_runs(const Source& images) const {
    const unsigned count = rows * columns;
#pragma unroll 1
    for (unsigned run = threadIdx.x; run < count; run += THREADS) {
      const unsigned window = run / SIDE, band = COLUMNS == ACROSS ? window / ACROSS : 0;
      const unsigned r = band * SIDE + run - window * SIDE, t = (window - band * columns) * RUN;
      const INDEX row = shared.rows[r];
      const unsigned before = r * (ROW_PACKS * SIZE) + images.misalignment(row + start);
      const unsigned behind = (r * ROW_PACKS + packs_before) * SIZE + images.misalignment(row) - cut;
      shared.runs[run] = make_uint2((t < cut ? before : behind) + t, (t + CUT < cut ? before : behind) + t);
    }
    // What comes behind the last run, which the last pack asks for and doesn't use.
    if (threadIdx.x == 0) shared.runs[count] = make_uint2(RUN, RUN);
  }

  // The spot of element `e` of the windows, in a tile of images.
  __device__ __forceinline__ Spot in_images(unsigned e) const {
    const unsigned run = e / RUN, in = e - run * RUN;
    const uint2 places = shared.runs[run];
    const bool behind = CUT < RUN && in >= CUT, whole = CUT == RUN || behind || places.x == places.y;
    return {(behind ? places.y : places.x) + in, (whole ? RUN : CUT) - in, run, in, whole};
  }
  // The spot of element t of row r, in a tile of windows. at: the place of the windows' first element.
  __device__ __forceinline__ Spot in_windows(unsigned at, unsigned r, unsigned t) const {
    const unsigned band = BANDS == 1 ? 0 : r / SIDE, column = t / RUN, in = t - column * RUN;
    const unsigned run = (band * columns + column) * SIDE + r - band * SIDE;
    return {at + run * RUN + in, RUN - in, run, in, true};
  }
  // Where the piece goes on that follows a spot's: where its element 0 would be if `left` elements of it came before.
  __device__ __forceinline__ unsigned next(const Spot& spot) const {
    if constexpr (TO_WINDOWS) {
      return spot.whole ? shared.runs[spot.run + 1].x + spot.in - RUN : shared.runs[spot.run].y + spot.in;
    }
    // The last pack of a row may ask for what is behind the tile, and doesn't use it.
    return min(spot.place + (SIDE - 1) * RUN, (TILE_PACKS - 1) * SIZE);
  }

  // A pack whose elements lie side by side in the tile.
  __device__ __forceinline__ Pack<Element> shifted(unsigned place) const {
    constexpr unsigned PER_WORD = 4 / sizeof(Element);
    const unsigned* from = reinterpret_cast<const unsigned*>(shared.tile) + place / PER_WORD;
    const unsigned bits = place % PER_WORD * 16;
    uint4 raw = make_uint4(from[0], from[1], from[2], from[3]);
    if constexpr (PER_WORD == 2) {
      raw = make_uint4(__funnelshift_r(raw.x, raw.y, bits), __funnelshift_r(raw.y, raw.z, bits),
                       __funnelshift_r(raw.z, raw.w, bits), __funnelshift_r(raw.w, from[4], bits));
    }
    return reinterpret_cast<const Pack<Element>&>(raw);
  }

  // The pack that `part` says. spot_of(e): where element e of the piece lies in the tile. Elements that aren't the
  // piece's are any.
  template <typename SpotOf>
  __device__ __forceinline__ Pack<Element> gather(const Part& part, SpotOf spot_of) const {
    const Element* tile = reinterpret_cast<const Element*>(shared.tile);
    Pack<Element> pack;
    if constexpr (SEVERAL) {
#pragma unroll
      for (int j = 0; j < static_cast<int>(SIZE); ++j) {
        pack.at[j] = tile[spot_of(min(max(part.first + j, 0), part.count - 1)).place];
      }
      return pack;
    }
    const unsigned begin = max(part.first, 0), skipped = begin - part.first;
    const Spot spot = spot_of(begin);
    if (!SHORT && skipped == 0 && spot.left >= SIZE) return shifted(spot.place);
    const unsigned left = skipped ? skipped : spot.left;
    int here = static_cast<int>(spot.place * sizeof(Element));
    int other = static_cast<int>((skipped ? spot.place - skipped : next(spot)) * sizeof(Element));
    // The compiler would multiply again for each element, if it knew that these are products.
    asm("" : "+r"(here), "+r"(other));
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      const char* from = reinterpret_cast<const char*>(tile) + (j < left ? here : other);
      pack.at[j] = reinterpret_cast<const Element*>(from)[j];
    }
    return pack;
  }
};

// A block's steps: find_rows(), load_tile() and store_tile(). A barrier stands before each step that needs what other
// threads wrote.
__device__ __forceinline__ void load_tile(const Tile& tile, const Source& x) {
  if constexpr (TO_WINDOWS) {
    tile.for_images(x, [&](unsigned slot, const Part& part, unsigned, unsigned) { part.load(tile.shared.tile + slot, x); });
    tile.find_runs(x);
  } else {
    tile.for_windows(x, [&](unsigned slot, const Part& part) { part.load(tile.shared.tile + slot, x); });
  }
}

__device__ __forceinline__ void store_tile(const Tile& tile, const Source& x, const Target& y) {
  if constexpr (TO_WINDOWS) {
    tile.for_windows(y, [&](unsigned, const Part& part) {
      part.store(y, tile.gather(part, [&](unsigned e) { return tile.in_images(e); }));
    });
  } else {
    const unsigned place = x.misalignment(tile.windows_at);
    const auto gather = [&](const Part& part, unsigned r, unsigned t) {
      return tile.gather(part, [&](unsigned e) { return tile.in_windows(place, r, t + e); });
    };
    tile.for_images(y, [&](unsigned, const Part& part, unsigned r, unsigned t) {
      if (LONG_ROWS) {
        if (part.whole()) store_pack(y.data + part.at, gather(part, r, t));
      } else {
        part.store(y, gather(part, r, t));
      }
    });
    if (LONG_ROWS) {
      tile.for_ends(y, [&](const Part& part, unsigned r, unsigned t) { part.store_elements(y, gather(part, r, t)); });
    }
  }
}

// n: elements. bands: rows of windows of all images.
__device__ __forceinline__ void move_tile(const Element* __restrict__ x, Element* __restrict__ y, INDEX n, INDEX bands) {
  __shared__ Shared shared;
  const Tile tile(shared, bands);
  const Source source(x, n);
  const Target target(y, n);
  tile.find_rows();
  if constexpr (TO_WINDOWS) __syncthreads();
  load_tile(tile, source);
  wait_for_copies();
  __syncthreads();
  store_tile(tile, source, target);
}
