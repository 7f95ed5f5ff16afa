// Collectives between the ranks of one machine, through the memory they share (segment.h).
//
// Bytes of an all-reduce of N bytes between R ranks. Small ones in one shot: each rank writes its N
// and reads (R - 1) N of the others'. Large ones in two: each rank adds up its R-th part and reads
// the other sums, so N is written and 2 (R - 1) / R N read. Sums are taken in float32 in the order of
// the ranks and rounded once, so every rank has the same bits whichever way and whoever is late.

#include "collective/segment.h"
#include "pool.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

enum Dtype { kFloat32, kBfloat16, kFloat16 };
enum Call { kAllReduce = 1, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kSend };

constexpr int64_t kTaskBytes = 1 << 16;  // so many are worth a task of their own

struct Float32 {
  using T = float;
  static DT_INLINE Vec load(const T* p) { return dt::DT_ISA::load(p); }
  static DT_INLINE void store(T* p, Vec x) { dt::DT_ISA::store(p, x); }
  static DT_INLINE float widen(T x) { return x; }
  static DT_INLINE T round(float x) { return x; }
};
struct Bfloat16 {
  using T = bf16;
  static DT_INLINE Vec load(const T* p) { return load_bf16(p); }
  static DT_INLINE void store(T* p, Vec x) { store_bf16(p, x); }
  static DT_INLINE float widen(T x) { return bf16_to_float(x); }
  static DT_INLINE T round(float x) { return float_to_bf16(x); }
};
struct Float16 {
  using T = f16;
  static DT_INLINE Vec load(const T* p) { return load_f16(p); }
  static DT_INLINE void store(T* p, Vec x) { store_f16(p, x); }
  static DT_INLINE float widen(T x) { return f16_to_float(x); }
  static DT_INLINE T round(float x) { return float_to_f16(x); }
};

DT_INLINE uint64_t tag_of(Call call, int64_t detail, int64_t bytes) {
  return static_cast<uint64_t>(call) << 56 | static_cast<uint64_t>(detail & 0xff) << 48 |
         (static_cast<uint64_t>(bytes) & 0xffffffffffffu);
}

DT_INLINE int64_t chunks_of(int64_t total, int64_t chunk) {
  return total > chunk ? divide_up(total, chunk) : 1;  // none at all is still a meeting
}

DT_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// body(first, end) for the tasks that `count` things of `bytes` bytes are divided into.
template <class Body>
DT_INLINE void in_tasks(int64_t count, int64_t bytes, const Body& body) {
  const int64_t some = kTaskBytes / bytes;
  parallel(divide_up(count, some),
           [&](int64_t task) { body(task * some, least(count, (task + 1) * some)); });
}

void copy(void* to, const void* from, int64_t bytes) {
  in_tasks(bytes, 1, [&](int64_t first, int64_t end) {
    memcpy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, end - first);
  });
}

// out[i] = the sum over ranks of sources[rank][i]. `ranks` is kRanks, or any number where that is 0.
template <class F, int kRanks>
void add_some(typename F::T* out, const typename F::T* const* sources, int64_t ranks, int64_t first,
              int64_t end) {
  const int64_t size = kRanks ? kRanks : ranks;
  int64_t i = first;
  for (; i + kLanes <= end; i += kLanes) {
    Vec sum = F::load(sources[0] + i);
    for (int64_t rank = 1; rank < size; ++rank) sum = add(sum, F::load(sources[rank] + i));
    F::store(out + i, sum);
  }
  for (; i < end; ++i) {
    float sum = F::widen(sources[0][i]);
    for (int64_t rank = 1; rank < size; ++rank) sum += F::widen(sources[rank][i]);
    out[i] = F::round(sum);
  }
}

template <class F>
DT_INLINE void add_ranks(typename F::T* out, const typename F::T* const* sources, int64_t ranks,
                         int64_t count) {
  in_tasks(count, sizeof(typename F::T), [&](int64_t first, int64_t end) {
    if (ranks == 2) add_some<F, 2>(out, sources, ranks, first, end);
    else add_some<F, 0>(out, sources, ranks, first, end);
  });
}

// Adds up `count` values at `offset` of all ranks' slots into `out`; this rank's are at `own`.
template <class F>
DT_INLINE void add_slots(const RanksState& state, typename F::T* out, const typename F::T* own,
                         uint32_t number, int64_t offset, int64_t count) {
  const typename F::T* sources[kMaxRanks];
  for (int64_t rank = 0; rank < state.size; ++rank)
    sources[rank] = rank == state.rank
                        ? own
                        : reinterpret_cast<typename F::T*>(slot_of(state, rank, number)) + offset;
  add_ranks<F>(out, sources, state.size, count);
}

constexpr auto no_turn = [](int64_t, uint32_t) {};

template <class F>
bool reduce_in_one_shot(RanksState& state, uint64_t tag, typename F::T* x, int64_t count) {
  return in_chunks<2>(
      state, tag, 1,
      [&](int64_t, uint32_t number) { copy(slot_of(state, state.rank, number), x, count * sizeof(*x)); },
      no_turn, [&](int64_t, uint32_t number) { add_slots<F>(state, x, x, number, 0, count); });
}

// Where the part of a rank begins among `count` values; parts share no cache line.
template <class T>
DT_INLINE int64_t part_begin(int64_t count, int64_t rank, int64_t size) {
  constexpr int64_t line = 64 / sizeof(T);
  return least(count, divide_up(divide_up(count, size), line) * line * rank);
}

template <class F>
bool reduce_in_two(RanksState& state, uint64_t tag, typename F::T* x, int64_t count) {
  using T = typename F::T;
  const int64_t most = state.slot_bytes / sizeof(T), me = state.rank;
  const auto slot = [&](int64_t rank, uint32_t number) {
    return reinterpret_cast<T*>(slot_of(state, rank, number));
  };
  const auto values = [&](int64_t chunk) { return least(most, count - chunk * most); };
  const auto begin = [&](int64_t chunk, int64_t rank) {
    return part_begin<T>(values(chunk), rank, state.size);
  };
  const auto put = [&](int64_t chunk, uint32_t number) {
    const T* from = x + chunk * most;
    const int64_t first = begin(chunk, me), end = begin(chunk, me + 1);
    copy(slot(me, number), from, first * sizeof(T));
    copy(slot(me, number) + end, from + end, (values(chunk) - end) * sizeof(T));
  };
  const auto turn = [&](int64_t chunk, uint32_t number) {
    const int64_t first = begin(chunk, me), part = begin(chunk, me + 1) - first;
    T* own = x + chunk * most + first;
    add_slots<F>(state, own, own, number, first, part);
    copy(slot(me, number) + first, own, part * sizeof(T));
  };
  const auto take = [&](int64_t chunk, uint32_t number) {
    for (int64_t rank = 0; rank < state.size; ++rank) {
      const int64_t first = begin(chunk, rank), end = begin(chunk, rank + 1);
      if (rank != me) copy(x + chunk * most + first, slot(rank, number) + first, (end - first) * sizeof(T));
    }
  };
  return in_chunks<3>(state, tag, chunks_of(count, most), put, turn, take);
}

template <class F>
int all_reduce(const CollectiveArgs& args) {
  RanksState& state = *args.ranks;
  using T = typename F::T;
  const int64_t bytes = args.count * static_cast<int64_t>(sizeof(T));
  const uint64_t tag = tag_of(kAllReduce, args.dtype, bytes);
  const bool is_small = bytes <= least(state.one_shot_bytes, state.slot_bytes);
  T* x = static_cast<T*>(args.x);
  return !(is_small ? reduce_in_one_shot<F>(state, tag, x, args.count)
                    : reduce_in_two<F>(state, tag, x, args.count));
}

// A slot holds as many values for each rank as it has room for.
template <class F>
int reduce_scatter(const CollectiveArgs& args) {
  using T = typename F::T;
  RanksState& state = *args.ranks;
  const T* x = static_cast<const T*>(args.x);
  T* out = static_cast<T*>(args.out);
  const int64_t count = args.count, most = state.slot_bytes / state.size / sizeof(T);
  const auto values = [&](int64_t chunk) { return least(most, count - chunk * most); };
  const auto put = [&](int64_t chunk, uint32_t number) {
    T* slot = reinterpret_cast<T*>(slot_of(state, state.rank, number));
    for (int64_t rank = 0; rank < state.size; ++rank)
      if (rank != state.rank)
        copy(slot + rank * most, x + rank * count + chunk * most, values(chunk) * sizeof(T));
  };
  const auto take = [&](int64_t chunk, uint32_t number) {
    const int64_t first = chunk * most;
    add_slots<F>(state, out + first, x + state.rank * count + first, number, state.rank * most,
                 values(chunk));
  };
  const uint64_t tag = tag_of(kReduceScatter, args.dtype, count * static_cast<int64_t>(sizeof(T)));
  return !in_chunks<2>(state, tag, chunks_of(count, most), put, no_turn, take);
}

}  // namespace

// x [count] becomes its sum over all ranks.
DT_KERNEL(all_reduce, CollectiveArgs) {
  if (args.dtype == kFloat32) return all_reduce<Float32>(args);
  if (args.dtype == kBfloat16) return all_reduce<Bfloat16>(args);
  return all_reduce<Float16>(args);
}

// out [count] becomes this rank's part of the sum of x [size, count] over all ranks.
DT_KERNEL(reduce_scatter, CollectiveArgs) {
  if (args.dtype == kFloat32) return reduce_scatter<Float32>(args);
  if (args.dtype == kBfloat16) return reduce_scatter<Bfloat16>(args);
  return reduce_scatter<Float16>(args);
}

// out [size, count] becomes x [count] of every rank. Nothing to gather is a barrier.
DT_KERNEL(all_gather, CollectiveArgs) {
  RanksState& state = *args.ranks;
  const char* x = static_cast<const char*>(args.x);
  char* out = static_cast<char*>(args.out);
  const int64_t count = args.count, most = state.slot_bytes;
  const auto bytes = [&](int64_t chunk) { return least(most, count - chunk * most); };
  const auto put = [&](int64_t chunk, uint32_t number) {
    copy(slot_of(state, state.rank, number), x + chunk * most, bytes(chunk));
  };
  const auto take = [&](int64_t chunk, uint32_t number) {
    for (int64_t rank = 0; rank < state.size; ++rank) {
      const bool is_own = rank == state.rank;
      const char* from = is_own ? x + chunk * most : slot_of(state, rank, number);
      copy(out + rank * count + chunk * most, from, bytes(chunk));
    }
  };
  return !in_chunks<2>(state, tag_of(kAllGather, 0, count), chunks_of(count, most), put, no_turn, take);
}

// x [count] becomes the root's.
DT_KERNEL(broadcast, CollectiveArgs) {
  RanksState& state = *args.ranks;
  char* x = static_cast<char*>(args.x);
  const int64_t root = args.dtype, count = args.count, most = state.slot_bytes;
  const auto bytes = [&](int64_t chunk) { return least(most, count - chunk * most); };
  const auto put = [&](int64_t chunk, uint32_t number) {
    if (state.rank == root) copy(slot_of(state, root, number), x + chunk * most, bytes(chunk));
  };
  const auto take = [&](int64_t chunk, uint32_t number) {
    if (state.rank != root) copy(x + chunk * most, slot_of(state, root, number), bytes(chunk));
  };
  return !in_chunks<2>(state, tag_of(kBroadcast, root, count), chunks_of(count, most), put, no_turn, take);
}

// x [count] goes to the other rank of two. It need not be there yet: up to two chunks wait for it in
// the slots. A publication of the receiver says that it has taken the chunk of that number.
DT_KERNEL(send_to_other, CollectiveArgs) {
  RanksState& state = *args.ranks;
  const char* x = static_cast<const char*>(args.x);
  const int64_t count = args.count, most = state.slot_bytes;
  if (has_broken(state)) return 1;
  for (int64_t chunk = 0; chunk < chunks_of(count, most); ++chunk) {
    const uint32_t number = state.published + 1;
    if (!wait_for(state, 1 - state.rank, number - 2)) return 1;
    copy(slot_of(state, state.rank, number), x + chunk * most, least(most, count - chunk * most));
    publish(state, tag_of(kSend, 0, count));
  }
  return 0;
}

// x [count] becomes what the other rank of two sends.
DT_KERNEL(receive_from_other, CollectiveArgs) {
  RanksState& state = *args.ranks;
  char* x = static_cast<char*>(args.x);
  const int64_t count = args.count, most = state.slot_bytes, other = 1 - state.rank;
  const uint64_t tag = tag_of(kSend, 0, count);
  if (has_broken(state)) return 1;
  for (int64_t chunk = 0; chunk < chunks_of(count, most); ++chunk) {
    const uint32_t number = state.published + 1;
    if (!wait_for(state, other, number)) return 1;
    const uint64_t sent = segment(state).lines[other].tags[number % kSlots];
    if (sent != tag) {
      state.own_tag = tag, state.other_tag = sent;
      fail(state, kDiffers, other);
      return 1;
    }
    copy(x + chunk * most, slot_of(state, other, number), least(most, count - chunk * most));
    publish(state, tag);
  }
  return 0;
}

// See AllToAllArgs. A slot holds as many bytes for each rank as it has room for.
DT_KERNEL(all_to_all, AllToAllArgs) {
  RanksState& state = *args.ranks;
  const int64_t me = state.rank, most = state.slot_bytes / state.size / 64 * 64;
  const auto bytes = [&](int64_t total, int64_t chunk) {
    const int64_t left = total - chunk * most;
    return left < 0 ? 0 : least(most, left);
  };
  const auto put = [&](int64_t chunk, uint32_t number) {
    for (int64_t rank = 0; rank < state.size; ++rank) {
      const char* piece = static_cast<const char*>(args.pieces[rank]) + chunk * most;
      char* to = rank == me ? static_cast<char*>(args.received[me]) + chunk * most
                            : slot_of(state, me, number) + rank * most;
      copy(to, piece, bytes(args.piece_bytes[rank], chunk));
    }
  };
  const auto take = [&](int64_t chunk, uint32_t number) {
    for (int64_t rank = 0; rank < state.size; ++rank)
      if (rank != me)
        copy(static_cast<char*>(args.received[rank]) + chunk * most,
             slot_of(state, rank, number) + me * most, bytes(args.received_bytes[rank], chunk));
  };
  const uint64_t tag = tag_of(kAllToAll, 0, args.largest);
  return !in_chunks<2>(state, tag, chunks_of(args.largest, most), put, no_turn, take);
}

// Tells the others that this rank makes no more calls.
DT_KERNEL(leave_ranks, RanksState) {
  Line& own = segment(args).lines[args.rank];
  __atomic_store_n(&own.has_left, 1, __ATOMIC_SEQ_CST);
  wake(&own.published);
  return 0;
}
