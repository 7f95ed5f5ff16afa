// Numbers as a state or a table keeps them (entries.h), written and rounded.
#pragma once

#include "entries.h"

namespace dt {
namespace DT_ISA {

DT_INLINE void store_of(float* p, Vec x) { store(p, x); }
DT_INLINE void store_of(Bf16* p, Vec x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // What store_bf16 does number by number: to nearest even in integers, a NaN stays a NaN.
  const IVec bits = as_int(x), high = shift_right<16>(bits);
  const IVec even = shift_right<16>(iadd(iadd(bits, iset1(0x7fff)), iand(high, iset1(1))));
  const Vec is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const IVec nan = _mm256_or_si256(high, iset1(64));
  const IVec all = as_int(_mm256_blendv_ps(as_float(even), as_float(nan), is_nan));
  const IVec packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
#else
  store_bf16(&p->bits, x);
#endif
}
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
