// Attention over keys in bfloat16 by products of pairs of bfloat16, sums in float: queries, and the
// softmax's weights, are rounded to it. Two multiply-adds a lane, twice the rate of floats.

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

}  // namespace

int attend_pairs(const AttentionArgs& args) { return attend<Bfloat16Pairs>(args); }

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt

#endif
