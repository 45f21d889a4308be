// Values that blocks of a running kernel hand to each other, for decode_step.cu.
//
// Two values and a flag are written by one access of 8 bytes, so whoever reads the flag of this turn has the values of
// this turn: no fence, and no counter to wait for first. (NCCL calls such words LL.) Each turn has a flag of its own.
#pragma once

using Word = unsigned long long;

constexpr unsigned POLL = 32;  // nanoseconds at most between two looks

// Hands out a pair: both values are rounded.
__device__ __forceinline__ void put_pair(Word* to, float first, float second, unsigned flag) {
  *static_cast<volatile Word*>(to) = static_cast<Word>(flag) << 32 | rounded_pair<T>(first, second);
}

__device__ __forceinline__ Word look_at(const Word* from) { return *static_cast<const volatile Word*>(from); }

// Takes `count` pairs by the block's threads, and gives each to take(number, pair), as two elements in one register.
// address(number): the word of a pair. All that a thread still misses is asked for at once.
template <typename Address, typename Take>
__device__ __forceinline__ void take_pairs(unsigned count, unsigned flag, Address address, Take take) {
  constexpr unsigned AT_ONCE = 4;
#pragma unroll 1
  for (unsigned first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
    Word words[AT_ONCE];
    bool missing[AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) missing[i] = first + i * THREADS < count;
    for (bool all = false; !all;) {
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        if (missing[i]) words[i] = look_at(address(first + i * THREADS));
      }
      all = true;
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; ++i) {
        missing[i] = missing[i] && static_cast<unsigned>(words[i] >> 32) != flag;
        all = all && !missing[i];
      }
      if (!all) __nanosleep(POLL);
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      if (first + i * THREADS < count) take(first + i * THREADS, static_cast<unsigned>(words[i]));
    }
  }
}

// All blocks meet: what each wrote before is there for all of them behind it. `arrivals` counts through all launches, and
// `target` is where it stands when all have arrived.
__device__ __forceinline__ void meet_blocks(Word* arrivals, Word target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrivals, Word{1});
    while (look_at(arrivals) < target) __nanosleep(POLL);
    __threadfence();
  }
  __syncthreads();
}
