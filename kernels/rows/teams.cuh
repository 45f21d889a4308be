// Teams, which are the threads that share a row: lanes of a warp, a block, or a cluster of blocks.
#pragma once

#include "mbarrier.cuh"
#include "../include/warp.cuh"

constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);

// Operations of a reduction. merge(a, b) puts the result of two threads' values into a. identity(i) is a value that
// changes nothing when it is merged as value i.
struct Sum {
  static __device__ __forceinline__ float identity(unsigned) { return 0.0f; }
  template <unsigned Count>
  static __device__ __forceinline__ void merge(float (&a)[Count], const float (&b)[Count]) {
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) a[i] += b[i];
  }
};
struct Max {
  static __device__ __forceinline__ float identity(unsigned) { return MINUS_INFINITY; }
  template <unsigned Count>
  static __device__ __forceinline__ void merge(float (&a)[Count], const float (&b)[Count]) {
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) a[i] = fmaxf(a[i], b[i]);
  }
};

// ---- Teams. in_warp<Op>(values) merges the values of the team's threads in a warp. across_warps<Op>(values) merges
// the values of its warps, when the threads of each warp have the same values. all<Op>(values) does both. Every thread
// gets the results, merged in the same order on every run. Where an Op gives another last bit for (b, a) than for (a,
// b), the results of two threads may differ in that bit. All threads of a warp must call these functions, also threads
// without a row. part<Count>(j) is the number of the j-th of the thread's Count parts of a row. Neighbouring threads
// have neighbouring parts, and a block has a contiguous range of them.

// `Lanes` neighbours of a warp, a power of two: no shared memory, no barrier.
template <unsigned Lanes>
struct WarpTeam {
  static constexpr unsigned STEP = Lanes;  // from one of a thread's parts to the next
  const unsigned rank = threadIdx.x % Lanes;

  __device__ __forceinline__ unsigned size() const { return Lanes; }
  template <unsigned Count>
  __device__ __forceinline__ unsigned part(unsigned j) const { return rank + j * Lanes; }
  __device__ __forceinline__ long long row() const {
    return static_cast<long long>(blockIdx.x) * (blockDim.x / Lanes) + threadIdx.x / Lanes;
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void in_warp(float (&values)[Count]) const {
#pragma unroll
    for (unsigned step = Lanes / 2; step; step /= 2) {
      float others[Count];
#pragma unroll
      for (unsigned i = 0; i < Count; ++i) others[i] = __shfl_xor_sync(ALL_LANES, values[i], step);
      Op::merge(values, others);
    }
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void across_warps(float (&)[Count]) const {}
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void all(float (&values)[Count]) const {
    in_warp<Op>(values);
  }
};

__device__ constexpr unsigned power_of_2_from(unsigned n) { return n > 1 ? 2 * power_of_2_from((n + 1) / 2) : 1; }

// A block of `Threads`, which are whole warps. Two sets of partial results take turns, so that one barrier a reduction
// is enough.
template <unsigned Threads>
struct BlockTeam {
  static constexpr unsigned STEP = Threads;
  const unsigned rank = threadIdx.x;
  unsigned turn = 0;

  __device__ __forceinline__ unsigned size() const { return Threads; }
  __device__ __forceinline__ unsigned blocks() const { return 1; }
  template <unsigned Count>
  __device__ __forceinline__ unsigned part(unsigned j) const { return rank + j * Threads; }
  __device__ __forceinline__ long long row() const { return blockIdx.x; }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void in_warp(float (&values)[Count]) const {
    WarpTeam<WARP>().in_warp<Op>(values);
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void across_warps(float (&values)[Count]) {
    constexpr unsigned WARPS = Threads / WARP, LANES_OF_ALL = power_of_2_from(WARPS);
    __shared__ float partial[2][Count][WARP];
    const unsigned lane = threadIdx.x % WARP, from = lane % LANES_OF_ALL;
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) {
      if (lane == 0) partial[turn][i][threadIdx.x / WARP] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) {
      values[i] = from < WARPS ? partial[turn][i][from] : Op::identity(i);
    }
    WarpTeam<LANES_OF_ALL>().template in_warp<Op>(values);
    turn ^= 1;
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void all(float (&values)[Count]) {
    in_warp<Op>(values);
    across_warps<Op>(values);
  }
};

#if __CUDA_ARCH__ >= 900
// A cluster of up to eight blocks of `Threads`. Each warp sends its values to the shared memory of all blocks, and
// every block waits until all bytes have come that the warps send. The cluster's own barrier would also do, but it
// waits until all earlier writes are visible to the whole GPU, which takes longer than the work on a row.
template <unsigned Threads>
struct ClusterTeam {
  static constexpr unsigned STEP = Threads, MOST_BLOCKS = 8;
  const unsigned rank = __clusterRelativeBlockRank() * Threads + threadIdx.x;
  unsigned turn = 0, arrivals;  // arrivals: address of two mbarriers that take turns

  // No block may send anything to a block that hasn't started. So each block announces itself here, and across_warps()
  // waits for all of them.
  __device__ __forceinline__ ClusterTeam() {
    __shared__ unsigned long long two[2];
    arrivals = shared_address(two);
    if (threadIdx.x == 0) {
      mbarrier::init(arrivals);
      mbarrier::init(arrivals + mbarrier::BYTES);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __cluster_barrier_arrive_relaxed();
  }
  __device__ __forceinline__ unsigned size() const { return __clusterSizeInBlocks() * Threads; }
  __device__ __forceinline__ unsigned blocks() const { return __clusterSizeInBlocks(); }
  template <unsigned Count>
  __device__ __forceinline__ unsigned part(unsigned j) const {
    return __clusterRelativeBlockRank() * Count * Threads + threadIdx.x + j * Threads;
  }
  __device__ __forceinline__ long long row() const { return blockIdx.x / __clusterSizeInBlocks(); }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void in_warp(float (&values)[Count]) const {
    WarpTeam<WARP>().in_warp<Op>(values);
  }

  // Sends a value to the same place in the shared memory of block `to`, whose mbarrier counts its bytes.
  static __device__ __forceinline__ void send(float* place, float value, unsigned arrival, unsigned to) {
    unsigned remote, remote_arrival;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(place)), "r"(to));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_arrival) : "r"(arrival), "r"(to));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(remote), "f"(value),
                 "r"(remote_arrival)
                 : "memory");
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void across_warps(float (&values)[Count]) {
    __shared__ float partial[2][Count][MOST_BLOCKS * WARP];
    const unsigned lane = threadIdx.x % WARP, warps = size() / WARP;
    const unsigned arrival = arrivals + turn % 2 * mbarrier::BYTES;
    if (turn == 0) __cluster_barrier_wait();
    if (threadIdx.x == 0) mbarrier::expect(arrival, warps * sizeof(values));
    if (lane < blocks()) {
#pragma unroll
      for (unsigned i = 0; i < Count; ++i) send(&partial[turn % 2][i][rank / WARP], values[i], arrival, lane);
    }
    mbarrier::wait_for_cluster(arrival, turn / 2);
#pragma unroll
    for (unsigned i = 0; i < Count; ++i) values[i] = Op::identity(i);
#pragma unroll 1
    for (unsigned from = lane; from < warps; from += WARP) {
      float others[Count];
#pragma unroll
      for (unsigned i = 0; i < Count; ++i) others[i] = partial[turn % 2][i][from];
      Op::merge(values, others);
    }
    in_warp<Op>(values);
    ++turn;
  }
  template <typename Op, unsigned Count>
  __device__ __forceinline__ void all(float (&values)[Count]) {
    in_warp<Op>(values);
    across_warps<Op>(values);
  }
};
#endif  // clusters came with sm_90
