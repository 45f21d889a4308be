// Values that blocks of a running kernel hand to each other, for decode_step.cu.
//
// A value and a flag are written by one access of 8 bytes, so whoever reads the flag of this turn has the value of this
// turn: no fence, and no counter to wait for first. (NCCL calls such words LL.) Each turn has a flag of its own.
#pragma once

using Word = unsigned long long;

constexpr unsigned POLL = 32;  // nanoseconds at most between two looks

__device__ __forceinline__ void put_word(Word* to, float value, unsigned flag) {
  *static_cast<volatile Word*>(to) = static_cast<Word>(flag) << 32 | __float_as_uint(value);
}

__device__ __forceinline__ Word look_at_word(const Word* from) { return *static_cast<const volatile Word*>(from); }
__device__ __forceinline__ bool is_of_turn(Word word, unsigned flag) {
  return static_cast<unsigned>(word >> 32) == flag;
}
__device__ __forceinline__ float value_of(Word word) { return __uint_as_float(static_cast<unsigned>(word)); }

// Takes `count` values by the block's threads, and gives each to take(place, value). All are asked for at once; then a
// thread looks at one word again and again, so that those who wait don't keep memory busy.
template <typename Take>
__device__ __forceinline__ void take_words(const Word* from, unsigned count, unsigned flag, Take take) {
  constexpr unsigned AT_ONCE = 8;
#pragma unroll 1
  for (unsigned first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
    Word words[AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      const unsigned place = first + i * THREADS;
      if (place < count) words[i] = look_at_word(from + place);
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; ++i) {
      const unsigned place = first + i * THREADS;
      if (place >= count) break;
      while (!is_of_turn(words[i], flag)) {
        __nanosleep(POLL);
        words[i] = look_at_word(from + place);
      }
      take(place, value_of(words[i]));
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
    while (look_at_word(arrivals) < target) __nanosleep(POLL);
    __threadfence();
  }
  __syncthreads();
}
