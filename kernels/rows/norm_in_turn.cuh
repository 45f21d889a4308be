// LayerNorm of long rows, and of shorter ones that begin inside of packs. A team is a block or a cluster of blocks. It
// stays on the chip and takes rows in turn. InTurn of harness/collection/ops/rows/_norm_plan.py chooses the macros: BLOCKS
// (of a team, a power of two up to sixteen), THREADS (of a block), PACKS (of a row that a thread has at most), STAGES
// (rows of which a block has its part in shared memory), RESIDENT_BLOCKS (that a multiprocessor is to hold), and 0 or 1:
// WHOLE (no thread lacks a pack), RAGGED (rows begin inside of packs).
#pragma once

#include "norm.cuh"

#if __CUDA_ARCH__ >= 900
// Sums over the warps of a team. Each warp sends its sums to all blocks and goes on. A block has all sums when all
// bytes have come that the warps send. A warp waits for other warps only when it reads their sums.
class Exchange {
 public:
  // All threads of the block call it. No block may send anything to a block that hasn't started, so wait_for_blocks()
  // comes before the first send().
  __device__ __forceinline__ Exchange() {
    __shared__ float2 of_warps[SLOTS][WARPS];
    __shared__ unsigned long long barriers[SLOTS];
    sums = &of_warps[0][0];
    arrivals = shared_address(barriers);
    if (threadIdx.x == 0) {
#pragma unroll
      for (unsigned s = 0; s < SLOTS; ++s) mbarrier::init(arrivals + s * mbarrier::BYTES);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __cluster_barrier_arrive_relaxed();
    const unsigned warp = __clusterRelativeBlockRank() * (THREADS / WARP) + threadIdx.x / WARP;
    remote_sums = of_block(shared_address(sums + warp) + (upper() ? sizeof(float) : 0));
    remote_arrivals = of_block(arrivals);
  }
  __device__ __forceinline__ void wait_for_blocks() const { __cluster_barrier_wait(); }

  // Returns the number that receive() takes; numbers count from 0.
  __device__ __forceinline__ unsigned send(const float (&own)[2]) {
    const float value = fold(own);
    const unsigned slot = sent % SLOTS, arrival = slot * mbarrier::BYTES;
    if (threadIdx.x == 0) mbarrier::expect(arrivals + arrival, WARPS * sizeof(float2));
    if (threadIdx.x % HALF < BLOCKS) {
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
                       remote_sums + slot * WARPS * static_cast<unsigned>(sizeof(float2))),
                   "f"(value), "r"(remote_arrivals + arrival)
                   : "memory");
    }
    return sent++;
  }
  // All warps of the team get the same sums, to the last bit.
  __device__ __forceinline__ void receive(unsigned number, float (&total)[2]) const {
    const unsigned slot = number % SLOTS;
    mbarrier::wait_for_cluster(arrivals + slot * mbarrier::BYTES, number / SLOTS);
    total[0] = total[1] = 0.0f;
#pragma unroll
    for (unsigned first = 0; first < WARPS; first += WARP) {
      const unsigned warp = first + threadIdx.x % WARP;
      if (WARPS % WARP == 0 || warp < WARPS) {
        const float2 of_warp = sums[slot * WARPS + warp];
        total[0] += of_warp.x, total[1] += of_warp.y;
      }
    }
    const float value = fold(total), other = __shfl_xor_sync(ALL_LANES, value, HALF);
    total[0] = upper() ? other : value;
    total[1] = upper() ? value : other;
  }

 private:
  static constexpr unsigned WARPS = BLOCKS * THREADS / WARP, HALF = WARP / 2;
  // When a warp sends sum n, it has read all sums before it but one, so sum n - 2 at the latest. So all warps have sent
  // sum n - 2; and each of them had then read all sums before that but one. The oldest sum that may still be read is n
  // - 4.
  static constexpr unsigned SLOTS = 8;

  static __device__ __forceinline__ bool upper() { return threadIdx.x & HALF; }
  // Two sums over a warp, for little more than the shuffles of one: the lower half gets the first sum, the upper half
  // the other.
  static __device__ __forceinline__ float fold(const float (&both)[2]) {
    float value = upper() ? both[1] : both[0];
    value += __shfl_xor_sync(ALL_LANES, upper() ? both[0] : both[1], HALF);
#pragma unroll
    for (unsigned step = HALF / 2; step; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
  }
  // The same place in the shared memory of the block that this lane sends to.
  static __device__ __forceinline__ unsigned of_block(unsigned address) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(threadIdx.x % BLOCKS));
    return remote;
  }

  const float2* sums;
  unsigned arrivals, remote_sums, remote_arrivals;
  unsigned sent = 0;
};

// The elements of a team's rows before their first whole pack, which is at element `head`, and behind their last one. Each
// of the team's first threads has one, with RAGGED. column: of the thread's single element, counted from the first whole
// pack, so negative before it.
struct Single {
  bool exists;
  int column;
  __device__ __forceinline__ Single(unsigned head, unsigned columns, unsigned chunk) {
    const unsigned rank = __clusterRelativeBlockRank() * THREADS + threadIdx.x, tail = (columns - head) % chunk;
    exists = RAGGED && rank < head + tail;
    column = static_cast<int>(rank - head + (rank < head ? 0 : columns - head - tail));
  }
};

// A warp's part of the team's rows, on its way to the STAGES that the warp has in shared memory. A warp fetches only
// what it reads itself, so that it knows when a stage is free.
template <typename Element>
class WarpStages {
 public:
  // from: the first whole pack of the team's first row. The warp has `packs` packs of it, from element `part` on. stride:
  // elements from one row of the team to the next. memory: shared memory of the block.
  __device__ __forceinline__ WarpStages(const Element* __restrict__ from, unsigned part, unsigned packs, unsigned rows,
                                        long long stride, const Single& single, uint4* memory)
      : single(single), from(from), stride(stride), part(part), bytes(packs * PACK_BYTES), left(rows) {
    __shared__ unsigned long long barriers[THREADS / WARP][STAGES];
    const unsigned warp = threadIdx.x / WARP;
    arrivals = shared_address(barriers[warp]);
    stages = memory;
    own = warp * STAGES * SIZE;
    if (mine()) {
#pragma unroll
      for (unsigned s = 0; s < STAGES; ++s) mbarrier::init(arrivals + s * mbarrier::BYTES);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
  }

  // Starts to fetch the next row to a stage, if there is a next row.
  __device__ __forceinline__ void fetch(unsigned stage) {
    if (left == 0) return close();
    if (mine()) {
      const unsigned arrival = arrivals + stage * mbarrier::BYTES, to = shared_address(stages + begin(stage));
      mbarrier::expect(arrival, bytes + PACK_BYTES);
      if (WHOLE || bytes > 0) copy(to, from + part, bytes, arrival);
      copy(to + FIRST * PACK_BYTES, from, PACK_BYTES, arrival);
    }
    if (single.exists) copy_word(shared_address(word(stage)), from + single.column - odd(), odd() ? 4 : sizeof(Element));
    close();
    --left, from += stride;
  }
  // Waits until a stage is full. phase: how many times the stage was used before.
  __device__ __forceinline__ void wait(unsigned stage, unsigned phase) const {
    mbarrier::wait(arrivals + stage * mbarrier::BYTES, phase);
    // Groups of copies end in order, and that of this row has STAGES - 2 groups behind it, or one more.
    if (RAGGED) asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
  }
  // Where the thread's first pack of a stage is. The asm hides how the address is made: otherwise the compiler makes
  // the address of each pack anew.
  __device__ __forceinline__ const uint4* place(unsigned stage) const {
    unsigned at = shared_address(stages + begin(stage) + threadIdx.x % WARP);
    asm("" : "+r"(at));
    return static_cast<const uint4*>(__cvta_shared_to_generic(at));
  }
  // The thread's j-th pack.
  static __device__ __forceinline__ Pack<Element> pack(const uint4* place, unsigned j) {
    const uint4 raw = place[j * WARP];
    return reinterpret_cast<const Pack<Element>&>(raw);
  }
  // The first element of the row's first whole pack.
  __device__ __forceinline__ float first(unsigned stage) const {
    return to_float(*reinterpret_cast<const Element*>(stages + begin(stage) + FIRST));
  }
  // The thread's single element.
  __device__ __forceinline__ float of_single(unsigned stage) const {
    return to_float(reinterpret_cast<const Element*>(word(stage))[odd()]);
  }

  const Single single;

 private:
  // Packs: of the part, the first whole pack of the row, and a word for each single element, of which a row has 13 at most.
  static constexpr unsigned FIRST = PACKS * WARP, SIZE = FIRST + 1 + 4 * RAGGED;
  __device__ __forceinline__ unsigned* word(unsigned stage) const {
    return reinterpret_cast<unsigned*>(stages + begin(stage) + FIRST + 1) + threadIdx.x % WARP;
  }
  // Whether the single element is the upper half of a word in memory.
  __device__ __forceinline__ unsigned odd() const { return sizeof(Element) == 2 ? single.column & 1 : 0; }
  // Copies 4 bytes without waiting for them; only the first `there` ones are read, so that none behind a matrix is.
  static __device__ __forceinline__ void copy_word(unsigned to, const Element* from, unsigned there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(4), "r"(there) : "memory");
  }
  // Ends the group of copies of a row, which may have none.
  static __device__ __forceinline__ void close() {
    if (RAGGED) asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ __forceinline__ unsigned begin(unsigned stage) const { return own + stage * SIZE; }
  static __device__ __forceinline__ bool mine() { return threadIdx.x % WARP == 0; }
  static __device__ __forceinline__ void copy(unsigned to, const Element* from, unsigned bytes, unsigned arrival) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "r"(bytes), "r"(arrival)
        : "memory");
  }

  const Element* from;
  const long long stride;
  const unsigned part, bytes;
  unsigned left, arrivals, own;  // own: the warp's first pack in the stages
  uint4* stages;
};

// Hides from the compiler that a pack is the same for each row. Otherwise it keeps halves as floats, in twice the
// registers.
template <typename Element>
__device__ __forceinline__ void keep_packed(Pack<Element>& pack) {
  unsigned(&words)[PACK_BYTES / 4] = reinterpret_cast<unsigned(&)[PACK_BYTES / 4]>(pack);
#pragma unroll
  for (unsigned& word : words) asm("" : "+r"(word));
}

// A team's work. Gamma and beta are loaded once, to registers, since a thread has the same columns of every row. Rows
// come to shared memory ahead of the work, so that memory isn't idle while threads reduce.
//
// RAGGED: rows begin at different places of a pack. The number of teams is such that all rows of one team begin alike.
template <typename Element>
class InTurn {
 public:
  __device__ __forceinline__ InTurn(const Element* __restrict__ x, uint4* shared, unsigned rows, unsigned columns)
      : InTurn(x + static_cast<long long>(blockIdx.x / BLOCKS) * columns, shared, gridDim.x / BLOCKS, rows, columns,
               RAGGED ? -(blockIdx.x / BLOCKS * columns) % CHUNK : 0,
               (__clusterRelativeBlockRank() * THREADS + threadIdx.x / WARP * WARP) * PACKS) {}

  __device__ __forceinline__ void run(const Element* __restrict__ gamma, const Element* __restrict__ beta,
                                      Element* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd) {
#pragma unroll 1
    for (unsigned s = 0; s < STAGES; ++s) stages.fetch(s);
#pragma unroll
    for (unsigned j = 0; j < PACKS; ++j) {
      scale[j] = vector(gamma, j), shift[j] = vector(beta, j);
    }
    if (stages.single.exists) of_single = {gamma[head + stages.single.column], beta[head + stages.single.column]};
    exchange.wait_for_blocks();
    y += static_cast<long long>(row) * columns + column;
    // The sums of the next row are made and sent while the sums of this row are on their way.
    Work now, later;
    for (unsigned turn = 0; turn <= turns; ++turn) {
      if (turn < turns) later = begin();
      if (turn > 0) {
        finish(now, y, mean + row, rstd + row);
        row += step, y += stride;
      }
      now = later;
    }
  }

 private:
  static constexpr unsigned CHUNK = Pack<Element>::SIZE;
  // A row whose sums are under way.
  struct Work {
    unsigned stage, number;
    Normaliser<true> normalised;
  };

  // x: the team's first row. step: number of teams. head: the element that a row's first whole pack begins with. first:
  // the first pack of the warp's part of a row.
  __device__ __forceinline__ InTurn(const Element* __restrict__ x, uint4* shared, unsigned step, unsigned rows,
                                    unsigned columns, unsigned head, unsigned first)
      : columns(columns),
        step(step),
        head(head),
        turns(blockIdx.x / BLOCKS < rows ? (rows - blockIdx.x / BLOCKS - 1) / step + 1 : 0),
        column(head + (first + threadIdx.x % WARP) * CHUNK),
        packs(first < (columns - head) / CHUNK ? min((columns - head) / CHUNK - first, PACKS * WARP) : 0),
        stride(static_cast<long long>(step) * columns),
        stages(x + head, first * CHUNK, packs, turns, stride,
               {head, columns, CHUNK}, shared),
        kind(columns, 0.0f),
        row(blockIdx.x / BLOCKS) {}

  __device__ __forceinline__ bool has(unsigned j) const { return WHOLE || j * WARP + threadIdx.x % WARP < packs; }

  // The w-th word of a pack at any element's address. The asm makes the compiler finish a word before the next one:
  // otherwise it loads the halves of many packs first, and spills.
  static __device__ __forceinline__ unsigned word(const Element* __restrict__ from, unsigned w) {
    unsigned made;
    if constexpr (sizeof(Element) == 4) {
      made = reinterpret_cast<const unsigned*>(from)[w];
    } else {
      const auto* bits = reinterpret_cast<const unsigned short*>(from) + 2 * w;
      made = bits[0] | static_cast<unsigned>(bits[1]) << 16;
    }
    asm volatile("" : "+r"(made));
    return made;
  }
  // Gamma or beta for the thread's j-th pack. In whole words: if words were taken apart here, the compiler would keep
  // their halves in registers of their own.
  __device__ __forceinline__ Pack<Element> vector(const Element* __restrict__ from, unsigned j) const {
    uint4 raw = make_uint4(0, 0, 0, 0);
    from += column + j * WARP * CHUNK;
    if (RAGGED) {
      if (has(j)) raw = make_uint4(word(from, 0), word(from, 1), word(from, 2), word(from, 3));
    } else if (has(j)) {
      raw = load_16<false>(reinterpret_cast<const uint4*>(from));
    }
    return reinterpret_cast<const Pack<Element>&>(raw);
  }

  // Sums are about the first element of the row's first whole pack.
  __device__ __forceinline__ Work begin() {
    stages.wait(stage, phase);
    Work work{stage, 0, {kind, stages.first(stage)}};
    work.number = send_sums(work);
    if (++stage == STAGES) stage = 0, ++phase;
    return work;
  }
  __device__ __forceinline__ unsigned send_sums(const Work& work) {
    float sums[2] = {}, values[CHUNK];
    const uint4* place = stages.place(work.stage);
#pragma unroll
    for (unsigned j = 0; j < PACKS; ++j) {
      if (!has(j)) continue;
      widen(stages.pack(place, j), values);
#pragma unroll
      for (float value : values) work.normalised.add(value, sums);
    }
    if (stages.single.exists) work.normalised.add(stages.of_single(work.stage), sums);
    return exchange.send(sums);
  }
  // y: where the thread's first pack goes.
  __device__ __forceinline__ void finish(Work& work, Element* y, float* mean, float* rstd) {
    Normaliser<true>& normalised = work.normalised;
    float sums[2], values[CHUNK], gamma[CHUNK], beta[CHUNK];
    const uint4* place = stages.place(work.stage);
    exchange.receive(work.number, sums);
    if (normalised.again(sums)) {
      normalised.recentre();
      exchange.receive(send_sums(work), sums);
      normalised.again(sums);
    }
    if (column == head) *mean = normalised.mean, *rstd = normalised.rstd();
#pragma unroll
    for (unsigned j = 0; j < PACKS; ++j) {
      if (!has(j)) continue;
      Pack<Element> pack = stages.pack(place, j);
      keep_packed(scale[j]), keep_packed(shift[j]);
      widen(pack, values), widen(scale[j], gamma), widen(shift[j], beta);
#pragma unroll
      for (unsigned e = 0; e < CHUNK; ++e) values[e] = fmaf(normalised(values[e]), gamma[e], beta[e]);
      narrow(values, pack);
      store_pack(y + j * WARP * CHUNK, pack);
    }
    if (stages.single.exists) {
      float both[2];
      widen(of_single, both);
      y[stages.single.column - static_cast<int>(threadIdx.x * CHUNK)] =
          fmaf(normalised(stages.of_single(work.stage)), both[0], both[1]);
    }
    // Now all lanes have read the stage, and it can be filled again.
    __syncwarp();
    stages.fetch(work.stage);
  }

  // column: of the thread's first pack; packs: of the warp's part.
  const unsigned columns, step, head, turns, column, packs;
  const long long stride;
  WarpStages<Element> stages;
  Exchange exchange;
  const Normaliser<true> kind;
  Pack<Element> scale[PACKS], shift[PACKS];
  Pair<Element> of_single{};  // gamma and beta
  unsigned row, stage = 0, phase = 0;  // stage, phase: of the row that is begun next
};
#endif  // clusters came with sm_90
