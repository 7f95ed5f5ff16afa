// What tables and weights keep, as types by which templates tell them apart: float, Bf16, F16 and int8_t.
// All are loaded as floats.
#pragma once

#include "vector.h"

namespace dt {
namespace DT_ISA {

struct Bf16 {
  bf16 bits;
};
struct F16 {
  f16 bits;
};

DT_INLINE Vec load_of(const float* p) { return load(p); }
DT_INLINE Vec load_of(const Bf16* p) { return load_bf16(&p->bits); }
DT_INLINE Vec load_of(const F16* p) { return load_f16(&p->bits); }
DT_INLINE Vec load_of(const int8_t* p) { return load_s8(p); }
DT_INLINE float one_of(float x) { return x; }
DT_INLINE float one_of(Bf16 x) { return bf16_to_float(x.bits); }
DT_INLINE float one_of(F16 x) { return f16_to_float(x.bits); }
DT_INLINE float one_of(int8_t x) { return static_cast<float>(x); }

// The `count` <= kLanes entries at p, zeros after them.
template <class Entry>
DT_INLINE Vec load_first(const Entry* p, int count) {
  if (count == kLanes) return load_of(p);
  Entry lanes[kLanes] = {};
  memcpy(lanes, p, static_cast<size_t>(count) * sizeof(Entry));
  return load_of(lanes);
}

}  // namespace DT_ISA
}  // namespace dt
