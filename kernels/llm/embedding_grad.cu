// The backward of an embedding: row v of dweight is the sum of the rows of dy of all tokens whose id is v, and 0 where there
// is none. A padding id has no gradient.
//
// Memory bounds it: dy is read once, and dweight, which may be larger by far, is written once. Atomics add each row of dy
// where it belongs (1). They need dweight to be zeros first, and float32 for the sums: of halves, sums of thousands of
// tokens would lose all but the first places. So dweight is written as floats, read and written by the atomics, read, and
// written as halves; and since atomics come in any order, the last bits differ from run to run.
//
// If the tokens of an id are known together, its row is summed in registers and written once: nothing else moves (2). For
// that, tokens are grouped by their ids, in the order of the batch: results repeat bit by bit. A sort of pairs takes a
// dozen launches for what fits into a corner of the L2. Here one launch does it. Each block has every 2^k-th id, reads all
// ids, counts its own, and puts its tokens into their places; how many tokens come before its first one it counts on the
// way. Ids of a language are far from even: the tokens of the most frequent one may be a tenth of all. A block that adds
// them alone would keep the others waiting, so each WINDOW tokens of one id are summed by a block of their own before (a
// window lies at a multiple of WINDOW in the grouped order).
//
// Nearly all rows of a large vocabulary have no token. Streams of writes are fast from blocks that write a few neighbouring
// packs and end. Blocks that took rows in turn, and waited to know of each whether it has tokens, kept the memory busy for
// three quarters of the time. So zeros and sums have blocks apart. A
// block that sums has AT_ONCE grouped tokens, whose rows of dy are all under way before any is added, and writes the row of
// each id that begins among them. Blocks that wait for loads leave memory idle, and so does the last wave of a launch. So
// each of the three launches (grouping, windows, sums) has blocks that write zeros behind its own. Beside grouping it isn't
// known yet which rows have tokens. So zeros go to the last rows of dweight, whether or not they have tokens: most
// vocabularies begin with the frequent ids.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), PADDING (the id without a gradient, -1 for none), SINGLES (0 or 1: rows
// are read in single elements, not in packs of 16 bytes), WINDOW (tokens of one id that a block sums before), ROW_THREADS
// (the most of a block that sums or writes zeros), ROW_BLOCKS (of blocks that sum, for which a multiprocessor is to have
// registers).
//
// What each step gained on an NVIDIA H200 (reports/h200/llm_kernels_embedding_again), bfloat16 T8192-V128256-H4096
// padding=none.
// At least 67.17 MB are read and 1.051 GB written. The ceiling is 241.3 us, by memory.
//   atomics: zeros, an atomic addition an element, in float32
//   tuned: tokens grouped by id in one launch; zeros and sums apart, each row summed once
//       263.7 us   91.5% of ceiling  moves 1.118 GB

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
#ifndef WINDOW
#define WINDOW 16
#endif
#ifndef ROW_THREADS
#define ROW_THREADS 256
#endif
#ifndef ROW_BLOCKS
#define ROW_BLOCKS 4
#endif

#include "../include/fastdiv.cuh"
#include "embedding_sums.cuh"

constexpr unsigned GROUP_BLOCK = 1024;  // threads of a block that groups; as in embedding_grad.py
constexpr unsigned ZEROS = 4;           // chunks of zeros that a thread writes
constexpr unsigned ZERO_BLOCKS = 6;     // of blocks that write zeros, for which a multiprocessor has registers
constexpr unsigned NONE = ~0u;          // the id of a place that has no token
static_assert(WINDOW % AT_ONCE == 0, "the tokens of a block lie in one window");

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

// ---- 2. Tokens grouped by id. order: as many places as there are tokens; places of an id lie next to each other, in the
// order of the batch, and places without a token are last. ranges: one for each id.

// The sum of a warp's numbers, in all lanes; and the sum of the numbers of the lanes before this one.
__device__ __forceinline__ unsigned warp_sum(unsigned value) {
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}
__device__ __forceinline__ unsigned lanes_before(unsigned own) {
  unsigned sum = own;
#pragma unroll
  for (unsigned step = 1; step < WARP; step *= 2) {
    const unsigned other = __shfl_up_sync(ALL_LANES, sum, step);
    if (threadIdx.x % WARP >= step) sum += other;
  }
  return sum - own;
}

// The sum of the numbers of the threads before this one over a block, from the sum of the lanes before; `total` becomes
// the sum of all. The calls take turns between two places for the sums of warps, so that one barrier is enough.
using WarpSums = unsigned[GROUP_BLOCK / WARP];
__device__ __forceinline__ unsigned threads_before(unsigned before, unsigned own, WarpSums& of_warps, unsigned& total) {
  static_assert(GROUP_BLOCK / WARP == WARP, "a lane adds a warp's sum");
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  if (lane == WARP - 1) of_warps[warp] = before + own;
  __syncthreads();
  const unsigned sum = of_warps[lane];
  total = warp_sum(sum);
  return before + warp_sum(lane < warp ? sum : 0);
}

// Zeros to ZEROS chunks a thread, from chunk `first` on, up to chunk `last`. block: the number of this block among those that
// do so.
__device__ __forceinline__ void write_zeros(T* __restrict__ dweight, long long first, long long last, unsigned block) {
#pragma unroll
  for (unsigned j = 0; j < ZEROS; ++j) {
    const long long chunk = first + (static_cast<long long>(block) * ZEROS + j) * blockDim.x + threadIdx.x;
    if (chunk < last) store_chunk(dweight + chunk * Chunk::SIZE, Chunk{});
  }
}

// 2^log2_blocks blocks, of which block b has the ids whose lowest bits are b, and behind them the blocks that write zeros to
// the chunks from `early` on, of `chunks`. bins_of_block: of shared memory, one for each id of a block.
extern "C" __global__ void __launch_bounds__(GROUP_BLOCK)
    embedding_grad_group(const long long* __restrict__ ids, Place* __restrict__ order, Range* __restrict__ ranges,
                         T* __restrict__ dweight, unsigned tokens, unsigned vocabulary, unsigned log2_blocks,
                         unsigned bins_of_block, long long early, long long chunks) {
  constexpr unsigned ROOM = 2 * GROUP_BLOCK;
  extern __shared__ uint4 shared[];
  unsigned* bins = reinterpret_cast<unsigned*>(shared);
  __shared__ WarpSums of_warps[2];
  __shared__ unsigned own_bins[ROOM];
  __shared__ unsigned own_tokens[ROOM];
  const unsigned lane = threadIdx.x % WARP, mask = (1u << log2_blocks) - 1;
  if (blockIdx.x > mask) {
    write_zeros(dweight, early, chunks, blockIdx.x - mask - 1);
    return;
  }

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
  threads_before(lanes_before(earlier), earlier, of_warps[0], first);  // and a barrier behind the counts

  // Where each id's tokens begin. A thread has neighbouring bins.
  const unsigned each = (bins_of_block + GROUP_BLOCK - 1) / GROUP_BLOCK;
  unsigned own = 0, all;
  for (unsigned j = 0; j < each; ++j) {
    const unsigned bin = threadIdx.x * each + j;
    if (bin < bins_of_block) own += bins[bin];
  }
  unsigned place = first + threads_before(lanes_before(own), own, of_warps[1], all);
  for (unsigned j = 0; j < each; ++j) {
    const unsigned bin = threadIdx.x * each + j;
    if (bin >= bins_of_block) break;
    const unsigned id = (bin << log2_blocks) + blockIdx.x, count = bins[bin];
    if (id < vocabulary) ranges[id] = {place, place + count};
    bins[bin] = place;  // where the id's next token goes
    place += count;
  }
  if (blockIdx.x == mask) {
    for (unsigned k = first + all + threadIdx.x; k < tokens; k += GROUP_BLOCK) order[k] = {0, NONE};
  }
  __syncthreads();

  // The block's tokens in order: first into a list, then, by one warp, into their places. The next ids are under way
  // while these ones are listed.
  const auto id_at = [&](unsigned token) { return token < tokens ? ids[token] : -1; };
  unsigned listed = 0, turn = 0;
  long long next_id = id_at(threadIdx.x);
  for (unsigned from = 0; from < tokens; from += GROUP_BLOCK) {
    const unsigned token = from + threadIdx.x;
    const long long id = next_id;
    next_id = id_at(token + GROUP_BLOCK);
    const bool is_own = counts(id, vocabulary) && (static_cast<unsigned>(id) & mask) == blockIdx.x;
    const unsigned owners = __ballot_sync(ALL_LANES, is_own);
    unsigned found;
    const unsigned at =
        listed + threads_before(__popc(owners & ((1u << lane) - 1)), is_own, of_warps[turn], found);
    turn ^= 1;
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
        if (is_there) order[next + __popc(lower)] = {own_tokens[k], (bin << log2_blocks) + blockIdx.x};
        if (is_there && lower == 0) bins[bin] = next + __popc(same);
        __syncwarp();
      }
    }
    listed = 0;
    __syncthreads();
  }
}

// Zeros to ZEROS chunks a thread, in rows without tokens. block: as for write_zeros().
struct Late {
  const Range* ranges;
  T* dweight;
  long long first, last;          // chunks: from one to the one before the other
  unsigned long long multiplier;  // they divide by the chunks of a row
  unsigned shift;

  __device__ __forceinline__ void write(unsigned block) const {
    const long long own = first + static_cast<long long>(block) * ZEROS * blockDim.x + threadIdx.x;
    Range found[ZEROS];
#pragma unroll
    for (unsigned j = 0; j < ZEROS; ++j) {
      const long long chunk = own + j * blockDim.x;
      found[j] = {0, 1};
      if (chunk < last) found[j] = ranges[fast_divide<unsigned long long>(chunk, multiplier, shift)];
    }
#pragma unroll
    for (unsigned j = 0; j < ZEROS; ++j) {
      if (found[j].begin == found[j].end) store_chunk(dweight + (own + j * blockDim.x) * Chunk::SIZE, Chunk{});
    }
  }
};

// First the blocks that sum windows which have one id alone, into partial: (windows, columns); each has a window and
// ROW_THREADS chunks of columns, of which a row has `parts` times as many. Then the blocks that write zeros to chunks from
// `first_chunk` to the one before `last_chunk`.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ZERO_BLOCKS)
    embedding_grad_windows(const T* __restrict__ dy, const Place* __restrict__ order, const Range* __restrict__ ranges,
                           float* __restrict__ partial, T* __restrict__ dweight, unsigned columns, unsigned windows,
                           unsigned parts, long long first_chunk, long long last_chunk,
                           unsigned long long multiplier, unsigned shift) {
  if (blockIdx.x < windows * parts) {
    const unsigned window = blockIdx.x / parts, from = window * WINDOW, to = from + WINDOW, id = order[from].id;
    const unsigned column = (blockIdx.x % parts * ROW_THREADS + threadIdx.x) * Chunk::SIZE;
    if (id == NONE || id != order[to - 1].id || column >= columns) return;
    Floats sums = {};
    add_tokens<AT_ONCE / 2>(dy, order, from, to, columns, column, sums);
    store_floats(partial + static_cast<long long>(window) * columns + column, sums);
    return;
  }
  Late{ranges, dweight, first_chunk, last_chunk, multiplier, shift}.write(blockIdx.x - windows * parts);
}

// The rows of ids that have tokens. Each of the first `runs` * `parts` blocks has AT_ONCE places and blockDim.x chunks of
// columns. It writes the rows of the ids that begin among its places, and reads on where the last of these ids goes on. The
// blocks behind them write zeros, as above.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    embedding_grad_sums(const T* __restrict__ dy, const Place* __restrict__ order, const Range* __restrict__ ranges,
                        const float* __restrict__ partial, T* __restrict__ dweight, unsigned tokens, unsigned columns,
                        unsigned runs, unsigned parts, long long first_chunk, long long last_chunk,
                        unsigned long long multiplier, unsigned shift) {
  if (blockIdx.x >= runs * parts) {
    Late{ranges, dweight, first_chunk, last_chunk, multiplier, shift}.write(blockIdx.x - runs * parts);
    return;
  }
  const unsigned first = blockIdx.x % runs * AT_ONCE, behind = first + AT_ONCE;
  const unsigned column = (blockIdx.x / runs * blockDim.x + threadIdx.x) * Chunk::SIZE;
  if (column >= columns) return;
  const unsigned before = first ? order[first - 1].id : NONE;
  Place places[AT_ONCE];
  Chunk chunks[AT_ONCE];
#pragma unroll
  for (unsigned i = 0; i < AT_ONCE; ++i) {
    places[i] = {0, NONE};
    if (first + i < tokens) places[i] = order[first + i];
  }
  const auto is_own = [&](unsigned i) { return places[i].id != before && places[i].id != NONE; };
#pragma unroll
  for (unsigned i = 0; i < AT_ONCE; ++i) {
    chunks[i] = Chunk{};
    if (is_own(i)) load_chunk(dy + static_cast<long long>(places[i].token) * columns + column, chunks[i]);
  }
  const unsigned last = places[AT_ONCE - 1].id;
  const Range range = is_own(AT_ONCE - 1) ? ranges[last] : Range{};

  Floats sums = {};
  const auto write = [&](unsigned id) {
    Chunk result;
    narrow(sums, result);
    store_chunk(dweight + static_cast<long long>(id) * columns + column, result);
  };
#pragma unroll
  for (unsigned i = 0; i < AT_ONCE; ++i) {
    if (!is_own(i)) continue;
    add(chunks[i], sums);
    if (i + 1 < AT_ONCE ? places[i + 1].id == places[i].id : range.end > behind) continue;
    write(places[i].id);
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] = 0.0f;
  }
  if (range.end <= behind) return;
  unsigned window = (range.begin + WINDOW - 1) / WINDOW, end = range.end / WINDOW;  // windows of this id alone
  if (window >= end) window = end = 0;
  if (end && window * WINDOW < behind) {  // the first window has this block's places
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] = 0.0f;
  }
  add_tokens<AT_ONCE>(dy, order, behind, end ? window * WINDOW : range.end, columns, column, sums);
  add_windows(partial, window, end, columns, column, sums);
  if (end) add_tokens<AT_ONCE>(dy, order, end * WINDOW, range.end, columns, column, sums);
  write(last);
}
