// Sleeping on a word of memory that several processes have mapped, and waking whoever sleeps.
#pragma once

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "vector.h"

namespace dt {
namespace DT_ISA {

DT_INLINE int64_t clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Sleeps while *word == value, for at most `most_ns`. Other processes wake it, and so may a signal.
inline void sleep_while(uint32_t* word, uint32_t value, int64_t most_ns) {
#if defined(__linux__)
  const timespec most = {most_ns / 1000000000, most_ns % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &most, nullptr, 0);
#else
  const int64_t end = clock_ns() + most_ns;
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value && clock_ns() < end) sched_yield();
#endif
}

inline void wake(uint32_t* word) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#else
  (void)word;
#endif
}

}  // namespace DT_ISA
}  // namespace dt
