// Allreduces in which each rank's GPU runs one kernel, and the kernels wait for each other. Each
// kernel copies its input to memory that all can read. Then it either reads all inputs (one shot),
// or reduces a slice and reads the others' slices (two shots). No two ranks may share a GPU: there
// a waiting kernel could keep the other from running.
//
// Blocks with the same number, one of each rank, wait for each other and for no others. What a
// block reads was written by blocks with its number, because each goes through the vector at the
// same positions. A slot is written again two turns later, when its readers have reached the turn
// between.
//
// Compiled like reduce.cu.

#define GRADRED_NO_ENTRIES
#include "reduce.cu"
#undef GRADRED_NO_ENTRIES

#ifdef __CUDACC__
__device__ inline void gradred_store_flag(unsigned* flag, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline unsigned gradred_load_flag(const unsigned* flag) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
__device__ inline void gradred_join_threads() { __syncthreads(); }
#endif

namespace gradred_kernels {

// ---- blocks of 16 bytes, of which the last may be incomplete ------------------------------------

template <class Element>
struct Vector {
  using Unit = Blocks<Element>;
  using Alone = Single<Element>;
  static constexpr unsigned kLanes = Unit::kLanes;

  __device__ static bool is_whole(const void* begin, u64 at, u64 count) {
    return reinterpret_cast<u64>(begin) % 16 == 0 && (at + 1) * kLanes <= count;
  }
  __device__ static Block load(const void* begin, u64 at, u64 count) {
    if (is_whole(begin, at, count)) return static_cast<const Block*>(begin)[at];
    const auto* const elements = static_cast<const typename Alone::Loaded*>(begin);
    Block block{};
    for (unsigned i = 0; i < kLanes && at * kLanes + i < count; ++i) {
      Unit::put(block, i, Alone::get(elements[at * kLanes + i], 0));
    }
    return block;
  }
  __device__ static void store(void* begin, u64 at, u64 count, const Block& block) {
    if (is_whole(begin, at, count)) {
      static_cast<Block*>(begin)[at] = block;
      return;
    }
    auto* const elements = static_cast<typename Alone::Loaded*>(begin);
    for (unsigned i = 0; i < kLanes && at * kLanes + i < count; ++i) {
      Alone::put(elements[at * kLanes + i], 0, Unit::get(block, i));
    }
  }
};

// ---- one launch ---------------------------------------------------------------------------------

__device__ inline void tell_all(const ShotArguments& call, unsigned* const* flags, unsigned value) {
  gradred_join_threads();  // all work of the block precedes the flag
  for (unsigned peer = threadIdx.x; peer < call.ranks; peer += blockDim.x) {
    gradred_store_flag(flags[peer] + call.rank * kMostShotBlocks + blockIdx.x, value);
  }
}

// Waits until all ranks' blocks with this number have arrived here.
__device__ inline void meet(const ShotArguments& call, unsigned value) {
  tell_all(call, call.met, value);
  const unsigned* const own = call.met[call.rank];
  for (unsigned peer = threadIdx.x; peer < call.ranks; peer += blockDim.x) {
    const unsigned* const flag = own + peer * kMostShotBlocks + blockIdx.x;
    while (static_cast<int>(gradred_load_flag(flag) - value) < 0) {
      if (gradred_load_flag(call.cancelled) != 0) break;
    }
  }
  gradred_join_threads();
}

template <class Element, class Op>
__device__ inline Block fold_inputs(const ShotArguments& call, u64 at) {
  constexpr unsigned kTogether = 4;  // loads that are in flight at once
  Fold<Element, Op, Blocks<Element>> fold;
  const auto load = [&](unsigned rank) { return static_cast<const Block*>(call.inputs[rank])[at]; };
  fold.first(load(0));
  unsigned done = 1;
  for (; done + kTogether <= call.ranks; done += kTogether) {
    Block loaded[kTogether];
    GRADRED_UNROLL
    for (unsigned i = 0; i < kTogether; ++i) loaded[i] = load(done + i);
    GRADRED_UNROLL
    for (unsigned i = 0; i < kTogether; ++i) fold.next(loaded[i]);
  }
  for (; done < call.ranks; ++done) fold.next(load(done));
  if (call.averaged != 0) fold.scale(call.ranks, true);
  return fold.result();
}

template <class Element, class Op, bool two>
__device__ inline void shots(const ShotArguments& call) {
  using Whole = Vector<Element>;
  const u64 self = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
  const u64 threads = gridDim.x * static_cast<u64>(blockDim.x);
  const u64 blocks = (call.count + Whole::kLanes - 1) / Whole::kLanes;
  for (u64 at = self; at < blocks; at += threads) {
    Block block = Whole::load(call.input, at, call.count);
    if (call.scaled != 0) {
      Fold<Element, Sum, Blocks<Element>> fold;
      fold.first(block);
      fold.scale(call.factor, false);
      block = fold.result();
    }
    static_cast<Block*>(call.inputs[call.rank])[at] = block;
  }
  meet(call, 2 * call.turn);
  if (two) {
    const u64 each = (blocks + call.ranks - 1) / call.ranks;
    const u64 begin = call.rank * each, end = begin + each < blocks ? begin + each : blocks;
    for (u64 at = begin + (self + threads - begin % threads) % threads; at < end; at += threads) {
      static_cast<Block*>(call.sums[call.rank])[at] = fold_inputs<Element, Op>(call, at);
    }
    meet(call, 2 * call.turn + 1);
    for (u64 at = self; at < blocks; at += threads) {
      const auto* const sums = static_cast<const Block*>(call.sums[at / each]);
      Whole::store(call.result, at, call.count, sums[at]);
    }
  } else {
    for (u64 at = self; at < blocks; at += threads) {
      Whole::store(call.result, at, call.count, fold_inputs<Element, Op>(call, at));
    }
  }
  tell_all(call, call.left, call.turn);
}

}  // namespace gradred_kernels

// ---- entry points: gradred_<element>_<operation>_one and _two -----------------------------------

#define GRADRED_SHOTS(element, operation, Op, shots_, two)                                         \
  extern "C" __global__ void __launch_bounds__(256, 2) gradred_##element##_##operation##_##shots_( \
      const __grid_constant__ gradred_kernels::ShotArguments call) {                               \
    gradred_kernels::shots<gradred_kernels::element, gradred_kernels::Op, two>(call);              \
  }
#define GRADRED_SHOTS_OF(element, operation, Op)    \
  GRADRED_SHOTS(element, operation, Op, one, false) \
  GRADRED_SHOTS(element, operation, Op, two, true)
#define GRADRED_ALL_SHOTS(element)      \
  GRADRED_SHOTS_OF(element, sum, Sum)   \
  GRADRED_SHOTS_OF(element, prod, Prod) \
  GRADRED_SHOTS_OF(element, min, Min)   \
  GRADRED_SHOTS_OF(element, max, Max)

#define GRADRED_USER_SHOTS(element) \
  GRADRED_SHOTS_OF(element, user, User<gradred_kernels::element>)

#if defined GRADRED_ELEMENT && defined GRADRED_USER_OP
GRADRED_USER_SHOTS(GRADRED_ELEMENT)
#elif defined GRADRED_ELEMENT
GRADRED_ALL_SHOTS(GRADRED_ELEMENT)
#else
GRADRED_FOR_ELEMENTS(GRADRED_ALL_SHOTS)
#ifdef GRADRED_USER_OP
GRADRED_FOR_ELEMENTS(GRADRED_USER_SHOTS)
#endif
#endif
