// The backward of PReLU: dx = x > 0 ? dy : alpha[channel] * dy, and d alpha[channel], the sum of x * dy over the
// channel's elements where x > 0 doesn't hold. Tensors are contiguous, (batch, channels, inner); a row is the `inner`
// elements of one channel of one sample.
//
// Macros: SCALAR (float, __half, __nv_bfloat16).
//
// dx costs two reads and a write an element. What differs is the way of the products to the sum. No kernel adds with
// atomics: each part of a row has a slot of its own in `partial`, as (row, slot), and prelu_grad_total adds a channel's
// slots in a fixed order, so that a result repeats bit by bit. Sums are floats, and are rounded once.
//
// What each step gained on an NVIDIA H200 (reports/h200/prelu_grad), float32 N128-C128-H56-W56.
// At least 411.0 MB are read and 205.5 MB written. The ceiling is 141.4 us, by memory.
//   eager: PyTorch
//       330.9 us   42.7% of ceiling
//   naive: one element a thread, products in a tensor, which is then summed
//       282.9 us   50.0% of ceiling  moves 1.028 GB  1.17x the speed of eager
//   fused: one pass, one element a thread and step; a partial sum for each 4096 elements of a row
//       150.9 us   93.7% of ceiling  moves 616.6 MB  1.87x the speed of naive
//   tuned: packs at any inner size; several samples of one place are added in registers; small layers in one kernel
//       149.3 us   94.7% of ceiling  moves 616.6 MB  1.01x the speed of fused

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/fastdiv.cuh"
#include "prelu_grad_packs.cuh"

constexpr unsigned BLOCK = 256;
constexpr unsigned PIECE = 16 * BLOCK;  // elements of a row that a block of kernels 1 and 2 adds

// dx of one element; its product goes into `product`. The comparison is the one that NaN fails, as in torch.
__device__ __forceinline__ T backward(T x, T dy, T alpha, float& product) {
  const float value = to_float(x), gradient = to_float(dy);
  const bool positive = value > 0.0f;
  product = positive ? 0.0f : value * gradient;
  return positive ? dy : T(to_float(alpha) * gradient);
}

// The sum over the block, in thread 0.
__device__ __forceinline__ float block_sum(float sum) {
  __shared__ float warps[BLOCK / WARP];
#pragma unroll
  for (unsigned step = WARP / 2; step; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step);
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < BLOCK / WARP; ++warp) sum += warps[warp];
  }
  __syncthreads();
  return sum;
}

// A block for each piece of a row: adds what term(element, row) gives for its elements and writes the sum to the
// piece's slot. One division serves a whole piece.
template <typename Term>
__device__ __forceinline__ void sum_pieces(float* __restrict__ partial, long long pieces, long long pieces_per_row,
                                           long long inner, Term term) {
  for (long long piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const long long row = piece / pieces_per_row, begin = (piece - row * pieces_per_row) * PIECE;
    const long long end = min(begin + PIECE, inner);
    float sum = 0.0f;
    for (long long i = begin + threadIdx.x; i < end; i += BLOCK) sum += term(row * inner + i, row);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[piece] = sum;
  }
}

// 1. One element a thread, and its product in a tensor of x's size and type, which the next kernel reads and adds: five
//    tensors move in place of three, as in eager.
extern "C" __global__ void prelu_grad_naive(const T* __restrict__ x, const T* __restrict__ dy,
                                            const T* __restrict__ alpha, T* __restrict__ dx, T* __restrict__ products,
                                            long long n, long long inner, long long channels) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    float product;
    dx[i] = backward(x[i], dy[i], alpha[(i / inner) % channels], product);
    products[i] = T(product);
  }
}
extern "C" __global__ void __launch_bounds__(BLOCK)
    prelu_grad_sum(const T* __restrict__ products, float* __restrict__ partial, long long pieces,
                   long long pieces_per_row, long long inner) {
  sum_pieces(partial, pieces, pieces_per_row, inner, [&](long long i, long long) { return to_float(products[i]); });
}

// 2. In one pass: the products stay in registers, a block adds the products of its piece, and four bytes a piece are
//    all that goes to memory. But accesses are as narrow as an element, and a row of 7 x 7 leaves most of a block idle.
extern "C" __global__ void __launch_bounds__(BLOCK)
    prelu_grad_fused(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ alpha, T* __restrict__ dx,
                     float* __restrict__ partial, long long pieces, long long pieces_per_row, long long inner,
                     long long channels) {
  sum_pieces(partial, pieces, pieces_per_row, inner, [&](long long i, long long row) {
    float product;
    dx[i] = backward(x[i], dy[i], alpha[row % channels], product);
    return product;
  });
}

// 3. Packs of 16 bytes wherever rows begin. The tensor is cut into `rounds` equal periods, each a whole number of
//    samples and of packs, so that what lies one period further is of the same channel. A block takes a tile of BLOCK
//    packs at the same place of every period. Each thread finds its alphas once and keeps one sum for each element of
//    its pack, so a round costs little more than its three accesses. Only then are the sums added by row, in shared
//    memory. More rounds need fewer slots, but leave fewer blocks: the number of rounds is the largest that leaves
//    enough blocks. Small layers have prelu_grad_whole.cu.

constexpr unsigned TILE = BLOCK * SIZE;

// Rows of a period, and of the slots.
struct Rows {
  unsigned inner, inner_multiplier, inner_shift;
  unsigned channels, channels_multiplier, channels_shift;
  unsigned slots;  // of a row: the most tiles that it lies in

  __device__ __forceinline__ unsigned of(unsigned element) const {
    return fast_divide<unsigned>(element, inner_multiplier, inner_shift);
  }
  __device__ __forceinline__ unsigned channel(unsigned row) const {
    return row - fast_divide<unsigned>(row, channels_multiplier, channels_shift) * channels;
  }
  __device__ __forceinline__ unsigned next(unsigned channel) const { return channel + 1 == channels ? 0 : channel + 1; }
};

// The alphas of a pack's registers; the pack begins in `channel`, `left` elements before that row ends.
template <bool Short>
__device__ __forceinline__ void load_alphas(const T* __restrict__ alpha, Word (&with)[WORDS], unsigned channel,
                                            unsigned left, const Rows& rows) {
  const T a = alpha[channel], next = alpha[rows.next(channel)];
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    if constexpr (Short) {
      T lane[LANES];
#pragma unroll
      for (unsigned l = 0; l < LANES; ++l, --left) {
        channel = left == 0 ? rows.next(channel) : channel;
        left = left == 0 ? rows.inner : left;
        lane[l] = alpha[channel];
      }
      with[w] = alphas(lane[0], lane[LANES - 1]);
    } else {
      const unsigned j = w * LANES;
      with[w] = j + LANES <= left ? alphas(a, a) : j < left ? alphas(a, next) : alphas(next, next);
    }
  }
}

// Adds a tile's sums by row and writes them to their slots. If rows are shorter than a pack, each element's sum goes to
// shared memory. Otherwise a pack meets two rows at most, and two sums of it do: `own` for the row in which the pack
// begins, `next` for the next one. `lanes` threads, a power of two, share a row.
template <bool Short>
__device__ __forceinline__ void sum_rows(const float (&sums)[SIZE], float* __restrict__ partial, unsigned left,
                                         unsigned tile_end, unsigned lanes, const Rows& rows) {
  constexpr unsigned UNIT = Short ? 1 : SIZE;
  __shared__ float own[TILE / UNIT], next[BLOCK];
  if constexpr (Short) {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) own[threadIdx.x * SIZE + j] = sums[j];
  } else {
    float both[2] = {0.0f, 0.0f};
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      both[0] += j < left ? sums[j] : 0.0f;
      both[1] += j < left ? 0.0f : sums[j];
    }
    own[threadIdx.x] = both[0];
    next[threadIdx.x] = both[1];
  }
  __syncthreads();
  const unsigned tile = blockIdx.x * TILE, last = rows.of(tile_end - 1), lane = threadIdx.x % lanes;
  // Every lane takes every turn, for the shuffles.
  for (unsigned turn = rows.of(tile); turn <= last; turn += BLOCK / lanes) {
    const unsigned row = turn + threadIdx.x / lanes, begin = row * rows.inner, end = begin + rows.inner;
    float sum = 0.0f;
    if (row <= last) {
      // A unit belongs to the row in which the unit begins.
      const unsigned from = begin > tile ? (begin - tile + UNIT - 1) / UNIT : 0;
      const unsigned to = (min(end, tile_end) - tile + UNIT - 1) / UNIT;
      for (unsigned i = from + lane; i < to; i += lanes) sum += own[i];
      if (!Short && lane == 0 && from > 0) sum += next[from - 1];
    }
    for (unsigned step = lanes / 2; step; step /= 2) sum += __shfl_down_sync(ALL_LANES, sum, step, lanes);
    if (row <= last && lane == 0) {
      const unsigned slot = blockIdx.x - begin / TILE;
      float* slots = partial + static_cast<unsigned long long>(row) * rows.slots;
      slots[slot] = sum;
      // A row that begins near the beginning of a tile lies in one tile less than other rows.
      if (end <= tile_end && slot + 1 < rows.slots) slots[slot + 1] = 0.0f;
    }
  }
}

// The thread's packs of `Count` rounds; all are loaded before the first is used.
template <unsigned Count>
__device__ __forceinline__ void backward_rounds(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dx,
                                                unsigned period, const Word (&alpha)[WORDS], float (&sums)[SIZE]) {
  Pack<T> x_packs[Count], packs[Count];
#pragma unroll
  for (unsigned k = 0; k < Count; ++k) {
    x_packs[k] = load_pack(x + static_cast<long long>(k) * period);
    packs[k] = load_pack(dy + static_cast<long long>(k) * period);
  }
#pragma unroll
  for (unsigned k = 0; k < Count; ++k) {
    backward_pack(x_packs[k], packs[k], alpha, sums);
    store_pack(dx + static_cast<long long>(k) * period, packs[k]);
  }
}

template <bool Short>
__device__ __forceinline__ void tuned(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ alpha,
                                      T* __restrict__ dx, float* __restrict__ partial, long long n, unsigned period,
                                      unsigned rounds, bool aligned, unsigned lanes, const Rows& rows) {
  const unsigned first = blockIdx.x * TILE + threadIdx.x * SIZE;
  const unsigned row = rows.of(first), left = rows.inner - (first - row * rows.inner);
  float sums[SIZE] = {};
  if (first < period) {
    Word with[WORDS];
    load_alphas<Short>(alpha, with, rows.channel(row), left, rows);
    // Only the last round's pack can lack elements.
    const long long last = first + static_cast<long long>(rounds - 1) * period;
    const unsigned whole = aligned ? rounds - (last + SIZE > n) : 0;
    long long element = first;
    unsigned to_go = whole;
#pragma unroll 1
    for (; to_go >= 2; to_go -= 2, element += 2ll * period) {
      backward_rounds<2>(x + element, dy + element, dx + element, period, with, sums);
    }
    if (to_go > 0) {
      backward_rounds<1>(x + element, dy + element, dx + element, period, with, sums);
      element += period;
    }
#pragma unroll 1
    for (unsigned round = whole; round < rounds; ++round, element += period) {
      const unsigned count = filled<T>(n, element);
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) {
        if (j >= count) continue;
        float product;
        const T a = reinterpret_cast<const T(&)[SIZE]>(with)[j];
        dx[element + j] = backward(x[element + j], dy[element + j], a, product);
        sums[j] += product;
      }
    }
  }
  sum_rows<Short>(sums, partial, left, min((blockIdx.x + 1) * TILE, period), lanes, rows);
}

// n: elements. period: elements from one round to the next, below 2^31. short_rows: inner is less than a pack.
extern "C" __global__ void __launch_bounds__(BLOCK)
    prelu_grad_tuned(const T* __restrict__ x, const T* __restrict__ dy, const T* __restrict__ alpha, T* __restrict__ dx,
                     float* __restrict__ partial, long long n, unsigned period, unsigned rounds, unsigned aligned,
                     unsigned short_rows, unsigned lanes, const Rows rows) {
  if (short_rows) {
    tuned<true>(x, dy, alpha, dx, partial, n, period, rounds, aligned, lanes, rows);
  } else {
    tuned<false>(x, dy, alpha, dx, partial, n, period, rounds, aligned, lanes, rows);
  }
}

// The last step of all kernels: adds the (batch, channels, slots) partial sums of each channel. A block takes `across`
// neighbouring channels, and `along` threads the slots of a row, so that a read uses its whole sector; the other
// threads take other samples. Both are powers of two.
constexpr unsigned TOTAL_BLOCK = 1024;
extern "C" __global__ void __launch_bounds__(TOTAL_BLOCK)
    prelu_grad_total(const float* __restrict__ partial, T* __restrict__ dalpha, long long batch, long long channels,
                     long long slots, unsigned across, unsigned along) {
  __shared__ float sums[TOTAL_BLOCK];
  const long long channel = static_cast<long long>(blockIdx.x) * across + threadIdx.x % across;
  const long long first_slot = threadIdx.x / across % along, first_sample = threadIdx.x / (across * along);
  const unsigned workers = TOTAL_BLOCK / (across * along);
  float sum = 0.0f;
  if (channel < channels && first_slot < slots) {
    const float* row = partial + (first_sample * channels + channel) * slots;
    const long long stride = workers * channels * slots;
    if (slots <= along) {
#pragma unroll 4
      for (long long sample = first_sample; sample < batch; sample += workers, row += stride) sum += row[first_slot];
    } else {
      for (long long sample = first_sample; sample < batch; sample += workers, row += stride) {
#pragma unroll 4
        for (long long slot = first_slot; slot < slots; slot += along) sum += row[slot];
      }
    }
  }
  sums[threadIdx.x] = sum;
  for (unsigned half = TOTAL_BLOCK / 2; half >= across; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x < across && channel < channels) dalpha[channel] = T(sums[threadIdx.x]);
}
