// Logprobs of one row: of a token with its rank, and of the n most likely.
#pragma once

#include "sample/row.h"

namespace dt {
namespace DT_ISA {

constexpr double kFloorLogprob = -9999.0;

DT_INLINE double clamped(double logprob) {
  if (logprob > 0.0) return 0.0;
  return logprob < kFloorLogprob ? kFloorLogprob : logprob;
}

// How many logits are above `value`.
static inline int64_t count_above(const Row& row, float value) {
  int64_t n = 0;
  const Vec bound = set1(value);
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (!(row.maxima[block] > value)) continue;
    row.each(block, [&](Vec x, int64_t, int count) {
      n += __builtin_popcount(~at_least(bound, x) & ((1u << count) - 1));
    });
  }
  return n;
}

// The n most likely tokens, the likeliest first, the lower id first among equals. `found`, `spare`
// and `ids` hold [V]; ids and values are the results.
static inline void top_tokens(const Row& row, int64_t n, float* found, int32_t* ids, float* spare,
                              float* values) {
  const int64_t num_found = gather(row, Scale{}, nth_maximum(row, Scale{}, n, spare), found, ids);
  const Cut cut = select(found, nullptr, num_found, num_found, n, spare, nullptr);
  int64_t left = cut.rest, size = 0;
  for (int64_t i = 0; i < num_found; ++i) {
    const float value = found[i];
    const int32_t id = ids[i];
    if (value < cut.value || (value == cut.value && left-- <= 0)) continue;
    int64_t place = size++;
    for (; place > 0 && values[place - 1] < value; --place) {
      values[place] = values[place - 1];
      ids[place] = ids[place - 1];
    }
    values[place] = value;
    ids[place] = id;
  }
}

}  // namespace DT_ISA
}  // namespace dt
