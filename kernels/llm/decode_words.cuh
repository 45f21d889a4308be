// Values that blocks of a running kernel hand to each other, for decode_step.cu.
//
// Two values and a flag are written by one access of 8 bytes, so whoever reads the flag of this turn has the values of
// this turn: no fence, and no counter to wait for first. (NCCL calls such words LL.) Each turn has a flag of its own.
#pragma once

using Word = unsigned long long;

constexpr unsigned POLL = 32;  // nanoseconds at most between two looks

// Hands out 32 bits, a number as it is, or a pair of numbers, which are rounded.
__device__ __forceinline__ void put_bits(Word* to, unsigned bits, unsigned flag) {
  *static_cast<volatile Word*>(to) = static_cast<Word>(flag) << 32 | bits;
}
__device__ __forceinline__ void put_number(Word* to, float number, unsigned flag) {
  put_bits(to, __float_as_uint(number), flag);
}
__device__ __forceinline__ void put_pair(Word* to, float first, float second, unsigned flag) {
  put_bits(to, rounded_pair<T>(first, second), flag);
}

__device__ __forceinline__ Word look_at(const Word* from) { return *static_cast<const volatile Word*>(from); }
__device__ __forceinline__ bool is_of_turn(Word word, unsigned flag) {
  return static_cast<unsigned>(word >> 32) == flag;
}

// Takes two numbers that lie side by side.
__device__ __forceinline__ float2 take_numbers(const Word* from, unsigned flag) {
  Word first = look_at(from), second = look_at(from + 1);
  while (!is_of_turn(first, flag) || !is_of_turn(second, flag)) {
    __nanosleep(POLL);
    first = look_at(from), second = look_at(from + 1);
  }
  return make_float2(__uint_as_float(static_cast<unsigned>(first)), __uint_as_float(static_cast<unsigned>(second)));
}

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
        missing[i] = missing[i] && !is_of_turn(words[i], flag);
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
