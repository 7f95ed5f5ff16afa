// Bytes from one process to another, through a ring in memory that both have mapped.
//
// One process alone puts, one alone takes. Each end has a bell, a counter that rises whenever the
// other end has done something: whoever finds nothing to do notes the bell's count before it looks,
// and then waits until the count has changed, awake for a while and then asleep.

#include "byte_pipe/args.h"

#include "futex.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

struct Bell {
  uint32_t rung;  // it wraps
  uint32_t sleepers;
};

struct Ring {
  alignas(kLineBytes) uint64_t written;  // by the end that puts
  alignas(kLineBytes) uint64_t taken;    // by the end that takes
  alignas(kLineBytes) uint32_t is_closed;
};  // bytes follow
static_assert(sizeof(Ring) == kRingHeader, "native.py knows where a ring's bytes begin");

DT_INLINE char* bytes_of(Ring& ring) { return reinterpret_cast<char*>(&ring) + kRingHeader; }

DT_INLINE void ring_bell(void* memory) {
  Bell& bell = *static_cast<Bell*>(memory);
  __atomic_add_fetch(&bell.rung, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&bell.sleepers, __ATOMIC_SEQ_CST)) wake(&bell.rung);
}

DT_INLINE bool is_closed(const Ring& ring) {
  return __atomic_load_n(&ring.is_closed, __ATOMIC_ACQUIRE);
}

DT_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// move(place in the ring, offset from the first byte, bytes) for the one or two pieces in which
// `count` bytes lie from `at` on.
template <class Move>
DT_INLINE void in_pieces(uint64_t at, int64_t count, int64_t capacity, const Move& move) {
  const int64_t place = static_cast<int64_t>(at % static_cast<uint64_t>(capacity));
  const int64_t before_end = least(count, capacity - place);
  move(place, 0, before_end);
  if (count > before_end) move(0, before_end, count - before_end);
}

}  // namespace

// Puts as many bytes as there is room for.
DT_KERNEL(pipe_put, PipeArgs) {
  Ring& ring = *static_cast<Ring*>(args.ring);
  *args.done = -1;
  if (is_closed(ring)) return 0;
  const uint64_t written = ring.written, taken = __atomic_load_n(&ring.taken, __ATOMIC_ACQUIRE);
  const int64_t count = least(args.count, args.capacity - static_cast<int64_t>(written - taken));
  *args.done = count;
  if (!count) return 0;
  in_pieces(written, count, args.capacity, [&](int64_t place, int64_t offset, int64_t bytes) {
    memcpy(bytes_of(ring) + place, args.bytes + args.first + offset, bytes);
  });
  __atomic_store_n(&ring.written, written + count, __ATOMIC_SEQ_CST);
  ring_bell(args.bell);
  return 0;
}

// Takes at most `count` bytes of those that are there. Whoever puts waits only when the ring is full.
DT_KERNEL(pipe_take, PipeArgs) {
  Ring& ring = *static_cast<Ring*>(args.ring);
  const bool has_ended = is_closed(ring);  // asked first: what was put before it is still taken
  const uint64_t taken = ring.taken, written = __atomic_load_n(&ring.written, __ATOMIC_ACQUIRE);
  const int64_t there = static_cast<int64_t>(written - taken), count = least(args.count, there);
  *args.done = !there && has_ended ? -1 : count;
  if (!count) return 0;
  in_pieces(taken, count, args.capacity, [&](int64_t place, int64_t offset, int64_t bytes) {
    memcpy(args.bytes + args.first + offset, bytes_of(ring) + place, bytes);
  });
  __atomic_store_n(&ring.taken, taken + count, __ATOMIC_SEQ_CST);
  if (there == args.capacity) ring_bell(args.bell);
  return 0;
}

// Lets no more be put, and wakes the end whose bell is given.
DT_KERNEL(pipe_close, PipeArgs) {
  __atomic_store_n(&static_cast<Ring*>(args.ring)->is_closed, 1, __ATOMIC_SEQ_CST);
  ring_bell(args.bell);
  return 0;
}

// See BellArgs. Whoever else can run on the core does while this one is awake.
DT_KERNEL(bell_wait, BellArgs) {
  Bell& bell = *static_cast<Bell*>(args.bell);
  const uint32_t seen = static_cast<uint32_t>(args.seen);
  const int64_t start = clock_ns(), end = start + args.most_ns;
  const int64_t awake_end = start + least(args.awake_ns, args.most_ns);
  const auto has_rung = [&] { return __atomic_load_n(&bell.rung, __ATOMIC_SEQ_CST) != seen; };
  while (!has_rung()) {
    const int64_t now = clock_ns();
    if (now >= end) return 0;
    if (now < awake_end) {
      sched_yield();
      continue;
    }
    __atomic_add_fetch(&bell.sleepers, 1, __ATOMIC_SEQ_CST);
    if (!has_rung()) sleep_while(&bell.rung, seen, end - now);
    __atomic_sub_fetch(&bell.sleepers, 1, __ATOMIC_SEQ_CST);
  }
  return 0;
}
