// A copy whose bytes in flight are known: a grid that is resident as a whole, and a loop over the data.
//
// Macros: VECTOR (unsigned, uint2, uint4: what one load moves), IN_FLIGHT (loads that a thread issues before it waits
// for the first of them).
//
// Latency times throughput is what has to be under way (Little's law). A multiprocessor with T threads, each waiting
// for IN_FLIGHT loads of V bytes, has T * V * IN_FLIGHT bytes under way. Threads and vectors bring them about equally,
// loads a thread a little less, since a round's stores stand between its loads and the next round's. Far below what the
// memory can take, bandwidth is nearly proportional to that; beyond it, more only queues up, or costs a little.
//
// What each step gained on an NVIDIA H200 (reports/h200/access), float32 N134217728-T2048-V16-U4.
// At least 536.9 MB are read and 536.9 MB written. The ceiling is 250.7 us, by memory.
//   eager: PyTorch
//       257.8 us   97.3% of ceiling
//   grid_stride: T threads a multiprocessor loop over U loads of V bytes
//       275.1 us   91.1% of ceiling  moves 1.074 GB  0.94x the speed of eager
//   tuned: one pack of 16 bytes a thread, many blocks; T, V and U don't concern it
//       251.4 us   99.7% of ceiling  moves 1.074 GB  1.09x the speed of grid_stride

// Defaults for compiling this file alone.
#ifndef VECTOR
#define VECTOR uint4
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 4
#endif

// The widest vectors and most loads need more than the 32 registers with which two full blocks are resident.
#define RESIDENT_BLOCKS (sizeof(VECTOR) * IN_FLIGHT <= 64 ? 2 : 1)

// step: threads of the whole grid. A warp's vectors are neighbours, a thread's lie `step` apart. Indices of 32 bits
// leave the registers to the loads; vectors + IN_FLIGHT * step must stay below 2^32. For all that the compiler knows x
// and y overlap, so it can't put off a load until after a store: all of a round's loads are issued first.
extern "C" __global__ void __launch_bounds__(1024, RESIDENT_BLOCKS)
    grid_stride(const VECTOR* x, VECTOR* y, unsigned vectors, unsigned step) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
// Rounds that the compiler overlapped would have more loads in flight than the curve says.
#pragma unroll 1
  for (; i + (IN_FLIGHT - 1) * step < vectors; i += IN_FLIGHT * step) {
    VECTOR value[IN_FLIGHT];
#pragma unroll
    for (unsigned k = 0; k < IN_FLIGHT; ++k) value[k] = x[i + k * step];
#pragma unroll
    for (unsigned k = 0; k < IN_FLIGHT; ++k) y[i + k * step] = value[k];
  }
#pragma unroll 1
  for (; i < vectors; i += step) y[i] = x[i];
}
