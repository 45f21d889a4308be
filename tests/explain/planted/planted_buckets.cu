// Counts of 64 values, by atomics of global memory and by a block's own counts: planted_buckets.py.

constexpr int BUCKETS = 64;

__device__ __forceinline__ long long step() { return static_cast<long long>(gridDim.x) * blockDim.x; }

__device__ __forceinline__ long long first() { return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; }

extern "C" __global__ void atomics(const unsigned char* x, int* y, long long n) {
  for (long long i = first(); i < n; i += step()) atomicAdd(&y[x[i] % BUCKETS], 1);
}

extern "C" __global__ void own_counts(const unsigned char* x, int* y, long long n) {
  __shared__ int own[BUCKETS];
  if (threadIdx.x < BUCKETS) own[threadIdx.x] = 0;
  __syncthreads();
  for (long long i = first(); i < n; i += step()) atomicAdd(&own[x[i] % BUCKETS], 1);
  __syncthreads();
  if (threadIdx.x < BUCKETS) atomicAdd(&y[threadIdx.x], own[threadIdx.x]);
}
