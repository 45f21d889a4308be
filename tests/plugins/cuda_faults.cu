// Kernels that go wrong.

extern "C" __global__ void out_of_bounds(float* y) { y[1LL << 40] = 1.0f; }

extern "C" __global__ void endless(volatile float* y) {
  while (y[0] != 12345.0f) {
  }
}

extern "C" __global__ void copy(const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
