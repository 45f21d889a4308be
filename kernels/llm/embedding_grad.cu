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
// Nearly all rows of a large vocabulary have no token, and are written as fast as memory takes zeros. What must not happen
// is that one block waits for token after token meanwhile: a row of dy lies anywhere, so each is a whole latency of memory
// away, and that is long while memory is busy. So a thread asks for its columns of AT_ONCE tokens before it adds any;
// windows are short, but longer where tokens are many, since the sum of each goes through memory; and where the tokens of
// a block's next TABLE rows lie is looked up at once, into shared memory.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), PADDING (the id without a gradient, -1 for none), SINGLES (0 or 1: rows
// are read in single elements, not in packs of 16 bytes), WINDOW (tokens of one id that a block sums before), ROW_THREADS
// (of a block that sums), ROW_BLOCKS (of them, for which a multiprocessor is to have registers).
//
// What each step gained on an NVIDIA H200 (reports/h200/counters_llm), bfloat16 T8192-V128256-H4096 padding=none.
// At least 67.17 MB are read and 1.051 GB written. The ceiling is 241.3 us, by memory.
//   atomics: zeros, an atomic addition an element, in float32
//   tuned: tokens grouped by id in one launch, then each row summed and written once
//       333.1 us   72.4% of ceiling  moves 1.118 GB

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
#define WINDOW 32
#endif
#ifndef ROW_THREADS
#define ROW_THREADS 256
#endif
#ifndef ROW_BLOCKS
#define ROW_BLOCKS 4
#endif

#include "../rows/norm_grad.cuh"

using T = SCALAR;
using Chunk = ChunkOf<T, SINGLES>::Type;
using Floats = float[Chunk::SIZE];

constexpr unsigned GROUP_BLOCK = 1024;  // threads of a block that groups; as in embedding_grad.py
constexpr unsigned AT_ONCE = 8;         // tokens whose rows a thread has under way
constexpr unsigned TABLE = 32;          // rows of a block that are looked up at once

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

// A grid of 2^log2_blocks blocks; block b has the ids whose lowest bits are b. bins: of shared memory, one for each such id.
extern "C" __global__ void __launch_bounds__(GROUP_BLOCK)
    embedding_grad_group(const long long* __restrict__ ids, unsigned* __restrict__ order, unsigned* __restrict__ begin,
                         unsigned* __restrict__ end, unsigned* __restrict__ counted, unsigned tokens,
                         unsigned vocabulary, unsigned log2_blocks, unsigned bins_of_block) {
  constexpr unsigned ROOM = 2 * GROUP_BLOCK;
  extern __shared__ uint4 shared[];
  unsigned* bins = reinterpret_cast<unsigned*>(shared);
  __shared__ WarpSums of_warps[2];
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
    if (id < vocabulary) begin[id] = place, end[id] = place + count;
    bins[bin] = place;  // where the id's next token goes
    place += count;
  }
  if (threadIdx.x == 0 && blockIdx.x == mask) *counted = first + all;
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
        if (is_there) order[next + __popc(lower)] = own_tokens[k];
        if (is_there && lower == 0) bins[bin] = next + __popc(same);
        __syncwarp();
      }
    }
    listed = 0;
    __syncthreads();
  }
}

// Adds the rows of dy of the tokens order[from] to order[to - 1], a chunk of columns from `column` on. All loads of AT_ONCE
// tokens are under way before any of them is added.
__device__ __forceinline__ void add_tokens(const T* __restrict__ dy, const unsigned* __restrict__ order, unsigned from,
                                           unsigned to, unsigned columns, unsigned column, Floats& sums) {
#pragma unroll 1
  for (unsigned k = from; k < to; k += AT_ONCE) {
    unsigned tokens[AT_ONCE];
    Chunk chunks[AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) tokens[i] = order[min(k + i, to - 1)];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      chunks[i] = Chunk{};
      if (k + i < to) load_chunk(dy + static_cast<long long>(tokens[i]) * columns + column, chunks[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      float values[Chunk::SIZE];
      widen(chunks[i], values);
#pragma unroll
      for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += values[e];
    }
  }
}

// A chunk of sums of a window to memory and from there, in accesses of 16 bytes where it is a pack.
__device__ __forceinline__ void store_floats(float* to, const Floats& sums) {
  if constexpr (Chunk::SIZE == 1) {
    *to = sums[0];
  } else {
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; e += 4) {
      reinterpret_cast<float4*>(to)[e / 4] = make_float4(sums[e], sums[e + 1], sums[e + 2], sums[e + 3]);
    }
  }
}
__device__ __forceinline__ void load_floats(const float* from, Floats& sums) {
  if constexpr (Chunk::SIZE == 1) {
    sums[0] = *from;
  } else {
#pragma unroll
    for (unsigned e = 0; e < Chunk::SIZE; e += 4) {
      const float4 four = reinterpret_cast<const float4*>(from)[e / 4];
      sums[e] = four.x, sums[e + 1] = four.y, sums[e + 2] = four.z, sums[e + 3] = four.w;
    }
  }
}

// Adds the sums of the windows from `first` to the one before `last`; as floats take more registers, fewer are under way.
__device__ __forceinline__ void add_windows(const float* __restrict__ partial, unsigned first, unsigned last,
                                            unsigned columns, unsigned column, Floats& sums) {
  constexpr unsigned UNDER_WAY = AT_ONCE / 2;
#pragma unroll 1
  for (unsigned w = first; w < last; w += UNDER_WAY) {
    Floats windows[UNDER_WAY];
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) {
      load_floats(partial + static_cast<long long>(min(w + i, last - 1)) * columns + column, windows[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < UNDER_WAY; ++i) {
      if (w + i >= last) break;
#pragma unroll
      for (unsigned e = 0; e < Chunk::SIZE; ++e) sums[e] += windows[i][e];
    }
  }
}

// The sums of windows that have one id alone, (windows, columns). A block has a window and ROW_THREADS chunks of columns.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    embedding_grad_windows(const T* __restrict__ dy, const long long* __restrict__ ids,
                           const unsigned* __restrict__ order, const unsigned* __restrict__ counted,
                           float* __restrict__ partial, unsigned columns) {
  const unsigned from = blockIdx.x * WINDOW, to = from + WINDOW;
  if (to > *counted || ids[order[from]] != ids[order[to - 1]]) return;
  const unsigned column = (blockIdx.y * ROW_THREADS + threadIdx.x) * Chunk::SIZE;
  if (column >= columns) return;
  Floats sums = {};
  add_tokens(dy, order, from, to, columns, column, sums);
  store_floats(partial + static_cast<long long>(blockIdx.x) * columns + column, sums);
}

// Rows of dweight, which blocks take in turn.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS)
    embedding_grad_rows(const T* __restrict__ dy, const unsigned* __restrict__ order,
                        const unsigned* __restrict__ begin, const unsigned* __restrict__ end,
                        const float* __restrict__ partial, T* __restrict__ dweight, unsigned vocabulary,
                        unsigned columns) {
  __shared__ uint2 table[TABLE];
  // 64 bits: a row behind the last one may have a number that 32 bits can't hold.
  const long long step = gridDim.x;
  const auto look_up = [&](long long first) {
    const long long id = first + threadIdx.x * step;
    return threadIdx.x < TABLE && id < vocabulary ? make_uint2(begin[id], end[id]) : make_uint2(0, 0);
  };
  uint2 own = look_up(blockIdx.x);
  for (long long first = blockIdx.x; first < vocabulary; first += TABLE * step) {
    __syncthreads();  // nobody reads the rows before any more
    if (threadIdx.x < TABLE) table[threadIdx.x] = own;
    __syncthreads();
    own = look_up(first + TABLE * step);
#pragma unroll 1
    for (unsigned r = 0; r < TABLE; ++r) {
      const long long id = first + r * step;
      if (id >= vocabulary) break;
      const unsigned from = table[r].x, to = table[r].y;
      T* row = dweight + id * columns;
      if (from == to) {
        for (unsigned column = threadIdx.x * Chunk::SIZE; column < columns; column += ROW_THREADS * Chunk::SIZE) {
          store_chunk(row + column, Chunk{});
        }
        continue;
      }
      unsigned window = (from + WINDOW - 1) / WINDOW, last = to / WINDOW;  // windows of this id alone
      if (window >= last) window = last = 0;
      const unsigned until = last ? window * WINDOW : to, behind = last ? last * WINDOW : to;
      for (unsigned column = threadIdx.x * Chunk::SIZE; column < columns; column += ROW_THREADS * Chunk::SIZE) {
        Floats sums = {};
        add_tokens(dy, order, from, until, columns, column, sums);
        add_windows(partial, window, last, columns, column, sums);
        add_tokens(dy, order, behind, to, columns, column, sums);
        Chunk result;
        narrow(sums, result);
        store_chunk(row + column, result);
      }
    }
  }
}
