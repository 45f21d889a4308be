// ReLU and its backward, one after the other, as a training step calls them: y = relu(x), later dx = y > 0 ? dy : 0.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// D is the bytes of x. PyTorch's forward writes y, which the next layer needs anyway, and its backward reads y for the
// sign: 2 D + 3 D. With a bit an element (relu_mask.cu, relu_grad.cu) the forward writes D / 32 more (D / 16 in halves)
// and the backward reads that in place of D: 4 D + D / 16 (4 D + D / 8). The forward alone loses a little by the bits;
// only the two together show what they save, a fifth of the traffic.
//
// Here are the forwards without a mask, so that each form with bits has a form without bits to be compared with: steps
// 1 and 2 go with relu_grad_from_y and relu_grad_from_y_packed. With bits it is relu_mask_ballot and relu_grad_bitset,
// and the two tuned kernels.
//
// What each step gained on an NVIDIA H200 (reports/h200/masks), float32 N134217728.
// At least 1.091 GB are read and 1.091 GB written. The ceiling is 508.2 us, by memory.
//   eager: PyTorch
//       622.7 us   81.6% of ceiling
//   from_y: one element a thread; the backward reads y
//       857.6 us   59.3% of ceiling  moves 2.684 GB  0.73x the speed of eager
//   bitset: one element a thread; a ballot makes a word of bits
//       845.2 us   60.1% of ceiling  moves 2.181 GB  1.01x the speed of from_y
//   from_y_packed: packs of 16 bytes; the backward reads y
//       620.0 us   82.0% of ceiling  moves 2.684 GB  1.36x the speed of bitset
//   tuned: packs of 16 bytes and their bits
//       516.1 us   98.5% of ceiling  moves 2.181 GB  1.20x the speed of from_y_packed

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/relu.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

// 1. One element a thread.
extern "C" __global__ void relu_scalar(const T* __restrict__ x, T* __restrict__ y, long long n) {
  const long long i = thread_index();
  if (i < n) y[i] = relu(x[i]);
}

// 2. One pack of 16 bytes a thread: relu_mask_tuned without its bits. aligned: x and y begin on 16 bytes; otherwise, and
//    in the tensor's last pack, elements move one by one.
extern "C" __global__ void relu_packed(const T* __restrict__ x, T* __restrict__ y, long long n, int aligned) {
  const long long first = thread_index() * Pack<T>::SIZE;
  if (aligned && first + Pack<T>::SIZE <= n) {
    Pack<T> pack = load_pack(x + first);
    relu_pack(pack);
    store_pack(y + first, pack);
  } else {
#pragma unroll 1
    for (long long i = first; i < n && i < first + Pack<T>::SIZE; ++i) y[i] = relu(x[i]);
  }
}
