// SwiGLU, y = silu(gate) * up with silu(g) = g / (1 + e^-g): what stands between the two products of an MLP in Llama and
// its kin (Shazeer, GLU Variants Improve Transformer, 2020). Gate and up are the halves of the rows of one tensor, as one
// product gives them, or two tensors.
//
// Memory bounds it: an element of y takes a gate and an up, three times its bytes. Torch's two kernels write silu(gate) and
// read it again, which is five times, and round it to the type of memory in between. One kernel keeps it in a register
// (1). An element an access leaves a warp with 64 bytes of halves, so packs of 16 bytes are next (2). A thread has one of
// gate and one of up: a copy is faster so than with two packs a thread (copy.cu), and the blocks are twice as many, which
// few rows need to fill a GPU.
//
// Macros: as in swiglu.cuh, and UNITS (packs of each tensor that a thread of `tuned` has).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 M8192-H5120 layout=packed.
// At least 167.8 MB are read and 83.89 MB written. The ceiling is 58.97 us, by memory.
//   fused: one kernel, an element a thread; any length and address
//   tuned: 16 bytes an access, a pack of each tensor a thread
//       59.28 us   99.5% of ceiling  moves 251.7 MB

#include "swiglu.cuh"

// silu(gate) * up, in float. The product of two halves rounds once, when it is stored.
__device__ __forceinline__ float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

#ifndef UNITS

// 1. One element a thread, at any address.
extern "C" __global__ void __launch_bounds__(BLOCK)
    swiglu_fused(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ y, INDEX elements,
                 INDEX columns, INDEX multiplier, unsigned shift) {
  INDEX i;
  if (!own_element(elements, i)) return;
  const INDEX at = Places{columns, multiplier, shift}.gate(i);
  y[i] = T(swiglu(to_float(gate[at]), to_float(PACKED ? gate[at + columns] : up[i])));
}

#else

// 2. 16 bytes an access; a thread's packs lie a block apart. Rows are whole packs, and all tensors are aligned.
extern "C" __global__ void __launch_bounds__(BLOCK)
    swiglu_tuned(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ y, INDEX packs, INDEX columns,
                 INDEX multiplier, unsigned shift) {
  const Places places{columns, multiplier, shift};
  const INDEX first = static_cast<INDEX>(blockIdx.x) * (BLOCK * UNITS) + threadIdx.x;
  Pack<T> gates[UNITS], ups[UNITS];
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    const INDEX i = first + u * BLOCK;
    if (i >= packs) break;
    const INDEX at = places.gate(i);
    gates[u] = load_pack(gate + at * SIZE);
    ups[u] = load_pack(PACKED ? gate + (at + columns) * SIZE : up + i * SIZE);
  }
#pragma unroll
  for (unsigned u = 0; u < UNITS; ++u) {
    const INDEX i = first + u * BLOCK;
    if (i >= packs) break;
    float g[SIZE], other[SIZE];
    widen(gates[u], g);
    widen(ups[u], other);
#pragma unroll
    for (unsigned e = 0; e < SIZE; ++e) g[e] = swiglu(g[e], other[e]);
    Pack<T> result;
    narrow(g, result);
    store_pack(y + i * SIZE, result);
  }
}
#endif
