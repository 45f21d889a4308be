// Few rows of whole units: a block has a part of one row. Such a kernel takes little more time than its latencies, so
// nothing comes before its loads that could wait: no division, no number of threads from the launch, and no jump. Behind
// a jump the compiler fetches parameters that it could have fetched before, which is one more wait.
#pragma once

struct RowPart {
  unsigned column, unit;  // of the thread: in its row, and in the matrix

  // row_units: units of a row. Threads behind the end of a row do its last unit again: all of them write the same.
  template <unsigned Threads>
  static __device__ __forceinline__ RowPart of(unsigned row_units) {
    const unsigned column = min(blockIdx.x * Threads + threadIdx.x, row_units - 1);
    return {column, blockIdx.y * row_units + column};
  }
};
