// Blocks that own whole channels of small layers: what bn_add_relu_whole.cu, bn_add_relu_grad_whole.cu and
// prelu_grad_whole.cu share. They include this file after their type Sums, two floats that are added up for each channel.
//
// A group is neighbouring channels, as many as whole packs and whole bytes of the mask need: one where a row is a
// multiple of eight elements, eight where it is odd, 16 or 32 bytes of channels where these are last. A block owns a
// group, or a cluster of up to eight blocks (sm_90 and later). Tensors begin on 16 bytes.
#pragma once

#include "../include/bitmask.cuh"
#include "../include/fastdiv.cuh"
#include "../rows/mbarrier.cuh"

constexpr unsigned MOST_THREADS = 512, MOST_WARPS = MOST_THREADS / WARP, MOST_GROUP = 16;

// How a launch cuts the tensor. Twin of _Cut in _whole.py.
struct Cut {
  double share, unbiased;          // 1 / elements of a channel; the factor from the variance to the unbiased one
  Divisor<unsigned> across, rows;  // packs of a group in a sample; elements of a row
  unsigned samples, sample;        // number of samples, elements of one
  unsigned group, split;           // channels of a group; 2^split blocks share it
  unsigned seen[3];                // the elements that a shift is made of, counted from the first one of the channel

  __device__ __forceinline__ unsigned rank() const { return blockIdx.x & ((1u << split) - 1); }
  __device__ __forceinline__ unsigned first() const { return (blockIdx.x >> split) * group * rows.size; }
};

// ---- Which packs a thread has: pack number j of the thread is there if has(j), and begins at element(j).

// Neighbouring threads have neighbouring packs, also over the ends of samples.
struct InTurn {
  const Cut& cut;
  const unsigned number = cut.rank() * blockDim.x + threadIdx.x, step = blockDim.x << cut.split;

  __device__ __forceinline__ bool has(unsigned j) const {
    return number + j * step < cut.samples * cut.across.size;
  }
  __device__ __forceinline__ unsigned element(unsigned j) const {
    const unsigned pack = number + j * step, sample = cut.across.quotient(pack);
    return cut.first() + sample * cut.sample + (pack - sample * cut.across.size) * SIZE;
  }
};

// All packs of a thread lie at the same place of a sample, so that their elements number k are of one channel.
// `along` threads have packs at one place.
struct AtOnePlace {
  const Cut& cut;
  const unsigned along = cut.across.quotient(blockDim.x), own = cut.across.quotient(threadIdx.x);
  const unsigned place = (threadIdx.x - own * cut.across.size) * SIZE;
  const unsigned first = own < along ? cut.rank() * along + own : cut.samples, step = along << cut.split;

  __device__ __forceinline__ bool has(unsigned j) const { return first + j * step < cut.samples; }
  __device__ __forceinline__ unsigned element(unsigned j) const {
    return cut.first() + place + (first + j * step) * cut.sample;
  }
};

// ---- Forms of groups. reduce(at): the block's sums of a channel, from each thread's sums of its packs' elements; only
//      the thread that owns the channel gets them. owns(), channel(): whether the thread owns a channel of the group, and
//      which one; if it owns none, any. each(read): read(c) is a value of channel c of the group; what is given has
//      at(j), the value for element j of the thread's packs.

template <typename Value>
struct OfOne {
  Value all;
  __device__ __forceinline__ Value at(unsigned) const { return all; }
};
template <typename Value>
struct OfTwo {
  Value of_row, of_next;
  unsigned left;
  __device__ __forceinline__ Value at(unsigned j) const { return j < left ? of_row : of_next; }
};
template <typename Value>
struct OfMany {
  Value own[SIZE];
  __device__ __forceinline__ Value at(unsigned j) const { return own[j]; }
};

struct OneChannel : InTurn {
  __device__ __forceinline__ bool owns() const { return threadIdx.x == 0; }
  __device__ __forceinline__ unsigned channel() const { return 0; }

  __device__ __forceinline__ Sums reduce(const Sums (&at)[SIZE]) const {
    __shared__ Sums warps[MOST_WARPS];
    Sums sum = at[0];
#pragma unroll
    for (unsigned j = 1; j < SIZE; ++j) sum.add(at[j]);
    sum.add_lanes(WARP);
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x < WARP) {
      sum = threadIdx.x < blockDim.x / WARP ? warps[threadIdx.x] : Sums{};
      sum.add_lanes(MOST_WARPS);
    }
    return sum;
  }
  template <typename Read>
  __device__ __forceinline__ auto each(Read read) const {
    return OfOne<decltype(read(0u))>{read(0u)};
  }
};

// Rows of a pack or more. A pack meets two rows at most: the one that it begins in, and the next one. A warp adds up a
// channel: in turns of eight packs and four samples, since rows may have few packs or many.
struct FewChannels : AtOnePlace {
  const unsigned row = cut.rows.quotient(place), left = (row + 1) * cut.rows.size - place;  // left: elements of the row
  const unsigned next = min(row + 1, cut.group - 1);

  __device__ __forceinline__ bool owns() const { return threadIdx.x % WARP == 0 && threadIdx.x < cut.group * WARP; }
  __device__ __forceinline__ unsigned channel() const { return min(threadIdx.x / WARP, cut.group - 1); }

  __device__ __forceinline__ Sums reduce(const Sums (&at)[SIZE]) const {
    __shared__ Sums both[2][MOST_THREADS];
    Sums of_row{}, of_next{};
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      if (j < left) of_row.add(at[j]);
      if (j >= left) of_next.add(at[j]);
    }
    both[0][threadIdx.x] = of_row;
    both[1][threadIdx.x] = of_next;
    __syncthreads();
    Sums sum{};
    if (threadIdx.x < cut.group * WARP) {
      constexpr unsigned TOGETHER = 8, STEP = WARP / TOGETHER;
      const unsigned begin = threadIdx.x / WARP * cut.rows.size, from = (begin + SIZE - 1) / SIZE;
      const unsigned to = (begin + cut.rows.size + SIZE - 1) / SIZE, lane = threadIdx.x % WARP;
      for (unsigned i = (from ? from - 1 : 0) + lane % TOGETHER; i < to; i += TOGETHER) {
        const Sums(&parts)[MOST_THREADS] = both[i < from];
#pragma unroll 1
        for (unsigned first = lane / TOGETHER; first < along; first += 4 * STEP) {
          Sums four[4] = {};
#pragma unroll
          for (unsigned k = 0; k < 4; ++k) {
            if (first + k * STEP < along) four[k] = parts[(first + k * STEP) * cut.across.size + i];
          }
#pragma unroll
          for (const Sums& each : four) sum.add(each);
        }
      }
    }
    sum.add_lanes(WARP);
    return sum;
  }
  template <typename Read>
  __device__ __forceinline__ auto each(Read read) const {
    return OfTwo<decltype(read(0u))>{read(row), read(next), left};
  }
};

// Rows of one element: a place has a pack of channels, and a group one or two places. The lanes of a warp with the same
// place add up its sums in halves: a lane keeps a half of its sums, gives the other half to a lane that keeps that, and
// so on, until each lane has one sum of all. So 16 sums take 15 shuffles, in place of 64.
struct ManyChannels : AtOnePlace {
  static constexpr unsigned SHARE = WARP / (2 * SIZE);  // lanes with the same sum, but for their places

  __device__ __forceinline__ bool owns() const { return threadIdx.x < cut.group; }
  __device__ __forceinline__ unsigned channel() const { return min(threadIdx.x, cut.group - 1); }

  // Leaves in values[0] the lane's sum. Kept: values that a lane keeps.
  template <unsigned Kept>
  static __device__ __forceinline__ void halve(float (&values)[2 * SIZE]) {
    const bool upper = threadIdx.x & Kept * SHARE;
#pragma unroll
    for (unsigned i = 0; i < Kept; ++i) {
      const float low = values[i], high = values[i + Kept];
      values[i] = (upper ? high : low) + __shfl_xor_sync(ALL_LANES, upper ? low : high, Kept * SHARE);
    }
    if constexpr (Kept > 1) halve<Kept / 2>(values);
  }
  __device__ __forceinline__ Sums reduce(const Sums (&at)[SIZE]) const {
    __shared__ float warps[MOST_WARPS][WARP];
    const unsigned lane = threadIdx.x % WARP;
    float values[2 * SIZE];
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) {
      const auto [one, other] = at[j];
      values[2 * j] = one, values[2 * j + 1] = other;
    }
    halve<SIZE>(values);
    for (unsigned step = SHARE / 2; step >= cut.across.size; step /= 2) {
      values[0] += __shfl_xor_sync(ALL_LANES, values[0], step);
    }
    warps[threadIdx.x / WARP][lane] = values[0];
    __syncthreads();
    if (threadIdx.x >= WARP) return {};
    float total = 0.0f;
#pragma unroll 4
    for (unsigned warp = 0; warp < blockDim.x / WARP; ++warp) total += warps[warp][lane];
    const unsigned from = lane % SIZE * 2 * SHARE + lane / SIZE % cut.across.size;
    return {__shfl_sync(ALL_LANES, total, from), __shfl_sync(ALL_LANES, total, from + SHARE)};
  }
  template <typename Read>
  __device__ __forceinline__ auto each(Read read) const {
    OfMany<decltype(read(0u))> found;
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) found.own[j] = read(place + j);
    return found;
  }
};

// ---- The blocks that share a group. Each sends its sums to the shared memory of all of them, which add what came in the
//      same order. A block that is alone sends nothing.
struct Blocks {
#if __CUDA_ARCH__ >= 900
  const Cut& cut;
  unsigned arrival;

  // No block may send anything to a block that hasn't started, so each announces itself here.
  __device__ __forceinline__ explicit Blocks(const Cut& of) : cut(of) {
    __shared__ unsigned long long barrier;
    arrival = shared_address(&barrier);
    if (cut.split == 0) return;
    if (threadIdx.x == 0) {
      mbarrier::init(arrival);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __cluster_barrier_arrive_relaxed();
  }
  // Waits until all of them have started. A barrier of the block must follow before anything is sent.
  __device__ __forceinline__ void meet() const {
    if (cut.split == 0) return;
    __cluster_barrier_wait();
    if (threadIdx.x == 0) mbarrier::expect(arrival, static_cast<unsigned>(sizeof(Sums)) * cut.group << cut.split);
  }
  // Adds up the sums of a channel, of which each block has a thread.
  __device__ __forceinline__ void add(Sums& sum, unsigned channel) const {
    constexpr unsigned MOST_BLOCKS = 8;
    __shared__ alignas(8) Sums parts[MOST_GROUP][MOST_BLOCKS];  // each is sent at once
    if (cut.split == 0) return;
    const auto [one, other] = sum;
    const unsigned place = shared_address(&parts[channel][cut.rank()]), count = 1u << cut.split;
#pragma unroll 1
    for (unsigned to = 0; to < count; ++to) {
      unsigned remote, remote_arrival;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(place), "r"(to));
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_arrival) : "r"(arrival), "r"(to));
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(remote),
                   "f"(one), "f"(other), "r"(remote_arrival)
                   : "memory");
    }
    mbarrier::wait_for_cluster(arrival, 0);
    sum = {};
#pragma unroll
    for (unsigned from = 0; from < MOST_BLOCKS; ++from) {
      if (from < count) sum.add(parts[channel][from]);
    }
  }
#else  // clusters came with sm_90
  __device__ __forceinline__ explicit Blocks(const Cut&) {}
  __device__ __forceinline__ void meet() const {}
  __device__ __forceinline__ void add(Sums&, unsigned) const {}
#endif
};
