// Rows of weights on their way through shared memory, for few_rows.cuh: a ring of stages that are under way or full.
//
// A stage has COLUMNS columns of a tile's rows. Since compute capability 9.0 a bulk copy brings each row of a stage, and
// a barrier counts its bytes: 2 KB for an instruction, and neither registers nor the L1 hold what is under way. Before,
// each thread copies 16 bytes at a time.
//
// Macros: COLUMNS (a multiple of 64), STAGES, WARPS. Names in capitals besides are few_rows.cuh's.
#pragma once

#include "../include/pack.cuh"
#include "../include/warp.cuh"
#include "../rows/mbarrier.cuh"

using T = SCALAR;

constexpr unsigned PITCH = COLUMNS + STEP;       // of a row: two neighbours' 64 bytes lie in different banks
constexpr unsigned STAGE = TILE * PITCH;

// Where a lane of a warp is in its block's tiles: a row of a tile, and the stage's first column.
template <typename Layer>
struct Cursor {
  const Layer& layer;
  const unsigned columns, tiles;
  unsigned tile = blockIdx.x, begin = 0;
  const T* row;

  __device__ __forceinline__ Cursor(const Layer& layer, unsigned columns)
      : layer(layer), columns(columns), tiles((layer.pairs() + PAIRS - 1) / PAIRS) {
    find_row();
  }
  __device__ __forceinline__ bool there() const { return tile < tiles; }
  __device__ __forceinline__ const T* from() const { return row + begin; }
  __device__ __forceinline__ unsigned here() const { return min(COLUMNS, columns - begin); }
  __device__ __forceinline__ void find_row() {
    row = layer.row(tile * PAIRS + threadIdx.x % TILE / 2, threadIdx.x % 2);
  }
  __device__ __forceinline__ void go_on() {
    begin += COLUMNS;
    if (begin < columns) return;
    begin = 0, tile += gridDim.x;
    find_row();
  }
};

template <typename Layer>
class Ring {
 public:
  __device__ __forceinline__ Ring(const Layer& layer, T* stages, unsigned columns)
      : stages(stages), next(layer, columns) {
#if __CUDA_ARCH__ >= 900
    __shared__ unsigned long long all[STAGES];
    barriers = shared_address(all);
    if (threadIdx.x == 0) {
#pragma unroll
      for (unsigned s = 0; s < STAGES; ++s) mbarrier::init(barriers + s * mbarrier::BYTES);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
#endif
#pragma unroll 1
    for (unsigned s = 0; s < STAGES; ++s) refill(s);
  }
  __device__ __forceinline__ unsigned tiles() const { return next.tiles; }
  __device__ __forceinline__ const T* stage(unsigned slot) const { return stages + slot * STAGE; }

  // Begins to copy what comes next to a slot that nobody reads any more.
  __device__ __forceinline__ void refill(unsigned slot) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x >= WARP || !next.there()) return;
    const unsigned bytes = next.here() * sizeof(T), barrier = barriers + slot * mbarrier::BYTES;
    if (threadIdx.x == 0) mbarrier::expect(barrier, TILE * bytes);
    __syncwarp();
    if (threadIdx.x < TILE) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
              shared_address(stage(slot) + threadIdx.x * PITCH)),
          "l"(__cvta_generic_to_global(next.from())), "r"(bytes), "r"(barrier)
          : "memory");
    }
#else
    for (unsigned r = threadIdx.x / WARP; r < TILE && next.there(); r += WARPS) {
      const T* from = next.layer.row(next.tile * PAIRS + r / 2, r % 2) + next.begin;
      for (unsigned k = threadIdx.x % WARP * SIZE; k < next.here(); k += WARP * SIZE) {
        copy_async_16(shared_address(stage(slot) + r * PITCH + k), from + k);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    next.go_on();
  }

  // Waits until a slot is full, for all threads of the block. phase: how many times it was full before.
  __device__ __forceinline__ void wait(unsigned slot, unsigned phase) const {
#if __CUDA_ARCH__ >= 900
    mbarrier::wait(barriers + slot * mbarrier::BYTES, phase);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
    __syncthreads();
#endif
  }

 private:
  T* const stages;
  Cursor<Layer> next;
  unsigned barriers = 0;
};
