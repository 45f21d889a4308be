// The types and numbers that all kernels of batch norm share. Macros: SCALAR; RESIDUAL (1; 0: there is no residual).
#pragma once

#include "../include/number.cuh"
#include "../include/pack.cuh"
#include "../include/warp.cuh"

#ifndef RESIDUAL
#define RESIDUAL 1
#endif

using T = SCALAR;

constexpr unsigned SIZE = Pack<T>::SIZE;
constexpr unsigned WORDS = PACK_BYTES / 4;  // registers of a pack
constexpr unsigned LANES = Lanes<T>::SIZE;  // elements of a register
