// LayerNorm of the rows of a matrix, y = (x - mean) * rstd * gamma + beta. mean and rstd are outputs, too, since the
// backward needs them. They are float32; norm.cuh tells how one reduction gives both of them safely. D is the size of
// x.
//
// Memory bounds the op: x is read and y is written, 2 D. But y needs the statistics of its whole row, so a row that
// doesn't stay on the chip is read twice, 3 D. gamma and beta are read for every row, from shared memory, the L1 or the
// L2. They cost no device memory, but instructions.
//
// Macros: SCALAR (float, __half, __nv_bfloat16), EPS (epsilon, 1e-5f unless told), and the macros of each kernel.
//
// What each step gained on an NVIDIA H200 (reports/h200/norms), float32 M524288-N256.
// At least 536.9 MB are read and 541.1 MB written. The ceiling is 251.9 us, by memory.
//   eager: PyTorch
//       887.2 us   28.4% of ceiling
//   two_pass: a block a row, which reads x for the statistics and again for y; any length and address
//       987.5 us   25.5% of ceiling  moves 1.615 GB  0.90x the speed of eager
//   registers: x read once, into a register array of constant size
//       656.3 us   38.4% of ceiling  moves 1.078 GB  1.50x the speed of two_pass
//   half2: the same, with two halves an access and a conversion
//   tuned: 16 bytes an access; a warp, a block or a cluster a row, as it asks for; long rows in turn
//       260.0 us   96.9% of ceiling  moves 1.078 GB  2.52x the speed of registers

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "norm.cuh"

using T = SCALAR;

// Steps 2 to 5 have macros for the size of a row. A compilation with such macros has one step, so step 1 is left out of
// it.
#if !(defined COUNT || defined ELEMENTS || defined PAIRS || defined STAGES)
#include "norm_ones.cuh"

// 1. A block a row, an element a thread at a time. The row is read for the statistics and again for y: 3 D, where 2 D
//    have to move. It works for any length at any address. Macro: THREADS (of a block).
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

// 2. The row is kept in registers while its statistics are made: 2 D. An array is in registers only if all its indices
//    are constants, so the number of elements that a thread keeps is a macro, and the loops over them are unrolled. All
//    loads of a thread are under way at once, so it no longer waits for each of them. A row has the fewest threads that
//    can keep it: the smaller a block, the more blocks share a multiprocessor, and some blocks load while other blocks
//    wait for their sums. Rows that don't fit into a block's registers can't be done.
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

// 3. Two halves an access and a conversion: half of the memory instructions, and rows of twice the length. The
//    arithmetic between them stays in float. In halves each step would round away places that the result still has.
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

// 4. Accesses of 16 bytes, which are called packs. The number of threads of a row suits its length: lanes of a warp,
//    which need no barrier, a block, or a cluster of blocks. Rows that aren't whole packs come through shared memory if
//    they are short; longer ones have single elements at both ends. Few rows load gamma and beta with the row (EARLY):
//    nothing else on their multiprocessors hides a second and a third wait for memory.
//
// Macros: as in norm_planned.cuh.
#ifdef COUNT
#include "norm_planned.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_OF_SM)
    layer_norm_tuned(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                     T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                     unsigned columns, unsigned tile_rows, unsigned aligned) {
  normalise_as_planned<true>(x, gamma, beta, y, mean, rstd, rows, columns, tile_rows, aligned);
}
#endif

// 5. Step 4 reads gamma and beta from the L2 for each long row, twice the bytes of the row itself. So here a block, or a
//    cluster of blocks, keeps gamma and beta in registers, and takes many rows in turn; the next rows are on their way to
//    shared memory while one is reduced. Shorter rows find gamma and beta in the L1. For them step 4 is faster, since many
//    short-lived blocks keep the memory busier than a few long-lived ones. Rows that begin inside of packs need gamma and
//    beta shifted: step 4 loads two packs of each for every pack of the row. Here a team shifts them once, since all its
//    rows begin alike, so these rows come in turn from fewer packs on.
//
// Macros: as in norm_in_turn.cuh. Tensors must be aligned to packs.
#ifdef STAGES
#include "norm_in_turn.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT_BLOCKS)
    layer_norm_in_turn(const T* __restrict__ x, const T* __restrict__ gamma, const T* __restrict__ beta,
                       T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, long long rows,
                       unsigned columns) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 shared[];
  // Memory has no room for 2^32 long rows, so 32 bits are enough for their number.
  InTurn<T>(x, shared, static_cast<unsigned>(rows), columns).run(gamma, beta, y, mean, rstd);
#endif
}
#endif
