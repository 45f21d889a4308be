// Attention over windows: out = softmax(q k^T / sqrt(D) + bias + mask) v for each of W windows and H heads. q, k, v and
// out are (W, H, T, D), bias (H, T, T), mask (G, T, T), of which window w takes mask w % G. Halves in, halves out.
//
// Macros: as in attention.cuh, and as in attention_tiles.cuh for steps 3 and 4.
//
// The numbers below are for Swin's windows: 49 tokens, heads of 32, W = 8192, H = 4, so 32768 items, where an item is a
// window and a head. A matrix of an item has 49 rows of 64 bytes: 3136 bytes, one after another in memory. q, k, v and
// out are 103 MB each, together 411 MB, and that is all that has to move: bias and masks are 0.3 MB. The two products
// have 10 GFLOP, for which tensor cores need 14 us, and memory needs about 96 us. So the aim is to keep memory busy.
//
// What each step gained on an NVIDIA H200 (reports/h200/attention), float16 W8192-H4-T49-D32-G1 bias=yes,mask=none.
// At least 308.3 MB are read and 102.8 MB written. The ceiling is 94.10 us, by memory.
//   eager: PyTorch
//       980.5 us    9.6% of ceiling
//   unfused: batched GEMM, our softmax with bias and mask, batched GEMM
//       803.9 us   11.7% of ceiling  moves 1.040 GB  1.22x the speed of eager
//   scalar: one kernel, a warp a row, no tensor cores
//       1.754 ms    5.4% of ceiling  moves 411.1 MB  0.46x the speed of unfused
//   fused: one kernel, a window and a head a block, tensor cores
//       301.9 us   31.2% of ceiling  moves 411.1 MB  5.81x the speed of scalar
//   tuned: blocks that stay, bias and mask in shared memory, the next window under way
//       113.9 us   82.6% of ceiling  moves 411.1 MB  2.65x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif
#ifndef TOKENS
#define TOKENS 49
#endif
#ifndef HEAD
#define HEAD 32
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef MASK
#define MASK 1
#endif
#ifndef PACKED
#define PACKED 0
#endif

#include "attention_rows.cuh"

using Operand = const Element* __restrict__;

// 1. The text before: a library's batched product, this kernel, another batched product. Scores are 157 MB, and move
//    four times: more than everything else. The scores' scale, bias, mask and softmax are one kernel, a warp a row, in
//    place.
extern "C" __global__ void window_attention_softmax(Element* scores, Operand bias, Operand mask, unsigned rows,
                                                    unsigned masks, unsigned heads, unsigned multiplier,
                                                    unsigned shift) {
  softmax({nullptr, nullptr, nullptr, bias, mask, nullptr}, scores, rows, masks, {heads, multiplier, shift});
}

// 2. One kernel without tensor cores: a block has an item. Q, K and V lie in shared memory, and a warp makes a row of
//    scores, its softmax, and a row of the output, one multiplication at a time. 411 MB move, but each multiplication
//    of the products, 2.5 G in each of them, needs two loads from shared memory. It takes any sizes at any address.
extern "C" __global__ void __launch_bounds__(WARPS* WARP)
    window_attention_scalar(Operand q, Operand k, Operand v, Operand bias, Operand mask, Element* __restrict__ out,
                           unsigned heads, unsigned masks) {
  attend_rows({q, k, v, bias, mask, out}, heads, masks);
}

#ifdef TEAM
#include "attention_tiles.cuh"

// Steps 3 and 4 are attention_tiles.cuh, with other macros: here is why it is as it is.
//
// 3. The text after: tensor cores. A block has an item, and each of its four warps takes 16 queries (a tile) against
//    all keys (HOLD = 0, TEAMS = 1, TABLES = 0). Bias and mask are read where they are used, element by element: 56
//    loads of each lane. A block loads, then computes, and the other blocks have to keep memory busy meanwhile.
//
// 4. One warp an item, and the next item under way (HOLD = 1). A warp takes its four tiles one after another. 49 rows
//    are padded to 64, which are four tiles of 16, and 49 columns to 56, which are seven tiles of 8. With mma.cuh's
//    layout of 16 x 8 scores, lane l has
//
//                    columns 2 * (l % 4) and the next one of
//                    tile 0         tile 1         ...  tile 6
//        row l / 4        d0[0] d0[1]    d1[0] d1[1]         d6[0] d6[1]       of the last tile, d6[0] of lanes with
//        row l / 4 + 8    d0[2] d0[3]    d1[2] d1[3]         d6[2] d6[3]       l % 4 = 0 alone is a token's: number 48
//
//    - A row is in four lanes. Its largest score and its sum take two shuffles each.
//    - The tiles 2 i and 2 i + 1, rounded to halves, are the left operand of step i of the second product as they lie:
//      the weights never leave their registers. The last step has tile 6 alone, and half as many columns.
//    - Bias and mask are what the first product's sums begin with, times sqrt(D). The scale, and the change from powers
//      of e to powers of 2, are one factor, of one multiply-add for each score.
//    - Bias and mask of a head come from a table in shared memory: floats, for each tile the four numbers of each
//      lane, so a lane takes them in one load of 16 bytes. A block makes the tables of two heads and one mask, and then
//      works on these alone: 2 x 128 items, the images of a batch. If bias and mask were read for each item, the bytes
//      to move would double.
//
//    Each warp copies to its own shared memory with cp.async, 16 bytes a lane: 21 instructions for 9408 bytes. It loads
//    K and V to 56 registers, and then lets the next item's K and V come to the same place; there are two places for Q,
//    and a tile of the output takes the place of its queries, from which it goes to memory in 16 bytes a lane. So a
//    warp has 9408 bytes on their way while it computes, and 16 warps have 150 KB, of the 227 KB that a block may have
//    in shared memory. About 40 KB would keep memory busy. Warps never wait for each other, but for new tables.
//    Rows that a lane copies are 8 apart, so its addresses differ by what the instructions have in them already.
//
//    Rows of 64 bytes would put rows r and r + 2 into the same banks. So chunks of 16 bytes change places by a
//    function of their row (chunk_at), and eight rows of a matrix come from all 32 banks.
//
//    By count, not by measurement: for an item a warp issues 56 + 64 products, 24 loads of matrices, 28 of the table,
//    91 powers of 2, 91 multiply-adds, 91 maxima and 91 additions, and some 800 more. With 62 items for each of the
//    four schedulers of each multiprocessor, these are about 85000 cycles, or 48 us; powers of 2 take 8 cycles each, 25
//    us; the products 20 to 30 us; and shared memory, 128 bytes a cycle, 45 us. All of it happens at the same time as
//    memory's 96 us.
//
//    128 registers a thread are what 16 warps can have. The loop over tiles isn't unrolled: unrolled, the compiler
//    begins the next tile's loads early and needs 168.
//
//    Longer windows, or larger heads, would need more registers: there K and V stay in shared memory, where a team of
//    warps reads them, a tile of queries a warp. Keys come in bands of 48 or 32, and what a row has so far is scaled
//    when a larger score turns up. 144 tokens are three bands of 48 keys for nine warps, and a block has two teams.
//
//    The table of 256 tokens has 256 KB, for which there is no room. Without tables a lane reads bias and mask where
//    they are used, and each such load of a warp has eight rows, whose lines come one by one: 128 loads a tile, 256 if
//    they weren't pairs. So the queries of an item are cut into two parts (PARTS = 2), each with items, tables and
//    blocks of its own. K and V are read once more, 32 KB, and a table of 128 KB serves all images. Two teams of eight
//    warps then have room for the item that they work on alone (STAGES = 1): one team loads while the other one works.
//
//    Few items, up to three a multiprocessor, have blocks of their own, as in step 3: a table would be made for one
//    window alone, by a block whose other warps wait. The rows of bias and mask come to the L2 beside q, k and v.
//
//    Heads of 30 elements, which SwinIR has, aren't whole packs. Rows that 16 doesn't divide come in copies of 4 bytes,
//    15 for a row, to rows of 32 elements in shared memory, whose last two are zeros, and leave in the same way. With
//    64 tokens an item has 96 copies of a warp where whole packs have 24.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    window_attention_tiles(Operand q, Operand k, Operand v, Operand bias, Operand mask, Element* __restrict__ out,
                           unsigned items, unsigned heads, unsigned masks, unsigned ways, unsigned segment,
                           unsigned of_segment, unsigned segment_shift, unsigned groups, unsigned of_groups,
                           unsigned groups_shift) {
  attend({q, k, v, bias, mask, out},
         {items, heads, masks, ways, {segment, of_segment, segment_shift}, {groups, of_groups, groups_shift}});
}
#endif
