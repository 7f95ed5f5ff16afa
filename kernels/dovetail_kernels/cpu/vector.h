// Vec: a register of floats of the instruction set at hand, and what kernels do with it.
//
// kLanes floats a register. Narrow formats (bfloat16, half) are loaded as floats and rounded to
// nearest even when stored. Nothing here knows a kernel.
#pragma once

#include <math.h>
#include <string.h>

#include "isa.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace dt {
namespace DT_ISA {

using bf16 = uint16_t;
using f16 = uint16_t;

DT_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A number that a generic lambda knows at compile time.
template <int n> struct Constant { static constexpr int value = n; };

// Calls body(constant i) for i in 0 .. n - 1. What a loop's counter picks of an array lies in memory
// until the loop is unrolled; what a constant picks is a register from the start.
template <int n, int i = 0, class Body>
DT_INLINE void repeat(const Body& body) {
  body(Constant<i>{});
  if constexpr (i + 1 < n) repeat<n, i + 1>(body);
}

DT_INLINE float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
DT_INLINE uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
DT_INLINE float bf16_to_float(bf16 x) { return from_bits(uint32_t{x} << 16); }
DT_INLINE bf16 float_to_bf16(float x) {
  const uint32_t bits = to_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16>((bits >> 16) | 64);  // NaN
  return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
DT_INLINE float f16_to_float(f16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x);
#elif defined(__aarch64__)
  __fp16 half;
  memcpy(&half, &x, 2);
  return half;
#else
  // 2^112 moves the exponent of a half to that of a float, subnormals included.
  const uint32_t sign = uint32_t{x & 0x8000u} << 16, rest = uint32_t{x & 0x7fffu} << 13;
  if (rest >= 0x0f800000) return from_bits(sign | rest | 0x7f800000);
  return from_bits(to_bits(from_bits(rest) * 0x1p112f) | sign);
#endif
}
DT_INLINE f16 float_to_f16(float x) {
#if defined(__F16C__)
  return _cvtss_sh(x, 0);
#elif defined(__aarch64__)
  const __fp16 half = x;
  f16 bits;
  memcpy(&bits, &half, 2);
  return bits;
#else
  const uint32_t bits = to_bits(x), sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<f16>(sign | 0x7e00);
  if (rest >= 0x477ff000) return static_cast<f16>(sign | 0x7c00);
  if (rest < 0x38800000)  // subnormal: let the adder round at 2^-24
    return static_cast<f16>(sign | (to_bits(from_bits(rest) + 0.5f) & 0x7ff));
  return static_cast<f16>(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13));
#endif
}

// ---------------------------------------------------------------------------------- registers

#if defined(__AVX512F__)

constexpr int kLanes = 16;
using Vec = __m512;
using IVec = __m512i;
DT_INLINE Vec zero() { return _mm512_setzero_ps(); }
DT_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
DT_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
DT_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
DT_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
DT_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
DT_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
DT_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
DT_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
DT_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
DT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
DT_INLINE Vec nearest(Vec x) { return _mm512_roundscale_ps(x, 8); }
DT_INLINE IVec to_int(Vec x) { return _mm512_cvtps_epi32(x); }
DT_INLINE Vec to_float(IVec x) { return _mm512_cvtepi32_ps(x); }
DT_INLINE IVec iset1(int32_t x) { return _mm512_set1_epi32(x); }
DT_INLINE IVec iload(const void* p) { return _mm512_loadu_si512(p); }
DT_INLINE void istore(void* p, IVec x) { _mm512_storeu_si512(p, x); }
DT_INLINE IVec iadd(IVec a, IVec b) { return _mm512_add_epi32(a, b); }
DT_INLINE IVec imul(IVec a, IVec b) { return _mm512_mullo_epi32(a, b); }
DT_INLINE IVec iand(IVec a, IVec b) { return _mm512_and_si512(a, b); }
template <int n> DT_INLINE IVec shift_left(IVec x) { return _mm512_slli_epi32(x, n); }
template <int n> DT_INLINE IVec shift_right(IVec x) { return _mm512_srli_epi32(x, n); }
DT_INLINE Vec as_float(IVec x) { return _mm512_castsi512_ps(x); }
DT_INLINE IVec as_int(Vec x) { return _mm512_castps_si512(x); }
DT_INLINE float sum(Vec x) { return _mm512_reduce_add_ps(x); }
DT_INLINE float largest(Vec x) { return _mm512_reduce_max_ps(x); }
DT_INLINE Vec load_bf16(const bf16* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
DT_INLINE Vec load_f16(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
DT_INLINE void store_f16(f16* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, 0));
}
DT_INLINE Vec load_s8(const int8_t* p) {
  return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
DT_INLINE IVec iload_s8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#elif defined(__AVX2__)

constexpr int kLanes = 8;
using Vec = __m256;
using IVec = __m256i;
DT_INLINE Vec zero() { return _mm256_setzero_ps(); }
DT_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
DT_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
DT_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
DT_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
DT_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
DT_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
DT_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
DT_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
DT_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
DT_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
DT_INLINE Vec nearest(Vec x) { return _mm256_round_ps(x, 8); }
DT_INLINE IVec to_int(Vec x) { return _mm256_cvtps_epi32(x); }
DT_INLINE Vec to_float(IVec x) { return _mm256_cvtepi32_ps(x); }
DT_INLINE IVec iset1(int32_t x) { return _mm256_set1_epi32(x); }
DT_INLINE IVec iload(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
DT_INLINE void istore(void* p, IVec x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
DT_INLINE IVec iadd(IVec a, IVec b) { return _mm256_add_epi32(a, b); }
DT_INLINE IVec imul(IVec a, IVec b) { return _mm256_mullo_epi32(a, b); }
DT_INLINE IVec iand(IVec a, IVec b) { return _mm256_and_si256(a, b); }
template <int n> DT_INLINE IVec shift_left(IVec x) { return _mm256_slli_epi32(x, n); }
template <int n> DT_INLINE IVec shift_right(IVec x) { return _mm256_srli_epi32(x, n); }
DT_INLINE Vec as_float(IVec x) { return _mm256_castsi256_ps(x); }
DT_INLINE IVec as_int(Vec x) { return _mm256_castps_si256(x); }
DT_INLINE float sum(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
DT_INLINE float largest(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
DT_INLINE Vec load_bf16(const bf16* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
DT_INLINE Vec load_f16(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
DT_INLINE void store_f16(f16* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, 0));
}
DT_INLINE Vec load_s8(const int8_t* p) {
  return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
DT_INLINE IVec iload_s8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

#else

// Four lanes in the compiler's own vector types: NEON on Arm, SSE2 on plain x86-64.
constexpr int kLanes = 4;
typedef float Vec __attribute__((vector_size(16)));
typedef int32_t IVec __attribute__((vector_size(16)));
typedef uint32_t UVec __attribute__((vector_size(16)));
DT_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
DT_INLINE Vec zero() { return set1(0); }
DT_INLINE Vec load(const float* p) {
  Vec x;
  memcpy(&x, p, 16);
  return x;
}
DT_INLINE void store(float* p, Vec x) { memcpy(p, &x, 16); }
DT_INLINE Vec add(Vec a, Vec b) { return a + b; }
DT_INLINE Vec sub(Vec a, Vec b) { return a - b; }
DT_INLINE Vec mul(Vec a, Vec b) { return a * b; }
DT_INLINE Vec div(Vec a, Vec b) { return a / b; }
DT_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
DT_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
#if defined(__aarch64__)
DT_INLINE Vec fma(Vec a, Vec b, Vec c) { return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
DT_INLINE Vec nearest(Vec x) { return (Vec)vrndnq_f32((float32x4_t)x); }
DT_INLINE IVec to_int(Vec x) { return (IVec)vcvtnq_s32_f32((float32x4_t)x); }
#else
DT_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
DT_INLINE Vec nearest(Vec x) {
  // Adding and taking away 1.5 * 2^23 leaves the nearest even integer of a small number.
  const Vec magic = set1(12582912.0f);
  volatile Vec moved = x + magic;
  return moved - magic;
}
DT_INLINE IVec to_int(Vec x) { return __builtin_convertvector(nearest(x), IVec); }
#endif
DT_INLINE Vec to_float(IVec x) { return __builtin_convertvector(x, Vec); }
DT_INLINE IVec iset1(int32_t x) { return IVec{x, x, x, x}; }
DT_INLINE IVec iload(const void* p) {
  IVec x;
  memcpy(&x, p, 16);
  return x;
}
DT_INLINE void istore(void* p, IVec x) { memcpy(p, &x, 16); }
DT_INLINE IVec iadd(IVec a, IVec b) { return a + b; }
DT_INLINE IVec imul(IVec a, IVec b) { return a * b; }
DT_INLINE IVec iand(IVec a, IVec b) { return a & b; }
template <int n> DT_INLINE IVec shift_left(IVec x) { return (IVec)((UVec)x << n); }
template <int n> DT_INLINE IVec shift_right(IVec x) { return (IVec)((UVec)x >> n); }
DT_INLINE Vec as_float(IVec x) { return (Vec)x; }
DT_INLINE IVec as_int(Vec x) { return (IVec)x; }
DT_INLINE float sum(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
DT_INLINE float largest(Vec x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
DT_INLINE Vec load_bf16(const bf16* p) {
  return Vec{bf16_to_float(p[0]), bf16_to_float(p[1]), bf16_to_float(p[2]), bf16_to_float(p[3])};
}
DT_INLINE Vec load_f16(const f16* p) {
  return Vec{f16_to_float(p[0]), f16_to_float(p[1]), f16_to_float(p[2]), f16_to_float(p[3])};
}
DT_INLINE void store_f16(f16* p, Vec x) {
  for (int i = 0; i < 4; ++i) p[i] = float_to_f16(x[i]);
}
DT_INLINE Vec load_s8(const int8_t* p) {
  return Vec{float(p[0]), float(p[1]), float(p[2]), float(p[3])};
}
DT_INLINE IVec iload_s8(const int8_t* p) { return IVec{p[0], p[1], p[2], p[3]}; }

#endif

// --------------------------------------------------------------------------------- on all sets

DT_INLINE void store_bf16(bf16* p, Vec x) {
  // Round to nearest even in integers; a NaN keeps its top bits and stays a NaN.
#if defined(__AVX512F__)
  const IVec bits = as_int(x);
  const IVec odd = iand(shift_right<16>(bits), iset1(1));
  IVec rounded = shift_right<16>(iadd(iadd(bits, iset1(0x7fff)), odd));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, is_nan, shift_right<16>(bits), iset1(64));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(rounded));
#else
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_bf16(lanes[i]);
#endif
}

// e^x by 2^n * p(r), |r| <= ln2/2, p of degree 6: relative error below 3e-7 on the range kept.
// Results below 2^-126 are zero, arguments above 88.37 are taken as 88.37.
DT_INLINE Vec exp(Vec x) {
  const Vec clipped = min(max(x, set1(-87.33654f)), set1(88.37626f));
  const Vec n = nearest(mul(clipped, set1(1.44269504f)));
  Vec r = fma(n, set1(-0.693359375f), clipped);
  r = fma(n, set1(2.12194440e-4f), r);
  Vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(mul(r, r), p, add(r, set1(1.0f)));
  const Vec power = as_float(shift_left<23>(iadd(to_int(n), iset1(127))));
#if defined(__AVX512F__)
  return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, set1(-87.33654f), _CMP_NLT_UQ), p, power);
#elif defined(__AVX2__)
  return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(-87.33654f), _CMP_LT_OQ), mul(p, power));
#else
  return (Vec)((IVec)(p * power) & ~(IVec)(x < set1(-87.33654f)));
#endif
}

// The `count` < kLanes floats at p, the rest `filler`; and back.
#if defined(__AVX512F__)
DT_INLINE Vec load_some(const float* p, int count, float filler) {
  return _mm512_mask_loadu_ps(set1(filler), static_cast<__mmask16>((1u << count) - 1), p);
}
DT_INLINE void store_some(float* p, int count, Vec x) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), x);
}
#elif defined(__AVX2__)
DT_INLINE IVec first_lanes(int count) {
  return _mm256_cmpgt_epi32(iset1(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
DT_INLINE Vec load_some(const float* p, int count, float filler) {
  const IVec mask = first_lanes(count);
  return _mm256_blendv_ps(set1(filler), _mm256_maskload_ps(p, mask), as_float(mask));
}
DT_INLINE void store_some(float* p, int count, Vec x) {
  _mm256_maskstore_ps(p, first_lanes(count), x);
}
#else
DT_INLINE Vec load_some(const float* p, int count, float filler) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < count ? p[i] : filler;
  return load(lanes);
}
DT_INLINE void store_some(float* p, int count, Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}
#endif

// Lanes 0 and 1 trade places, 2 and 3, ...
DT_INLINE Vec swap_pairs(Vec x) {
#if defined(__AVX512F__)
  return _mm512_permute_ps(x, 0xb1);
#elif defined(__AVX2__)
  return _mm256_permute_ps(x, 0xb1);
#else
  return Vec{x[1], x[0], x[3], x[2]};
#endif
}
// The kLanes / 2 floats at p, each twice: p[0], p[0], p[1], p[1], ...
DT_INLINE Vec load_twice(const float* p) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(p));
  return _mm512_permutexvar_ps(
      _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), low);
#elif defined(__AVX2__)
  const __m128 x = _mm_loadu_ps(p);
  return _mm256_set_m128(_mm_unpackhi_ps(x, x), _mm_unpacklo_ps(x, x));
#else
  return Vec{p[0], p[0], p[1], p[1]};
#endif
}

// float8 e4m3, whose bits in the place of a half's are the value / 256. The two codes for NaN are
// taken as +-480, what their bits would be.
DT_INLINE float e4m3_to_float(uint8_t x) {
  return f16_to_float(static_cast<f16>((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.0f;
}
// The kLanes of them at p, divided by 256.
DT_INLINE Vec load_e4m3_256ths(const uint8_t* p) {
#if defined(__AVX512F__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtph_ps(
      _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<short>(0xbfff))));
#elif defined(__AVX2__)
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtph_ps(
      _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<short>(0xbfff))));
#else
  const IVec bits = IVec{p[0], p[1], p[2], p[3]};
  const IVec sign = shift_left<24>(iand(bits, iset1(0x80)));
  const Vec rest = mul(as_float(shift_left<20>(iand(bits, iset1(0x7f)))), set1(0x1p112f));
  return as_float((IVec)rest | sign);
#endif
}

// A table of sixteen floats, looked up by the lowest four bits of every lane.
struct Table16 {
#if defined(__AVX512F__)
  Vec all;
  DT_INLINE explicit Table16(const float* p) : all(load(p)) {}
  DT_INLINE Vec operator()(IVec index) const { return _mm512_permutexvar_ps(index, all); }
#elif defined(__AVX2__)
  Vec low, high;
  DT_INLINE explicit Table16(const float* p) : low(load(p)), high(load(p + 8)) {}
  DT_INLINE Vec operator()(IVec index) const {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index),
                            _mm256_permutevar8x32_ps(high, index), as_float(shift_left<28>(index)));
  }
#else
  const float* at;
  DT_INLINE explicit Table16(const float* p) : at(p) {}
  DT_INLINE Vec operator()(IVec index) const {
    return Vec{at[index[0] & 15], at[index[1] & 15], at[index[2] & 15], at[index[3] & 15]};
  }
#endif
};

}  // namespace DT_ISA
}  // namespace dt
