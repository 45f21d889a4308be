// Arithmetic whose parallelism is known: chains of FMAs, each of which needs the result of the one before.
//
// Macros: CHAINS (independent chains a thread).
//
// Latency times throughput is what has to be under way, for arithmetic as for memory (bytes_in_flight.cu). By the text a
// multiprocessor issues 4 warps' FMAs a cycle and a result takes 4 cycles, so 16 must be under way to keep it busy: 16
// warps with a chain each, or 4 warps with four chains a thread. Fewer leave it idle in proportion, if `count` is large:
// each round begins with a load of x, for which a warp waits some hundred cycles. By the text its steps take 4 * count.

constexpr unsigned UNROLL = 64 / CHAINS;  // steps of the loop's body, which has 64 FMAs whatever CHAINS is

// y[i] is what x[i] becomes by `count` steps v = v * by[0] + by[1]. step: threads of the whole grid, which is resident;
// n + CHAINS * step must stay below 2^32. The factor and the addend come from memory, so that the compiler can't compute
// several steps at once. In the last round, chains past the end run too, and aren't stored: a round takes the same time
// whether or not it is full. Stores wait for the chains alone.
extern "C" __global__ void __launch_bounds__(1024, 2)
    fma_chains(const float* __restrict__ x, const float* __restrict__ by, float* __restrict__ y, unsigned n, unsigned count,
               unsigned step) {
  const float factor = by[0], addend = by[1];
#pragma unroll 1
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += CHAINS * step) {
    float value[CHAINS];
#pragma unroll
    for (unsigned c = 0; c < CHAINS; ++c) value[c] = i + c * step < n ? x[i + c * step] : 0.0f;
#pragma unroll UNROLL
    for (unsigned k = 0; k < count; ++k) {
#pragma unroll
      for (unsigned c = 0; c < CHAINS; ++c) value[c] = fmaf(value[c], factor, addend);
    }
#pragma unroll
    for (unsigned c = 0; c < CHAINS; ++c) {
      if (i + c * step < n) y[i + c * step] = value[c];
    }
  }
}
