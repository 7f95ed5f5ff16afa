// Latent attention by products of pairs of bfloat16, sums in float: queries, and the softmax's weights, are
// rounded to it. Two multiply-adds a lane, twice the rate of floats, and latents are scored where they are.
// Values are sums over tokens, so pairs of them are made of two neighbours' numbers, once for all heads.

#if defined(__AVX512BF16__)

#include "latent_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace latent {
namespace {

// See `Floats` for what a kind is.
struct Pairs {
  using Entry = bf16;
  using Number = bf16;
  using Register = IVec;
  static constexpr int kKeys = 64, kStep = 2 * kLanes, kFold = 2;
  static constexpr bool is_kept_so = true;

  static DT_INLINE void put(bf16* to, Vec x) { store_bf16(to, x); }
  static DT_INLINE void copy(const bf16* from, int64_t size, bf16* to, int64_t width) {
    memcpy(to, from, static_cast<size_t>(size) * sizeof(bf16));
    memset(to + size, 0, static_cast<size_t>(width - size) * sizeof(bf16));
  }
  static DT_INLINE IVec load(const bf16* p) { return iload(p); }
  static DT_INLINE Vec add_product(IVec x, IVec y, Vec sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
  }
  // The denominator sums the weights as they meet the values, so they add up to one. They lie in the first
  // half of the row's scores.
  static DT_INLINE Vec keep_weights(float* scores, int64_t k, Vec weights) {
    const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weights);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<bf16*>(scores) + k), rounded);
    return as_float(shift_left<16>(_mm512_cvtepu16_epi32(rounded)));
  }
  static DT_INLINE int32_t* pairs_of(const Room& room, int64_t k, int64_t value_width) {
    return reinterpret_cast<int32_t*>(room.pairs) + k / 2 * value_width;
  }
  static DT_INLINE void fold(Room* room, int64_t value_width) {
    alignas(64) static constexpr uint16_t kPlaces[64] = {
        0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
        11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
        22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    const IVec low = iload(kPlaces), high = iload(kPlaces + 32);
    for (int64_t k = 0; k < kKeys; k += 2) {
      const auto* first = static_cast<const bf16*>(room->keys[k]);
      const auto* second = static_cast<const bf16*>(room->keys[k + 1]);
      int32_t* to = pairs_of(*room, k, value_width);
      for (int64_t d = 0; d < value_width; d += kStep) {
        const IVec x = iload(first + d), y = iload(second + d);
        istore(to + d, _mm512_permutex2var_epi16(x, low, y));
        istore(to + d + kLanes, _mm512_permutex2var_epi16(x, high, y));
      }
    }
  }
  static DT_INLINE IVec values(const Room& room, int64_t k, int64_t d, int64_t value_width) {
    return iload(pairs_of(room, k, value_width) + d);
  }
  static DT_INLINE IVec spread(const float* weights, int64_t k) {
    int32_t pair;
    memcpy(&pair, reinterpret_cast<const bf16*>(weights) + k, sizeof(pair));
    return iset1(pair);
  }
};

}  // namespace

int attend_pairs(const LatentArgs& args) { return attend<Pairs>(args); }

}  // namespace latent
}  // namespace DT_ISA
}  // namespace dt

#endif
