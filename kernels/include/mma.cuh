// Products of small matrices in the registers of a warp, by the tensor cores: D = A B + C of 16 x 16 by 16 x 8, halves in,
// float32 sums. Compute capability 8.0 and later.
//
// A lane l of the warp has, with r = l / 4 and c = 2 * (l % 4):
//
//     A (16 x 16), 4 registers of two halves      B (16 x 8), 2 registers     C and D (16 x 8), 4 floats
//       a[0]: row r,     columns c, c + 1           b[0]: rows c, c + 1,        d[0], d[1]: row r,     columns c, c + 1
//       a[1]: row r + 8, columns c, c + 1                 column r              d[2], d[3]: row r + 8, columns c, c + 1
//       a[2]: row r,     columns c + 8, c + 9       b[1]: rows c + 8, c + 9,
//       a[3]: row r + 8, columns c + 8, c + 9             column r
//
// So two neighbours D (16 x 8 each), rounded to halves, are the A of a next product, without a move between lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ constexpr bool is_bfloat16(__half) { return false; }
__device__ constexpr bool is_bfloat16(__nv_bfloat16) { return true; }

// Two floats, rounded to the nearest, in one register; the first in its low half.
template <typename T>
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
  if constexpr (is_bfloat16(T{})) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const unsigned&>(pair);
  }
}

// Four 8 x 8 matrices of halves from shared memory, one register each: lane l gives the address of row l % 8 of matrix
// l / 8, aligned to 16 bytes, and gets columns 2 * (l % 4) and the next of row l / 4 of each. The rows and columns of
// `transposed` ones are exchanged on the way.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Adds the product of a and b to d. T: __half or __nv_bfloat16, two of them in each register.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (is_bfloat16(T{})) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}
