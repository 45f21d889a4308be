// What int32 results of a matrix product of 8-bit integers stand for: acc * sx * sw + bias. sx is the scale of one
// factor, sw the scale of the other factor, or a scale for each of its columns; bias has a number for each column.
//
// Macros: CHANNEL (0 or 1: sw has a scale for each column), and the macros of tiles.cuh.
#pragma once

#include "tiles.cuh"

// Units of int32, the widest type.
#ifdef UNIT_ELEMENTS
constexpr unsigned SIZE = UNIT_ELEMENTS;
#else
constexpr unsigned SIZE = 4;
#endif

// A step of in_tiles: finish(acc * sx * sw + bias + residual). finish.load() fetches what it needs itself.
template <typename Finish>
struct Dequantise {
  const float *sx, *sw;
  const T* bias;
  Finish finish;
  float scale[SIZE], shift[SIZE];

  __device__ __forceinline__ void load(INDEX column, INDEX columns) {
    load_columns(bias, column, columns, shift);
    if constexpr (CHANNEL) load_columns(sw, column, columns, scale);
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) scale[j] = *sx * (CHANNEL ? scale[j] : *sw);
    finish.load();
  }
  __device__ __forceinline__ float operator()(float acc, float residual, unsigned j) const {
    return finish(fmaf(acc, scale[j], shift[j]) + residual);
  }
};

// Finishes with nothing.
struct Plain {
  __device__ __forceinline__ void load() {}
  __device__ __forceinline__ float operator()(float value) const { return value; }
};
