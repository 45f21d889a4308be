// The small layers of bn_add_relu in one kernel, which reads x once: the statistics of whole channels, y and its bits.
//
// Three kernels (bn_add_relu.cu) take three launches, and wait four times for memory: for x, the partial sums, the
// scales, and x again. A layer of a few megabytes takes longer to wait than to move. Here a block, or a cluster of up to
// eight blocks (sm_90 and later), owns a group of neighbouring channels. Its threads ask for all that they need of x and
// z at once, and keep it in registers. They add up x, tell each other the sums in shared memory, and write y from the
// registers. There is one wait for memory, and no sums are written to memory.
//
// The sums are of x - shift, as in bn_add_relu.cu: a shift is the median of three values of the whole channel.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); WHOLE: packs of x, and as many of z, that a thread keeps; RESIDUAL.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef WHOLE
#define WHOLE 4
#endif

#include "bn_add_relu_parts.cuh"
#include "bn_whole.cuh"

// Three values of the channel whose first element is number `first`, and the shift that they make.
struct Seen {
  T at[3];

  __device__ __forceinline__ Seen(const T* __restrict__ x, const Cut& cut, unsigned first)
      : at{x[first + cut.seen[0]], x[first + cut.seen[1]], x[first + cut.seen[2]]} {}
  __device__ __forceinline__ float shift() const { return median(to_float(at[0]), to_float(at[1]), to_float(at[2])); }
};

// ---- Forms of groups with shifts. seen(x): the values that shifts are made of. shifts(seen, shift): the shifts for the
//      elements of the thread's packs.

struct One : OneChannel {
  __device__ __forceinline__ Seen seen(const T* __restrict__ x) const { return {x, cut, cut.first()}; }
  __device__ __forceinline__ void shifts(const Seen& seen, float (&shift)[SIZE]) const {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) shift[j] = seen.shift();
  }
};

struct Few : FewChannels {
  struct Both {
    Seen of_row, of_next;
  };
  __device__ __forceinline__ Both seen(const T* __restrict__ x) const {
    return {{x, cut, cut.first() + row * cut.rows.size}, {x, cut, cut.first() + next * cut.rows.size}};
  }
  __device__ __forceinline__ void shifts(const Both& seen, float (&shift)[SIZE]) const {
    const float of_row = seen.of_row.shift(), of_next = seen.of_next.shift();
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) shift[j] = j < left ? of_row : of_next;
  }
};

struct Many : ManyChannels {
  struct Packs {
    Pack<T> at[3];
  };
  __device__ __forceinline__ Packs seen(const T* __restrict__ x) const {
    const T* from = x + cut.first() + place;
    return {load_pack(from + cut.seen[0]), load_pack(from + cut.seen[1]), load_pack(from + cut.seen[2])};
  }
  __device__ __forceinline__ void shifts(const Packs& seen, float (&shift)[SIZE]) const {
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      shift[j] = median(to_float(seen.at[0].at[j]), to_float(seen.at[1].at[j]), to_float(seen.at[2].at[j]));
    }
  }
};

// ---- The statistics of a channel, as bn_finish makes them.
struct Channel {
  float gamma, beta, old_mean, old_variance;
  Seen seen;
  double mean, variance;
  float invstd;

  // Gives the scale and the shift that normalise the channel's elements.
  __device__ __forceinline__ float2 finish(const Sums& sums, const Cut& cut) {
    const double distance = sums.sum * cut.share, difference = sums.squares * cut.share - distance * distance;
    mean = seen.shift() + distance;
    // Rounding may make a small variance negative; a NaN stays.
    variance = difference < 0.0 ? 0.0 : difference;
    // A root and a division in double would take longer than all else here.
    invstd = rsqrtf(static_cast<float>(variance + EPSILON));
    const float scale = gamma * invstd;
    return make_float2(scale, static_cast<float>(beta - mean * scale));
  }
};

template <typename Form>
__device__ __forceinline__ void whole(const Form& form, const T* __restrict__ x, const T* __restrict__ z,
                                      const float* __restrict__ gamma, const float* __restrict__ beta,
                                      float* __restrict__ running_mean, float* __restrict__ running_var,
                                      float* __restrict__ mean_out, float* __restrict__ invstd_out,
                                      T* __restrict__ y, unsigned char* __restrict__ mask, const Cut& cut) {
  __shared__ float2 scale_shift[MOST_GROUP];
  // All loads come before anything that needs one of them. Every thread asks for what only owners need: in a branch the
  // compiler would put what needs it.
  unsigned first[WHOLE];
  Pack<T> values[WHOLE] = {}, residual[WHOLE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    first[j] = form.element(j);
    if (form.has(j)) values[j] = load_pack(x + first[j]);
  }
  const auto seen = form.seen(x);
  if constexpr (RESIDUAL) {
#pragma unroll
    for (unsigned j = 0; j < WHOLE; ++j) {
      if (form.has(j)) residual[j] = load_pack(z + first[j]);
    }
  }
  const unsigned number = (blockIdx.x >> cut.split) * cut.group + form.channel();
  Channel channel{gamma[number], beta[number], running_mean[number], running_var[number],
                  {x, cut, cut.first() + form.channel() * cut.rows.size}};
  const Blocks blocks(cut);

  float shift[SIZE];
  form.shifts(seen, shift);
  Sums at[SIZE] = {};
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    if (!form.has(j)) continue;
#pragma unroll
    for (unsigned k = 0; k < SIZE; ++k) at[k].add_value(to_float(values[j].at[k]), shift[k]);
  }
  blocks.meet();
  Sums sums = form.reduce(at);
  if (form.owns()) {
    blocks.add(sums, form.channel());
    scale_shift[form.channel()] = channel.finish(sums, cut);
  }
  __syncthreads();

  const auto scales = form.each([&](unsigned c) { return scale_shift[c]; });
  const unsigned elements = cut.samples * cut.sample, mask_bytes = (elements + 31) / 32 * 4;
#pragma unroll
  for (unsigned j = 0; j < WHOLE; ++j) {
    unsigned bits = 0;
    if (form.has(j)) {
      bits = apply_pack(values[j], residual[j], scales);
      store_pack(y + first[j], values[j]);
    }
    store_bits_of_pack<T>(mask, first[j] / SIZE, bits, form.has(j) ? mask_bytes : 0);
  }
  if (form.owns() && cut.rank() == 0) {
    mean_out[number] = static_cast<float>(channel.mean);
    invstd_out[number] = channel.invstd;
    running_mean[number] = static_cast<float>((1.0 - MOMENTUM) * channel.old_mean + MOMENTUM * channel.mean);
    running_var[number] =
        static_cast<float>((1.0 - MOMENTUM) * channel.old_variance + MOMENTUM * (channel.variance * cut.unbiased));
  }
  // The elements are whole bytes; the mask is whole words.
  if (blockIdx.x == 0 && threadIdx.x < mask_bytes - elements / GROUP) mask[elements / GROUP + threadIdx.x] = 0;
}

#define KERNEL(NAME, FORM)                                                                                           \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1)                                                      \
      NAME(const T* __restrict__ x, const T* __restrict__ z, const float* __restrict__ gamma,                        \
           const float* __restrict__ beta, float* __restrict__ running_mean, float* __restrict__ running_var,        \
           float* __restrict__ mean, float* __restrict__ invstd, T* __restrict__ y,                                  \
           unsigned char* __restrict__ mask, const Cut cut) {                                                        \
    whole(FORM{{{cut}}}, x, z, gamma, beta, running_mean, running_var, mean, invstd, y, mask, cut);                    \
  }
KERNEL(bn_whole_one, One)
KERNEL(bn_whole_few, Few)
KERNEL(bn_whole_many, Many)
