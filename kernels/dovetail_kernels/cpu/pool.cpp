// See pool.h. Linux sleeps on futexes; elsewhere a condition variable does the same.

#include "pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dt {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kScratches = 8;

struct Scratch {
  void* memory;
  size_t bytes;
};

struct alignas(128) Shared {
  // One job at a time. `generation` rises when a job begins and is what workers wait for;
  // `busy` counts the workers that have joined and not yet left it.
  volatile int32_t generation = 0;
  alignas(128) volatile int32_t busy = 0;
  alignas(128) volatile int32_t sleepers = 0;
  alignas(128) volatile int32_t caller_sleeps = 0;
  Task fn = nullptr;
  void* context = nullptr;
  volatile int32_t stopping = 0;
};

// A thread's part of a job: tasks from `left >> 32` to `left & 0xffffffff` are not yet begun.
struct alignas(128) Share {
  volatile int64_t left;
};

Shared shared;
Share shares[kMaxThreads];
pthread_t workers[kMaxThreads];
int thread_count = 1;
int64_t spin_ns = 50000;
pthread_mutex_t caller_lock = PTHREAD_MUTEX_INITIALIZER;
__thread int this_thread = 0;
__thread Scratch scratches[kScratches];

DT_INLINE void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#if defined(__linux__)
void sleep_while(volatile int32_t* word, int32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake(volatile int32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0);
}
#else
pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t sleep_condition = PTHREAD_COND_INITIALIZER;
void sleep_while(volatile int32_t* word, int32_t value) {
  pthread_mutex_lock(&sleep_lock);
  while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value)
    pthread_cond_wait(&sleep_condition, &sleep_lock);
  pthread_mutex_unlock(&sleep_lock);
}
void wake(volatile int32_t*) {
  pthread_mutex_lock(&sleep_lock);
  pthread_cond_broadcast(&sleep_condition);
  pthread_mutex_unlock(&sleep_lock);
}
#endif

// Spins while *word == value, for at most spin_ns. Returns whether it still is.
bool spin_while(volatile int32_t* word, int32_t value) {
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return false;
  if (spin_ns <= 0) return true;
  const int64_t end = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 64; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return false;
      relax();
    }
  } while (now_ns() < end);
  return true;
}

int64_t tasks_from_to(int64_t first, int64_t end) { return first << 32 | end; }

// Returns the first task that is left of a share, or the last when it is another thread's; -1 when
// there is none.
int64_t take_task(Share& share, bool is_own) {
  int64_t left = __atomic_load_n(&share.left, __ATOMIC_RELAXED);
  for (;;) {
    const int64_t first = left >> 32, end = left & 0xffffffff;
    if (first >= end) return -1;
    const int64_t rest = is_own ? tasks_from_to(first + 1, end) : tasks_from_to(first, end - 1);
    if (__atomic_compare_exchange_n(&share.left, &left, rest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return is_own ? first : end - 1;
  }
}

void do_tasks(Task fn, void* context) {
  for (int i = 0; i < thread_count; ++i) {
    Share& share = shares[(this_thread + i) % thread_count];
    for (int64_t task; (task = take_task(share, i == 0)) >= 0;) fn(context, task);
  }
}

void leave_job() {
  if (__atomic_sub_fetch(&shared.busy, 1, __ATOMIC_SEQ_CST) == 0 &&
      __atomic_load_n(&shared.caller_sleeps, __ATOMIC_SEQ_CST))
    wake(&shared.busy);
}

void* work(void* index) {
  this_thread = static_cast<int>(reinterpret_cast<intptr_t>(index));
  int32_t seen = 0;
  for (;;) {
    if (spin_while(&shared.generation, seen)) {
      __atomic_add_fetch(&shared.sleepers, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&shared.generation, __ATOMIC_SEQ_CST) == seen)
        sleep_while(&shared.generation, seen);
      __atomic_sub_fetch(&shared.sleepers, 1, __ATOMIC_SEQ_CST);
    }
    seen = __atomic_load_n(&shared.generation, __ATOMIC_ACQUIRE);
    if (shared.stopping) return nullptr;
    // Join before looking for tasks, and only a job that is still open: an odd `generation`.
    if (!(seen & 1)) continue;
    __atomic_add_fetch(&shared.busy, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared.generation, __ATOMIC_SEQ_CST) == seen)
      do_tasks(shared.fn, shared.context);
    leave_job();
  }
}

void stop_workers() {
  if (thread_count <= 1) return;
  shared.stopping = 1;
  __atomic_add_fetch(&shared.generation, 2, __ATOMIC_SEQ_CST);
  wake(&shared.generation);
  for (int i = 1; i < thread_count; ++i) pthread_join(workers[i], nullptr);
  shared.stopping = 0;
  thread_count = 1;
}

// A forked child has the caller's thread only.
void forget_workers() {
  thread_count = 1;
  shared.busy = 0;
  shared.sleepers = 0;
  pthread_mutex_init(&caller_lock, nullptr);
}

void pin(pthread_t thread, int core) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
#else
  (void)thread, (void)core;
#endif
}

}  // namespace

int thread_index() { return this_thread; }
int num_threads() { return thread_count; }

void* scratch(int which, size_t bytes) {
  Scratch& own = scratches[which];
  if (own.bytes < bytes) {
    free(own.memory);
    own.bytes = 0;
    own.memory = nullptr;
    const size_t rounded = (bytes + 4095) & ~size_t{4095};
    if (posix_memalign(&own.memory, 4096, rounded)) return own.memory = nullptr;
    own.bytes = rounded;
  }
  return own.memory;
}

void prefer_large_pages(void* start, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = 1 << 21, from = reinterpret_cast<uintptr_t>(start);
  const uintptr_t first = (from + page - 1) & ~(page - 1), end = (from + bytes) & ~(page - 1);
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#else
  (void)start, (void)bytes;
#endif
}

void run(int64_t tasks, Task fn, void* context) {
  // Alone when there is no one to share with, or when another thread's call has the pool.
  if (tasks == 1 || tasks > INT32_MAX || thread_count == 1 || this_thread != 0 ||
      pthread_mutex_trylock(&caller_lock)) {
    for (int64_t task = 0; task < tasks; ++task) fn(context, task);
    return;
  }
  shared.fn = fn;
  shared.context = context;
  for (int i = 0; i < thread_count; ++i) {
    const int64_t first = tasks * i / thread_count, end = tasks * (i + 1) / thread_count;
    __atomic_store_n(&shares[i].left, tasks_from_to(first, end), __ATOMIC_RELAXED);
  }
  __atomic_add_fetch(&shared.generation, 1, __ATOMIC_SEQ_CST);  // odd: open
  if (__atomic_load_n(&shared.sleepers, __ATOMIC_SEQ_CST)) wake(&shared.generation);
  do_tasks(fn, context);
  __atomic_add_fetch(&shared.generation, 1, __ATOMIC_SEQ_CST);  // even: nobody joins any more
  for (int32_t left; (left = __atomic_load_n(&shared.busy, __ATOMIC_SEQ_CST)) != 0;) {
    if (!spin_while(&shared.busy, left)) continue;
    __atomic_store_n(&shared.caller_sleeps, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&shared.busy, __ATOMIC_SEQ_CST) == left) sleep_while(&shared.busy, left);
    __atomic_store_n(&shared.caller_sleeps, 0, __ATOMIC_SEQ_CST);
  }
  pthread_mutex_unlock(&caller_lock);
}

}  // namespace dt

// Sets the pool up anew: `threads` in all (the caller is one), waits of at most `spin_us`, and,
// when `cores` is not null, thread i on core cores[i]. Returns the number of threads it has.
DT_C int dt_pool_set(int threads, int64_t spin_us, const int32_t* cores) {
  using namespace dt;
  static bool is_guarded = false;
  pthread_mutex_lock(&caller_lock);
  stop_workers();
  if (!is_guarded) pthread_atfork(nullptr, nullptr, forget_workers);
  is_guarded = true;
  spin_ns = spin_us * 1000;
  if (threads > kMaxThreads) threads = kMaxThreads;
  if (cores) pin(pthread_self(), cores[0]);
  for (int i = 1; i < threads; ++i) {
    if (pthread_create(&workers[i], nullptr, work, reinterpret_cast<void*>(intptr_t{i}))) break;
    if (cores) pin(workers[i], cores[i]);
    thread_count = i + 1;
  }
  pthread_mutex_unlock(&caller_lock);
  return thread_count;
}

DT_C void dt_prefer_large_pages(void* start, int64_t bytes) { dt::prefer_large_pages(start, bytes); }

DT_C int dt_pool_threads() { return dt::num_threads(); }
