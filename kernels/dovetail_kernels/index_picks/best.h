// The positions of the highest of many scores; of equal ones the first. And queries in batches, whose scores
// are in memory at once.
#pragma once

#include "vector.h"

namespace dt {
namespace DT_ISA {
namespace {

constexpr int kHighBits = 11, kLowBits = 10;

// A number of the same order as a float's.
DT_INLINE uint32_t order_of(float x) {
  const uint32_t bits = to_bits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Of the scores whose bits above `shift + bits` are those of *prefix, finds the next `bits` bits of the
// `left`th highest; takes away from *left those that are higher. `counts` has room for 2^bits.
void narrow_down(const uint32_t* orders, int64_t size, int shift, int bits, uint32_t* prefix,
                 int64_t* left, int32_t* counts) {
  const uint32_t mask = (1u << bits) - 1;
  const uint64_t above = static_cast<uint64_t>(shift) + bits;
  memset(counts, 0, sizeof(int32_t) << bits);
  for (int64_t i = 0; i < size; ++i)
    if ((static_cast<uint64_t>(orders[i]) >> above) == *prefix) ++counts[(orders[i] >> shift) & mask];
  uint32_t digit = mask;
  while (counts[digit] < *left) *left -= counts[digit--];
  *prefix = *prefix << bits | digit;
}

// Writes the positions of the `picked` highest of more scores. Turns scores into their orders.
void pick(float* scores, int64_t size, int64_t picked, int32_t* picks) {
  auto* orders = reinterpret_cast<uint32_t*>(scores);
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t order = order_of(scores[i]);
    memcpy(orders + i, &order, sizeof(order));
  }
  int32_t counts[1 << kHighBits];
  uint32_t least = 0;
  int64_t left = picked;  // how many of those that are `least` are picked, the first ones
  narrow_down(orders, size, kHighBits + kLowBits, kHighBits, &least, &left, counts);
  narrow_down(orders, size, kLowBits, kHighBits, &least, &left, counts);
  narrow_down(orders, size, 0, kLowBits, &least, &left, counts);
  int64_t count = 0;
  for (int64_t i = 0; i < size && count < picked; ++i)
    if (orders[i] > least || (orders[i] == least && left-- > 0)) picks[count++] = static_cast<int32_t>(i);
}

constexpr int64_t kMaxScores = 1 << 22;  // held at once, of several queries

// Calls batch(first, count, longest) for `listed` queries after each other, as many at a time as their scores
// fit, one at least; query i has scores_of(i), `longest` is the most of a batch. Returns what a batch returned
// that is not 0, else 0.
template <class Scores, class Batch>
int in_batches(int64_t listed, const Scores& scores_of, const Batch& batch) {
  for (int64_t first = 0; first < listed;) {
    int64_t count = 0, longest = 0;
    for (; first + count < listed; ++count) {
      const int64_t own = scores_of(first + count), most = own > longest ? own : longest;
      if (count && most * (count + 1) > kMaxScores) break;
      longest = most;
    }
    if (const int fault = batch(first, count, longest)) return fault;
    first += count;
  }
  return 0;
}

}  // namespace
}  // namespace DT_ISA
}  // namespace dt
