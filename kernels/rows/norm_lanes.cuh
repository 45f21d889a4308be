// LayerNorm and RMSNorm of short rows: some lanes of a warp, a team, have one row, or several at once. Rows are whole
// packs and aligned to 16 bytes. Macros: as in rows.cuh, and WHOLE (0 or 1: no thread lacks a pack).
#pragma once

#include "norm.cuh"

// Which of a team's `Together` rows a lane adds up. To add up all rows in all lanes would take a shuffle for each row
// and step. Here, with each step, a lane gives half of the rows that it still has to its partner, and takes the other
// half from it. In the end a lane has OWN rows, from first() on; SHARE lanes have the same rows.
template <unsigned Lanes, unsigned Together>
struct Handout {
  static constexpr unsigned OWN = Together > Lanes ? Together / Lanes : 1, SHARE = Lanes * OWN / Together;
  const unsigned rank = threadIdx.x % Lanes;

  __device__ __forceinline__ unsigned first() const { return rank / SHARE * OWN; }
  // The lane of a team that has row r.
  static __device__ __forceinline__ constexpr unsigned owner(unsigned r) { return r / OWN * SHARE; }

  // Adds up, and leaves the sums of the lane's own rows in values[0] to values[OWN - 1].
  template <unsigned Count>
  __device__ __forceinline__ void add_up(float (&values)[Together][Count]) const {
#pragma unroll
    for (unsigned step = Lanes / 2, rows = Together; step; step /= 2) {
      const bool upper = rank & step;
      const unsigned kept = rows > 1 ? rows / 2 : 1;
#pragma unroll
      for (unsigned r = 0; r < kept; ++r) {
#pragma unroll
        for (unsigned i = 0; i < Count; ++i) {
          float &low = values[r][i], other = low;
          if (rows > 1) {
            const float high = values[kept + r][i];
            other = upper ? low : high;
            low = upper ? high : low;
          }
          low += __shfl_xor_sync(ALL_LANES, other, step);
        }
      }
      rows = kept;
    }
  }
  // Picks the lane's own rows in the same way, from values that all lanes have.
  __device__ __forceinline__ void choose(float (&values)[Together]) const {
#pragma unroll
    for (unsigned step = Lanes / 2, rows = Together; step && rows > 1; step /= 2) {
      rows /= 2;
#pragma unroll
      for (unsigned r = 0; r < rows; ++r) values[r] = rank & step ? values[rows + r] : values[r];
    }
  }
};

// The rows of a team. Rows r of a warp's teams are neighbours, so that an access of the warp is contiguous.
template <bool Centred, typename Element>
class LaneRows {
 public:
  using Chunk = Pack<Element>;
  using Shares = Handout<LANES, TOGETHER>;
  static constexpr unsigned CHUNK = Chunk::SIZE, TEAMS = WARP / LANES, OWN = Shares::OWN;
  static constexpr unsigned SUMS = Normaliser<Centred>::SUMS, VECTORS = Centred ? 2 : 1;
  // Whether gamma and beta wait in shared memory: beside many packs of a row, there are too few registers for them.
  static constexpr bool SHARED = COUNT * TOGETHER > 4;

  __device__ __forceinline__ LaneRows(Team& team, long long rows, unsigned columns)
      : team(team), rows(rows), columns(columns) {
    const long long warp = static_cast<long long>(blockIdx.x) * (THREADS / WARP) + threadIdx.x / WARP;
    first_row = warp * (TEAMS * TOGETHER) + threadIdx.x % WARP / LANES;
    const long long below = min(rows - first_row + TEAMS - 1, static_cast<long long>(TEAMS * TOGETHER));
    left = static_cast<unsigned>(max(below, 0ll)) / TEAMS;
  }
  // Whether the thread's pack j exists. Only the last one may not.
  __device__ __forceinline__ bool has(unsigned j) const {
    return WHOLE || j + 1 < COUNT || team.template part<COUNT>(j) < columns / CHUNK;
  }
  // Where the thread's pack j begins. The row's first pack stands for a pack that doesn't exist, so that no load needs
  // a condition.
  __device__ __forceinline__ unsigned column(unsigned j) const {
    return has(j) ? team.template part<COUNT>(j) * CHUNK : 0;
  }

  __device__ __forceinline__ void run(const Element* __restrict__ x, const Element* __restrict__ gamma,
                                      const Element* __restrict__ beta, Element* __restrict__ y,
                                      float* __restrict__ mean, float* __restrict__ rstd) {
    __shared__ Chunk vectors[VECTORS][SHARED ? COUNT * LANES : 1];
    Chunk scale[COUNT], shift[COUNT];
    if (!SHARED) {
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        scale[j] = load_now(gamma + column(j));
        if (Centred) shift[j] = load_now(beta + column(j));
      }
    }
    const long long begin = min(first_row, rows - 1) * columns;
    x += begin, y += begin;
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      // The last row stands for rows behind it, so that no load needs a condition.
      const Element* from = x + min(r, max(left, 1u) - 1) * (TEAMS * columns);
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) chunks[r][j] = load_pack<STREAM>(from + column(j));
    }
    if (SHARED) {
      for (unsigned p = threadIdx.x; p < columns / CHUNK; p += THREADS) {
        vectors[0][p] = load_pack(gamma + p * CHUNK);
        if (Centred) vectors[VECTORS - 1][p] = load_pack(beta + p * CHUNK);
      }
    }
    measure();
    write_statistics(mean, rstd);
    if (SHARED) __syncthreads();
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) {
      const unsigned p = SHARED ? column(j) / CHUNK : 0;
      normalise(j, SHARED ? vectors[0][p] : scale[j], SHARED ? vectors[VECTORS - 1][p] : shift[j], y);
    }
  }

 private:
  // In asm, so that the compiler doesn't delay the load until the value is needed.
  static __device__ __forceinline__ Chunk load_now(const Element* __restrict__ from) {
    uint4 raw;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return reinterpret_cast<const Chunk&>(raw);
  }

  // Makes the statistics of all rows: each lane makes the statistics of its own rows, and tells the other lanes.
  __device__ __forceinline__ void measure() {
    float firsts[TOGETHER];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      firsts[r] = 0.0f;
      if (Centred) {
        const unsigned word = reinterpret_cast<const uint4&>(chunks[r][0]).x;
        firsts[r] = Lanes<Element>(__shfl_sync(ALL_LANES, word, 0, LANES)).at[0];
      }
      normalised[r] = {columns, firsts[r]};
    }
    if (!WHOLE) {
      // A condition around the arithmetic became a branch, and the loads behind the branch waited for it.
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) fill_unless(has(COUNT - 1), chunks[r][COUNT - 1], firsts[r]);
    }
    shares.choose(firsts);
#pragma unroll
    for (unsigned k = 0; k < OWN; ++k) own[k] = {columns, firsts[k]};
    if (add_up(false)) {
#pragma unroll
      for (unsigned k = 0; k < OWN; ++k) own[k].recentre();
#pragma unroll
      for (unsigned r = 0; r < TOGETHER; ++r) {
        normalised[r].template take_point<LANES>(own[r % OWN], Shares::owner(r));
        forget(r);
      }
      add_up(Centred);
    }
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) normalised[r].template take_scale<LANES>(own[r % OWN], Shares::owner(r));
  }
  // Adds up distances from the rows' points, and tells whether it must be done again, from other points. checked: packs
  // that don't exist are left out. (They hold copies of the first element, whose distance is 0 from the first points
  // only.)
  __device__ __forceinline__ bool add_up(bool checked) {
    float sums[TOGETHER][SUMS], values[CHUNK];
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
#pragma unroll
      for (float& sum : sums[r]) sum = 0.0f;
#pragma unroll
      for (unsigned j = 0; j < COUNT; ++j) {
        widen(chunks[r][j], values);
#pragma unroll
        for (unsigned e = 0; e < CHUNK; ++e) {
          if (!checked || has(j)) normalised[r].add(values[e], sums[r]);
        }
      }
    }
    shares.add_up(sums);
    bool any = false;
#pragma unroll
    for (unsigned k = 0; k < OWN; ++k) any |= own[k].again(sums[k]);
    return any;
  }
  __device__ __forceinline__ void forget(unsigned r) {
#pragma unroll
    for (unsigned j = 0; j < COUNT; ++j) forget_floats(chunks[r][j], own[0].zero());
  }

  __device__ __forceinline__ void write_statistics(float* __restrict__ mean, float* __restrict__ rstd) const {
#pragma unroll
    for (unsigned k = 0; k < OWN; ++k) {
      const unsigned r = shares.first() + k;
      if (shares.rank % Shares::SHARE == 0 && r < left) {
        if constexpr (Centred) mean[first_row + r * TEAMS] = own[k].mean;
        rstd[first_row + r * TEAMS] = own[k].rstd();
      }
    }
  }
  // Normalises and writes the thread's pack j of all rows. y: where the first row begins.
  __device__ __forceinline__ void normalise(unsigned j, const Chunk& gamma, const Chunk& beta,
                                            Element* __restrict__ y) {
    float scale[CHUNK], shift[CHUNK] = {};
    widen(gamma, scale);
    if (Centred) widen(beta, shift);
#pragma unroll
    for (unsigned r = 0; r < TOGETHER; ++r) {
      forget_floats(chunks[r][j], own[0].zero());
      normalise_chunk(normalised[r], chunks[r][j], scale, shift);
      if (has(j) && r < left) store_pack<STREAM>(y + r * (TEAMS * columns) + column(j), chunks[r][j]);
    }
  }

  Team& team;
  long long rows, first_row;
  unsigned columns, left;  // left: how many of the team's rows exist
  Shares shares;
  Chunk chunks[TOGETHER][COUNT];
  Normaliser<Centred> normalised[TOGETHER], own[OWN];
};
