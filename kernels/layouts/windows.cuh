// Windows of images, as Swin Transformer has them. An image (B, H, W, C), channels last, is rolled by `shift` pixels up
// and to the left, and cut into windows of side x side pixels: (B * H / side * W / side, side * side, C). Both layouts
// have the same elements, and an element of one has a place in the other.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element), INDEX (unsigned, or unsigned long long from 2^31
// units on).
#pragma once

#include "../include/fastdiv.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

// What the other layout has for a unit of one layout: where it begins there, and for how many units both go on side by
// side.
template <typename Index>
struct Place {
  Index at, left;
};

// The way from one layout to the other. Twin of WindowMap in harness/collection/ops/layouts/_windows.py. Indexes and
// sizes are in units; a unit is some neighbouring elements, and no border of a window and no end of the roll cuts one.
//
// A run is a row of a window. The rows of all images are numbered through, and the rows of all rolled images too. H is
// a multiple of the side, so row `row` of the rolled images lies in row `row / side` of windows, whichever image the
// row belongs to.
template <typename Index>
struct Windows {
  Divisor<Index> run;     // units of a run
  Divisor<Index> side;    // rows of a window
  Divisor<Index> across;  // windows beside each other
  Divisor<Index> height;  // rows of an image
  Divisor<Index> row;     // units of a row of an image
  Index rows_shifted, units_shifted;

  // Where a unit of the windows is in the images. Units from there on stay neighbours up to the end of the run, or to
  // the end of the image's row, where the roll goes on at the row's beginning.
  __device__ __forceinline__ Place<Index> in_images(Index unit) const {
    const Index runs = run.quotient(unit), in_run = unit - runs * run.size;
    const Index window = side.quotient(runs), in_window = runs - window * side.size;
    const Index window_row = across.quotient(window), column = window - window_row * across.size;
    const Index rolled = window_row * side.size + in_window, below = height.remainder(rolled) + rows_shifted;
    const Index image_row = rolled + rows_shifted - (below < height.size ? 0 : height.size);
    const Index shifted = column * run.size + in_run + units_shifted;
    const Index in_row = shifted - (shifted < row.size ? 0 : row.size);
    return {image_row * row.size + in_row, min(run.size - in_run, row.size - in_row)};
  }

  // Where a unit of the images is in the windows. Units from there on stay neighbours up to the end of the run, or to
  // the end of the image's row.
  __device__ __forceinline__ Place<Index> in_windows(Index unit) const {
    const Index image_row = row.quotient(unit), in_row = unit - image_row * row.size;
    const Index rolled = image_row - rows_shifted + (height.remainder(image_row) < rows_shifted ? height.size : 0);
    const Index shifted = in_row - units_shifted + (in_row < units_shifted ? row.size : 0);
    const Index column = run.quotient(shifted), in_run = shifted - column * run.size;
    const Index window_row = side.quotient(rolled), in_window = rolled - window_row * side.size;
    const Index runs = (window_row * across.size + column) * side.size + in_window;
    return {runs * run.size + in_run, min(run.size - in_run, row.size - in_row)};
  }
};

// The parameters of a kernel that make a Windows, and the Windows that they make.
#define WINDOW_PARAMETERS                                                                                            \
  INDEX run, INDEX run_multiplier, unsigned run_shift, INDEX side, INDEX side_multiplier, unsigned side_shift,       \
      INDEX across, INDEX across_multiplier, unsigned across_shift, INDEX height, INDEX height_multiplier,           \
      unsigned height_shift, INDEX row, INDEX row_multiplier, unsigned row_shift, INDEX rows_shifted,                \
      INDEX units_shifted
#define WINDOWS                                                                                                      \
  Windows<INDEX> {                                                                                                   \
    {run, run_multiplier, run_shift}, {side, side_multiplier, side_shift}, {across, across_multiplier, across_shift}, \
        {height, height_multiplier, height_shift}, {row, row_multiplier, row_shift}, rows_shifted, units_shifted     \
  }

// Where a unit of y comes from. ToWindows: y is windows and x images; otherwise the other way round.
template <bool ToWindows, typename Index>
__device__ __forceinline__ Place<Index> source(const Windows<Index>& windows, Index unit) {
  return ToWindows ? windows.in_images(unit) : windows.in_windows(unit);
}

// ---- Bodies of the kernels of window_partition.cu and window_reverse.cu, which tell what they are for.

// One element of y a thread, found by divisions and remainders.
template <bool ToWindows, typename Element, typename Index>
__device__ __forceinline__ void move_element(const Element* __restrict__ x, Element* __restrict__ y, Index n,
                                             Index height, Index width, Index channels, Index side,
                                             Index rows_shifted, Index columns_shifted) {
  const Index i = thread_index<Index>();
  if (i >= n) return;
  const Index channel = i % channels, pixel = i / channels;
  Index from;
  if (ToWindows) {
    const Index column_in = pixel % side, row_in = pixel / side % side, window = pixel / side / side;
    const Index across = width / side, down = height / side, image = window / across / down;
    const Index row = (window / across % down * side + row_in + rows_shifted) % height;
    const Index column = (window % across * side + column_in + columns_shifted) % width;
    from = (image * height + row) * width + column;
  } else {
    const Index column = (pixel % width + width - columns_shifted) % width;
    const Index row = (pixel / width % height + height - rows_shifted) % height, image = pixel / width / height;
    const Index window = (image * (height / side) + row / side) * (width / side) + column / side;
    from = (window * side + row % side) * side + column % side;
  }
  y[i] = x[from * channels + channel];
}

// `Unroll` units of y a thread, a block apart. All of them are loaded before the first one is stored. Threads behind the
// end move the last unit too, so that nothing needs a condition: behind one, the compiler would put a load after the
// stores of the units before.
template <bool ToWindows, unsigned Unroll, typename Unit, typename Index>
__device__ __forceinline__ void move_units(const Unit* __restrict__ x, Unit* __restrict__ y, Index units,
                                           const Windows<Index>& windows) {
  const Index first = static_cast<Index>(blockIdx.x) * (blockDim.x * Unroll) + threadIdx.x;
  Unit unit[Unroll];
#pragma unroll
  for (unsigned k = 0; k < Unroll; ++k) {
    unit[k] = __ldg(x + source<ToWindows>(windows, min(first + k * blockDim.x, units - 1)).at);
  }
#pragma unroll
  for (unsigned k = 0; k < Unroll; ++k) y[min(first + k * blockDim.x, units - 1)] = unit[k];
}

// The pack of y that begins at element `first`. Its elements are neighbours in x, or come from two pieces of x, or, if
// `Several`, from more. n: elements of x.
template <bool ToWindows, bool Several, typename Element, typename Index>
__device__ __forceinline__ Pack<Element> gather_pack(const Element* __restrict__ x, Index n, Index first,
                                                     const Windows<Index>& windows) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  Pack<Element> pack;
  if constexpr (Several) {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) pack.at[j] = x[source<ToWindows>(windows, first + j).at];
    return pack;
  }
  const Place<Index> place = source<ToWindows>(windows, first);
  const Element* from = x + place.at;
  if (place.left >= SIZE) {
    const unsigned misaligned = reinterpret_cast<unsigned long long>(from) % PACK_BYTES;
    const unsigned before = misaligned / sizeof(Element);
    // Both words around the pack must lie inside x.
    if (place.at >= before && place.at - before + 2 * SIZE <= n) return load_pack_shifted(from, misaligned);
  }
  const unsigned left = static_cast<unsigned>(min(place.left, static_cast<Index>(SIZE)));
  const Element* other = from;
  if (left < SIZE) other = x + source<ToWindows>(windows, first + left).at - left;
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) pack.at[j] = __ldg((j < left ? from : other) + j);
  return pack;
}

// One pack of y a thread, aligned to 16 bytes there. The threads behind take the `head` elements before the first pack,
// and the elements behind the last pack.
template <bool ToWindows, bool Several, typename Element, typename Index>
__device__ __forceinline__ void move_ragged(const Element* __restrict__ x, Element* __restrict__ y, Index n, Index head,
                                            Index packs, const Windows<Index>& windows) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  const Index i = thread_index<Index>();
  if (i < packs) {
    const Index first = head + i * SIZE;
    store_pack(y + first, gather_pack<ToWindows, Several>(x, n, first, windows));
  } else {
    const Index edge = i - packs, element = edge < head ? edge : edge + packs * SIZE;
    if (element < n) y[element] = x[source<ToWindows>(windows, element).at];
  }
}
