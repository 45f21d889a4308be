// What CUDA's headers need of a file that NVRTC's package lacks: on a CPU these words mean nothing.
#pragma once

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __device_builtin__
#define __cudart_builtin__
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __noinline__ __attribute__((noinline))
#define __inline__ inline
#define __thread__ __thread
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#define __specialization_static static
