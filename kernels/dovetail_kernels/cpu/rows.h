// What kernels over rows share: how rows become tasks, and sums whose order is fixed.
//
// A sum runs over four registers in turn, then over their lanes: its order depends on how many
// values there are and on nothing else, so a row's result is its own.
#pragma once

#include "pool.h"
#include "vector.h"

namespace dt {
namespace DT_ISA {

constexpr int64_t kTaskValues = 1 << 14;  // so many values are worth a task of their own

// Calls body(row) for each of `rows` rows of `values` values; `cost` weighs a value's work.
template <class Body>
DT_INLINE void each_row(int64_t rows, int64_t values, const Body& body, int64_t cost = 1) {
  const int64_t work = values * cost > 0 ? values * cost : 1;
  const int64_t some = work < kTaskValues ? kTaskValues / work : 1;
  parallel((rows + some - 1) / some, [&](int64_t task) {
    const int64_t last = (task + 1) * some < rows ? (task + 1) * some : rows;
    for (int64_t row = task * some; row < last; ++row) body(row);
  });
}

// Returns how many channels a task has where channels are shared out: few enough for two tasks a thread,
// at most `most`, a multiple of `least`.
DT_INLINE int64_t channels_of_task(int64_t channels, int64_t least, int64_t most) {
  const int64_t some = divide_up(divide_up(channels, 2 * num_threads()), least) * least;
  return some < least ? least : some < most ? some : most;
}

// Calls body(i, count) for the registers that cover `size` values: count is kLanes except, for
// the last one, what is left.
template <class Body>
DT_INLINE void each_register(int64_t size, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, kLanes);
  if (i < size) body(i, static_cast<int>(size - i));
}

DT_INLINE Vec load_up_to(const float* p, int count) {
  return count == kLanes ? load(p) : load_some(p, count, 0.0f);
}
DT_INLINE void store_up_to(float* p, int count, Vec x) {
  if (count == kLanes) store(p, x);
  else store_some(p, count, x);
}

// x += delta
DT_INLINE void add_row(float* x, const float* delta, int64_t size) {
  each_register(size, [&](int64_t i, int count) {
    store_up_to(x + i, count, add(load_up_to(x + i, count), load_up_to(delta + i, count)));
  });
}

// Adds term(sum, i, count), which returns sum plus the values i .. i + count, lane by lane.
template <class Term>
DT_INLINE float ordered_sum(int64_t size, const Term& term) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= size; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) sums[j] = term(sums[j], i + j * kLanes, kLanes);
  for (; i + kLanes <= size; i += kLanes) sums[0] = term(sums[0], i, kLanes);
  if (i < size) sums[1] = term(sums[1], i, static_cast<int>(size - i));
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// 1 / sqrt(mean(x^2) + eps)
DT_INLINE float inverse_rms(const float* x, int64_t size, float eps) {
  const float squares = ordered_sum(size, [&](Vec s, int64_t i, int count) {
    const Vec v = load_up_to(x + i, count);
    return fma(v, v, s);
  });
  return 1.0f / sqrtf(squares / static_cast<float>(size) + eps);
}

}  // namespace DT_ISA
}  // namespace dt
