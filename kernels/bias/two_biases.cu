// Two biases: y[r, c] = x[r, c] + rows[r] + columns[c], over a contiguous (R, C) tensor.
//
// Macros: SCALAR (float, __half, __nv_bfloat16); INDEX for two_biases_whole and two_biases_any (unsigned, or unsigned
// long long from 2^31 elements on).
//
// An element needs its row and its column: i / n and i % n, by the same n. The GPU has no instruction for a division:
// one of 32 bits takes about twenty instructions, one of 64 bits a call of about a hundred. Steps 1 to 3 take one
// element a thread and differ in nothing but how often they divide. Each is there with indexes of 32 and of 64 bits.
//
// What the compiler makes of them (NVRTC 13 for sm_90; tests/collection/ops/bias/test_two_biases.py compiles them and
// counts):
//
//            divisions   machine code with 32-bit indexes
//   divmod   1           the same as divmul's, instruction by instruction
//   twice    2
//   divmul   1
//
// With 64-bit indexes each of these divisions is there in two ways, of which one runs: a call, and twenty instructions
// for numbers that fit into 32 bits. The compiler sees that i / n and i % n divide by the same number, and computes the
// remainder from the quotient. So the text's step gains nothing with a compiler of today; `twice` shows what it gains
// with a compiler that doesn't do this.
//
// What each step gained on an NVIDIA H200 (reports/h200/bias), float32 R131072-C1023.
// At least 536.9 MB are read and 536.3 MB written. The ceiling is 250.8 us, by memory.
//   eager: PyTorch
//       773.2 us   32.4% of ceiling
//   divmod: row = i / C, column = i % C, in 32 bits
//       463.6 us   54.1% of ceiling  moves 1.073 GB  1.67x the speed of eager
//   divmod64: the same in 64 bits
//       475.3 us   52.8% of ceiling  moves 1.073 GB  0.98x the speed of divmod
//   twice: divmod, kept from becoming one division, in 32 bits
//       478.5 us   52.4% of ceiling  moves 1.073 GB  0.99x the speed of divmod64
//   twice64: the same in 64 bits
//       486.3 us   51.6% of ceiling  moves 1.073 GB  0.98x the speed of twice
//   divmul: row = i / C, column = i - row * C, in 32 bits
//       463.3 us   54.1% of ceiling  moves 1.073 GB  1.05x the speed of twice64
//   divmul64: the same in 64 bits
//       477.9 us   52.5% of ceiling  moves 1.073 GB  0.97x the speed of divmul
//   tuned: 16-byte packs at any sizes, a multiplication in place of the division
//       253.4 us   99.0% of ceiling  moves 1.073 GB  1.89x the speed of divmul64

// Defaults for compiling this file alone.
#ifndef SCALAR
#define SCALAR float
#endif

#include "../include/bias.cuh"
#include "../include/number.cuh"
#include "../include/warp.cuh"

using T = SCALAR;

// Rounds to T once.
__device__ __forceinline__ T sum(T x, T row, T column) { return T(to_float(x) + to_float(row) + to_float(column)); }

// The body of steps 1 to 3. `row_of` and `column_of` give an element's row and column.
template <typename Index, typename Row, typename Column>
__device__ __forceinline__ void add_one(const T* __restrict__ x, const T* __restrict__ rows,
                                        const T* __restrict__ columns, T* __restrict__ y, Index n, Row row_of,
                                        Column column_of) {
  const Index i = thread_index<Index>();
  if (i < n) {
    const Index row = row_of(i);
    y[i] = sum(x[i], rows[row], columns[column_of(i, row)]);
  }
}

// The kernel `name` for indexes of 32 bits, and the kernel `name`64 for indexes of 64 bits. size: columns. same: the
// same number once more, of which the compiler doesn't know that it is.
#define KERNEL(name, body, Index)                                                                                \
  extern "C" __global__ void name(const T* __restrict__ x, const T* __restrict__ rows,                           \
                                  const T* __restrict__ columns, T* __restrict__ y, Index n, Index size,         \
                                  Index same) {                                                                  \
    body(x, rows, columns, y, n, size, same);                                                                    \
  }
#define KERNELS(name, body)    \
  KERNEL(name, body, unsigned) \
  KERNEL(name##64, body, unsigned long long)

// 1. As the text has it before: a division and a modulo.
template <typename Index>
__device__ __forceinline__ void divmod(const T* __restrict__ x, const T* __restrict__ rows,
                                       const T* __restrict__ columns, T* __restrict__ y, Index n, Index size, Index) {
  add_one(
      x, rows, columns, y, n, [=](Index i) { return i / size; }, [=](Index i, Index) { return i % size; });
}
KERNELS(two_biases_divmod, divmod)

// 2. The same with the number of columns given twice: what step 1 is with a compiler that doesn't put the two together.
template <typename Index>
__device__ __forceinline__ void twice(const T* __restrict__ x, const T* __restrict__ rows,
                                      const T* __restrict__ columns, T* __restrict__ y, Index n, Index size,
                                      Index same) {
  add_one(
      x, rows, columns, y, n, [=](Index i) { return i / size; }, [=](Index i, Index) { return i % same; });
}
KERNELS(two_biases_twice, twice)

// 3. As the text has it after: one division, and the column by a multiplication and a subtraction.
template <typename Index>
__device__ __forceinline__ void divmul(const T* __restrict__ x, const T* __restrict__ rows,
                                       const T* __restrict__ columns, T* __restrict__ y, Index n, Index size, Index) {
  add_one(
      x, rows, columns, y, n, [=](Index i) { return i / size; }, [=](Index i, Index row) { return i - row * size; });
}
KERNELS(two_biases_divmul, divmul)

#ifdef INDEX

constexpr unsigned SIZE = Pack<T>::SIZE;

// 4. No division, and 16 bytes a thread: the number of columns is known at launch, so a multiplication, an addition and
//    a shift give the row, once for a pack. Here rows are whole packs, and all tensors begin on 16 bytes: a pack has one
//    row, and one load brings its columns' biases.
extern "C" __global__ void two_biases_whole(const T* __restrict__ x, const T* __restrict__ rows,
                                            const T* __restrict__ columns, T* __restrict__ y, INDEX n, INDEX size,
                                            INDEX multiplier, unsigned shift) {
  const INDEX first = thread_index<INDEX>() * SIZE;
  if (first < n) {
    const INDEX row = fast_divide<INDEX>(first, multiplier, shift);
    const Pack<T> from = load_pack(x + first), along = load_pack(columns + (first - row * size));
    const T across = rows[row];
    Pack<T> result;
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) result.at[j] = sum(from.at[j], across, along.at[j]);
    store_pack(y + first, result);
  }
}

// Halves that lie side by side at any address, in pairs where they can be. A load of a warp touches many sectors here,
// since its lanes are 16 bytes apart, so what counts is how many loads there are.
__device__ __forceinline__ Pack<T> load_neighbours(const T* __restrict__ from) {
  Pack<T> pack;
  unsigned(&word)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
  const auto* halves = reinterpret_cast<const unsigned short*>(from);
  const bool odd = reinterpret_cast<unsigned long long>(from) & 2;
  const auto* pairs = reinterpret_cast<const unsigned*>(halves + odd);
  if (odd) {
    // The first and the last half stand alone; what lies beside them may not be the tensor's.
    unsigned before = static_cast<unsigned>(halves[0]) << 16;
#pragma unroll
    for (unsigned w = 0; w < PACK_BYTES / 4; ++w) {
      const unsigned next = w + 1 < PACK_BYTES / 4 ? pairs[w] : halves[SIZE - 1];
      word[w] = __byte_perm(before, next, 0x5432);
      before = next;
    }
  } else {
#pragma unroll
    for (unsigned w = 0; w < PACK_BYTES / 4; ++w) word[w] = pairs[w];
  }
  return pack;
}

// 5. The same for rows of any length, at any address. In a pack that lies in several rows, the row and the column of each
//    element follow from the row and the column of the first element. A pack of halves lies in one row or two, where
//    rows are no shorter: two loads bring the biases of the rows. If all packs of a warp lie in one row each, loads bring
//    the biases of columns in pairs; if not, one by one, since a warp that goes both ways has more loads. All biases are
//    loaded before the first sum waits for x. aligned: x and y begin on 16 bytes; if they don't, and in the tensor's last
//    pack, elements go one by one. Packs of floats have few loads anyway.
extern "C" __global__ void two_biases_any(const T* __restrict__ x, const T* __restrict__ rows,
                                          const T* __restrict__ columns, T* __restrict__ y, INDEX n, int aligned,
                                          INDEX size, INDEX multiplier, unsigned shift) {
  const INDEX first = thread_index<INDEX>() * SIZE;
  INDEX row = fast_divide<INDEX>(first, multiplier, shift), column = first - row * size;
  const INDEX left = size - column;  // elements of the row
  const bool whole = !__any_sync(ALL_LANES, left < SIZE);
  const auto step = [&] {
    if (++column == size) {
      column = 0;
      ++row;
    }
  };
  if (aligned && first + SIZE <= n) {
    Pack<T> pack = load_pack(x + first), across, along;
    if (sizeof(T) == 2 && size >= SIZE) {
      // The next row's bias is loaded wherever there is one: a branch would come between the loads.
      const T own = rows[row], next = rows[row + (left < n - first)];
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j) across.at[j] = j < left ? own : next;
      if (whole) {
        along = load_neighbours(columns + column);
      } else {
#pragma unroll
        for (unsigned j = 0; j < SIZE; ++j) along.at[j] = columns[j < left ? column + j : j - left];
      }
    } else {
#pragma unroll
      for (unsigned j = 0; j < SIZE; ++j, step()) {
        across.at[j] = rows[row];
        along.at[j] = columns[column];
      }
    }
#pragma unroll
    for (unsigned j = 0; j < SIZE; ++j) pack.at[j] = sum(pack.at[j], across.at[j], along.at[j]);
    store_pack(y + first, pack);
  } else {
#pragma unroll 1
    for (INDEX i = first; i < n && i < first + SIZE; ++i, step()) y[i] = sum(x[i], rows[row], columns[column]);
  }
}

#endif  // INDEX
