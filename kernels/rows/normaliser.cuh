// The statistics of a row for LayerNorm and RMSNorm, and elements normalised with them. `Centred` tells them apart:
// LayerNorm subtracts a row's mean, RMSNorm doesn't.
#pragma once

#include "teams.cuh"

#ifndef EPS
#define EPS 1e-5f
#endif
constexpr float EPSILON = EPS;
constexpr float PLUS_INFINITY = -MINUS_INFINITY;

// Makes the statistics of a row from sums over its elements, and then normalises elements with them.
//
// Sums of x and of x * x would lose all places where the mean is far larger than the deviation. Sums of distances from
// a point lose few while that point is within a few deviations of the mean, as a row's first element nearly always is.
// Where it isn't, the sums are made again, about the mean that they gave. So one reduction is enough, where a pass for
// the mean and another one for the variance need two. In a row of equal values all distances are exactly zero.
//
// Distances are multiplied by a power of two, at most 1 / (2 sqrt(N)), which rounds nothing. So no difference of two
// finite elements overflows, and no sum of squares does unless the variance does.
template <bool Centred>
class Normaliser {
 public:
  static constexpr unsigned SUMS = Centred ? 2 : 1;
  float mean;

  __device__ __forceinline__ Normaliser() {}
  // first: the row's first element; 0 without a mean.
  template <typename Count>
  __device__ __forceinline__ Normaliser(Count columns, float first)
      : mean(first), share(__fdividef(1.0f, columns)) {
    const unsigned half_log2 = (bits_of(columns - 1) + 1) / 2;  // of N, both rounded up
    down = __uint_as_float((126 - half_log2) << 23);
    point = -mean * down;
  }

  // For another row of the same length as the row of `like`.
  __device__ __forceinline__ Normaliser(const Normaliser& like, float first)
      : mean(first), share(like.share), down(like.down), point(-first * like.down) {}

  // Adds an element to this thread's part of the sums.
  __device__ __forceinline__ void add(float x, float (&sums)[SUMS]) const {
    const float d = distance(x);
    sums[0] = fmaf(d, d, sums[0]);
    if constexpr (Centred) sums[1] = fmaf(d, share, sums[1]);
  }

  // Makes the statistics from the sums over the row. Tells whether the sums must be made again, after recentre(); that
  // is so once at most. All threads that share a warp or a row get the same answer.
  __device__ __forceinline__ bool again(const float (&sums)[SUMS]) {
    // 1 / down: the power of two with the opposite exponent.
    const float up = __uint_as_float((254u << 23) - __float_as_uint(down)), square = sums[0] * share;
    if constexpr (!Centred) {
      scale = root(square * up * up + EPSILON) * up;
      return false;
    } else {
      const float off = sums[1], off_square = off * off;
      float variance = square - off_square;
      // Rounding must not make it negative. Where `square` is an infinity or NaN, so is the variance.
      if (!(off_square < square)) variance = square < PLUS_INFINITY ? 0.0f : square;
      scale = root(variance * up * up + EPSILON) * up;
      offset = -off * scale;
      mean = fmaf(off, up, mean);
      const bool near = off_square <= 8.0f * variance && square < PLUS_INFINITY;
      return !last && __any_sync(ALL_LANES, !near);
    }
  }
  __device__ __forceinline__ void recentre() {
    point = -mean * down;
    last = true;
  }

  // Take over what another lane, of `Lanes` that share a row, found out about that row.
  template <unsigned Lanes>
  __device__ __forceinline__ void take_point(const Normaliser& from, unsigned lane) {
    point = __shfl_sync(ALL_LANES, from.point, lane, Lanes);
  }
  template <unsigned Lanes>
  __device__ __forceinline__ void take_scale(const Normaliser& from, unsigned lane) {
    scale = __shfl_sync(ALL_LANES, from.scale, lane, Lanes);
    if constexpr (Centred) offset = __shfl_sync(ALL_LANES, from.offset, lane, Lanes);
  }

  __device__ __forceinline__ float rstd() const { return scale * down; }
  // Always 0, which the compiler doesn't know: for forget_floats().
  __device__ __forceinline__ unsigned zero() const { return __float_as_uint(scale) >> 31; }

  // x without the mean, times rstd.
  __device__ __forceinline__ float operator()(float x) const {
    return Centred ? fmaf(distance(x), scale, offset) : x * rstd();
  }

 private:
  static __device__ __forceinline__ unsigned bits_of(unsigned n) { return 32 - __clz(n); }
  static __device__ __forceinline__ unsigned bits_of(long long n) { return 64 - __clzll(n); }
  // 1 / sqrt(x). rsqrtf() would also look for denormal numbers, but x is at least epsilon.
  static __device__ __forceinline__ float root(float x) {
    float result;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  }
  __device__ __forceinline__ float distance(float x) const { return Centred ? fmaf(x, down, point) : x * down; }

  float share;  // 1 / N
  float down;   // the power of two
  float point;  // minus the point, times `down`
  float scale, offset;
  bool last = false;
};
