// TeamSums: sums of the threads' values over a team, for norm_grad_tiles.cuh, whose macros it needs.
//
// A team that is lanes of a warp calls all(), which gives the sums to all threads. Other teams call begin(), which
// takes the values, then settle(), or, where LATE is set, any barrier of the block, and then finish(), which gives the
// sums to all threads. since: how many sums were begun after the one that is finished, 0 or 1. start() comes before all
// of these.
#pragma once

#include "mbarrier.cuh"
#include "rows.cuh"

// Sums over `Lanes` neighbours, with half of the shuffles that a butterfly takes: with each step a thread keeps half of
// its values and gives the other half away, until it has one value. There is a group of threads for each value; the
// threads of a group get the sum of the same value.
template <unsigned Lanes, unsigned Count>
__device__ __forceinline__ float scattered_sum(const float (&values)[Count]) {
  constexpr unsigned STEP = Lanes / 2;
  if constexpr (Count == 1) {
    float sum = values[0];
#pragma unroll
    for (unsigned step = STEP; step; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    return sum;
  } else {
    const bool upper = threadIdx.x & STEP;
    float kept[Count / 2];
#pragma unroll
    for (unsigned i = 0; i < Count / 2; ++i) {
      const float given = upper ? values[i] : values[i + Count / 2];
      kept[i] = (upper ? values[i + Count / 2] : values[i]) + __shfl_xor_sync(ALL_LANES, given, STEP);
    }
    return scattered_sum<STEP>(kept);
  }
}
// Gives the sums of all groups to all threads.
template <unsigned Lanes, unsigned Count>
__device__ __forceinline__ void gather(float sum, float (&values)[Count]) {
  const unsigned first = threadIdx.x % WARP / Lanes * Lanes;
#pragma unroll
  for (unsigned i = 0; i < Count; ++i) values[i] = __shfl_sync(ALL_LANES, sum, first + i * (Lanes / Count));
}

// Whether a thread has registers left, beside its sums of columns.
constexpr bool ROOM = KEPT * (SINGLES ? 1 : PACK_BYTES / sizeof(SCALAR)) <= 24;
// If it has, some of them keep addresses in shared memory. The asm hides how an address is made: otherwise the compiler
// makes it anew for each row.
__device__ __forceinline__ unsigned kept_address(unsigned address) {
  if constexpr (ROOM) asm volatile("" : "+r"(address));
  return address;
}
__device__ __forceinline__ float load_shared(unsigned address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

// Writes zeros to arrays of arrays of floats, by a pointer to floats: a compiler may leave out what is written past the
// end of an array inside of them.
template <typename Arrays>
__device__ __forceinline__ void clear(Arrays& arrays) {
  float* const floats = reinterpret_cast<float*>(arrays);
  for (unsigned i = threadIdx.x; i < sizeof(arrays) / sizeof(float); i += THREADS) floats[i] = 0.0f;
}

// Sums over `Warps` warps, of `Count` values. Each of a warp's groups of threads has the warp's sum of one value.
template <unsigned Count, unsigned Warps>
struct WarpSums {
  static constexpr unsigned GROUP = WARP / Count;
  static_assert(GROUP >= CLUSTER, "a group has a thread for each block of a cluster");

  __device__ __forceinline__ static unsigned value() { return threadIdx.x % WARP / GROUP; }
  __device__ __forceinline__ static unsigned in_group() { return threadIdx.x % GROUP; }
  // Zeros follow the warps' sums, so that all threads of a group have the same number of places to add.
  static constexpr unsigned PLACES = (Warps + GROUP - 1) / GROUP * GROUP;
  using Partial = float[Count][PLACES];
  // Where the sum of a warp lies, in bytes from the first one.
  __device__ __forceinline__ static unsigned place(unsigned value, unsigned warp) {
    return (value * PLACES + warp) * static_cast<unsigned>(sizeof(float));
  }
  // own: address of the partial sums of the group's value, from the sum of warp in_group() on.
  __device__ __forceinline__ static void finish(unsigned own, float (&values)[Count]) {
    float sum = load_shared(own);
#pragma unroll
    for (unsigned from = GROUP; from < PLACES; from += GROUP) sum += load_shared(own + from * sizeof(float));
#pragma unroll
    for (unsigned step = GROUP / 2; step; step /= 2) {
      if (step < Warps) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    }
    gather<WARP>(sum, values);
  }
};

#if LANES > 0
template <unsigned Count>
struct TeamSums {
  __device__ __forceinline__ void start() const {}
  // With few lanes, scattered_sum() and gather() take as long as a butterfly.
  __device__ __forceinline__ void all(float (&values)[Count]) const {
    if constexpr (LANES >= 16 && Count > 1) {
      gather<LANES>(scattered_sum<LANES>(values), values);
    } else {
      WarpTeam<LANES>().template all<Sum>(values);
    }
  }
};
#elif CLUSTER > 1 && __CUDA_ARCH__ >= 900  // elsewhere never launched
// Each warp sends its sums to all blocks of the cluster. A block may begin sums, and even the next ones, while another
// block hasn't finished the sums before. So there are four sets of partial sums.
template <unsigned Count>
class TeamSums {
 public:
  // No block may send anything to a block that hasn't started. So each block announces itself here, and start() waits
  // for all of them.
  __device__ __forceinline__ TeamSums() {
    __shared__ unsigned long long barriers[SETS];
    __shared__ Partial sets[SETS];
    clear(sets);
    __syncthreads();  // the zeros come before what other blocks send, for which they wait in start()
    arrivals = shared_address(barriers);
    if (threadIdx.x == 0) {
      for (unsigned set = 0; set < SETS; ++set) mbarrier::init(arrivals + set * mbarrier::BYTES);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __cluster_barrier_arrive_relaxed();
    partial = shared_address(sets);
    if constexpr (ROOM) {
      own = kept_address(own_address());
      place = there(place_address());
      arrival = there(arrivals);
    }
  }
  __device__ __forceinline__ void start() const { __cluster_barrier_wait(); }
  __device__ __forceinline__ void begin(const float (&values)[Count]) {
    const float sum = scattered_sum<WARP>(values);
    const unsigned set = begun % SETS, after = set * mbarrier::BYTES;
    if (threadIdx.x == 0) mbarrier::expect(arrivals + after, WARPS * sizeof(values));
    if (Sums::in_group() < CLUSTER) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                       (ROOM ? place : there(place_address())) + set * SET),
                   "f"(sum), "r"((ROOM ? arrival : there(arrivals)) + after)
                   : "memory");
    }
    ++begun;
  }
  __device__ __forceinline__ void settle() const {}
  __device__ __forceinline__ void finish(float (&values)[Count], unsigned since = 0) const {
    const unsigned finished = begun - 1 - since, set = finished % SETS;
    mbarrier::wait_for_cluster(arrivals + set * mbarrier::BYTES, finished / SETS);
    Sums::finish((ROOM ? own : own_address()) + set * SET, values);
  }

 private:
  static constexpr unsigned SETS = 4, WARPS = CLUSTER * (THREADS / WARP);
  using Sums = WarpSums<Count, WARPS>;
  using Partial = typename Sums::Partial;
  static constexpr unsigned SET = sizeof(Partial);

  // Addresses in the first set: of the sums that this thread adds, and of the place for its warp's sum.
  __device__ __forceinline__ unsigned own_address() const {
    return partial + Sums::place(Sums::value(), Sums::in_group());
  }
  __device__ __forceinline__ unsigned place_address() const {
    const unsigned warp = __clusterRelativeBlockRank() * (THREADS / WARP) + threadIdx.x / WARP;
    return partial + Sums::place(Sums::value(), warp);
  }
  // The same address in the block that this thread sends to. Where there is no room, the asm keeps it from being kept:
  // a spilled register may have to come from the L2, while all blocks of the cluster wait.
  __device__ __forceinline__ static unsigned there(unsigned address) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(Sums::in_group() % CLUSTER));
    return remote;
  }

  unsigned arrivals, partial, begun = 0;
  unsigned own, place, arrival;  // used only where there is room
};
#else
// A block. Two sets of partial sums take turns, so that one barrier for each sum is enough.
template <unsigned Count>
class TeamSums {
 public:
  __device__ __forceinline__ TeamSums() {
    __shared__ Partial sets[2];
    clear(sets);
    __syncthreads();
    own = kept_address(shared_address(sets) + Sums::place(Sums::value(), Sums::in_group()));
    place = kept_address(shared_address(sets) + Sums::place(Sums::value(), threadIdx.x / WARP));
  }
  __device__ __forceinline__ void start() const {}
  __device__ __forceinline__ void begin(const float (&values)[Count]) {
    const float sum = scattered_sum<WARP>(values);
    if (Sums::in_group() == 0) asm volatile("st.shared.f32 [%0], %1;" ::"r"(place + begun), "f"(sum) : "memory");
    begun ^= SET;
  }
  __device__ __forceinline__ void settle() const { __syncthreads(); }
  __device__ __forceinline__ void finish(float (&values)[Count], unsigned since = 0) const {
    Sums::finish(own + (since ? begun : begun ^ SET), values);
  }

 private:
  using Sums = WarpSums<Count, THREADS / WARP>;
  using Partial = typename Sums::Partial;
  static constexpr unsigned SET = sizeof(Partial);
  unsigned own, place, begun = 0;  // begun: where the set of the next sum begins, in bytes
};
#endif
