// LayerNorm and RMSNorm of rows of a single element, where there is nothing to add up.
#pragma once

#include "norm.cuh"
#include "../include/quad.cuh"

// A thread has four rows, so that its statistics are accesses of 16 bytes: most bytes that move are statistics.
// aligned: all tensors are aligned to 16 bytes.
template <bool Centred, typename Element>
__device__ __forceinline__ void normalise_ones(const Element* __restrict__ x, const Element* __restrict__ gamma,
                                               const Element* __restrict__ beta, Element* __restrict__ y,
                                               float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                                               bool aligned) {
  constexpr unsigned SIZE = Quad<Element>::SIZE;
  const long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * SIZE;
  const float scale = to_float(*gamma), shift = Centred ? to_float(*beta) : 0.0f;
  const bool whole = aligned && first + SIZE <= rows;
  Quad<Element> elements{};
  if (whole) elements = load_quad(x + first);
#pragma unroll
  for (unsigned e = 0; e < SIZE; ++e) {
    if (!whole && first + e < rows) elements.at[e] = x[first + e];
  }
  Quad<float> means, rstds;
#pragma unroll
  for (unsigned e = 0; e < SIZE; ++e) {
    const float value = to_float(elements.at[e]);
    Normaliser<Centred> normalised(1u, Centred ? value : 0.0f);
    float sums[Normaliser<Centred>::SUMS] = {};
    normalised.add(value, sums);
    normalised.again(sums);
    elements.at[e] = Element(fmaf(normalised(value), scale, shift));
    means.at[e] = normalised.mean, rstds.at[e] = normalised.rstd();
  }
  if (whole) {
    store_quad(y + first, elements);
    if constexpr (Centred) store_quad(mean + first, means);
    store_quad(rstd + first, rstds);
    return;
  }
#pragma unroll
  for (unsigned e = 0; e < SIZE; ++e) {
    if (first + e >= rows) break;
    y[first + e] = elements.at[e];
    if constexpr (Centred) mean[first + e] = means.at[e];
    rstd[first + e] = rstds.at[e];
  }
}
