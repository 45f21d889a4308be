// Arithmetic whose parallelism is known: chains of FMAs, each of which needs the result of the one before.
//
// Macros: CHAINS (independent chains a thread).
//
// Latency times throughput is what has to be under way, for arithmetic as for memory (bytes_in_flight.cu). By the text a
// multiprocessor issues 4 warps' FMAs a cycle and a result takes 4 cycles, so 16 must be under way to keep it busy: 16
// warps with a chain each, or 4 warps with four chains a thread. Fewer leave it idle in proportion, if `count` is large:
// each round begins with a load of x, for which a warp waits some hundred cycles. By the text its steps take 4 * count.
//
// What each step gained on an NVIDIA H200 (reports/h200/access), float32 N3244032-K8192-T256-U2.
//   chains: T threads a multiprocessor, each with U chains of K FMAs at a time
//       907.2 us
//   full: 2048 threads with 4 chains; T and U don't concern it
//       839.8 us  1.08x the speed of chains

// Defaults for compiling this file alone.
#ifndef CHAINS
#define CHAINS 1
#endif

constexpr unsigned UNROLL = 64 / CHAINS;  // steps of the loop's body, which has 64 FMAs whatever CHAINS is

// y[i] is what x[i] becomes by `count` steps v = v * factor + v. step: threads of the whole grid, which is resident;
// n + CHAINS * step must stay below 2^32. In the last round, chains past the end run too, and aren't stored: a round takes
// the same time whether or not it is full. Stores wait for the chains alone.
//
// A step reads one register, v; the factor is a parameter, which all threads share. v * factor + addend, with both in
// registers, would measure how fast registers are read, not the latency: on an H200 it gave one chain a thread 52% of
// the arithmetic, and two chains 69%, with any number of warps. What fits this is that registers lie in two banks, that
// two of three are in the same one, and that only a thread that issues twice in a row keeps what it has read.
extern "C" __global__ void __launch_bounds__(1024, 2)
    fma_chains(const float* __restrict__ x, float* __restrict__ y, float factor, unsigned n, unsigned count,
               unsigned step) {
#pragma unroll 1
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += CHAINS * step) {
    float value[CHAINS];
#pragma unroll
    for (unsigned c = 0; c < CHAINS; ++c) value[c] = i + c * step < n ? x[i + c * step] : 0.0f;
#pragma unroll UNROLL
    for (unsigned k = 0; k < count; ++k) {
#pragma unroll
      for (unsigned c = 0; c < CHAINS; ++c) value[c] = fmaf(value[c], factor, value[c]);
    }
#pragma unroll
    for (unsigned c = 0; c < CHAINS; ++c) {
      if (i + c * step < n) y[i + c * step] = value[c];
    }
  }
}
