// A bias for each channel: y[o, c, i] = x[o, c, i] + bias[c], over a contiguous (outer, channels, inner) tensor.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); for bias_add_any and bias_add_rows also INDEX (unsigned, or unsigned
// long long from 2^31 elements on).
//
// One addition an element: what costs is to find the channel. Steps 1 to 5 take one element a thread and differ in
// nothing but that index arithmetic; steps 6 and 7 make one piece of it serve 16 bytes.
//
// What each step gained on an NVIDIA H200 (reports/h200/bias), float32 outer131072-bias1023-inner1.
// At least 536.4 MB are read and 536.3 MB written. The ceiling is 250.7 us, by memory.
//   eager: PyTorch
//       377.8 us   66.4% of ceiling
//   index64: 64-bit division and modulo for each element
//       421.0 us   59.6% of ceiling  moves 1.073 GB  0.90x the speed of eager
//   index32: 32-bit division and modulo
//       461.3 us   54.4% of ceiling  moves 1.073 GB  0.91x the speed of index64
//   index32_early: as index32, with a branch that keeps the load of x before the divisions, where index64 has it
//   fastdiv: each division as a multiplication
//       408.0 us   61.4% of ceiling  moves 1.073 GB  1.13x the speed of index32
//   inner1: a modulo and no division, for inner = 1
//       429.5 us   58.4% of ceiling  moves 1.073 GB  0.95x the speed of fastdiv
//   outer1: a division and no modulo, for outer = 1
//   tuned: 16-byte packs at any sizes, multiplications in place of divisions
//       251.8 us   99.6% of ceiling  moves 1.073 GB  1.71x the speed of inner1

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bias.cuh"

using T = SCALAR;

// `channel` gives an element's channel. A sum of halves is rounded once, like one of floats.
template <typename Index, typename Channel>
__device__ __forceinline__ void add_one(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, Index n,
                                        Channel channel) {
  const Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + bias[channel(i)];
}

// 1. A division and a modulo in 64 bits. The GPU has no instruction for either: each is a call of about a hundred, or,
//    found out at run time, twenty where both numbers fit into 32 bits.
extern "C" __global__ void bias_add_index64(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                            unsigned long long n, unsigned long long channels,
                                            unsigned long long inner) {
  add_one(x, bias, y, n, [=](unsigned long long i) { return i / inner % channels; });
}

// 2. The same in 32 bits: twenty instructions each, and nothing to find out. For fewer than 2^31 elements, as all up to
//    step 5. The modulo is by another number than the division, so it takes a division of its own; two_biases.cu is
//    about a pair by the same number.
extern "C" __global__ void bias_add_index32(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                            unsigned n, unsigned channels, unsigned inner) {
  add_one(x, bias, y, n, [=](unsigned i) { return i / inner % channels; });
}

//    In floats it is slower on an H200, though it executes fewer instructions. For the compiler changes more than the
//    index: a division in 64 bits has branches, and the load of x stands before them. A division in 32 bits has none, so
//    the load of x is put behind both divisions, beside the load of the bias; 40 instructions pass before a warp asks for
//    anything. (In halves the loads stand behind the divisions in 64 bits too.) A branch around the divisions, which
//    every thread takes, leaves the load of x where 64 bits have it.
extern "C" __global__ void bias_add_early_index32(const T* __restrict__ x, const T* __restrict__ bias,
                                                  T* __restrict__ y, unsigned n, unsigned channels, unsigned inner) {
  add_one(x, bias, y, n, [=](unsigned i) { return channels ? i / inner % channels : 0; });
}

// 3. Both divisors are known at launch: each division becomes a multiplication, an addition and a shift.
extern "C" __global__ void bias_add_fastdiv(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                            unsigned n, unsigned channels, unsigned channels_multiplier,
                                            unsigned channels_shift, unsigned inner_multiplier, unsigned inner_shift) {
  const Columns<unsigned> columns{channels, channels_multiplier, channels_shift};
  add_one(x, bias, y, n, [=](unsigned i) { return columns.of(fast_divide(i, inner_multiplier, inner_shift)); });
}

// 4. inner == 1, a matrix with a bias for each column: nothing to divide by, only the modulo of step 2 is left.
extern "C" __global__ void bias_add_inner1(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                           unsigned n, unsigned channels) {
  add_one(x, bias, y, n, [=](unsigned i) { return i % channels; });
}

// 5. outer == 1, a matrix with a bias for each row: no remainder to take, only the division of step 2 is left.
extern "C" __global__ void bias_add_outer1(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                           unsigned n, unsigned inner) {
  add_one(x, bias, y, n, [=](unsigned i) { return i / inner; });
}

// 6. One pack of 16 bytes a thread, any sizes: the channel of its first element is found as in step 3, and the channels
//    of its other elements follow. How they follow depends on the sizes: all threads take the same branch, but for a
//    few at rows' ends.
#ifdef INDEX

constexpr unsigned SIZE = Pack<T>::SIZE;

// The two divisors on the way from an element to its channel.
struct Channels {
  Columns<INDEX> inner, channels;

  __device__ __forceinline__ INDEX of(INDEX element) const {
    return channels.of(fast_divide(element, inner.multiplier, inner.shift));
  }
  __device__ __forceinline__ INDEX after(INDEX channel) const {
    return channel + 1 == channels.count ? 0 : channel + 1;
  }
};

__device__ __forceinline__ void store_sum(T* to, const Pack<T>& x, const Pack<T>& added) {
  Pack<T> sum;
#pragma unroll
  for (unsigned j = 0; j < SIZE; ++j) sum.at[j] = x.at[j] + added.at[j];
  store_pack(to, sum);
}

// x is the pack that begins at `first`. Each branch stores by itself: halves stay paired in their registers then, and
// aren't taken apart to meet again.
__device__ __forceinline__ void add_pack(const Pack<T>& x, const T* __restrict__ bias, T* __restrict__ y, INDEX first,
                                         const Channels& of) {
  T* to = y + first;
  const INDEX inner = of.inner.count;
  INDEX channel = of.of(first);
  if (inner == 1) {
    // Neighbours have neighbouring biases still: a pack of them at any address, if the two words around it lie in bias.
    // All packs of a row are misaligned alike, so a warp parts only where a row ends in it.
    const T* from = bias + channel;
    const unsigned misaligned = reinterpret_cast<unsigned long long>(from) % PACK_BYTES;
    const T* words = from - misaligned / sizeof(T);
    if (words >= bias && words + 2 * SIZE <= bias + of.channels.count) {
      return store_sum(to, x, load_pack_shifted(from, misaligned));
    }
  }

  Pack<T> added;
  INDEX left = inner - of.inner.of(first);  // elements of the first one's channel before the next channel's
  if (inner % SIZE == 0 || of.channels.count == 1) {
    // One channel.
    const T only = bias[channel];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) added.at[j] = only;
    store_sum(to, x, added);
  } else if (inner > SIZE) {
    // Two at most. The second bias is read even if no element needs it: mostly it is the neighbour's and in L1.
    const T one = bias[channel], other = bias[of.after(channel)];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) added.at[j] = j < left ? one : other;
    store_sum(to, x, added);
  } else {
    // Any number.
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      added.at[j] = bias[channel];
      if (--left == 0) {
        left = inner;
        channel = of.after(channel);
      }
    }
    store_sum(to, x, added);
  }
}

// aligned: x and y begin on 16 bytes. If they don't, and in the tensor's last pack, elements go one by one.
extern "C" __global__ void bias_add_any(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, INDEX n,
                                        int aligned, INDEX channels, INDEX channels_multiplier, unsigned channels_shift,
                                        INDEX inner, INDEX inner_multiplier, unsigned inner_shift) {
  const Channels of{{inner, inner_multiplier, inner_shift}, {channels, channels_multiplier, channels_shift}};
  const INDEX first = (static_cast<INDEX>(blockIdx.x) * blockDim.x + threadIdx.x) * SIZE;
  if (aligned && first + SIZE <= n) {
    add_pack(load_pack(x + first), bias, y, first, of);
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i) y[i] = x[i] + bias[of.of(i)];
  }
}

// 7. inner == 1 and rows of whole packs, every tensor on 16 bytes: one load brings a pack's biases. A kernel of its
//    own: as a first branch of the kernel of step 6 it became predicated instructions, and every thread, whichever way
//    it went, waited for x before it asked for its bias.
extern "C" __global__ void bias_add_rows(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y, INDEX n,
                                         INDEX channels, INDEX channels_multiplier, unsigned channels_shift) {
  const Columns<INDEX> columns{channels, channels_multiplier, channels_shift};
  const INDEX first = (static_cast<INDEX>(blockIdx.x) * blockDim.x + threadIdx.x) * SIZE;
  if (first < n) store_sum(y + first, load_pack(x + first), load_bias<true>(bias, first, columns));
}

#endif  // INDEX
