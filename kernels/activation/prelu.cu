// PReLU: y = x > 0 ? x : alpha[channel] * x, over a contiguous (outer, channels, inner) tensor.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); for prelu_tuned also INDEX (unsigned, or unsigned long long from 2^31
// elements on), ALPHA (how packs and alphas meet, below), SHIFTED (x and y are misaligned differently), PACKS (packs a
// thread), EVICT_FIRST (cache hint) and BLOCK (threads).
//
// Every kernel reads x once and writes y once. What differs is the arithmetic for each element and the width of each
// access: memory gives about 16 bytes a clock to a multiprocessor, so a kernel that spends 100 instructions on a
// 4-byte element can't keep up.
//
// What each step gained on an NVIDIA H200 (reports/h200/prelu), float32 N96-C64-H112-W112.
// At least 308.3 MB are read and 308.3 MB written. The ceiling is 145.3 us, by memory.
//   eager: PyTorch
//       232.6 us   62.5% of ceiling
//   naive: one element a thread, 32-bit division and modulo for each
//       287.8 us   50.5% of ceiling  moves 616.6 MB  0.81x the speed of eager
//   naive64: naive with 64-bit indexes, for tensors of any size
//       306.3 us   47.4% of ceiling  moves 616.6 MB  0.94x the speed of naive
//   packed: 16-byte packs that share one alpha, 32-bit indexes; naive where inner isn't divisible
//       145.4 us  100.0% of ceiling  moves 616.6 MB  2.11x the speed of naive64
//   packed64: packed with 64-bit indexes; naive64 where inner isn't divisible
//       146.4 us   99.3% of ceiling  moves 616.6 MB  0.99x the speed of packed
//   tuned: packs at any inner size and alignment, multiplications in place of divisions
//       145.4 us   99.9% of ceiling  moves 616.6 MB  1.01x the speed of packed64

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/fastdiv.cuh"
#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

__device__ __forceinline__ T prelu(T x, T alpha) {
  const float value = to_float(x);
  // The product of two halves is exact in float, so this rounds once, like a half-precision multiplication.
  return value > 0.0f ? x : T(to_float(alpha) * value);
}

// 1. One element a thread. The channel costs a division and a modulo, by different numbers: with the text's 32-bit
//    indexes about twenty instructions each, with 64-bit ones, for tensors from 2^31 elements on, a hundred and more. And
//    a warp of halves moves 64 bytes at a time.
template <typename Index>
__device__ __forceinline__ void naive(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y, Index n,
                                      Index inner, Index channels) {
  const Index i = thread_index<Index>();
  if (i < n) {
    const Index channel = (i / inner) % channels;
    y[i] = prelu(x[i], alpha[channel]);
  }
}
extern "C" __global__ void prelu_naive(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y, unsigned n,
                                       unsigned inner, unsigned channels) {
  naive(x, alpha, y, n, inner, channels);
}
extern "C" __global__ void prelu_naive64(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y,
                                         unsigned long long n, unsigned long long inner, unsigned long long channels) {
  naive(x, alpha, y, n, inner, channels);
}

// 2. One pack of 16 bytes a thread. Where inner is a multiple of the pack, a pack lies in one channel: one alpha, one
//    division and one modulo for 4 or 8 elements. x and y must be aligned to 16 bytes. Indexes count packs, but are as
//    wide as the indexes of step 1, so that steps 1 and 2 differ in the packs alone.
template <typename Index>
__device__ __forceinline__ void packed(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y,
                                       Index packs, Index packs_per_channel, Index channels) {
  const Index i = thread_index<Index>();
  if (i < packs) {
    const Index channel = (i / packs_per_channel) % channels;
    const T a = alpha[channel];
    Pack<T> pack = load_pack(x + i * Pack<T>::SIZE);
#pragma unroll
    for (unsigned j = 0; j < Pack<T>::SIZE; ++j) pack.at[j] = prelu(pack.at[j], a);
    store_pack(y + i * Pack<T>::SIZE, pack);
  }
}
extern "C" __global__ void prelu_packed(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y,
                                        unsigned packs, unsigned packs_per_channel, unsigned channels) {
  packed(x, alpha, y, packs, packs_per_channel, channels);
}
extern "C" __global__ void prelu_packed64(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y,
                                          unsigned long long packs, unsigned long long packs_per_channel,
                                          unsigned long long channels) {
  packed(x, alpha, y, packs, packs_per_channel, channels);
}

// 3. Packs at any inner size and any alignment, and no division: a multiplication finds the row, another the channel.
//    A pack may begin anywhere in a row, so it meets one alpha, two, or (rows shorter than a pack) many. Halves are
//    worked on in pairs, as they lie in a register. The few elements before y's first 16-byte boundary and after its
//    last one go to threads of their own at the grid's end.
//    A thread takes one pack, which keeps many blocks coming; but where two packs a thread let the whole grid be
//    resident at once, and one doesn't, they save a second, mostly empty wave. EVICT_FIRST is for small tensors only:
//    there it saves some percent, as it does for a plain copy (`evict_first` against `stream` in reports/h200/copy). On
//    large ones it gains nothing, and after a kernel that left the L2 full of lines of its own it loses, since these
//    then outstay ours.
#ifdef ALPHA

#define ALPHA_ONE 0       // one alpha for the whole tensor
#define ALPHA_UNIFORM 1   // inner and the first pack are multiples of the pack: one alpha a pack
#define ALPHA_STRADDLE 2  // a row has at least a pack's elements: at most two alphas a pack
#define ALPHA_SHORT 3     // rows shorter than a pack

constexpr unsigned WORDS = PACK_BYTES / 4;     // registers of a pack
constexpr unsigned LANES = 4 / sizeof(T);      // elements of a register

// A register's elements with their alphas: a scalar, or a pair by comparison, multiplication and selection.
__device__ __forceinline__ unsigned prelu_word(float x, float alpha) { return __float_as_uint(prelu(x, alpha)); }
template <typename Two>
__device__ __forceinline__ unsigned prelu_word(Two x, Two alpha) {
  const unsigned positive = __hgt2_mask(x, Two{});
  const Two scaled = __hmul2(alpha, x);
  return (reinterpret_cast<const unsigned&>(x) & positive) | (reinterpret_cast<const unsigned&>(scaled) & ~positive);
}

// The alphas of a register's first and last element, in the type that prelu_word takes.
__device__ __forceinline__ float alphas(float first, float) { return first; }
__device__ __forceinline__ __half2 alphas(__half first, __half last) { return __halves2half2(first, last); }
__device__ __forceinline__ __nv_bfloat162 alphas(__nv_bfloat16 first, __nv_bfloat16 last) {
  return __halves2bfloat162(first, last);
}
using Word = decltype(alphas(T{}, T{}));

struct Rows {
  INDEX inner, inner_multiplier;
  INDEX channels, channels_multiplier;
  unsigned inner_shift, channels_shift;
};

// Where an element lies: its channel, and how many elements its row still has, itself included.
struct Place {
  INDEX channel, left;
};
__device__ __forceinline__ Place place_of(INDEX element, const Rows& rows) {
  const INDEX row = fast_divide<INDEX>(element, rows.inner_multiplier, rows.inner_shift);
  const INDEX channel = row - fast_divide<INDEX>(row, rows.channels_multiplier, rows.channels_shift) * rows.channels;
  return {channel, rows.inner - (element - row * rows.inner)};
}
__device__ __forceinline__ INDEX next_channel(INDEX channel, const Rows& rows) {
  return channel + 1 == rows.channels ? 0 : channel + 1;
}

// The pack whose first element is `first`.
__device__ __forceinline__ void process(Pack<T>& pack, const T* __restrict__ alpha, INDEX first, const Rows& rows) {
  Word(&word)[WORDS] = reinterpret_cast<Word(&)[WORDS]>(pack);
  unsigned result[WORDS];
  Place place = ALPHA == ALPHA_ONE ? Place{0, 0} : place_of(first, rows);
  T a = __ldg(alpha + place.channel);
  // Read always, so that no branch stands around the load; mostly it is the neighbour's and in L1.
  const T next = ALPHA == ALPHA_STRADDLE ? __ldg(alpha + next_channel(place.channel, rows)) : a;
#pragma unroll
  for (unsigned w = 0; w < WORDS; ++w) {
    const unsigned j = w * LANES;
    Word with = alphas(a, a);
    if constexpr (ALPHA == ALPHA_STRADDLE) {
      with = j + LANES <= place.left ? alphas(a, a) : j < place.left ? alphas(a, next) : alphas(next, next);
    } else if constexpr (ALPHA == ALPHA_SHORT) {
      T lane[LANES];
#pragma unroll
      for (unsigned l = 0; l < LANES; ++l) {
        if (place.left == 0) {
          place = {next_channel(place.channel, rows), rows.inner};
          a = __ldg(alpha + place.channel);
        }
        lane[l] = a;
        --place.left;
      }
      with = alphas(lane[0], lane[LANES - 1]);
    }
    result[w] = prelu_word(word[w], with);
  }
  pack = reinterpret_cast<const Pack<T>&>(result);
}

// One of the elements before the first pack (the first `head`) or after the last one.
__device__ __forceinline__ void process_edge(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y, INDEX n,
                                             INDEX head, INDEX packs, INDEX edge, const Rows& rows) {
  const INDEX element = edge < head ? edge : edge + packs * Pack<T>::SIZE;
  if (element < n) {
    y[element] = prelu(x[element], __ldg(alpha + place_of(element, rows).channel));
  }
}

// head: elements before the first pack. packs: full packs. n: all elements. misaligned: bytes by which x's packs are
// off a 16-byte boundary (SHIFTED only). A block covers BLOCK * PACKS consecutive packs; a thread's lie BLOCK apart.
extern "C" __global__ void __launch_bounds__(BLOCK)
    prelu_tuned(const T* __restrict__ x, const T* __restrict__ alpha, T* __restrict__ y, INDEX n, INDEX head, INDEX packs,
                unsigned misaligned, INDEX inner, INDEX inner_multiplier, unsigned inner_shift, INDEX channels,
                INDEX channels_multiplier, unsigned channels_shift) {
  const Rows rows{inner, inner_multiplier, channels, channels_multiplier, inner_shift, channels_shift};
  const INDEX begin = static_cast<INDEX>(blockIdx.x) * (BLOCK * PACKS) + threadIdx.x;
  Pack<T> pack[PACKS];
#pragma unroll
  for (unsigned k = 0; k < PACKS; ++k) {
    const INDEX i = begin + k * BLOCK;
    const T* from = x + head + i * Pack<T>::SIZE;
    if (i < packs) pack[k] = SHIFTED ? load_pack_shifted(from, misaligned) : load_pack<EVICT_FIRST>(from);
  }
#pragma unroll
  for (unsigned k = 0; k < PACKS; ++k) {
    const INDEX i = begin + k * BLOCK;
    if (i < packs) {
      process(pack[k], alpha, head + i * Pack<T>::SIZE, rows);
      store_pack<EVICT_FIRST>(y + head + i * Pack<T>::SIZE, pack[k]);
    } else {
      process_edge(x, alpha, y, n, head, packs, i - packs, rows);
    }
  }
}

#endif  // ALPHA
