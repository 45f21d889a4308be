// Copy: the op with the least to do, which every other kernel is compared with.
//
// Nearly all of it is done by the plain stream of harness/cuda/stream.cu, the kernel that measures what the memory can
// do: the variants differ in its packs a thread and in its hint to the cache. The kernel below copies what that one
// can't: the bytes after the last full pack of 16 bytes, or all of a tensor that isn't aligned to 16 bytes.

// Bytes from `begin` to `end`, one a thread.
extern "C" __global__ void copy_bytes(const unsigned char* __restrict__ from, unsigned char* __restrict__ to, long long begin,
                                      long long end) {
  const long long i = begin + static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < end) to[i] = from[i];
}
