// Copy with strides: y[i * W] = x[i * R] for i < n. What lies between stays as it is.
//
// Macros: SCALAR (unsigned short, unsigned: as wide as an element; uint4 for packs), for strided_tuned also PER_THREAD
// (elements a thread) and BLOCK (threads). Nothing is computed, so all types of one width share a kernel.
//
// Memory is read and written in sectors of 32 bytes. Of each sector a stride of s floats uses one float in s, down to
// one in 8. A longer stride touches no more sectors, but an H200 fetches two at a time for reads, so they take twice the
// time again at 64 bytes; beyond that only more rows of the memory are touched. No kernel can do better: what counts
// is how near to that bound it comes. A sector that is written in part costs more still: memory takes whole ones, so
// the rest of it is read first (on an H200 the counter dram__bytes_read has y's sectors in it).
//
// What each step gained on an NVIDIA H200 (reports/h200/access), float32 N33554432-R1-W48.
// At least 134.2 MB are read and 134.2 MB written. The ceiling is 64.17 us, by memory.
//   eager: PyTorch
//       1.786 ms    3.6% of ceiling
//   scalar: one element a thread
//       1.727 ms    3.7% of ceiling  moves 1.208 GB  1.03x the speed of eager
//   tuned: a sector's worth of elements a thread; packs where both strides are 1
//       1.726 ms    3.7% of ceiling  moves 1.208 GB  1.00x the speed of scalar

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR uint4
#endif

using T = SCALAR;

// 1. One element a thread. Sectors that lanes have in common are moved once; the rest is what the curve shows. With
//    short strides little is in flight: 4 bytes a thread, or 2.
extern "C" __global__ void strided_scalar(const T* __restrict__ x, T* __restrict__ y, long long n,
                                          long long read_stride, long long write_stride) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i * write_stride] = x[i * read_stride];
}

// 2. Several elements a thread, all loads before the first store: so many elements that they touch a sector's worth of
//    bytes. They lie BLOCK apart, so that each access of a warp takes neighbouring elements: a sector is asked for
//    once, not by several instructions as it would be if a thread took neighbours. Where both strides are 1, SCALAR is
//    a pack, and this is the plain copy.
#ifdef PER_THREAD

extern "C" __global__ void __launch_bounds__(BLOCK)
    strided_tuned(const T* __restrict__ x, T* __restrict__ y, long long begin, long long end, long long read_stride,
                  long long write_stride) {
  const long long first = begin + static_cast<long long>(blockIdx.x) * (BLOCK * PER_THREAD) + threadIdx.x;
  const int left = static_cast<int>(min(end - first, static_cast<long long>(BLOCK * PER_THREAD)));
  const T* from = x + first * read_stride;
  T* to = y + first * write_stride;
  T value[PER_THREAD];
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k, from += BLOCK * read_stride) {
    if (k * BLOCK < left) value[k] = __ldg(from);
  }
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k, to += BLOCK * write_stride) {
    if (k * BLOCK < left) *to = value[k];
  }
}

#endif  // PER_THREAD
