// Attention over windows between two matrix products. qkv (W, T, 3, H, D) is what the product with the weights of q, k
// and v leaves, out (W, T, H, D) what the projection takes. The steps are the steps of window_attention.cu, which tells
// how they work, with PACKED = 1 in attention.cuh.
//
// Macros: as in attention.cuh, and as in attention_tiles.cuh for steps 3 and 4.
//
// The text before has, between the products, a look-up of the bias, a transpose of qkv into q, k and v, two batched
// products with a softmax between them, and a transpose of the result. For W = 8192 windows of 49 tokens with 4 heads
// of 32, where a tensor of q is D = 103 MB, these move 8 D for the transposes, 4 D for the operands of the products,
// and 4 * 157 MB of scores: 1.9 GB. The essential bytes are 4 D = 411 MB.
//
// What each step gained on an NVIDIA H200 (reports/h200/attention), float16 W8192-H4-side7-D32-G64 mask=shift.
// At least 308.6 MB are read and 102.8 MB written. The ceiling is 94.16 us, by memory.
//   eager: PyTorch
//       1.995 ms    4.7% of ceiling
//   unfused: look-up in each call, transposes, batched GEMM, softmax, batched GEMM, transpose
//       1.469 ms    6.4% of ceiling  moves 1.863 GB  1.36x the speed of eager
//   scalar: one kernel, a warp a row, no tensor cores
//       1.763 ms    5.3% of ceiling  moves 411.4 MB  0.83x the speed of unfused
//   fused: one kernel, a window and a head a block, tensor cores
//       422.8 us   22.3% of ceiling  moves 411.4 MB  4.17x the speed of scalar
//   tuned: blocks that stay, bias and mask in shared memory, the next window under way
//       134.2 us   70.2% of ceiling  moves 411.4 MB  3.15x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif
#ifndef TOKENS
#define TOKENS 324
#endif
#ifndef HEAD
#define HEAD 24
#endif
#ifndef BIAS
#define BIAS 1
#endif
#ifndef MASK
#define MASK 0
#endif
#ifndef PACKED
#define PACKED 1
#endif

#include "attention_rows.cuh"

using Operand = const Element* __restrict__;

// q, k and v of a token are H heads apart.
__device__ __forceinline__ Operands unpacked(Operand qkv, Operand bias, Operand mask, Element* out, unsigned heads) {
  return {qkv, qkv + heads * HEAD, qkv + 2 * heads * HEAD, bias, mask, out};
}

// 1. The softmax of the text before, in place.
extern "C" __global__ void window_attention_packed_softmax(Element* scores, Operand bias, Operand mask, unsigned rows,
                                                           unsigned masks, unsigned heads, unsigned multiplier,
                                                           unsigned shift) {
  softmax({nullptr, nullptr, nullptr, bias, mask, nullptr}, scores, rows, masks, {heads, multiplier, shift});
}

// 2. One kernel without tensor cores. The transposes cost nothing more: a head's rows lie 3 * H * D elements apart on
//    the way in, and H * D on the way out.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    window_attention_packed_scalar(Operand qkv, Operand bias, Operand mask, Element* __restrict__ out, unsigned heads,
                                  unsigned masks) {
  attend_rows(unpacked(qkv, bias, mask, out, heads), heads, masks);
}

#ifdef TEAM
#include "attention_tiles.cuh"

// 3. The text after: tensor cores, a window and a head a block.
// 4. A row of a head has 2 * HEAD bytes, 64 for heads of 32, and its neighbours in memory are rows of the other heads.
//    So a block works on two heads of a window at the same time, whose rows then are 128 bytes in a piece, and blocks
//    that have the other heads of the window are there at the same time. Four heads a block would make pieces of 256
//    bytes, but their tables would leave room for 13 warps where two heads leave room for 16, and fewer warps take
//    longer: a warp spends most of its time waiting for its own last instruction, not for memory.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    window_attention_packed_tiles(Operand qkv, Operand bias, Operand mask, Element* __restrict__ out, unsigned items,
                                  unsigned heads, unsigned masks, unsigned ways, unsigned segment, unsigned of_segment,
                                  unsigned segment_shift, unsigned groups, unsigned of_groups, unsigned groups_shift) {
  attend(unpacked(qkv, bias, mask, out, heads),
         {items, heads, masks, ways, {segment, of_segment, segment_shift}, {groups, of_groups, groups_shift}});
}
#endif
