// The backward of SwiGLU: from dy, gate and up to the gradients of gate and up, as two tensors or as the halves of the
// rows of one. With s = 1 / (1 + e^-gate):
//
//   dgate = dy * up * s * (1 + gate * (1 - s)),  dup = dy * gate * s
//
// Memory bounds it: an element takes dy, gate and up, and gives two, five times its bytes. s is made again from the gate,
// since a tensor of it would be one more to write and to read. Torch's kernels (the product's two, silu's one) read and
// write nine. The steps are those of swiglu.cu: one kernel (1), then packs of 16 bytes, one of each tensor a thread (2).
//
// Macros: as in swiglu.cuh, and UNITS (packs of each tensor that a thread of `tuned` has).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-H5120 layout=packed.
// At least 251.7 MB are read and 167.8 MB written. The ceiling is 98.26 us, by memory.
//   fused: one kernel, an element a thread; any length and address
//   tuned: 16 bytes an access, a pack of each tensor a thread
//       98.74 us   99.5% of ceiling  moves 419.4 MB

#include "swiglu.cuh"

constexpr float FINITE = 3.402823466e38f;

// The gradients, in place of gate and up. Where dy * up is too large for a float, the slope of silu, which is at most 1.1,
// may make a float of it.
__device__ __forceinline__ void gradients(float dy, float& gate, float& up) {
  const float s = sigmoid(gate), slope = s * fmaf(gate, 1.0f - s, 1.0f), both = dy * up;
  const float of_gate = fabsf(both) <= FINITE ? both * slope : dy * slope * up;
  up = dy * (gate * s);
  gate = of_gate;
}

#ifndef UNITS

// 1. One element a thread, at any address.
extern "C" __global__ void __launch_bounds__(BLOCK)
    swiglu_grad_fused(const T* __restrict__ dy, const T* __restrict__ gate, const T* __restrict__ up,
                      T* __restrict__ dgate, T* __restrict__ dup, INDEX elements, INDEX columns, INDEX multiplier,
                      unsigned shift) {
  INDEX i;
  if (!own_element(elements, i)) return;
  const INDEX at = Places{columns, multiplier, shift}.gate(i);
  float g = to_float(gate[at]), u = to_float(PACKED ? gate[at + columns] : up[i]);
  gradients(to_float(dy[i]), g, u);
  dgate[at] = T(g);
  (PACKED ? dgate[at + columns] : dup[i]) = T(u);
}

#else

// 2. 16 bytes an access; a thread's packs lie a block apart. Rows are whole packs, and all tensors are aligned.
extern "C" __global__ void __launch_bounds__(BLOCK)
    swiglu_grad_tuned(const T* __restrict__ dy, const T* __restrict__ gate, const T* __restrict__ up,
                      T* __restrict__ dgate, T* __restrict__ dup, INDEX packs, INDEX columns, INDEX multiplier,
                      unsigned shift) {
  const Places places{columns, multiplier, shift};
  const INDEX first = static_cast<INDEX>(blockIdx.x) * (BLOCK * UNITS) + threadIdx.x;
  Pack<T> slopes[UNITS], gates[UNITS], ups[UNITS];
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    const INDEX i = first + u * BLOCK;
    if (i >= packs) break;
    const INDEX at = places.gate(i);
    slopes[u] = load_pack(dy + i * SIZE);
    gates[u] = load_pack(gate + at * SIZE);
    ups[u] = load_pack(PACKED ? gate + (at + columns) * SIZE : up + i * SIZE);
  }
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    const INDEX i = first + u * BLOCK;
    if (i >= packs) break;
    const INDEX at = places.gate(i);
    float slope[SIZE], g[SIZE], other[SIZE];
    widen(slopes[u], slope);
    widen(gates[u], g);
    widen(ups[u], other);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) gradients(slope[e], g[e], other[e]);
    Pack<T> of_gate, of_up;
    narrow(g, of_gate);
    narrow(other, of_up);
    store_pack(dgate + at * SIZE, of_gate);
    store_pack(PACKED ? dgate + (at + columns) * SIZE : dup + i * SIZE, of_up);
  }
}
#endif
