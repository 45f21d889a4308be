// Says in a profiler's list of kernels which case comes next: its grid has as many blocks as the case has number.
extern "C" __global__ void harness_mark() {}
