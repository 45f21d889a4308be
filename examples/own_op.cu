// SwiGLU, y = silu(a) * b, for examples/own_op.py. Blocks of 256 threads, one element a thread.
extern "C" __global__ void silu_gate(const float* a, const float* b, float* y, long long count) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i < count) y[i] = a[i] / (1.0f + expf(-a[i])) * b[i];
}
