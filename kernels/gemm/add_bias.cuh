// A bias for each column of a product, and what follows it, element by element and in place: y[i] = after(y[i] +
// bias[i % columns]). after: a function of floats. A half's sum is made in float, and the result is rounded once.
#pragma once

#include "../include/bias.cuh"
#include "../include/number.cuh"

template <typename Element, typename After>
__device__ __forceinline__ Pack<Element> sum(const Pack<Element>& y, const Pack<Element>& bias, After after) {
  Pack<Element> result;
#pragma unroll
  for (unsigned j = 0; j < Pack<Element>::SIZE; ++j) {
    result.at[j] = Element(after(to_float(y.at[j]) + to_float(bias.at[j])));
  }
  return result;
}

template <typename Element, typename Index>
__device__ __forceinline__ Index first_element() {
  return (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) * Pack<Element>::SIZE;
}

// One pack a thread, in rows of any length, y and bias at any address. y is read past the read-only cache, which must not
// see data that the kernel writes.
// aligned: y begins on 16 bytes; otherwise, and in the last pack, elements go one by one.
template <typename Element, typename Index, typename After>
__device__ __forceinline__ void add_bias_anywhere(Element* y, const Element* __restrict__ bias, Index n, int aligned,
                                                  const Columns<Index>& of, After after) {
  constexpr unsigned SIZE = Pack<Element>::SIZE;
  const Index first = first_element<Element, Index>();
  if (first >= n) return;
  if (aligned && first + SIZE <= n) {
    const Pack<Element> before = load_pack<true>(y + first);
    store_pack(y + first, sum(before, load_bias<false>(bias, first, of), after));
  } else {
#pragma unroll 1
    for (Index i = first; i < n && i < first + SIZE; ++i) {
      y[i] = Element(after(to_float(y[i]) + to_float(bias[of.of(i)])));
    }
  }
}

// The same in rows of whole packs, y and bias on 16 bytes.
template <typename Element, typename Index, typename After>
__device__ __forceinline__ void add_bias_to_packs(Element* y, const Element* __restrict__ bias, Index n,
                                                  const Columns<Index>& of, After after) {
  const Index first = first_element<Element, Index>();
  if (first >= n) return;
  const Pack<Element> before = load_pack<true>(y + first);
  store_pack(y + first, sum(before, load_bias<true>(bias, first, of), after));
}
