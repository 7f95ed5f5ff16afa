// How each cache format is multiplied: what a panel's step is, and how it meets a row's number.
//
// A panel is 16 wide. Its steps come in groups of `step` that share memory: load<s>(panel, k, w)
// gives step k + s of the group that begins at k, in kVecs registers, in units of `unit`. `fold`
// numbers of the slow axis make one step. pack writes a query, scaled, as it meets the keys; keep
// stores weights of the softmax as they meet the values, and returns them as they will count.
// Nothing here knows attention.
#pragma once

#include "paged_attention/layout.h"
#include "vector.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kVecs = kCell / kLanes;

// Stores kLanes integers of 16 bits' range.
DT_INLINE void store_s16(int16_t* p, IVec x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
#elif defined(__AVX2__)
  const __m128i packed =
      _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
#else
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int16_t>(x[i]);
#endif
}

// e^x for x <= 0 by 2^n p(r), |r| <= 1/2, p of degree 4: relative error below 3e-6, for weights that
// become 16 bits or fewer. Results below 2^-126 are that or 0; a NaN stays one.
DT_INLINE Vec exp_short(Vec x) {
#if defined(__AVX512F__)
  const Vec t = mul(x, set1(1.44269504f));
#else
  const Vec t = max(set1(-126.0f), mul(x, set1(1.44269504f)));  // in this order it keeps a NaN
#endif
  const Vec n = nearest(t), r = sub(t, n);
  Vec p = set1(9.5828531e-3f);
  p = fma(p, r, set1(5.5906427e-2f));
  p = fma(p, r, set1(2.4024099e-1f));
  p = fma(p, r, set1(6.9312419e-1f));
  p = fma(p, r, set1(1.0f));
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  return mul(p, as_float(shift_left<23>(iadd(to_int(n), iset1(127)))));
#endif
}

// Softmax weights that stay floats until the values.
struct FloatWeights {
  static constexpr float unit = 1.0f;
  static DT_INLINE Vec weight(Vec x) { return fma(x, zero(), exp(x)); }  // exp alone loses a NaN
  static DT_INLINE Vec keep(Vec weights, float* to, int32_t*) {
    store(to, weights);
    return weights;
  }
};

// Formats whose values become floats in a register.
struct FloatSums : FloatWeights {
  using Sum = Vec;
  using Factor = float;
  static constexpr int fold = 1;
  static constexpr bool has_float_sums = true;
  static DT_INLINE Sum none() { return zero(); }
  static DT_INLINE Vec spread(float x) { return set1(x); }
  static DT_INLINE Sum add_product(Vec x, Vec w, Sum sum) {
    return fma(x, w, sum);
  }
  static DT_INLINE void pack(const float* q, int64_t size, float scale, float* to, float*) {
    for (int64_t d = 0; d < size; d += kLanes) store(to + d, mul(DT_ISA::load(q + d), set1(scale)));
  }
};

struct Float32 : FloatSums {
  static constexpr int step = 1, item = 4;
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, Vec (&w)[kVecs]) {
    const float* at = reinterpret_cast<const float*>(panel) + k * kCell;
    for (int i = 0; i < kVecs; ++i) w[i] = DT_ISA::load(at + i * kLanes);
  }
};

struct Bfloat16 : FloatSums {
  static constexpr int step = 2, item = 2;
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, Vec (&w)[kVecs]) {
    const uint32_t* at = reinterpret_cast<const uint32_t*>(panel) + k / 2 * kCell;
    for (int i = 0; i < kVecs; ++i) {
      const IVec pair = iload(at + i * kLanes);
#if defined(__AVX512F__)
      const IVec upper = iand(pair, iset1(static_cast<int32_t>(0xffff0000)));
#else
      const IVec upper = shift_left<16>(shift_right<16>(pair));  // needs no register for a mask
#endif
      w[i] = as_float(s ? upper : shift_left<16>(pair));
    }
  }
};

struct Float16 : FloatSums {
  static constexpr int step = 1, item = 2;
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, Vec (&w)[kVecs]) {
    const f16* at = reinterpret_cast<const f16*>(panel) + k * kCell;
    for (int i = 0; i < kVecs; ++i) w[i] = load_f16(at + i * kLanes);
  }
};

// The sixteen-bit lanes of two steps of 8-bit floats: those of step s, their sign in all bits above.
#if defined(__AVX512F__)
template <int s> DT_INLINE __m256i bytes_of_step(const char* at) {
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return _mm256_srai_epi16(s ? both : _mm256_slli_epi16(both, 8), 8);
}
#elif defined(__AVX2__)
template <int s> DT_INLINE __m128i bytes_of_step(const char* at) {
  const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm_srai_epi16(s ? both : _mm_slli_epi16(both, 8), 8);
}
#endif

// Eight-bit floats by way of halves: e5m2 is a half's upper byte; e4m3 has a half's layout but for
// one exponent bit, which is a factor of 2^8, and has no infinities but one NaN.
struct E4m3 : FloatSums {
  static constexpr int step = 2, item = 1;
  static constexpr float unit = 256.0f;
  static DT_INLINE float widen(uint8_t x) {
    const float sign = x & 0x80 ? -1.0f : 1.0f;
    const int exponent = (x >> 3) & 15, mantissa = x & 7;
    if ((x & 0x7f) == 0x7f) return from_bits(0x7fc00000);
    if (exponent == 0) return sign * static_cast<float>(mantissa) * 0x1p-17f;
    return sign * from_bits(static_cast<uint32_t>(exponent + 112) << 23 |
                            static_cast<uint32_t>(mantissa) << 20);
  }
  // Adding 1 carries into bit 7 for the codes of NaN alone: that bit, a half's highest of the
  // exponent, becomes set for them and clear for others.
#if defined(__AVX512F__)
  static DT_INLINE __m256i halves(__m256i x) {
    const __m256i next = _mm256_add_epi16(x, _mm256_set1_epi16(1)), bit = _mm256_set1_epi16(0x80);
    return _mm256_slli_epi16(_mm256_ternarylogic_epi32(x, next, bit, 0x78), 7);  // x ^ (next & bit)
  }
#elif defined(__AVX2__)
  static DT_INLINE __m128i halves(__m128i x) {
    const __m128i next = _mm_add_epi16(x, _mm_set1_epi16(1));
    return _mm_slli_epi16(_mm_xor_si128(x, _mm_and_si128(next, _mm_set1_epi16(0x80))), 7);
  }
#endif
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, Vec (&w)[kVecs]) {
    const char* at = panel + k / 2 * (2 * kCell);
#if defined(__AVX512F__)
    w[0] = _mm512_cvtph_ps(halves(bytes_of_step<s>(at)));
#elif defined(__AVX2__)
    for (int i = 0; i < kVecs; ++i)
      w[i] = _mm256_cvtph_ps(halves(bytes_of_step<s>(at + i * 2 * kLanes)));
#else
    float wide[kCell];
    for (int i = 0; i < kCell; ++i) wide[i] = widen(static_cast<uint8_t>(at[2 * i + s]));
    for (int i = 0; i < kVecs; ++i) w[i] = DT_ISA::load(wide + i * kLanes);
#endif
  }
};

struct E5m2 : FloatSums {
  static constexpr int step = 2, item = 1;
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, Vec (&w)[kVecs]) {
    const char* at = panel + k / 2 * (2 * kCell);
#if defined(__AVX512F__)
    w[0] = _mm512_cvtph_ps(_mm256_slli_epi16(bytes_of_step<s>(at), 8));
#elif defined(__AVX2__)
    for (int i = 0; i < kVecs; ++i)
      w[i] = _mm256_cvtph_ps(_mm_slli_epi16(bytes_of_step<s>(at + i * 2 * kLanes), 8));
#else
    f16 half[kCell];
    for (int i = 0; i < kCell; ++i)
      half[i] = static_cast<f16>(static_cast<uint8_t>(at[2 * i + s]) << 8);
    for (int i = 0; i < kVecs; ++i) w[i] = load_f16(half + i * kLanes);
#endif
  }
};

// Signed bytes against 16-bit numbers, two a lane, summed exactly in 32 bits.
struct Int8 : FloatWeights {
  using Sum = IVec;
  using Factor = int32_t;  // two int16
  static constexpr int fold = 2, step = 1, item = 1;
  static constexpr bool has_float_sums = false;
  static DT_INLINE Vec weight(Vec x) { return exp_short(x); }
  static DT_INLINE Sum none() { return iset1(0); }
  // In 16 bits under one scale, NaN where a number is not finite.
  static DT_INLINE void pack(const float* q, int64_t size, float scale, int32_t* to,
                             float* q_scale) {
    Vec most = zero(), broken = zero();
    for (int64_t d = 0; d < size; d += kLanes) {
      const Vec x = DT_ISA::load(q + d);
      most = max(most, max(x, sub(zero(), x)));
      broken = fma(x, zero(), broken);
    }
    const float peak = largest(most);
    const Vec inverse = set1(peak > 0 ? 32767.0f / peak : 0.0f);
    *q_scale = (peak / 32767.0f + sum(broken)) * scale;
    int16_t* narrow = reinterpret_cast<int16_t*>(to);
    for (int64_t d = 0; d < size; d += kLanes)
      store_s16(narrow + d, to_int(mul(DT_ISA::load(q + d), inverse)));
  }
  static DT_INLINE IVec spread(int32_t x) { return iset1(x); }
  static DT_INLINE Sum add_product(IVec x, IVec w, Sum sum) {
    // With intrinsics for the sums, GCC 12 spills a tile's registers.
#if defined(__AVX512F__)
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_madd_epi16(x, w);
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pairs));
    return sum;
#elif defined(__aarch64__)
    const int16x8_t a = (int16x8_t)x, b = (int16x8_t)w;
    const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
    return sum + (IVec)vpaddq_s32(low, vmull_high_s16(a, b));
#else
    int16_t a[8], b[8];
    memcpy(a, &x, 16);
    memcpy(b, &w, 16);
    for (int i = 0; i < 4; ++i) sum[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sum;
#endif
  }
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, IVec (&w)[kVecs]) {
    const char* at = panel + k * 2 * kCell;
    for (int i = 0; i < kVecs; ++i) {
      const char* from = at + i * 2 * kLanes;
#if defined(__AVX512F__)
      w[i] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
      w[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
      int16_t wide[8];
      for (int j = 0; j < 8; ++j) wide[j] = static_cast<signed char>(from[j]);
      memcpy(&w[i], wide, 16);
#endif
    }
  }
};

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
