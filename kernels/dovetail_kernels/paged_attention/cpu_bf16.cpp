// Attention by products of pairs of bfloat16, sums in float, over keys in bfloat16 and in 8-bit floats,
// which are bfloat16 as well: queries, and the softmax's weights, are rounded to it. Two
// multiply-adds a lane, twice the rate of floats.

#include "paged_attention/attend.h"

#if defined(__AVX512BF16__)

namespace dt {
namespace DT_ISA {
namespace attention {
namespace {

struct Bfloat16Pairs {
  using Sum = Vec;
  using Factor = uint32_t;  // two bfloat16
  static constexpr int fold = 2, step = 1, item = 2;
  static constexpr float unit = 1.0f;
  static constexpr bool has_float_sums = true;
  static DT_INLINE Vec none() { return zero(); }
  static DT_INLINE IVec spread(uint32_t x) { return iset1(static_cast<int32_t>(x)); }
  static DT_INLINE Vec add_product(IVec x, IVec w, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, IVec (&w)[kVecs]) {
    w[0] = iload(panel + k * kCell * 4);
  }
  static DT_INLINE void pack(const float* q, int64_t size, float scale, uint32_t* to, float*) {
    bf16* rounded = reinterpret_cast<bf16*>(to);
    for (int64_t d = 0; d < size; d += kLanes)
      store_bf16(rounded + d, mul(DT_ISA::load(q + d), set1(scale)));
  }

  static DT_INLINE Vec weight(Vec x) { return exp_short(x); }
  // The denominator sums the weights as they meet the values, so they add up to one.
  static DT_INLINE Vec keep(Vec weights, float*, int32_t* pairs) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weights);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), rounded);
    return as_float(shift_left<16>(_mm512_cvtepu16_epi32(rounded)));
  }
};

// The 128 magnitudes of an 8-bit float in bfloat16.
struct alignas(64) Magnitudes {
  uint16_t all[128];
};
// With `mantissa` bits of one, the least normal one 2^(1 - bias). What lies above `largest` is
// infinite first, where there is an infinity, and NaN then.
constexpr Magnitudes magnitudes(int mantissa, int bias, int largest, bool has_infinity) {
  Magnitudes found{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> mantissa, rest = code & ((1 << mantissa) - 1);
    if (exponent == 0) {  // subnormal: shifted until its first bit is the hidden one
      exponent = 1;
      while (rest && rest < 1 << mantissa) {
        rest <<= 1;
        --exponent;
      }
      rest &= (1 << mantissa) - 1;
    }
    const int bits = (exponent + 127 - bias) << 7 | rest << (7 - mantissa);
    found.all[code] = static_cast<uint16_t>(code == 0 ? 0 : bits);
    if (code > largest) found.all[code] = has_infinity && code == largest + 1 ? 0x7f80 : 0x7fc0;
  }
  return found;
}

// Two 8-bit floats a lane become two bfloat16, looked up by their lowest 7 bits.
template <bool is_e4m3> struct Float8Pairs : Bfloat16Pairs {
  static constexpr int item = 1;
  static constexpr Magnitudes table =
      is_e4m3 ? magnitudes(3, 7, 0x7e, false) : magnitudes(2, 15, 0x7b, true);
  template <int s> static DT_INLINE void load(const char* panel, int64_t k, IVec (&w)[kVecs]) {
    const IVec x = _mm512_cvtepi8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + k * 2 * kCell)));
    const IVec low = _mm512_permutex2var_epi16(iload(table.all), x, iload(table.all + 32));
    const IVec high = _mm512_permutex2var_epi16(iload(table.all + 64), x, iload(table.all + 96));
    const IVec found =
        _mm512_mask_blend_epi16(_mm512_test_epi16_mask(x, _mm512_set1_epi16(0x40)), low, high);
    const IVec sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    w[0] = _mm512_ternarylogic_epi32(found, x, sign, 0xf8);  // found | (x & sign)
  }
};

}  // namespace

int attend_pairs(const AttentionArgs& args) {
  switch (args.format) {
    case kKvE4m3: return attend<Float8Pairs<true>>(args);
    case kKvE5m2: return attend<Float8Pairs<false>>(args);
    default: return attend<Bfloat16Pairs>(args);
  }
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt

#endif
