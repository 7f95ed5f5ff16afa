// What sampling does with a register of floats: the weight of a token, comparisons as bit masks,
// exact sums. Every operation here gives the same bits on all instruction sets: no fused
// multiply-add, and sums of whole numbers below 2^53.
#pragma once

#include "vector.h"

namespace dt {
namespace DT_ISA {

// Bit i is set where lane i of a is at least b; false for NaN.
DT_INLINE uint32_t at_least(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
#else
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= uint32_t{a[i] >= b[i]} << i;
  return mask;
#endif
}

// w where x is at least b, else 0.
DT_INLINE Vec kept(Vec w, Vec x, Vec b) {
#if defined(__AVX512F__)
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, b, _CMP_GE_OQ), w);
#elif defined(__AVX2__)
  return _mm256_and_ps(w, _mm256_cmp_ps(x, b, _CMP_GE_OQ));
#else
  return (Vec)((IVec)w & (IVec)(x >= b));
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// For every mask of 8 lanes the indices of those set, one byte each.
struct PackIndices {
  uint64_t of[256];
  constexpr PackIndices() : of() {
    for (unsigned mask = 0; mask < 256; ++mask) {
      int place = 0;
      for (unsigned lane = 0; lane < 8; ++lane)
        if (mask >> lane & 1) of[mask] |= uint64_t{lane} << (8 * place++);
    }
  }
};
constexpr PackIndices kPackIndices;
#endif

// Writes the lanes of x that the mask names, side by side. Writes a whole register. Returns how many
// of its lanes count.
DT_INLINE int pack(float* to, Vec x, uint32_t mask) {
#if defined(__AVX512F__)
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), x));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(kPackIndices.of[mask]));
  _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(bytes)));
#else
  Vec packed = x;
  int place = 0;
  for (int i = 0; i < kLanes; ++i)
    if (mask >> i & 1) packed[place++] = x[i];
  memcpy(to, &packed, sizeof packed);
#endif
  return __builtin_popcount(mask);
}

// Remembers whether it has met a NaN.
struct Poison {
#if defined(__AVX512F__)
  __mmask16 found = 0;
  DT_INLINE void look(Vec a, Vec b) { found |= _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
  DT_INLINE bool is_met() const { return found != 0; }
#elif defined(__AVX2__)
  Vec found = _mm256_setzero_ps();
  DT_INLINE void look(Vec a, Vec b) { found = _mm256_or_ps(found, _mm256_cmp_ps(a, b, _CMP_UNORD_Q)); }
  DT_INLINE bool is_met() const { return _mm256_movemask_ps(found) != 0; }
#else
  IVec found = IVec{0, 0, 0, 0};
  DT_INLINE void look(Vec a, Vec b) { found |= (IVec)(a != a) | (IVec)(b != b); }
  DT_INLINE bool is_met() const { return (found[0] | found[1] | found[2] | found[3]) != 0; }
#endif
};

// The sum of whole numbers, exact while it is below 2^53.
struct WholeSum {
#if defined(__AVX512F__)
  __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
  DT_INLINE void add(Vec w) {
    low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(w)));
    high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(w, 1)));
  }
  DT_INLINE int64_t total() const {
    return static_cast<int64_t>(_mm512_reduce_add_pd(_mm512_add_pd(low, high)));
  }
#elif defined(__AVX2__)
  __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
  DT_INLINE void add(Vec w) {
    low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(w)));
    high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(w, 1)));
  }
  DT_INLINE int64_t total() const {
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(low, high));
    return static_cast<int64_t>((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
  }
#else
  typedef double Pair __attribute__((vector_size(16)));
  Pair low = Pair{0, 0}, high = Pair{0, 0};
  DT_INLINE void add(Vec w) {
    low += Pair{w[0], w[1]};
    high += Pair{w[2], w[3]};
  }
  DT_INLINE int64_t total() const {
    const Pair both = low + high;
    return static_cast<int64_t>(both[0] + both[1]);
  }
#endif
};

// A float of at least 0 rounded to the nearest whole number, ties to even.
DT_INLINE Vec whole(Vec x) {
#if defined(__AVX512F__) || defined(__AVX2__) || defined(__aarch64__)
  return nearest(x);
#else
  const Vec edge = set1(8388608.0f);  // from 2^23 on every float is whole
  const Vec rounded = (x + edge) - edge;
  const IVec is_small = (IVec)(x < edge);
  return (Vec)(((IVec)rounded & is_small) | ((IVec)x & ~is_small));
#endif
}

// The weight of a token whose scaled logit lies x <= 0 from the best: e^x in units of 2^-40, a whole
// number. The definition is `dovetail_kernels.sample.definition.weights`, step by step.
constexpr float kWeightless = -29.0f;  // from here down the weight is 0
DT_INLINE Vec weight(Vec x) {
  const Vec y = mul(max(x, set1(-30.0f)), set1(0x1.715476p+0f));
  const Vec n = nearest(y), f = sub(y, n);
  Vec p = set1(0x1.5bba14p-10f);
  p = add(mul(p, f), set1(0x1.3cea88p-7f));
  p = add(mul(p, f), set1(0x1.c6b752p-5f));
  p = add(mul(p, f), set1(0x1.ebf9bcp-3f));
  p = add(mul(p, f), set1(0x1.62e42ap-1f));
  p = add(mul(p, f), set1(1.0f));
  const Vec power = as_float(shift_left<23>(iadd(to_int(n), iset1(127 + 40))));
  return whole(mul(p, power));
}

}  // namespace DT_ISA
}  // namespace dt
