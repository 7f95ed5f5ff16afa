// What byte_pipe's kernels take; native.py has the same structs.
#pragma once

#include <stdint.h>

constexpr int64_t kLineBytes = 128;   // nothing that two processes write shares so many bytes
constexpr int64_t kRingHeader = 384;  // of a ring, before its bytes

// One call. `bytes + first` and on is what is put, or where what is taken goes.
struct PipeArgs {
  void* ring;
  void* bell;  // the other end's
  char* bytes;
  int64_t first;
  int64_t count;
  int64_t capacity;
  int64_t* done;  // how many bytes went; -1: the pipe is closed
};

// One wait, until the bell has been rung since it was at `seen`.
struct BellArgs {
  void* bell;
  int64_t awake_ns;  // so long without sleeping
  int64_t most_ns;   // so long in all
  int64_t seen;
};
