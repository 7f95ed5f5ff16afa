// What selective_scan does with registers beside what vector.h has.
#pragma once

#include "vector.h"

namespace dt {
namespace DT_ISA {

// ln(1 + e^x) = max(x, 0) + ln(1 + u) with u = e^-|x|, and ln(1 + u) = 2 artanh(u / (2 + u)), whose
// series ends where a term is below 2e-8 of the first. Relative error below 4e-7 where e^-|x| is not
// flushed to zero.
DT_INLINE Vec softplus(Vec x) {
  const Vec size = max(x, sub(zero(), x));
  const Vec u = exp(sub(zero(), size));
  const Vec r = div(u, add(set1(2.0f), u)), t = mul(r, r);
  Vec p = set1(2.0f / 15);
  p = fma(p, t, set1(2.0f / 13));
  p = fma(p, t, set1(2.0f / 11));
  p = fma(p, t, set1(2.0f / 9));
  p = fma(p, t, set1(2.0f / 7));
  p = fma(p, t, set1(2.0f / 5));
  p = fma(p, t, set1(2.0f / 3));
  p = fma(p, t, set1(2.0f));
  return fma(p, r, max(x, zero()));
}

// 2^t by 2^n (1 + r q(r)) with n the nearest whole number, |r| <= 1/2: relative error below 2e-7. Between
// 2^-126 and 2^126; a NaN stays a NaN.
DT_INLINE Vec power_of_two(Vec t) {
  const Vec clipped = min(set1(126.0f), max(set1(-126.0f), t));
  const Vec n = nearest(clipped), r = sub(clipped, n);
  Vec q = set1(1.32647273e-3f);
  q = fma(q, r, set1(9.67151299e-3f));
  q = fma(q, r, set1(5.55073358e-2f));
  q = fma(q, r, set1(2.40222424e-1f));
  q = fma(q, r, set1(6.93147004e-1f));
  const Vec p = fma(q, r, set1(1.0f));
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  return mul(p, as_float(shift_left<23>(iadd(to_int(n), iset1(127)))));
#endif
}

// The sum of each of kLanes registers: lane i is that of x[i].
DT_INLINE Vec sums(const Vec* x) {
#if defined(__AVX512F__)
  Vec fours[4];
  for (int i = 0; i < 4; ++i) {
    const Vec* p = x + 4 * i;
    const Vec low = add(_mm512_unpacklo_ps(p[0], p[1]), _mm512_unpackhi_ps(p[0], p[1]));
    const Vec high = add(_mm512_unpacklo_ps(p[2], p[3]), _mm512_unpackhi_ps(p[2], p[3]));
    const __m512d l = _mm512_castps_pd(low), h = _mm512_castps_pd(high);
    fours[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(l, h)), _mm512_castpd_ps(_mm512_unpackhi_pd(l, h)));
  }
  const Vec first = add(_mm512_shuffle_f32x4(fours[0], fours[1], 0x44),
                        _mm512_shuffle_f32x4(fours[0], fours[1], 0xee));
  const Vec second = add(_mm512_shuffle_f32x4(fours[2], fours[3], 0x44),
                         _mm512_shuffle_f32x4(fours[2], fours[3], 0xee));
  return add(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
#elif defined(__AVX2__)
  Vec fours[2];
  for (int i = 0; i < 2; ++i) {
    const Vec* p = x + 4 * i;
    fours[i] = _mm256_hadd_ps(_mm256_hadd_ps(p[0], p[1]), _mm256_hadd_ps(p[2], p[3]));
  }
  return add(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
             _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
#else
  return Vec{sum(x[0]), sum(x[1]), sum(x[2]), sum(x[3])};
#endif
}

}  // namespace DT_ISA
}  // namespace dt
