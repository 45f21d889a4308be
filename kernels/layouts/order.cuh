// The order in which blocks take the tiles of a batch of matrices.
//
// Macros: BAND (tiles).
#pragma once

#include "../include/fastdiv.cuh"

// Where a tile lies: its matrix, and its place among the tiles of that matrix.
struct Place {
  unsigned matrix, down, across;
};

// A matrix has `down` times `across` tiles. What divides by their product is `matrix`; what divides by BAND * down,
// `band`.
struct Order {
  unsigned down, across;
  Divisor<unsigned> matrix, band;
};

// Blocks take the tiles of a matrix in bands of BAND tiles across, and in a band row by row. So tiles that are
// neighbours in a row or in a column are taken at nearly the same time: lines of x that two tiles read are in the cache
// for the second one, and sectors of y that two tiles write are complete before they leave the cache.
__device__ __forceinline__ Place place_of(unsigned tile, const Order& order) {
  const unsigned matrix = order.matrix.quotient(tile), of_matrix = tile - matrix * order.matrix.size;
  const unsigned band = order.band.quotient(of_matrix), of_band = of_matrix - band * order.band.size;
  // The last band may be narrower.
  const unsigned first = band * BAND, left = order.across - first;
  const unsigned row = left >= BAND ? of_band / BAND : of_band / left;
  return {matrix, row, first + of_band - row * min(left, static_cast<unsigned>(BAND))};
}
