// Numbers as a state or a table keeps them (entries.h), written and rounded.
#pragma once

#include "entries.h"

namespace dt {
namespace DT_ISA {

DT_INLINE void store_of(float* p, Vec x) { store(p, x); }
DT_INLINE void store_of(Bf16* p, Vec x) { store_bf16(&p->bits, x); }
DT_INLINE void store_of(F16* p, Vec x) { store_f16(&p->bits, x); }
DT_INLINE void set_one(float* p, float x) { *p = x; }
DT_INLINE void set_one(Bf16* p, float x) { p->bits = float_to_bf16(x); }
DT_INLINE void set_one(F16* p, float x) { p->bits = float_to_f16(x); }

// Writes the first `count` <= kLanes of them.
template <class Entry>
DT_INLINE void store_first(Entry* p, int count, Vec x) {
  if (count == kLanes) return store_of(p, x);
  Entry lanes[kLanes];
  store_of(lanes, x);
  memcpy(p, lanes, static_cast<size_t>(count) * sizeof(Entry));
}

// x as an Entry keeps it.
template <class Entry>
DT_INLINE Vec rounded(Vec x) {
  Entry lanes[kLanes];
  store_of(lanes, x);
  return load_of(lanes);
}
template <>
DT_INLINE Vec rounded<float>(Vec x) { return x; }

}  // namespace DT_ISA
}  // namespace dt
