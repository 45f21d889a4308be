// Kernels on a CPU: what a source needs to be compiled by a C++ compiler, and threads that run as fibers.
//
// Each thread of a cluster is a fiber. A fiber runs until it has to wait: at a barrier, at a shuffle, for bytes. So
// threads run in an order that the caller chooses, and a result that depends on the order shows. Shared memory is filled
// with NaN before a block starts. A thread's asynchronous copies are done when it waits for them, as late as they may be;
// bulk copies are done at once. emulation.py writes calls of
// the functions here in place of inline assembly and of declarations of shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#define __CUDA_ARCH__ EMULATED_ARCH

namespace emulated {
constexpr unsigned LARGEST = 32;  // bytes that a lane gives the others at a time
constexpr unsigned WARP = 32, STRIDE = 1 << 18, STACK = 1 << 17;  // STRIDE: bytes of shared memory of a block

struct Warp {
  unsigned alive = 0, arrived = 0, turn = 0;
  char values[2][WARP][LARGEST] = {};
  bool there[2][WARP] = {};
};
struct Block {
  uint3 index;
  unsigned rank, alive, arrived = 0, turn = 0, used = 0;
  std::map<const void*, unsigned> statics;  // where each variable in shared memory begins
  std::map<unsigned, std::pair<unsigned, unsigned>> meetings;  // of some threads: how many have come, and the turn
  std::vector<Warp> warps;
};
struct Copy {
  unsigned to;
  const void* from;
  unsigned width, bytes;
};
struct Thread {
  uint3 index;
  Block* block;
  ucontext_t context;
  unsigned cluster_turn = 0;                     // of the barrier that it has arrived at
  std::vector<std::vector<Copy>> copies = {{}};  // groups; the last one is open
  bool done = false;
};

inline Thread* current;
inline ucontext_t scheduler;
inline std::vector<char*> stacks;
inline char* arena;
inline unsigned blocks, cluster_turn, cluster_arrived, cluster_alive, threads_of_block, dynamic_bytes;
inline uint3 grid;
inline uint64_t progress;
inline void (*body)();
inline sigjmp_buf fault;

inline void yield() { swapcontext(&current->context, &scheduler); }
template <typename Condition>
void wait_until(Condition condition) {
  while (!condition()) yield();
  ++progress;
}

// ---- Shared memory. An address of 32 bits is the place in the arena, which has all blocks of a cluster.
inline unsigned address_of(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - arena);
}
inline char* at(unsigned address) { return arena + address; }
template <typename Type>
Type& shared(const void* key) {
  Block& block = *current->block;
  auto found = block.statics.find(key);
  if (found == block.statics.end()) {
    block.used = (block.used + 15) / 16 * 16;
    found = block.statics.emplace(key, block.used).first;
    block.used += sizeof(Type);
  }
  return *reinterpret_cast<Type*>(at(block.rank * STRIDE + found->second));
}
inline char* dynamic() { return at(current->block->rank * STRIDE + STRIDE - (dynamic_bytes + 127) / 128 * 128); }

// ---- Barriers. Threads that have ended don't take part.
inline void sync_block() {
  Block& block = *current->block;
  const unsigned turn = block.turn;
  ++block.arrived;
  wait_until([&] {
    if (block.turn == turn && block.arrived >= block.alive) block.arrived = 0, ++block.turn;
    return block.turn != turn;
  });
}
inline void sync_some(unsigned barrier, unsigned threads) {
  auto& [arrived, turn] = current->block->meetings[barrier];
  const unsigned own = turn;
  if (++arrived == threads) arrived = 0, ++turn;
  wait_until([&] { return current->block->meetings[barrier].second != own; });
}
inline void cluster_arrive() { ++cluster_arrived, current->cluster_turn = cluster_turn; }
inline void cluster_wait() {
  const unsigned turn = current->cluster_turn;
  wait_until([&] {
    if (cluster_turn == turn && cluster_arrived >= cluster_alive) cluster_arrived = 0, ++cluster_turn;
    return cluster_turn != turn;
  });
}

// ---- Exchange in a warp: every thread of it that hasn't ended gives a value, and reads that of another lane.
template <typename Value, typename Read>
auto exchange(Value value, Read read) {
  Warp& warp = current->block->warps[current->index.x / WARP];
  const unsigned lane = current->index.x % WARP, turn = warp.turn;
  static_assert(sizeof value <= LARGEST);
  std::memcpy(warp.values[turn % 2][lane], &value, sizeof value);
  warp.there[turn % 2][lane] = true;
  ++warp.arrived;
  wait_until([&] {
    if (warp.turn == turn && warp.arrived >= warp.alive) {
      warp.arrived = 0, ++warp.turn;
      std::fill_n(warp.there[warp.turn % 2], WARP, false);
    }
    return warp.turn != turn;
  });
  return read(lane, [&warp, turn](unsigned from) {
    Value other;
    std::memcpy(&other, warp.values[turn % 2][from], sizeof other);
    return std::pair<Value, bool>(other, warp.there[turn % 2][from]);
  });
}
template <typename Value, typename Lane>
Value shuffle(Value value, Lane source) {
  return exchange(value, [&](unsigned lane, auto get) {
    const unsigned from = source(lane);
    return from < WARP ? get(from).first : value;
  });
}

// ---- Barriers that count bytes: {bytes to come, arrivals to come, phases that are over}.
struct Counter {
  int bytes;
  short arrivals;
  unsigned short phase;
  void settle() {
    if (bytes == 0 && arrivals == 0) arrivals = 1, ++phase;
  }
};
inline Counter& counter(unsigned address) { return *reinterpret_cast<Counter*>(at(address)); }
inline void barrier_init(unsigned address) { counter(address) = {0, 1, 0}; }
inline void barrier_expect(unsigned address, unsigned bytes) {
  counter(address).bytes += bytes, --counter(address).arrivals;
  counter(address).settle();
}
inline void barrier_complete(unsigned address, unsigned bytes) {
  counter(address).bytes -= bytes;
  counter(address).settle();
}
inline void barrier_try(unsigned& done, unsigned address, unsigned parity) {
  done = counter(address).phase % 2 != parity;
  if (!done) yield();
  else ++progress;
}

// ---- What stands for an instruction in assembly: results first.
inline float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x; }
inline void rsqrt(float& to, float x) { to = 1.0f / std::sqrt(flushed(x)); }
inline void reciprocal(float& to, float x) { to = flushed(1.0f / flushed(x)); }
inline void wide_reciprocal(float& to, float x) {
  to = 1.0f / x;
  if (std::isfinite(to)) to = std::nextafterf(to, 0.0f);  // as far off as it may be
}
inline void exp2(float& to, float x) { to = flushed(std::exp2(flushed(x))); }
inline void log2(float& to, float x) { to = std::log2(flushed(x)); }
template <typename To>
void store_words(To* to, unsigned x, unsigned y, unsigned z, unsigned w) {
  *reinterpret_cast<uint4*>(const_cast<std::remove_const_t<To>*>(to)) = make_uint4(x, y, z, w);
}
inline void store_words(size_t to, unsigned x, unsigned y, unsigned z, unsigned w) {
  *reinterpret_cast<uint4*>(to) = make_uint4(x, y, z, w);
}
template <typename Value, typename... Values>
void store_shared(unsigned to, Value first, Values... others) {
  const Value all[] = {first, static_cast<Value>(others)...};
  if (to % sizeof all) raise(SIGSEGV);
  std::memcpy(at(to), all, sizeof all);
}
inline void store_four_shared(unsigned to, unsigned word) { store_shared(to, word, word, word, word); }
template <typename Value>
void load_shared(Value& a, Value& b, Value& c, Value& d, unsigned from) {
  Value all[4];
  if (from % sizeof all) raise(SIGSEGV);
  std::memcpy(all, at(from), sizeof all);
  a = all[0], b = all[1], c = all[2], d = all[3];
}
inline void pack_bytes(unsigned& to, int high, int low, unsigned above) {
  const auto byte = [](int x) { return static_cast<unsigned>(std::clamp(x, -128, 127)) & 0xffu; };
  to = above << 16 | byte(high) << 8 | byte(low);
}
// The sign of each half of x, over all of the half.
inline void spread_signs(unsigned& to, unsigned x) { to = (x >> 15 & 1) * 0xffffu | (x >> 31) * 0xffff0000u; }
inline void load_words(unsigned& a, unsigned& b, const void* from) {
  const unsigned* words = static_cast<const unsigned*>(from);
  a = words[0], b = words[1];
}
inline void load_words(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* from) {
  load_words(a, b, from);
  load_words(c, d, static_cast<const unsigned*>(from) + 2);
}
inline void copy(unsigned to, const void* from, unsigned width, unsigned bytes) {
  if (to % width || (bytes && reinterpret_cast<uintptr_t>(from) % width)) raise(SIGSEGV);
  current->copies.back().push_back({to, from, width, bytes});
}
inline void copy(unsigned to, const void* from, unsigned width = 16) { copy(to, from, width, width); }
inline void close_copies() { current->copies.emplace_back(); }
inline void finish(size_t groups) {
  auto& all = current->copies;
  for (size_t group = 0; group < groups; ++group) {
    for (const Copy& each : all[group]) {
      std::memset(at(each.to), 0, each.width);
      std::memcpy(at(each.to), each.from, each.bytes);
    }
  }
  all.erase(all.begin(), all.begin() + groups);
}
inline void wait_for_copies(unsigned ahead) { finish(std::max<size_t>(current->copies.size(), ahead + 1) - ahead - 1); }
inline void wait_for_all_copies() {
  close_copies();
  wait_for_copies(0);
}
inline void load_if(unsigned& a, unsigned& b, unsigned& c, unsigned& d, const void* from, unsigned there) {
  const uint4 words = there ? *static_cast<const uint4*>(from) : uint4{};
  a = words.x, b = words.y, c = words.z, d = words.w;
}
inline void load_if(unsigned& a, unsigned& b, const void* from, unsigned there) {
  const uint2 words = there ? *static_cast<const uint2*>(from) : uint2{};
  a = words.x, b = words.y;
}
inline void load_if(unsigned& to, const void* from, unsigned there) {
  to = there ? *static_cast<const unsigned*>(from) : 0;
}
inline void add_in_turn(unsigned& before, void* to, unsigned more) {
  unsigned& own = *static_cast<unsigned*>(to);
  before = own, own += more;
}
template <typename Word>
inline void load_shared(Word& to, unsigned from) {
  std::memcpy(&to, at(from), sizeof to);
}
inline void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) raise(SIGSEGV);
  std::memcpy(at(to), from, bytes);
  barrier_complete(barrier, bytes);
}
// What is fetched to the L2 must be there, too.
inline void touch(const void* from, unsigned bytes = 1) {
  const volatile char* first = static_cast<const char*>(from);
  if (bytes) first[0], first[bytes - 1];
}
inline void map_to(unsigned& to, unsigned address, unsigned rank) { to = address % STRIDE + rank * STRIDE; }
inline void send(unsigned to, float value, unsigned barrier) {
  std::memcpy(at(to), &value, sizeof value);
  barrier_complete(barrier, sizeof value);
}
inline void send(unsigned to, float value, float next, unsigned barrier) {
  if (to % 8) raise(SIGSEGV);
  send(to, value, barrier);
  send(to + sizeof value, next, barrier);
}

// ---- Matrices in the registers of a warp, as the PTX ISA lays them out.
inline void load_matrices(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
  if (address % 16) raise(SIGSEGV);
  exchange(address, [&](unsigned lane, auto get) {
    unsigned* const to[] = {&a, &b, &c, &d};
    for (unsigned i = 0; i < 4; ++i) std::memcpy(to[i], at(get(8 * i + lane / 4).first + lane % 4 * 4), 4);
    return 0;
  });
}
inline void load_matrices_transposed(unsigned& a, unsigned& b, unsigned& c, unsigned& d, unsigned address) {
  if (address % 16) raise(SIGSEGV);
  exchange(address, [&](unsigned lane, auto get) {
    unsigned* const to[] = {&a, &b, &c, &d};
    for (unsigned i = 0; i < 8; ++i) {
      const unsigned row = get(i / 2 * 8 + lane % 4 * 2 + i % 2).first;
      std::memcpy(reinterpret_cast<char*>(to[i / 2]) + i % 2 * 2, at(row + lane / 4 * 2), 2);
    }
    return 0;
  });
}
inline void transpose(unsigned& to, unsigned pair) {
  to = exchange(pair, [](unsigned lane, auto get) {
    const auto half = [&](unsigned row) { return get(row * 4 + lane / 8).first >> lane / 4 % 2 * 16 & 0xffffu; };
    return half(lane % 4 * 2) | half(lane % 4 * 2 + 1) << 16;
  });
}
inline void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  if (address % 16) raise(SIGSEGV);
  exchange(address, [&](unsigned lane, auto get) {
    const unsigned from[] = {a, b, c, d};
    for (unsigned i = 0; i < 4; ++i) std::memcpy(at(get(8 * i + lane / 4).first + lane % 4 * 4), &from[i], 4);
    return 0;
  });
}
struct Bytes {
  signed char a[4][4], b[2][4];  // A (16 x 32) and B (32 x 8), four neighbours of a row of A or a column of B each
};
inline void multiply_add_bytes(int& d0, int& d1, int& d2, int& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                               unsigned b0, unsigned b1) {
  Bytes own;
  const unsigned words[] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(&own, words, sizeof own);
  exchange(own, [&](unsigned lane, auto get) {
    int* const to[] = {&d0, &d1, &d2, &d3};
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned quad = k % 16 / 4;
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        const Bytes left = get(row % 8 * 4 + quad).first, right = get(column * 4 + quad).first;
        *to[i] += left.a[row / 8 + k / 16 * 2][k % 4] * right.b[k / 16][k % 4];
      }
    }
    return 0;
  });
}
template <typename Half>
struct Halves {
  Half a[4][2], b[2][2];  // A (16 x 16) and B (16 x 8), two neighbours of a row of A or a column of B each
};
template <typename Half>
void multiply_add_halves(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                         unsigned b0, unsigned b1) {
  Halves<Half> own;
  const unsigned words[] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(static_cast<void*>(&own), words, sizeof own);
  exchange(own, [&](unsigned lane, auto get) {
    float* const to[] = {&d0, &d1, &d2, &d3};
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair = k % 8 / 2;
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        const Halves<Half> left = get(row % 8 * 4 + pair).first, right = get(column * 4 + pair).first;
        *to[i] += static_cast<float>(left.a[row / 8 + k / 8 * 2][k % 2]) * static_cast<float>(right.b[k / 8][k % 2]);
      }
    }
    return 0;
  });
}
// A (16 x 8) and B (8 x 8): the others' columns and rows are zeros.
template <typename Half>
void multiply_add_eight(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned b) {
  multiply_add_halves<Half>(d0, d1, d2, d3, a0, a1, 0, 0, b, 0);
}

// ---- Launches.
inline void run_fiber() {
  body();
  Thread& thread = *current;
  thread.done = true;
  ++progress;
  --thread.block->alive, --thread.block->warps[thread.index.x / WARP].alive, --cluster_alive;
  setcontext(&scheduler);
}
inline void on_fault(int) { siglongjmp(fault, 2); }
inline void unknown(const char* instruction) {
  std::fprintf(stderr, "unknown instruction %s\n", instruction);
  siglongjmp(fault, 3);
}

// Runs the blocks of a cluster. order: of its threads: 0 as they are numbered, 1 backwards, 2 by chance. Gives 1 for a deadlock.
inline int run_cluster(uint3 first, unsigned cluster, unsigned order) {
  std::vector<Block> all(cluster);
  std::vector<Thread> threads(cluster * threads_of_block);
  while (stacks.size() < threads.size()) {
    stacks.push_back(static_cast<char*>(
        mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)));
  }
  std::memset(arena, 0xff, static_cast<size_t>(cluster) * STRIDE);
  cluster_arrived = 0, cluster_turn = 0, cluster_alive = static_cast<unsigned>(threads.size()), blocks = cluster;
  for (unsigned b = 0; b < cluster; ++b) {
    all[b].index = {first.x + b, first.y, first.z};
    all[b].rank = b, all[b].alive = threads_of_block;
    all[b].warps.resize((threads_of_block + WARP - 1) / WARP);
    for (unsigned t = 0; t < threads_of_block; ++t) {
      Thread& thread = threads[b * threads_of_block + t];
      thread.index = {t, 0, 0}, thread.block = &all[b];
      ++all[b].warps[t / WARP].alive;
      getcontext(&thread.context);
      thread.context.uc_stack = {stacks[b * threads_of_block + t], 0, STACK};
      thread.context.uc_link = nullptr;
      makecontext(&thread.context, run_fiber, 0);
    }
  }
  std::vector<Thread*> turn;
  for (Thread& thread : threads) turn.push_back(&thread);
  uint32_t random = 1;  // a linear congruential generator (Numerical Recipes), since <random> takes long to compile
  if (order == 1) std::reverse(turn.begin(), turn.end());
  while (!turn.empty()) {
    for (size_t left = turn.size(); order == 2 && left > 1; --left) {
      random = random * 1664525u + 1013904223u;
      std::swap(turn[left - 1], turn[(random >> 8) % left]);
    }
    const uint64_t before = progress;
    for (Thread* thread : turn) {
      current = thread;
      swapcontext(&scheduler, &thread->context);
    }
    if (progress == before) return 1;
    std::erase_if(turn, [](Thread* thread) { return thread->done; });
  }
  return 0;
}

template <typename... Types, size_t... Places>
int launch(void (*kernel)(Types...), void** arguments, const unsigned (&size)[3], unsigned threads, unsigned shared,
           unsigned cluster, unsigned order, std::index_sequence<Places...>) {
  static std::tuple<std::decay_t<Types>...>* given;
  static void (*called)(Types...);
  std::tuple<std::decay_t<Types>...> values(*static_cast<std::decay_t<Types>*>(arguments[Places])...);
  given = &values, called = kernel;
  body = [] { std::apply(called, *given); };
  grid = {size[0], size[1], size[2]}, threads_of_block = threads, dynamic_bytes = shared;
  arena = static_cast<char*>(mmap(nullptr, static_cast<size_t>(cluster) * STRIDE, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  struct sigaction action = {}, before;
  action.sa_handler = on_fault;
  action.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  int wrong = sigsetjmp(fault, 1);
  if (wrong) {
    const uint3 block = current->block->index;
    std::fprintf(stderr, "block %u %u, thread %u\n", block.x, block.y, current->index.x);
  } else {
    for (unsigned z = 0; z < size[2]; ++z)
      for (unsigned y = 0; y < size[1]; ++y)
        for (unsigned x = 0; x < size[0] && !wrong; x += cluster) {
          // Backwards, too: blocks that write the same places would show only then.
          wrong = run_cluster({order == 1 ? size[0] - cluster - x : x, y, z}, cluster, order);
        }
  }
  sigaction(SIGSEGV, &before, nullptr);
  munmap(arena, static_cast<size_t>(cluster) * STRIDE);
  return wrong;
}
template <typename... Types>
int launch(void (*kernel)(Types...), void** arguments, const unsigned (&size)[3], unsigned threads, unsigned shared,
           unsigned cluster, unsigned order) {
  return launch(kernel, arguments, size, threads, shared, cluster, order, std::index_sequence_for<Types...>());
}
}  // namespace emulated

// ---- CUDA's names.
#define threadIdx (emulated::current->index)
#define blockIdx (emulated::current->block->index)
#define gridDim (emulated::grid)
struct EmulatedBlockDim {
  unsigned x, y, z;
};
#define blockDim (EmulatedBlockDim{emulated::threads_of_block, 1, 1})

inline void __syncthreads() { emulated::sync_block(); }
inline void __syncwarp(unsigned = 0) {
  emulated::shuffle(0u, [](unsigned lane) { return lane; });
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  return emulated::shuffle(value, [=](unsigned lane) { return lane ^ mask; });
}
template <typename T>
T __shfl_sync(unsigned, T value, unsigned from, unsigned width = 32) {
  return emulated::shuffle(value, [=](unsigned lane) { return lane / width * width + from % width; });
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
  return emulated::shuffle(value, [=](unsigned lane) { return lane >= step ? lane - step : lane; });
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned step, unsigned width = 32) {
  return emulated::shuffle(value, [=](unsigned lane) { return lane % width + step < width ? lane + step : lane; });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return emulated::exchange(value, [](unsigned, auto get) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto [other, there] = get(lane);
      bits |= static_cast<unsigned>(there && other) << lane;
    }
    return bits;
  });
}
inline void __threadfence() {}
inline bool __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
template <typename T>
unsigned __match_any_sync(unsigned, T value) {
  return emulated::exchange(value, [&](unsigned, auto get) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const auto [other, there] = get(lane);
      bits |= static_cast<unsigned>(there && other == value) << lane;
    }
    return bits;
  });
}
inline unsigned __clusterRelativeBlockRank() { return emulated::current->block->rank; }
inline unsigned __clusterSizeInBlocks() { return emulated::blocks; }
inline void __cluster_barrier_arrive() { emulated::cluster_arrive(); }
inline void __cluster_barrier_arrive_relaxed() { emulated::cluster_arrive(); }
inline void __cluster_barrier_wait() { emulated::cluster_wait(); }

inline size_t emulated_cvta(const void* pointer) { return emulated::address_of(pointer); }
#define __cvta_generic_to_shared emulated_cvta
inline void* emulated_generic(unsigned address) { return emulated::at(address); }
#define __cvta_shared_to_generic emulated_generic
#define __cvta_generic_to_global(pointer) (pointer)

template <typename T>
T emulated_ldg(const T* from) { return *from; }
#define __ldg emulated_ldg
#define __ldcs emulated_ldg
#define __ldcg emulated_ldg
#define __stcs(to, value) (*(to) = (value))
template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = before + value;
  return before;
}
template <typename To, typename From>
To emulated_bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline float __fdividef(float a, float b) { return std::fabs(b) > 8.507059e37f && std::isfinite(b) ? 0.0f * a : a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) { return std::isnan(x) ? 0 : x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : static_cast<int>(std::nearbyint(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
// The bytes of x and y that the four lower digits of the selector name, the lowest digit the lowest byte.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = x | static_cast<unsigned long long>(y) << 32;
  unsigned result = 0;
  for (unsigned k = 0; k < 4; ++k) result |= (both >> (selector >> 4 * k & 7) * 8 & 0xff) << 8 * k;
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << bits % 32) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>(((uint64_t{high} << 32) | low) >> (bits % 32));
}
template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
