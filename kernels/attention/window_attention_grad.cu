// The backward of attention over windows: P = softmax(q k^T / sqrt(HEAD) + bias + mask), out = P v, for each window and
// head on its own. Given is the gradient of out:
//
//     dV = P^T dout      dP = dout v^T      dS = P * (dP - rowsum(P * dP))      dQ = dS k / sqrt(HEAD)
//     dbias = sum of dS over windows        dK = dS^T q / sqrt(HEAD)
//
// Macros: SCALAR (__half, __nv_bfloat16), TOKENS, DIM (32, 64), HAS_BIAS, HAS_MASK (0, 1); of step 2, STAGES (1, 2) and
// RESIDENT (blocks a multiprocessor). A compilation without RESIDENT has step 1 alone. HEAD: size of a head, DIM unless
// told, else an even number below it: then zeros fill rows to DIM elements in shared memory. SHARERS: warps of a strip of
// 16 queries in step 2, 1 unless told, or 2 with more than 64 tokens and HEAD = DIM. PACKED: 0 where tensors
// are (windows, heads, TOKENS, HEAD), which is so unless told; else the number of heads. Then dout is (windows, TOKENS,
// heads, HEAD), and q, k and v are one tensor, qkv (windows, TOKENS, 3, heads, HEAD), which is given in place of each
// of them; so are their gradients. That is what the products before and after attention have. A row of 32 or 64
// elements has whole sectors of memory there, so only addresses differ, and nothing is copied to other orders and back.
//
// Bytes: with 49 tokens and DIM = 32 a window and head has 3136 bytes in each of q, k, v, dout, dq, dk, dv, so 22 KB
// move. A (T, T) matrix has 4.8 KB more. Autograd's backward writes two of them, dP and dS, and reads six: P for dV, P
// and dP for softmax's backward, dS for dbias, dQ and dK. Here all of them stay on the chip. P isn't read: it is
// computed anew from q and k, which are there anyway.
//
// Fragments: a warp has 16 queries, and mma.cuh draws which elements a lane has. Tiles of S and dP (queries by keys)
// lie in registers as sums of products, which is just how a next product wants its A: dQ = dS k needs no move. The A of
// the other two products is a transpose, P^T and dS^T, over the queries of all warps. Warps exchange these two through
// shared memory: stmatrix puts the fragments there, ldmatrix reads them transposed. The alternative is to compute S^T
// and dP^T too: 28 products a warp more, and all powers of 2 a second time; the exchange takes 16 accesses.
//
//           keys                              keys of P^T, dS^T
//         0..7 8..15 ..                     warp 0, 1: dV      warp 2, 3: dK
//   warp 0 [    |    |  ]  queries 0..15
//   warp 1 [    |    |  ]         16..31      each 32 keys (two strips) by all 64 queries: each fragment of dout or q
//   warp 2 [    |    |  ]         32..47      that is loaded serves two products
//   warp 3 [    |    |  ]         48
//
// Counts of a warp and window with 49 tokens and DIM = 32: 76 products of 16 x 8 x 16, 42 loads by ldmatrix, 14 stores
// by stmatrix, 26 powers of 2 a lane, and about 700 instructions in all. For 8192 windows and 4 heads, an H200 would
// take 100 us of instructions, 140 us of shared memory's bandwidth, 32 us of powers of 2 and, at 720 MB, 170 us of
// memory. So memory is the limit as long as the four overlap; these are estimates, not measured.
//
// What each step gained on an NVIDIA H200 (reports/h200/attention), float16 W8192-H4-T49-D32-G1 bias=yes,mask=none.
// At least 411.1 MB are read and 308.3 MB written. The ceiling is 167.6 us, by memory.
//   eager: PyTorch
//       1.534 ms   10.9% of ceiling
//   unfused: batched products by torch, softmax's backward by softmax_grad/tuned, dbias summed apart
//       1.336 ms   12.5% of ceiling  moves 2.081 GB  1.15x the speed of eager
//   fused: one kernel with bias and mask as tensor inputs, a block a window and head; a second one sums dS
//       579.8 us   28.9% of ceiling  moves 1.034 GB  2.30x the speed of unfused
//   tuned: blocks that stay with a head: the next window under way, bias, mask and the sum of dS in registers
//       257.9 us   65.0% of ceiling  moves 719.4 MB  2.25x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __half
#endif
#ifndef TOKENS
#define TOKENS 49
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_MASK
#define HAS_MASK 0
#endif
#ifndef DIM
#define DIM 32
#endif

#include "window_attention_grad_strips.cuh"

// 1. The text's form: one kernel with bias and mask as tensor inputs, a block a window and head. It loads, waits, works
//    and leaves. What is left to a second kernel is the sum of dS over windows, so dS goes to memory, in halves.
struct SquareInMemory {
  T* ds;
  __device__ __forceinline__ void add(const Strip& strip) const {
#pragma unroll
    for (unsigned i = 0; i < 4 * OWN_TILES; ++i) {
      const unsigned row = first_row() + i % 4 / 2 * 8, column = first_column(i / 4) + i % 2;
      if (HAS_BIAS && row < TOKENS && column < TOKENS) ds[row * TOKENS + column] = T(strip[i / 4][i % 4] / BEFORE);
    }
  }
};

// ds: room for dS (windows, heads, TOKENS, TOKENS), if there is a bias. masks: how many masks there are, which windows
// take in turn. aligned: dout, q, k, v, dq, dk, dv begin on 16 bytes; pairs: TOKENS is even, bias and mask begin on 4.
extern "C" __global__ void __launch_bounds__(THREADS)
    window_attention_grad_fused(const T* __restrict__ dout, const T* __restrict__ q, const T* __restrict__ k,
                                const T* __restrict__ v, const T* __restrict__ bias, const T* __restrict__ mask,
                                T* __restrict__ dq, T* __restrict__ dk, T* __restrict__ dv, T* __restrict__ ds,
                                unsigned heads, unsigned masks, int aligned, int pairs) {
  extern __shared__ uint4 memory[];
  const unsigned stage = shared_address(memory), squares = stage + STAGE_BYTES;
  const unsigned rooms = squares + SQUARES * SQUARE_BYTES;
  const unsigned head = blockIdx.x % heads, window = blockIdx.x / heads;
  const Offsets offsets = offsets_of(blockIdx.x, window, head);
  clear_padding(stage, TENSORS);
  start_window(stage, {dout, q, k, v}, offsets, aligned);
  wait_for_copies();
  __syncthreads();
  const AddedFromMemory added{bias + static_cast<size_t>(head) * SQUARE,
                              mask + static_cast<size_t>(window % masks) * SQUARE, pairs != 0};
  const SquareInMemory square{ds + static_cast<long long>(blockIdx.x) * SQUARE};
  backward(stage, squares, rooms, added, square, results_at(dq, dk, dv, offsets), aligned);
}

// The sum of `count` partial results of each of n elements, in an order that doesn't depend on the run. A block has 32
// elements; its warps add every 16th part, and the first warp adds what they have.
constexpr unsigned SUM_WARPS = 16;
template <typename Source>
__device__ __forceinline__ float sum_of_parts(const Source* parts, long long n, long long count) {
  __shared__ float sums[SUM_WARPS][WARP];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const long long i = static_cast<long long>(blockIdx.x) * WARP + lane;
  float sum = 0.0f;
  if (i < n) {
#pragma unroll 8
    for (long long part = warp; part < count; part += SUM_WARPS) sum += to_float(__ldg(parts + part * n + i));
  }
  sums[warp][lane] = sum;
  __syncthreads();
  sum = 0.0f;
#pragma unroll
  for (unsigned other = 0; other < SUM_WARPS; ++other) sum += sums[other][lane];
  return sum;
}

// Step 1's second kernel: dS of all windows becomes dbias. n: heads * TOKENS * TOKENS.
extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP)
    window_attention_grad_sum(const T* __restrict__ ds, T* __restrict__ dbias, long long n, long long windows) {
  const float sum = sum_of_parts(ds, n, windows);
  const long long i = static_cast<long long>(blockIdx.x) * WARP + threadIdx.x;
  if (threadIdx.x < WARP && i < n) dbias[i] = T(sum);
}

#ifdef RESIDENT

// 2. Blocks stay, and each walks over windows of one head. That gives:
//    - the next window is on its way to shared memory (STAGES = 2) while this one is worked on;
//    - dS is added up where it is made, in registers and in float32, and a block writes one sum of (T, T) in the end.
//      No dS goes to memory, and no atomics are needed: a second kernel adds the blocks' sums in a fixed order;
//    - bias + mask stays in registers, times log2(e), and costs one FMA an element that the scaling needs anyway.
//      Windows with the same mask follow each other, so a new one is rarely loaded.
//    With more than 64 tokens neither fits into registers: the sums lie in shared memory, where each thread has its own
//    places, and bias and mask are read from the L2 for each window. Then shared memory has room for one block or two. With
//    SHARERS = 2 a block has twice the warps: two warps share a strip, each by half of the keys and of a result's
//    columns, and exchange what a softmax needs of all keys.

constexpr unsigned FRAGMENTS = OWN_TILES * THREADS;  // groups of four elements of dS, one for each tile and thread

// What a block keeps from window to window. Short: in registers.
template <bool Short>
struct Kept {
  AddedInRegisters added;
  Strip sums;
  __device__ __forceinline__ explicit Kept(char*) {
#pragma unroll
    for (unsigned i = 0; i < 4 * OWN_TILES; ++i) sums[i / 4][i % 4] = 0.0f;
  }
  __device__ __forceinline__ void load(const AddedFromMemory& from) { added.load(from); }
  __device__ __forceinline__ void add(const Strip& strip) {
#pragma unroll
    for (unsigned i = 0; i < 4 * OWN_TILES; ++i) {
      if (HAS_BIAS && exists(i / 4, i)) sums[i / 4][i % 4] += strip[i / 4][i % 4];
    }
  }
  __device__ __forceinline__ float4 sum(unsigned tile) const {
    return make_float4(sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]);
  }
};
template <>
struct Kept<false> {
  AddedFromMemory added;
  float4* sums;
  __device__ __forceinline__ explicit Kept(char* room) : sums(reinterpret_cast<float4*>(room) + threadIdx.x) {
#pragma unroll
    for (unsigned tile = 0; tile < OWN_TILES; ++tile) {
      if (HAS_BIAS) sums[tile * THREADS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
  __device__ __forceinline__ void load(const AddedFromMemory& from) { added = from; }
  __device__ __forceinline__ void add(const Strip& strip) {
#pragma unroll
    for (unsigned tile = 0; tile < OWN_TILES && HAS_BIAS; ++tile) {
      float4 sum = sums[tile * THREADS];
      sum.x += strip[tile][0], sum.y += strip[tile][1], sum.z += strip[tile][2], sum.w += strip[tile][3];
      sums[tile * THREADS] = sum;
    }
  }
  __device__ __forceinline__ float4 sum(unsigned tile) const { return sums[tile * THREADS]; }
};

// A block's way over windows. Window w takes mask w % masks; the way goes over all windows of a mask before the next.
struct Walk {
  unsigned mask, turn;
  const unsigned masks, turns;  // how many masks, and windows of each
  __device__ __forceinline__ Walk(unsigned first, unsigned windows, unsigned masks)
      : masks(masks), turns(windows / masks) {
    mask = first / turns, turn = first % turns;
  }
  __device__ __forceinline__ unsigned window() const { return turn * masks + mask; }
  __device__ __forceinline__ void advance() {
    if (++turn == turns) turn = 0, ++mask;
  }
};

// partial: room for FRAGMENTS groups for each part and head, if there is a bias. parts: blocks of a head. Others: as
// step 1's.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    window_attention_grad_tuned(const T* __restrict__ dout, const T* __restrict__ q, const T* __restrict__ k,
                                const T* __restrict__ v, const T* __restrict__ bias, const T* __restrict__ mask,
                                T* __restrict__ dq, T* __restrict__ dk, T* __restrict__ dv,
                                float4* __restrict__ partial, unsigned windows, unsigned heads, unsigned masks,
                                unsigned parts, int aligned, int pairs) {
  extern __shared__ uint4 memory[];
  const unsigned stages = shared_address(memory), squares = stages + STAGES * STAGE_BYTES;
  const unsigned rooms = squares + SQUARES * SQUARE_BYTES;
  const unsigned head = blockIdx.x % heads, part = blockIdx.x / heads;
  const auto begin_of = [&](unsigned p) { return static_cast<unsigned>(1ull * windows * p / parts); };
  const auto begins = [&](const Walk& walk) {
    return offsets_of(1ll * walk.window() * heads + head, walk.window(), head);
  };

  Kept<SHORT> kept(reinterpret_cast<char*>(memory) + STAGES * STAGE_BYTES + SQUARES * SQUARE_BYTES + ROWS * PITCH);
  clear_padding(stages, STAGES * TENSORS);
  Walk walk(begin_of(part), windows, masks);
  start_window(stages, {dout, q, k, v}, begins(walk), aligned);
  unsigned loaded = masks;  // the mask that `kept` has; none yet
#pragma unroll 1
  for (unsigned i = 0, left = begin_of(part + 1) - begin_of(part); left > 0; ++i, --left) {
    wait_for_copies();
    __syncthreads();  // the stage is full, and all warps are done with the other one and with the squares
    const unsigned current = STAGES == 2 ? i % 2 : 0;
    const Offsets offsets = begins(walk);
    if (walk.mask != loaded) {
      loaded = walk.mask;
      unsigned own = head;
      // The compiler would read the bias ahead of the loop where PACKED lets it, and has no registers to keep it in.
      if constexpr (PACKED != 0) asm volatile("" : "+r"(own));
      kept.load({bias + static_cast<size_t>(own) * SQUARE, mask + static_cast<size_t>(loaded) * SQUARE, pairs != 0});
    }
    walk.advance();
    if (STAGES == 2 && left > 1) {
      start_window(stages + (1 - current) * STAGE_BYTES, {dout, q, k, v}, begins(walk), aligned);
    }
    backward(stages + current * STAGE_BYTES, squares, rooms, kept.added, kept, results_at(dq, dk, dv, offsets),
             aligned);
    if (STAGES == 1) {
      __syncthreads();
      if (left > 1) start_window(stages, {dout, q, k, v}, begins(walk), aligned);
    }
  }
  if (HAS_BIAS) {
    float4* to = partial + static_cast<size_t>(blockIdx.x) * FRAGMENTS + threadIdx.x;
#pragma unroll
    for (unsigned tile = 0; tile < OWN_TILES; ++tile) to[tile * THREADS] = kept.sum(tile);
  }
}

// Step 2's second kernel: the blocks' sums become dbias, in an order that doesn't depend on the run. A block has 32
// groups of four elements of a head, a group a lane; its warps add every 16th part, and then a thread an element what
// they have. The element is told by its tile, thread and place in the thread's group of four.
extern "C" __global__ void __launch_bounds__(SUM_WARPS* WARP)
    window_attention_grad_total(const float4* __restrict__ partial, T* __restrict__ dbias, unsigned heads,
                                unsigned parts) {
  static_assert(FRAGMENTS % WARP == 0, "a block has groups of one head");
  __shared__ float4 sums[SUM_WARPS][WARP];
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, groups = heads * FRAGMENTS;
  const float4* from = partial + static_cast<size_t>(warp) * groups + blockIdx.x * WARP + lane;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
  for (unsigned part = warp; part < parts; part += SUM_WARPS, from += static_cast<size_t>(SUM_WARPS) * groups) {
    const float4 more = __ldg(from);
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (threadIdx.x >= 4 * WARP) return;
  float total = 0.0f;
#pragma unroll
  for (unsigned other = 0; other < SUM_WARPS; ++other) {
    total += reinterpret_cast<const float*>(sums[other])[threadIdx.x];
  }
  const unsigned group = blockIdx.x * WARP + threadIdx.x / 4, head = group / FRAGMENTS, place = group % FRAGMENTS;
  const unsigned tile = place / THREADS, thread = place % THREADS;
  const unsigned part = SHARERS == 1 ? 0 : thread / WARP / STRIPS;
  const unsigned row = (thread / WARP - part * STRIPS) * 16 + thread % WARP / 4 + threadIdx.x % 4 / 2 * 8;
  const unsigned column = (part * OWN_TILES + tile) * 8 + thread % 4 * 2 + threadIdx.x % 2;
  if (row < TOKENS && column < TOKENS) {
    dbias[static_cast<size_t>(head) * SQUARE + row * TOKENS + column] = T(total / BEFORE);
  }
}

#endif
