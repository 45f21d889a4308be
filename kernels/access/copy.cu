// Copy: the op with the least to do, which every other kernel is compared with.
//
// Nearly all of it is done by the plain stream of harness/cuda/stream.cu, the kernel that measures what the memory can
// do: the variants differ in its packs a thread and in its hint to the cache. The kernel below copies what that one
// can't: the bytes after the last full pack of 16 bytes, or all of a tensor that isn't aligned to 16 bytes.
//
// What each step gained on an NVIDIA H200 (reports/h200/copy), float32 N1073741824.
// At least 4.295 GB are read and 4.295 GB written. The ceiling is 2.007 ms, by memory.
//   eager: PyTorch
//       2.007 ms  100.0% of ceiling
//   stream: one 16-byte pack a thread
//       2.017 ms   99.5% of ceiling  moves 8.590 GB  1.00x the speed of eager
//   stream2: two 16-byte packs a thread
//       2.069 ms   97.0% of ceiling  moves 8.590 GB  0.97x the speed of stream
//   stream4: four 16-byte packs a thread
//       2.082 ms   96.4% of ceiling  moves 8.590 GB  0.99x the speed of stream2
//   evict_first: one pack a thread, lines marked to leave the L2 first
//       2.009 ms   99.9% of ceiling  moves 8.590 GB  1.04x the speed of stream4

// Bytes from `begin` to `end`, one a thread.
extern "C" __global__ void copy_bytes(const unsigned char* __restrict__ from, unsigned char* __restrict__ to, long long begin,
                                      long long end) {
  const long long i = begin + static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < end) to[i] = from[i];
}
