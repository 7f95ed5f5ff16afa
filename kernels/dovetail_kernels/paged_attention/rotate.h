// A rotation of queries and keys that spreads what is in one channel over all of them.
//
// Products of vectors that are rotated alike are the same, and a key without channels that stand out has
// more levels where a key's numbers share one scale. The rotation is a Walsh-Hadamard transform of every
// `block` numbers, the largest power of two that divides the head size: additions alone. Keys are left
// longer by the root of `block`, queries are made shorter by as much twice: both exact where it matters.
// Source: Ashkboos et al., QuaRot, 2024, section 4 (keys are rotated before they are quantized).
#pragma once

#include <string.h>

#include "isa.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int64_t kMaxHeadSize = 512;

DT_INLINE int64_t rotated_block(int64_t size) { return size & -size; }

// to = the transform of from, times `factor`; they may not overlap.
inline void rotate(const float* from, int64_t size, float factor, float* to) {
  const int64_t block = rotated_block(size);
  for (int64_t d = 0; d < size; ++d) to[d] = from[d] * factor;
  for (int64_t first = 0; first < size; first += block)
    for (int64_t half = 1; half < block; half *= 2)
      for (int64_t i = first; i < first + block; i += 2 * half)
        for (int64_t j = i; j < i + half; ++j) {
          const float a = to[j], b = to[j + half];
          to[j] = a + b;
          to[j + half] = a - b;
        }
}
// The factor of queries; that of keys is 1.
DT_INLINE float query_rotation(int64_t size) { return 1.0f / static_cast<float>(rotated_block(size)); }

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
