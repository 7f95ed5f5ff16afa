// What collectives are told. The same structs in Python: `dovetail_kernels.collective.native`.
#pragma once

#include "isa.h"

constexpr int kMaxRanks = 64;
constexpr int kHeaderBytes = 12288;  // of the segment, before the slots

// What a process knows of its group, kept from call to call.
struct RanksState {
  void* memory;        // the segment that all ranks have mapped (see segment.h); null: no more
  int64_t rank, size;
  int64_t slot_bytes;  // a multiple of 64
  int64_t one_shot_bytes;  // up to so many an all-reduce goes in one shot
  int64_t timeout_ns;      // how long one wait may last
  int64_t spin_ns;         // how long it stays awake at first, at most
  int64_t spin_now_ns;     // and for how long now; see wait_for
  int64_t waits;
  uint64_t own_tag, other_tag;  // of the two calls that differ, where that is the fault
  uint32_t published;           // the number of this rank's latest publication; it wraps
  int32_t fault, fault_rank;    // what went wrong, and with whom; 0 while nothing has
  int32_t pids[kMaxRanks];
  int32_t pidfds[kMaxRanks];  // what Linux knows the processes by; -1: only the pid
};

// One call. `count` is elements where numbers are added, else bytes; `dtype` is a Dtype.
struct CollectiveArgs {
  RanksState* ranks;
  void* x;
  void* out;
  int64_t count;
  int64_t dtype;  // broadcast: the root
};

// pieces[r] of piece_bytes[r] bytes goes to rank r, received[r] of received_bytes[r] comes from it.
struct AllToAllArgs {
  RanksState* ranks;
  const void* const* pieces;
  void* const* received;
  const int64_t* piece_bytes;
  const int64_t* received_bytes;
  int64_t largest;  // bytes of the largest piece between any two ranks
};
