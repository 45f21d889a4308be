// Kernels that do the same with one fault each: planted_paths.py.

__device__ __forceinline__ long long element() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ __forceinline__ float closed_form(float x, unsigned char k) {
  return exp2f(k * -0.014499569695115089f) * (x - 1.0f) + 1.0f;  // log2(0.99)
}

extern "C" __global__ void divergent(const float* x, const unsigned char* k, float* y, long long n) {
  const long long i = element();
  if (i >= n) return;
  float value = x[i];
#pragma unroll 1
  for (int left = k[i]; left > 0; --left) value = 0.99f * value + 0.01f;
  y[i] = value;
}

extern "C" __global__ void barriers(const float* x, const unsigned char* k, float* y, long long n) {
  const long long i = element();
#pragma unroll 1
  for (int left = 30; left > 0; --left) __syncthreads();
  if (i < n) y[i] = closed_form(x[i], k[i]);
}

extern "C" __global__ void doubles(const float* x, const unsigned char* k, float* y, long long n) {
  const long long i = element();
  if (i < n) y[i] = pow(0.99, k[i]) * (x[i] - 1.0) + 1.0;
}

extern "C" __global__ void closed(const float* x, const unsigned char* k, float* y, long long n) {
  const long long i = element();
  if (i < n) y[i] = closed_form(x[i], k[i]);
}
