// Rows of activations as int8 with a scale each, in the order in which integer products read them, and
// the product of four bytes.
#pragma once

#include "gemm/tiles.h"

#if defined(__x86_64__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

namespace dt {
namespace DT_ISA {

constexpr int kInputs = 16;                // rows are padded with zeros to a multiple of it
constexpr int64_t kAloneInputs = 1 << 13;  // fewer inputs than this are not worth sharing out

// acc[lane] += sum of four products of weight bytes and activation bytes.
DT_INLINE IVec dot4(IVec acc, IVec weight, IVec x) {
#if defined(__AVX512F__)
  return _mm512_dpbusd_epi32(acc, weight, x);
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(weight, x);  // weights below 16: no saturation
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (IVec)vdotq_s32((int32x4_t)acc, (int8x16_t)weight, (int8x16_t)x);
#else
  const __m128i w = (__m128i)weight, a = (__m128i)x;
  const auto low = [](__m128i v) { return _mm_srai_epi16(_mm_unpacklo_epi8(v, v), 8); };
  const auto high = [](__m128i v) { return _mm_srai_epi16(_mm_unpackhi_epi8(v, v), 8); };
  const __m128 first = _mm_castsi128_ps(_mm_madd_epi16(low(w), low(a)));  // two halves a lane
  const __m128 second = _mm_castsi128_ps(_mm_madd_epi16(high(w), high(a)));
  const __m128i even = _mm_castps_si128(_mm_shuffle_ps(first, second, 0x88));
  const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(first, second, 0xdd));
  return acc + (IVec)even + (IVec)odd;
#endif
}

// How activations lie: [inputs / step][R][step] elements of T in a tile of R rows. A register of weight
// bytes becomes what is multiplied by them, and their products are added to lanes of 32 bits.
struct Bytes {
  using T = int8_t;
  static constexpr int step = 4;
  static DT_INLINE IVec weights(const void* w) { return iload(w); }
  static DT_INLINE IVec dot(IVec acc, IVec weight, IVec x) { return dot4(acc, weight, x); }
};
#if defined(__AVX2__) && !defined(__AVX512F__)
struct Words {  // two 16-bit halves a lane: products of full bytes would saturate otherwise
  using T = int16_t;
  static constexpr int step = 2;
  static DT_INLINE IVec weights(const void* w) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(w)));
  }
  static DT_INLINE IVec dot(IVec acc, IVec weight, IVec x) {
    return iadd(acc, _mm256_madd_epi16(weight, x));
  }
};
using Int8Rows = Words;
#else
using Int8Rows = Bytes;
#endif

// The quantized rows of a block.
struct Rows {
  void* values;     // tiles, one after the other
  float* scales;    // [rows]
  int32_t* sums;    // [groups, R] for a tile, as the values lie: sums of the quantized inputs
  int32_t* starts;  // likewise: what the sums of products begin at, minus the zero point times these
  int64_t inputs;   // K padded
  int64_t groups;
  int64_t group;
};

struct RowScale {
  float scale, inverse;
};

DT_INLINE Vec load_up_to(const float* x, int64_t left) {
  return left >= kLanes ? load(x) : left > 0 ? load_some(x, static_cast<int>(left), 0.0f) : zero();
}

// The scale that maps a row's largest magnitude to 127; NaN when the row holds a number that is not
// finite, so that it shows in every output.
DT_INLINE RowScale row_scale(const float* x, int64_t size) {
  Vec most[4], finite[4];
  for (int j = 0; j < 4; ++j) most[j] = finite[j] = zero();
  for (int64_t k = 0; k < size; k += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const Vec v = load_up_to(x + k + j * kLanes, size - k - j * kLanes);
      most[j] = max(most[j], max(v, sub(zero(), v)));
      finite[j] = fma(v, zero(), finite[j]);
    }
  const float peak = largest(max(max(most[0], most[1]), max(most[2], most[3])));
  const float broken = sum(add(add(finite[0], finite[1]), add(finite[2], finite[3])));
  return {peak / 127.0f + broken, peak > 0 ? 127.0f / peak : 0.0f};
}

// kLanes integers of -127 .. 127 as bytes or 16-bit words.
DT_INLINE void narrow(IVec x, int8_t* to) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
#elif defined(__AVX2__)
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(x[i]);
#endif
}
#if defined(__AVX2__) && !defined(__AVX512F__)
DT_INLINE void narrow(IVec x, int16_t* to) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}
#endif

DT_INLINE int32_t isum(IVec x) {
  int32_t lanes[kLanes], total = 0;
  istore(lanes, x);
  for (int i = 0; i < kLanes; ++i) total += lanes[i];
  return total;
}

// One row of x becomes row `row` of a tile of `rows` rows, with its scale and its groups' sums;
// `sums` and `starts` are the tile's, `zero` the weights' zero point.
template <class Kind>
DT_INLINE void quantize_row(const float* x, int64_t size, int rows, int row, const Rows& to,
                            float* scale, int32_t* sums, int32_t* starts, int32_t zero,
                            typename Kind::T* values) {
  constexpr int step = Kind::step;
  const RowScale found = row_scale(x, size);
  *scale = found.scale;
  const Vec inverse = set1(found.inverse);
  for (int64_t g = 0; g < to.groups; ++g) {
    const int64_t stop = (g + 1) * to.group < to.inputs ? (g + 1) * to.group : to.inputs;
    const int64_t end = stop < size ? stop : size;  // a register may reach into the next group
    IVec total = iset1(0);
    for (int64_t k = g * to.group; k < stop; k += kLanes) {
      const IVec q = to_int(mul(load_up_to(x + k, end - k), inverse));
      total = iadd(total, q);
      typename Kind::T narrowed[kLanes];
      narrow(q, narrowed);
      for (int i = 0; i < kLanes && k + i < stop; i += step)
        memcpy(values + ((k + i) / step * rows + row) * step, narrowed + i,
               step * sizeof(typename Kind::T));
    }
    const int32_t sum = isum(total);
    sums[g * rows + row] = sum;
    starts[g * rows + row] = -zero * sum;
  }
}

template <class Kind>
bool quantize(const GemmArgs& args, int64_t row0, int64_t rows, const Tiling& tiling, int32_t zero,
              Rows& to) {
  to.inputs = divide_up(args.in_size, kInputs) * kInputs;
  to.group = args.format == kInt8 ? to.inputs : args.group;
  to.groups = divide_up(to.inputs, to.group);
  to.values = scratch(3, rows * to.inputs * sizeof(typename Kind::T));
  to.scales = static_cast<float*>(scratch(4, rows * (1 + 2 * to.groups) * 4));
  if (!to.values || !to.scales) return false;
  to.sums = reinterpret_cast<int32_t*>(to.scales + rows);
  to.starts = to.sums + rows * to.groups;
  const auto one = [&](int64_t t, int i) {
    const int64_t row = tiling.first_row(t) + i;
    quantize_row<Kind>(args.x + (row0 + row) * args.x_stride, args.in_size, tiling.rows(t), i, to,
                       to.scales + row, to.sums + (row - i) * to.groups,
                       to.starts + (row - i) * to.groups, zero,
                       static_cast<typename Kind::T*>(to.values) + (row - i) * to.inputs);
  };
  if (rows * args.in_size < kAloneInputs) {
    for (int64_t t = 0; t < tiling.count; ++t)
      for (int i = 0; i < tiling.rows(t); ++i) one(t, i);
  } else if (tiling.count < 4) {
    for (int64_t t = 0; t < tiling.count; ++t)
      parallel(tiling.rows(t), [&](int64_t i) { one(t, static_cast<int>(i)); });
  } else {
    parallel(tiling.count, [&](int64_t t) {
      for (int i = 0; i < tiling.rows(t); ++i) one(t, i);
    });
  }
  return true;
}

DT_INLINE IVec broadcast(const void* four_bytes) {
  int32_t x;
  memcpy(&x, four_bytes, 4);
  return iset1(x);
}

}  // namespace DT_ISA
}  // namespace dt
