// The backward of an embedding: row v of dweight is the sum of the rows of dy of all tokens whose id is v, and 0 where there
// is none. A padding id has no gradient.
//
// Memory bounds it: dy is read once, and dweight, which may be larger by far, is written once. Atomics add each row of dy
// where it belongs (1). They need dweight to be zeros first, and float32 for the sums: of halves, sums of thousands of
// tokens would lose all but the first places. So dweight is written as floats, read and written by the atomics, read, and
// written as halves; and since atomics come in any order, the last bits differ from run to run.
//
// If the tokens of an id are known together, its row is summed in registers and written once, whether it has tokens or
// not: nothing else moves (2). For that, tokens are grouped by their ids, in the order of the batch: results repeat bit by
// bit. A sort of pairs takes a dozen launches for what fits into a corner of the L2. Here one launch does it. Each block
// has every 2^k-th id, reads all ids, counts its own, and puts its tokens into their places; how many tokens come before
// its first one it counts on the way. Ids of a language are far from even: the tokens of the most frequent one may be a
// tenth of all. A block that adds them alone would keep the others waiting, so each WINDOW tokens of one id are summed by
// a block of their own before (a window lies at a multiple of WINDOW in the grouped order).
//
// Macros: SCALAR (float, __half, __nv_bfloat16), PADDING (the id without a gradient, -1 for none), SINGLES (0 or 1: rows
// are read in single elements, not in packs of 16 bytes).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels), bfloat16 T8192-V128256-H4096 padding=none.
// At least 67.17 MB are read and 1.051 GB written. The ceiling is 241.2 us, by memory.
//   atomics: zeros, an atomic addition an element, in float32
//   tuned: tokens grouped by id in one launch, then each row summed and written once
//       439.7 us   54.9% of ceiling  moves 1.118 GB

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef PADDING
#define PADDING -1
#endif
#ifndef SINGLES
#define SINGLES 0
#endif

#include "../rows/norm_grad.cuh"

using T = SCALAR;
using Chunk = ChunkOf<T, SINGLES>::Type;
using Floats = float[Chunk::SIZE];

constexpr unsigned WINDOW = 128;       // tokens of one id that a block sums before; as in embedding_grad.py
constexpr unsigned GROUP_BLOCK = 1024;  // threads of a block that groups; as in embedding_grad.py
constexpr unsigned ROW_THREADS = 256;   // of a block that sums; as in embedding_grad.py

// Whether a token counts. An id outside of the vocabulary is a mistake, and counts as none.
__device__ __forceinline__ bool counts(long long id, unsigned vocabulary) {
  return id != (PADDING) && id >= 0 && id < vocabulary;
}

// ---- 1. By atomics, on floats that are zero. For halves the floats are rounded afterwards.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embedding_grad_zero(float* __restrict__ sums, long long elements) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < elements) sums[i] = 0.0f;
}
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embedding_grad_add(const T* __restrict__ dy, const long long* __restrict__ ids, float* __restrict__ sums,
                       unsigned vocabulary, unsigned columns) {
  const long long token = blockIdx.x, id = ids[token];
  if (!counts(id, vocabulary)) return;
  for (unsigned c = threadIdx.x; c < columns; c += ROW_THREADS) {
    atomicAdd(sums + id * columns + c, to_float(dy[token * columns + c]));
  }
}
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embedding_grad_round(const float* __restrict__ sums, T* __restrict__ dweight, long long elements) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < elements) dweight[i] = T(sums[i]);
}

// ---- 2. Tokens grouped by id. order: tokens, those of an id next to each other and in the order of the batch.
// begin, end: where the tokens of each id lie in it. counted: how many tokens are in it.

// The exclusive sums of the threads' numbers over a block; `total` becomes the sum of all.
__device__ __forceinline__ unsigned sums_before(unsigned own, unsigned (&of_warps)[GROUP_BLOCK / WARP], unsigned& total) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  unsigned sum = own;
#pragma unroll
  for (unsigned step = 1; step < WARP; step *= 2) {
    const unsigned other = __shfl_up_sync(ALL_LANES, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();  // nobody reads the numbers of the call before any more
  if (lane == WARP - 1) of_warps[warp] = sum;
  __syncthreads();
  unsigned before = 0;
  total = 0;
#pragma unroll 8
  for (unsigned w = 0; w < GROUP_BLOCK / WARP; ++w) {
    if (w < warp) before += of_warps[w];
    total += of_warps[w];
  }
  return before + sum - own;
}

// A grid of 2^log2_blocks blocks; block b has the ids whose lowest bits are b. bins: of shared memory, one for each such id.
extern "C" __global__ void __launch_bounds__(GROUP_BLOCK)
    embedding_grad_group(const long long* __restrict__ ids, unsigned* __restrict__ order, unsigned* __restrict__ begin,
                         unsigned* __restrict__ end, unsigned* __restrict__ counted, unsigned tokens,
                         unsigned vocabulary, unsigned log2_blocks, unsigned bins_of_block) {
  constexpr unsigned ROOM = 2 * GROUP_BLOCK;
  extern __shared__ uint4 shared[];
  unsigned* bins = reinterpret_cast<unsigned*>(shared);
  __shared__ unsigned of_warps[GROUP_BLOCK / WARP];
  __shared__ unsigned own_bins[ROOM];
  __shared__ unsigned own_tokens[ROOM];
  const unsigned lane = threadIdx.x % WARP, mask = (1u << log2_blocks) - 1;

  // How many tokens come before the block's, and how many tokens each of its ids has.
  for (unsigned bin = threadIdx.x; bin < bins_of_block; bin += GROUP_BLOCK) bins[bin] = 0;
  __syncthreads();
  unsigned earlier = 0;
#pragma unroll 4
  for (unsigned token = threadIdx.x; token < tokens; token += GROUP_BLOCK) {
    const long long id = ids[token];
    if (!counts(id, vocabulary)) continue;
    const unsigned block = static_cast<unsigned>(id) & mask;
    if (block < blockIdx.x) ++earlier;
    if (block == blockIdx.x) atomicAdd(&bins[static_cast<unsigned>(id) >> log2_blocks], 1u);
  }
  unsigned first;
  sums_before(earlier, of_warps, first);  // and a barrier behind the counts

  // Where each id's tokens begin. A thread has neighbouring bins.
  const unsigned each = (bins_of_block + GROUP_BLOCK - 1) / GROUP_BLOCK;
  unsigned own = 0, all;
  for (unsigned j = 0; j < each; ++j) {
    const unsigned bin = threadIdx.x * each + j;
    if (bin < bins_of_block) own += bins[bin];
  }
  unsigned place = first + sums_before(own, of_warps, all);
  for (unsigned j = 0; j < each; ++j) {
    const unsigned bin = threadIdx.x * each + j;
    if (bin >= bins_of_block) break;
    const unsigned id = (bin << log2_blocks) + blockIdx.x, count = bins[bin];
    if (id < vocabulary) begin[id] = place, end[id] = place + count;
    bins[bin] = place;  // where the id's next token goes
    place += count;
  }
  if (threadIdx.x == 0 && blockIdx.x == mask) *counted = first + all;
  __syncthreads();

  // The block's tokens in order: first into a list, then, by one warp, into their places.
  unsigned listed = 0;
  for (unsigned from = 0; from < tokens; from += GROUP_BLOCK) {
    const unsigned token = from + threadIdx.x;
    const long long id = token < tokens ? ids[token] : -1;
    const bool is_own = counts(id, vocabulary) && (static_cast<unsigned>(id) & mask) == blockIdx.x;
    unsigned found;
    const unsigned at = listed + sums_before(is_own, of_warps, found);
    if (is_own) own_bins[at] = static_cast<unsigned>(id) >> log2_blocks, own_tokens[at] = token;
    listed += found;
    if (listed + GROUP_BLOCK <= ROOM && from + GROUP_BLOCK < tokens) continue;
    __syncthreads();
    if (threadIdx.x < WARP) {
      for (unsigned k = lane; k - lane < listed; k += WARP) {
        const bool is_there = k < listed;
        const unsigned bin = is_there ? own_bins[k] : ~0u;
        // Lanes with the same id: each has its place among them.
        const unsigned same = __match_any_sync(ALL_LANES, bin), lower = same & ((1u << lane) - 1);
        const unsigned next = is_there ? bins[bin] : 0;
        __syncwarp();
        if (is_there) order[next + __popc(lower)] = own_tokens[k];
        if (is_there && lower == 0) bins[bin] = next + __popc(same);
        __syncwarp();
      }
    }
    listed = 0;
    __syncthreads();
  }
}

// Adds the rows of dy of the tokens order[from] to order[to - 1], a chunk of columns from `column` on.
__device__ __forceinline__ void add_tokens(const T* __restrict__ dy, const unsigned* __restrict__ order, unsigned from,
                                           unsigned to, unsigned columns, unsigned column, Floats& sums) {
#pragma unroll 4
  for (unsigned k = from; k < to; ++k) {
    Chunk chunk;
    float values[Chunk::SIZE];
    load_chunk(dy + static_cast<long long>(order[k]) * columns + column, chunk);
    widen(chunk, values);
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += values[e];
  }
}

// The sums of windows that have one id alone, (windows, columns). A block has a window and ROW_THREADS chunks of columns.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embedding_grad_windows(const T* __restrict__ dy, const long long* __restrict__ ids,
                           const unsigned* __restrict__ order, const unsigned* __restrict__ counted,
                           float* __restrict__ partial, unsigned columns) {
  const unsigned from = blockIdx.x * WINDOW, to = from + WINDOW;
  if (to > *counted || ids[order[from]] != ids[order[to - 1]]) return;
  const unsigned column = (blockIdx.y * ROW_THREADS + threadIdx.x) * Chunk::SIZE;
  if (column >= columns) return;
  float sums[Chunk::SIZE] = {};
  add_tokens(dy, order, from, to, columns, column, sums);
  float* own = partial + static_cast<long long>(blockIdx.x) * columns + column;
#pragma unroll
  for (unsigned e = 0; e < Chunk::SIZE; ++e) own[e] = sums[e];
}

// Rows of dweight, which blocks take in turn.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embedding_grad_rows(const T* __restrict__ dy, const unsigned* __restrict__ order,
                        const unsigned* __restrict__ begin, const unsigned* __restrict__ end,
                        const float* __restrict__ partial, T* __restrict__ dweight, unsigned vocabulary,
                        unsigned columns) {
  unsigned id = blockIdx.x;
  unsigned from = id < vocabulary ? begin[id] : 0, to = id < vocabulary ? end[id] : 0;
  while (id < vocabulary) {
    // The next row's tokens are looked up while this row is worked on.
    const unsigned next = id + gridDim.x;
    const bool is_last = next >= vocabulary;
    const unsigned next_from = is_last ? 0 : begin[next], next_to = is_last ? 0 : end[next];
    unsigned first = (from + WINDOW - 1) / WINDOW, last = to / WINDOW;  // windows of this id alone
    if (first >= last) first = last = 0;
    const unsigned until = first < last ? first * WINDOW : to, behind = first < last ? last * WINDOW : to;
    for (unsigned column = threadIdx.x * Chunk::SIZE; column < columns; column += ROW_THREADS * Chunk::SIZE) {
      float sums[Chunk::SIZE] = {};
      add_tokens(dy, order, from, until, columns, column, sums);
#pragma unroll 2
      for (unsigned w = first; w < last; ++w) {
        const float* own = partial + static_cast<long long>(w) * columns + column;
#pragma unroll
        for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += own[e];
      }
      add_tokens(dy, order, behind, to, columns, column, sums);
      Chunk result;
      narrow(sums, result);
      store_chunk(dweight + static_cast<long long>(id) * columns + column, result);
    }
    if (is_last) break;
    id = next, from = next_from, to = next_to;
  }
}
