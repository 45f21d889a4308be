// y = x w^T for few rows of x, as in decoding: a linear layer that a token of each of a few sequences goes through. x is
// (M, K), w is (N, K) as nn.Linear has it. With an RMSNorm of x in front, a sum with a residual or a SwiGLU behind.
//
// Memory bounds it: each weight is read once, and multiplied M times, so the weights' bytes over the memory's rate is the
// time: 2048 x 2048 halves are 8.4 MB, which is 2 us on an H200. A GPU needs about 5 MB under way at any time for its full
// rate (Little's law: 4.8 TB/s times about a microsecond), 36 KB on each multiprocessor. So what counts is that bytes are
// under way all the time, also while a block begins, and while it adds up its sums.
//
// 1. A warp makes the sums of two rows of w, an element a lane (`fused`): 64 bytes under way a load, and a block's first
//    load waits for its launch.
// 2. Bulk copies bring rows of w to shared memory (`tuned`), a ring of 16 KB stages, of which up to 96 KB are under way
//    (weight_ring.cuh), and a row's 2 KB take one instruction.
// 3. The tensor cores multiply, though they would be idle 15 times out of 16 for a single row of x: they take halves as
//    they lie in shared memory, where float32 products take a conversion and a multiplication for each weight and row of
//    x. A tile is eight rows of w, so 2048 rows make 256 tiles for 132 multiprocessors. Warps share a stage's columns, and
//    their sums meet in shared memory once a tile. Blocks stay and go on with other tiles. x comes to shared memory once.
// 4. The norm, the residual and the gate cost next to nothing there, and each saves a kernel of its own, which takes
//    longer than its bytes: memory idles from the end of one kernel to the full rate of the next one. That time is why
//    a kernel lets the next one begin at once, and fills its ring before it waits for the kernel in front
//    (dependent.cuh): weights don't depend on it. The ring leaves room for a block of the next kernel.
// 5. For one to four rows of x, each thread copies columns of its own to shared memory and multiplies them itself
//    (few_rows_apart.cuh), so that a stage costs no barrier. There float32 products are few enough: eight for 16 bytes and
//    row of x. Copies of 16 bytes were faster than bulk copies where both were tried, on an H200. Several blocks share a
//    multiprocessor, so that one multiplies while another adds up its sums. Where x is so long that only one block would
//    fit, the ring and the tensor cores do the work, as for more rows; but one long row of a small product has one block
//    of twice as many threads.
//
// Three ways to keep memory busy until a kernel may read what the kernel before wrote were tried on an H200 and were slower;
// no committed run has them: bulk prefetches of more weights to the L2; counters of blocks that are done, to wait for in
// place of the kernel's end; one kernel for the whole step, whose blocks stay and hand vectors to each other.
//
// Macros: SCALAR (__half, __nv_bfloat16). FORM: 0 plain, 1 with an RMSNorm of x, 2 plus a residual, 3 with an RMSNorm and
// as a gate, y = silu(gate) * up. Macros of `tuned`: as in few_rows.cuh.

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR __nv_bfloat16
#endif
#ifndef FORM
#define FORM 0
#endif

#include "few_rows.cuh"

constexpr bool NORM = FORM == 1 || FORM == 3, ADDS = FORM == 2, GATES = FORM == 3;

// weight: (outputs, K); of gates, and `up` has another (outputs, K). y, residual: (M, outputs). The residual may be y.
struct Linear {
  const T *weight, *up, *residual;
  T* y;
  unsigned outputs, columns;

  struct Ready {
    float at[2];
  };

  __device__ __forceinline__ unsigned pairs() const { return GATES ? outputs : (outputs + 1) / 2; }
  // The output that row `which` of a pair belongs to.
  __device__ __forceinline__ unsigned output(unsigned pair, unsigned which) const {
    return GATES ? pair : 2 * pair + which;
  }
  __device__ __forceinline__ const T* row(unsigned pair, unsigned which) const {
    return (GATES && which ? up : weight) + static_cast<long long>(min(output(pair, which), outputs - 1)) * columns;
  }
  __device__ __forceinline__ long long place(unsigned n, unsigned pair, unsigned which) const {
    return static_cast<long long>(n) * outputs + output(pair, which);
  }
  __device__ __forceinline__ Ready ready(unsigned n, unsigned pair) const {
    Ready ready{};
#pragma unroll
    for (unsigned which = 0; which < 2; ++which) {
      if (ADDS && output(pair, which) < outputs) {
        ready.at[which] = to_float(load_fresh(residual + place(n, pair, which)));
      }
    }
    return ready;
  }
  __device__ __forceinline__ void store(unsigned n, unsigned pair, const float (&sums)[2], const Ready& ready) const {
    if constexpr (GATES) {
      if (pair < outputs) y[place(n, pair, 0)] = T(sums[0] / (1.0f + __expf(-sums[0])) * sums[1]);
    } else {
#pragma unroll
      for (unsigned which = 0; which < 2; ++which) {
        if (output(pair, which) < outputs) y[place(n, pair, which)] = T(sums[which] + ready.at[which]);
      }
    }
  }
};

#ifndef ROWS
extern "C" __global__ void __launch_bounds__(256)
    linear_few_rows_fused(const T* x, const T* gamma, const T* weight, const T* up, const T* residual, T* y,
                          unsigned rows, unsigned outputs, unsigned columns, float epsilon) {
  multiply_plainly<NORM>(Linear{weight, up, residual, y, outputs, columns}, Input{x, gamma, rows, columns, epsilon});
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    linear_few_rows_tuned(const T* x, const T* gamma, const T* weight, const T* up, const T* residual, T* y,
                          unsigned rows, unsigned outputs, unsigned columns, float epsilon) {
  multiply_few<NORM>(Linear{weight, up, residual, y, outputs, columns}, Input{x, gamma, rows, columns, epsilon});
}
#endif
