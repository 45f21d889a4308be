// Kernels that begin while the kernel before them still runs: programmatic dependent launch, compute capability 9.0 and
// later. A launch has to ask for it; without that, and on older GPUs, both functions do nothing.
//
// A kernel first asks for what no kernel writes, such as weights. Then it waits, and after that it reads what the kernels
// before it wrote. It must read that past the L1 (load_fresh), which may hold lines from before.
#pragma once

// The next kernel's blocks may begin where there is room, as soon as all blocks of this kernel have said so.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel before has ended, and all that it wrote is there. All kernels before that one have ended too,
// since each kernel of a chain waits here.
__device__ __forceinline__ void wait_for_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename Element>
__device__ __forceinline__ Element load_fresh(const Element* from) {
  return __ldcg(from);
}
