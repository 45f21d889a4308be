// Gradients of a list of tensors, multiplied in place by inv_scale; found_inf becomes 1 if any of them isn't finite.
// The product is made in float and rounded once. An element is tested before it is multiplied.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), PACKS (packs of 16 bytes that a thread of step 3 has in flight: 1).
//
// Every element is read and written once, so the bytes are the bytes of a copy. What differs is how many launches a
// list takes, how a thread finds its tensor, and how much it has in flight. The kernels are called again and again on
// the same list, whose tables stay on the device.
//
// What each step gained on an NVIDIA H200 (reports/h200/lists), float32 T0-N0 tensors=resnet50.
// At least 102.2 MB are read and 102.2 MB written. The ceiling is 49.42 us, by memory.
//   eager: PyTorch
//       89.12 us   55.4% of ceiling
//   loop: our kernel once for each tensor, one element a thread
//       318.2 us   15.5% of ceiling  moves 204.5 MB  0.28x the speed of eager
//   fused: one launch; each thread walks through the list, some 20 elements far, from a table of starts
//       109.1 us   45.3% of ceiling  moves 204.5 MB  2.92x the speed of loop
//   tuned: one launch; pieces of equal size from a table, in packs of 16 bytes
//       51.04 us   96.8% of ceiling  moves 204.5 MB  2.14x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef PACKS
#define PACKS 1
#endif

#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "pieces.cuh"

using T = SCALAR;

// The product of one element. x * 0 is 0 if x is finite, and NaN if it isn't: so `zero` becomes NaN, and stays it.
__device__ __forceinline__ T unscaled(T x, float scale, float& zero) {
  const float wide = to_float(x);
  zero = fmaf(wide, 0.0f, zero);
  return T(wide * scale);
}

// Every thread that has seen such an element writes the same number.
__device__ __forceinline__ void tell(float zero, float* found_inf) {
  if (zero != 0.0f) *found_inf = 1.0f;
}

// 1. The text before: a launch for each tensor, one element a thread. A model has hundreds of tensors, most of which are
//    small, so that a launch takes longer than its work.
extern "C" __global__ void unscale_loop(T* grad, const float* __restrict__ inv_scale, float* found_inf, long long n) {
  const long long i = thread_index();
  if (i >= n) return;
  float zero = 0.0f;
  grad[i] = unscaled(grad[i], *inv_scale, zero);
  tell(zero, found_inf);
}

// 2. The text after: one launch for the whole list. Tensor k has the elements starts[k] to starts[k + 1] of all of them.
//    A block copies the starts to shared memory. A thread takes about 20 elements, as far apart as the grid is wide; they
//    ascend, so it goes on from the tensor that it has found before. The scale and the flag stay in registers.
// table: the addresses of the tensors, then tensors + 1 starts. Shared memory: the starts.
extern "C" __global__ void unscale_fused(const long long* __restrict__ table, const float* __restrict__ inv_scale,
                                         float* found_inf, unsigned tensors) {
  extern __shared__ long long starts[];
  for (unsigned k = threadIdx.x; k <= tensors; k += blockDim.x) starts[k] = table[tensors + k];
  __syncthreads();
  const long long n = starts[tensors], stride = static_cast<long long>(gridDim.x) * blockDim.x;
  const float scale = *inv_scale;
  float zero = 0.0f;
  unsigned k = 0;
  for (long long i = thread_index(); i < n; i += stride) {
    while (i >= starts[k + 1]) ++k;
    T* element = reinterpret_cast<T*>(table[k]) + (i - starts[k]);
    *element = unscaled(*element, scale, zero);
  }
  tell(zero, found_inf);
}

// 3. Ours: the host cuts the tensors into pieces, and the table says where each lies. No thread searches. A thread has
//    its packs of 16 bytes in flight before it uses the first. Packs begin on multiples of 16 bytes at any address of a
//    tensor: only the first and the last pack of a tensor may hold elements that aren't its own.
// base: where the first pack of the piece lies. begin, end: its elements, counted from there.
struct alignas(16) Piece {
  T* base;
  unsigned begin, end;
};

__device__ __forceinline__ void unscale_pack(Pack<T>& pack, float scale, float& zero) {
  unsigned(&word)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
  float own = 0.0f;  // one for each pack: the sums of several packs don't wait for each other
#pragma unroll
  for (unsigned w = 0; w < PACK_BYTES / 4; ++w) {
    Lanes<T> lanes(word[w]);
#pragma unroll
    for (unsigned l = 0; l < Lanes<T>::SIZE; ++l) {
      own = fmaf(lanes.at[l], 0.0f, own);
      lanes.at[l] *= scale;
    }
    word[w] = lanes.word();
  }
  zero += own;
}

// A piece in which every pack is whole, as nearly all are. The loads mark their lines as the first ones to give up, and
// don't take the read-only path, which isn't meant for memory that the kernel writes.
__device__ __forceinline__ void unscale_whole(const Piece& piece, const Team& team, float scale, float& zero) {
  Pack<T> packs[PACKS];
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    packs[j] = load_pack<true>(piece.base + (team.rank + j * team.size) * Pack<T>::SIZE);
  }
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    unscale_pack(packs[j], scale, zero);
    store_pack<true>(piece.base + (team.rank + j * team.size) * Pack<T>::SIZE, packs[j]);
  }
}

// A piece that is shorter, or whose first or last pack has elements of other pieces: such packs go element by element.
__device__ __forceinline__ void unscale_part(const Piece& piece, const Team& team, float scale, float& zero) {
  Pack<T> packs[PACKS];
  bool whole[PACKS];
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    const unsigned first = (team.rank + j * team.size) * Pack<T>::SIZE;
    whole[j] = first >= piece.begin && first + Pack<T>::SIZE <= piece.end;
    if (whole[j]) packs[j] = load_pack<true>(piece.base + first);
  }
#pragma unroll
  for (unsigned j = 0; j < PACKS; ++j) {
    const unsigned first = (team.rank + j * team.size) * Pack<T>::SIZE;
    if (whole[j]) {
      unscale_pack(packs[j], scale, zero);
      store_pack<true>(piece.base + first, packs[j]);
    } else {
      const unsigned end = min(first + Pack<T>::SIZE, piece.end);
#pragma unroll 1
      for (unsigned e = max(first, piece.begin); e < end; ++e) {
        piece.base[e] = unscaled(piece.base[e], scale, zero);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    unscale_tuned(const Piece* __restrict__ table, const float* __restrict__ inv_scale, float* found_inf, unsigned whole) {
  const Team team(whole);
  const uint4 row = __ldg(reinterpret_cast<const uint4*>(table) + team.row);
  const Piece& piece = reinterpret_cast<const Piece&>(row);
  const float scale = *inv_scale;
  float zero = 0.0f;
  if (piece.begin == 0 && piece.end == team.size * PACKS * Pack<T>::SIZE) {
    unscale_whole(piece, team, scale, zero);
  } else {
    unscale_part(piece, team, scale, zero);
  }
  tell(zero, found_inf);
}
