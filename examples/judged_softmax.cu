// Softmax over rows, one block a row: the row is read twice for its maximum and sum, and once more for the result.
// `harness judge examples/judged_softmax.json --op softmax --isolated` checks and times it without any Python.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARP = 32;

__device__ float least() { return -__int_as_float(0x7f800000); }  // minus infinity
__device__ float largest_of(float one, float other) { return fmaxf(one, other); }
__device__ float sum_of(float one, float other) { return one + other; }

// The value of all threads of the block together, which every thread gets. `parts` has room for a value a warp.
template <typename Combine>
__device__ float together(float value, float neutral, float *parts, Combine combine) {
    for (int distance = WARP / 2; distance; distance /= 2) value = combine(value, __shfl_xor_sync(~0u, value, distance));
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = threadIdx.x % WARP < blockDim.x / WARP ? parts[threadIdx.x % WARP] : neutral;
    for (int distance = WARP / 2; distance; distance /= 2) value = combine(value, __shfl_xor_sync(~0u, value, distance));
    __syncthreads();  // before the next call writes `parts`
    return value;
}

extern "C" __global__ void rows(const ELEMENT *x, ELEMENT *y, long long columns) {
    __shared__ float parts[WARP];
    const ELEMENT *row = x + blockIdx.x * columns;
    float largest = least(), sum = 0;
    for (long long i = threadIdx.x; i < columns; i += blockDim.x) largest = fmaxf(largest, float(row[i]));
    largest = together(largest, least(), parts, largest_of);
    for (long long i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(float(row[i]) - largest);
    sum = together(sum, 0, parts, sum_of);
    for (long long i = threadIdx.x; i < columns; i += blockDim.x)
        y[blockIdx.x * columns + i] = ELEMENT(expf(float(row[i]) - largest) / sum);
}
