// The threads that kernels run on: one pool per process, the caller among them.
//
// run(tasks, fn, context) calls fn(context, task) once for every task. A thread has a share of tasks
// that follow one another, and does them in order: what they read is one stream to the processor.
// Whoever is done takes the last ones of the others, so a thread that loses its core holds up one
// task and not its share of the work.
// A worker that finds no work spins for a bounded time and then sleeps in the kernel: spinning
// hides the gap between two calls, sleeping leaves the core to others. Calls from several threads
// at once are safe: the later one does its work alone.
#pragma once

#include "isa.h"

namespace dt {

using Task = void (*)(void* context, int64_t task);

void run(int64_t tasks, Task fn, void* context);

// Which of the pool's threads this is: 0 for the caller, below num_threads() for all.
int thread_index();
int num_threads();

// A buffer of this thread's own, at least `bytes` long and 64-aligned, kept until the next call
// with the same `which` asks for more. Null when memory cannot be had.
void* scratch(int which, size_t bytes);

// Asks for large pages under this memory: a stream through it then needs few address translations.
// A hint, no more.
void prefer_large_pages(void* start, int64_t bytes);

// parallel(tasks, [&](int64_t task) { ... })
template <class Body>
DT_INLINE void parallel(int64_t tasks, const Body& body) {
  if (tasks <= 0) return;
  run(tasks, [](void* context, int64_t task) { (*static_cast<const Body*>(context))(task); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace dt
