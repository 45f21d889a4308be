// Sums over a tile in shared memory, whose lanes read down its columns: y[m] = the sum of x[m, k % WORDS] for k < count.
//
// Macros: WORDS (of 4 bytes, of a row), LAYOUT (0 plain, 1 padded, 2 swizzled), THREADS (of a block, whole warps).
//
// Shared memory has 32 banks. Word i of the tile lies in bank i % 32, and a bank gives one word a cycle. A lane has a row
// of its own, so the words that lanes read at the same time lie a row apart. With rows of 32 words all of them lie in one
// bank, and the read takes 32 cycles in place of one. With other rows, as many lanes meet in a bank as the greatest common
// divisor of WORDS and 32 says: 1, 2, 4, 8, 16 or 32. With an odd number of words no two lanes meet.
//
// A word is read many times, so it is shared memory that takes the time. All layouts have the same loop, a read and an
// addition for each word, and differ in the banks alone.
//
// What each step gained on an NVIDIA H200 (reports/h200/bank_conflicts), float32 M811008-W8-K4096.
//   plain: rows follow each other: gcd(W, 32) lanes meet in a bank
//       3.184 ms
//   padded: a word more behind each row, where W is even
//       403.3 us  7.89x the speed of plain
//   swizzled: words of a row change places, by an XOR with a number of the row
//       403.9 us  1.00x the speed of padded

// Defaults for compiling this file alone.
#ifndef WORDS
#define WORDS 32
#endif
#ifndef LAYOUT
#define LAYOUT 0
#endif
#ifndef THREADS
#define THREADS 256
#endif

#include "../include/warp.cuh"

constexpr unsigned BANKS = 32;
enum Layout { PLAIN, PADDED, SWIZZLED };

// 1. Plain: rows follow each other.
// 2. Padded: where a row has an even number of words, a word that nobody uses stands behind it. So the words from one row
//    to the next are an odd number. A tile takes more memory: 3% with 32 words.
// 3. Swizzled: no word is added, but the words of a row change places. The 32 banks hold LINE rows, and the rows behind
//    them begin in the first bank again. Their column is XORed with how often rows have begun there, so that the lanes
//    which would meet have other columns. It works with rows of a power of two, and costs an instruction to find a word.
//    In rows of up to 32 words the compiler finds all of them before the loop.
constexpr unsigned PITCH = LAYOUT == PADDED ? WORDS | 1 : WORDS;
constexpr unsigned LINE = WORDS < BANKS ? BANKS / WORDS : 1;
static_assert(LAYOUT != SWIZZLED || (WORDS & (WORDS - 1)) == 0, "an XOR must not lead out of a row");

__device__ constexpr unsigned place(unsigned row, unsigned column) {
  return row * PITCH + (LAYOUT == SWIZZLED ? column ^ row / LINE % WORDS : column);
}

// The compiler counts how many lanes of a warp meet in a bank at most, when they read a column.
__device__ constexpr unsigned lanes_that_meet() {
  unsigned most = 0;
  for (unsigned column = 0; column < WORDS; ++column) {
    unsigned lanes[BANKS] = {};
    for (unsigned lane = 0; lane < WARP; ++lane) {
      const unsigned here = ++lanes[place(lane, column) % BANKS];
      most = here > most ? here : most;
    }
  }
  return most;
}
__device__ constexpr unsigned common_divisor(unsigned a, unsigned b) { return b ? common_divisor(b, a % b) : a; }
static_assert(lanes_that_meet() == (LAYOUT == PLAIN ? common_divisor(WORDS, BANKS) : 1), "lanes meet in banks");

constexpr unsigned ROUND = WORDS * LINE;  // reads of a round: whole rows
constexpr unsigned TOGETHER = ROUND < 2 * BANKS ? ROUND : BANKS;  // reads of the loop's body

// A warp has 32 rows of the tile to itself. Reads are volatile, since the compiler would keep a row in registers, or read
// several words at once.
extern "C" __global__ void __launch_bounds__(THREADS)
    bank_conflicts(const float* __restrict__ x, float* __restrict__ y, long long rows, unsigned count) {
  __shared__ float tile[THREADS * PITCH];
  const unsigned lane = threadIdx.x % WARP, of_warp = threadIdx.x - lane;
  const long long first = static_cast<long long>(blockIdx.x) * THREADS + of_warp;
  const unsigned here = static_cast<unsigned>(max(0LL, min(rows - first, static_cast<long long>(WARP))));
  const float* from = x + first * WORDS;
#pragma unroll 8
  for (unsigned i = lane; i < here * WORDS; i += WARP) tile[place(of_warp + i / WORDS, i % WORDS)] = from[i];
  __syncwarp();
  if (lane >= here) return;
  const auto read = [&](unsigned column) {
    return *const_cast<const volatile float*>(tile + place(threadIdx.x, column));
  };
  float sum = 0.0f;
  unsigned k = 0;
#pragma unroll 1
  for (; k + ROUND <= count; k += ROUND) {
#pragma unroll TOGETHER
    for (unsigned j = 0; j < ROUND; ++j) sum += read(j % WORDS);
  }
#pragma unroll 1
  for (unsigned column = 0; k < count; ++k, column = column + 1 == WORDS ? 0 : column + 1) sum += read(column);
  y[first + lane] = sum;
}
