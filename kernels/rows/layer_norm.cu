// LayerNorm of the rows of a matrix, y = (x - mean) * rstd * gamma + beta, with mean and rstd for the backward. The
// statistics are float32; include/norm.cuh tells how one reduction gives both of them safely.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), and those of each kernel.

#include "norm.cuh"

using T = SCALAR;

// What follows is compiled apart from the kernels whose macros give the size of a row.
#if !(defined COUNT || defined ELEMENTS || defined PAIRS || defined STAGES)
#include "norm_ones.cuh"

// 1. A block a row, an element a thread at a time. The row is read for the statistics and again for y: 3 D, if D is
//    what x takes, where 2 D have to move. It works for any length at any address. Macro: THREADS (of a block).
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_two_pass(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                        T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                        long long columns) {
  normalise_in_two_passes<true, THREADS>(x, gamma, beta, y, mean, rstd, rows, columns);
}

// Rows of one element, for `tuned`. Macro: THREADS.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_of_one(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                      T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                      int aligned) {
  normalise_ones<true>(x, gamma, beta, y, mean, rstd, rows, aligned);
}
#endif

// 2. The row waits for its statistics in registers: 2 D. An array is in registers only if all its indices are
//    constants, so what a thread keeps is a macro, and the loops over it are unrolled. With all of its loads under way
//    at once a thread no longer waits for each. Rows longer than a block's registers can't be done.
//
// Macros: THREADS, ELEMENTS (that a thread keeps).
#ifdef ELEMENTS
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_registers(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                         T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                         unsigned columns) {
  using Elements = ElementRow<T, ELEMENTS, BlockTeam<THREADS>>;
  normalise_in_registers<true, Elements>(x, gamma, beta, y, mean, rstd, rows, columns);
}
#endif

// 3. Two halves an access and a conversion: half as many instructions for memory, and rows of twice the length. The
//    arithmetic between stays in float. In halves each step of it would round away places that the result still has.
//
// Macros: THREADS, PAIRS (that a thread keeps).
#ifdef PAIRS
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_half2(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                     T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                     unsigned columns) {
  using Pairs = PairRow<T, PAIRS, BlockTeam<THREADS>>;
  normalise_in_registers<true, Pairs>(x, gamma, beta, y, mean, rstd, rows, columns);
}
#endif

// 4. Accesses of 16 bytes, and as many threads a row as its length asks for: lanes of a warp, which need no barrier, a
//    block, or a cluster of blocks. Rows shorter than 16 bytes a thread, or that begin inside of packs, come through
//    shared memory or with single elements at their ends.
//
// Macros: those of norm_planned.cuh.
#ifdef COUNT
#include "norm_planned.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_OF_SM)
    layer_norm_tuned(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                     T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                     unsigned columns, unsigned tile_rows, unsigned aligned) {
  normalise_as_planned<true>(x, gamma, beta, y, mean, rstd, rows, columns, tile_rows, aligned);
}
#endif

// 5. Gamma and beta of long rows come from the L2 for each of them, twice what x takes. So clusters
//    of blocks stay, have them in registers, and take rows in turn; the next ones are on their way to shared memory while
//    one is reduced. Shorter rows find gamma and beta in the L1, and many short-lived blocks keep the memory busier
//    than a few that stay.
//
// Macros: those of norm_in_turn.cuh. Packs must be aligned.
#ifdef STAGES
#include "norm_in_turn.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    layer_norm_in_turn(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                       T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                       unsigned columns) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  // So long rows aren't as many as to need more bits.
  InTurn<T>(x, shared, static_cast<unsigned>(rows), columns).run(gamma, beta, y, mean, rstd);
#endif
}
#endif
