// y[m] = the sum of |x[m, n]| over n, for examples/tuned_op.py. A block has a row; a thread adds EACH numbers at a time.
extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const float* x, float* y, unsigned columns) {
  const float* row = x + size_t{blockIdx.x} * columns;
  float sums[EACH] = {};
  for (unsigned first = threadIdx.x; first < columns; first += THREADS * EACH) {
#pragma unroll
    for (unsigned k = 0; k < EACH; ++k) {
      const unsigned n = first + k * THREADS;
      if (n < columns) sums[k] += fabsf(row[n]);
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (unsigned k = 0; k < EACH; ++k) sum += sums[k];

  __shared__ float of_warps[THREADS / 32];
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = threadIdx.x < THREADS / 32 ? of_warps[threadIdx.x] : 0.0f;
  for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
