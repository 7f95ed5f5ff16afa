// The memory that the ranks of a machine share, and how one waits for the others.
//
// Every rank has a line that it alone writes: a counter that rises when it has put something into
// its slots, its publication, with a tag that says of which call. Publication n uses slot n mod 4.
// Whoever waits for publication n of a rank spins for a bounded time and then sleeps on the counter,
// looking now and then whether that rank is still alive. The counters wrap.
#pragma once

#include <errno.h>
#include <poll.h>
#include <signal.h>

#include "collective/args.h"
#include "futex.h"

namespace dt {
namespace DT_ISA {

constexpr int kSlots = 4;
constexpr int64_t kLookNs = 20 * 1000 * 1000;  // so often a waiting rank looks after the others
constexpr int64_t kTries = 32;  // one wait of this many is awake as long as it may

struct alignas(128) Line {
  uint32_t published;
  uint32_t sleepers;  // processes that sleep until `published` changes
  uint32_t has_left;
  uint64_t tags[kSlots];
};

struct Segment {
  alignas(128) uint32_t broken;  // the first fault of any rank: its kind and whose it is
  Line lines[kMaxRanks];
};  // slots follow, [size, kSlots, slot_bytes]
static_assert(sizeof(Segment) <= kHeaderBytes, "the slots would begin within the lines");

enum Fault { kNone, kLate, kGone, kLeft, kDiffers };

DT_INLINE Segment& segment(const RanksState& state) { return *static_cast<Segment*>(state.memory); }

DT_INLINE char* slot_of(const RanksState& state, int64_t rank, uint32_t number) {
  char* slots = static_cast<char*>(state.memory) + kHeaderBytes;
  return slots + (rank * kSlots + number % kSlots) * state.slot_bytes;
}

DT_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// Notes a fault for all ranks, unless one is noted already; takes over the one that is.
inline bool fail(RanksState& state, Fault fault, int64_t rank) {
  uint32_t found = 0;
  const uint32_t ours = static_cast<uint32_t>(fault) << 16 | static_cast<uint32_t>(rank);
  if (__atomic_compare_exchange_n(&segment(state).broken, &found, ours, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST))
    found = ours;
  state.fault = static_cast<int32_t>(found >> 16);
  state.fault_rank = static_cast<int32_t>(found & 0xffff);
  return false;
}

// Whether calls fail from now on: after a fault of any rank, and when this one has left.
DT_INLINE bool has_broken(RanksState& state) {
  if (!state.memory) state.fault = kLeft, state.fault_rank = static_cast<int32_t>(state.rank);
  if (!state.fault && !__atomic_load_n(&segment(state).broken, __ATOMIC_RELAXED)) return false;
  if (!state.fault) fail(state, kNone, 0);
  return true;
}

DT_INLINE bool has_published(const Line& line, uint32_t number) {
  return static_cast<int32_t>(__atomic_load_n(&line.published, __ATOMIC_ACQUIRE) - number) >= 0;
}

// Whether the process is no more; one that has ended and is not yet reaped counts as gone.
inline bool is_gone(const RanksState& state, int64_t rank) {
  pollfd asked = {state.pidfds[rank], POLLIN, 0};
  if (asked.fd >= 0) return poll(&asked, 1, 0) == 1;
  return kill(state.pids[rank], 0) != 0 && errno == ESRCH;
}

// Returns whether waiting for publication `number` may go on: every rank that has yet to make it is
// there, and in time.
inline bool may_wait(RanksState& state, uint32_t number, int64_t end_ns) {
  if (has_broken(state)) return false;
  const bool is_late = clock_ns() >= end_ns;
  for (int64_t rank = 0; rank < state.size; ++rank) {
    Line& line = segment(state).lines[rank];
    if (rank == state.rank) continue;
    const bool has_left = __atomic_load_n(&line.has_left, __ATOMIC_ACQUIRE);
    const bool has_gone = is_gone(state, rank);
    if (has_published(line, number)) continue;  // asked last: its latest act may have been this
    if (has_left) return fail(state, kLeft, rank);
    if (has_gone) return fail(state, kGone, rank);
    if (is_late) return fail(state, kLate, rank);
  }
  return true;
}

// Waits asleep; see wait_for.
inline bool sleep_for(RanksState& state, Line& line, uint32_t number, int64_t start_ns) {
  int64_t look_ns = start_ns + kLookNs;
  for (;;) {
    __atomic_add_fetch(&line.sleepers, 1, __ATOMIC_SEQ_CST);
    const uint32_t seen = __atomic_load_n(&line.published, __ATOMIC_SEQ_CST);
    const bool is_there = static_cast<int32_t>(seen - number) >= 0;
    if (!is_there) sleep_while(&line.published, seen, kLookNs);
    __atomic_sub_fetch(&line.sleepers, 1, __ATOMIC_SEQ_CST);
    if (is_there || has_published(line, number)) return true;
    const int64_t now = clock_ns();
    if (now < look_ns) continue;
    look_ns = now + kLookNs;
    if (!may_wait(state, number, start_ns + state.timeout_ns)) return false;
  }
}

// Waits for publication `number` of a rank. Returns false, and notes why, when it will not come.
//
// Staying awake helps where the other rank runs on another core, and takes its time away where both
// share one: a wait that was awake in vain makes the next ones shorter, one that was not restores
// them, and now and then one tries the whole time.
DT_INLINE bool wait_for(RanksState& state, int64_t rank, uint32_t number) {
  Line& line = segment(state).lines[rank];
  if (has_published(line, number)) return true;
  const int64_t start = clock_ns();
  const int64_t spin = ++state.waits % kTries ? state.spin_now_ns : state.spin_ns;
  while (spin && clock_ns() < start + spin)
    for (int i = 0; i < 16; ++i) {
      if (has_published(line, number)) {
        state.spin_now_ns = state.spin_ns;
        return true;
      }
      relax();
    }
  state.spin_now_ns = spin / 2;
  return sleep_for(state, line, number, start);
}

// Waits for publication `number` of all ranks, each of which must be of the call that `tag` says.
inline bool wait_for_all(RanksState& state, uint32_t number, uint64_t tag) {
  for (int64_t rank = 0; rank < state.size; ++rank) {
    if (rank == state.rank) continue;
    if (!wait_for(state, rank, number)) return false;
    const uint64_t other = segment(state).lines[rank].tags[number % kSlots];
    if (other == tag) continue;
    state.own_tag = tag, state.other_tag = other;
    return fail(state, kDiffers, rank);
  }
  return true;
}

// Tells the others that what this rank has written into its slots so far may be read.
DT_INLINE void publish(RanksState& state, uint64_t tag) {
  Line& own = segment(state).lines[state.rank];
  const uint32_t number = ++state.published;
  own.tags[number % kSlots] = tag;
  __atomic_store_n(&own.published, number, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&own.sleepers, __ATOMIC_SEQ_CST)) wake(&own.published);
}

// Moves `chunks` chunks through the slots in kStages steps each, several chunks under way at once:
// put(chunk, number) fills this rank's slot, then, when every rank's is filled, turn(chunk, number)
// works on them and fills slots again (with three stages only), and take(chunk, number) reads what
// all have filled. `number` says which slot (slot_of).
//
// Before a step's put every rank has made the publication two before it, so it has taken what the
// slot held four before it. Returns false when a rank is missing.
template <int kStages, class Put, class Turn, class Take>
DT_INLINE bool in_chunks(RanksState& state, uint64_t tag, int64_t chunks, const Put& put,
                         const Turn& turn, const Take& take) {
  if (has_broken(state)) return false;
  const uint32_t first = state.published + 1;
  const int64_t steps = chunks + kStages - 1;
  for (int64_t step = 0; step < steps; ++step) {
    const uint32_t number = first + static_cast<uint32_t>(step);
    if (step < chunks) put(step, number);
    if (step > 0 && !wait_for_all(state, number - 1, tag)) return false;
    if (kStages == 3 && step > 0 && step <= chunks) turn(step - 1, number - 1);
    if (step >= kStages - 1) take(step - (kStages - 1), number - (kStages - 1));
    if (step < steps - 1) publish(state, tag);
  }
  return true;
}

}  // namespace DT_ISA
}  // namespace dt
