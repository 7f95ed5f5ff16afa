// Matrix products in integers: activations become int8, one scale a row, as the product begins;
// weights are int8 with a scale per output, or 4-bit with a scale per group of inputs.
//
// The integer sums are exact, so they are the same on every instruction set and in every tile.
// out[m, n] = x_scale[m] * w_scale[n] * sum_k xq[m, k] wq[n, k]
// Source of the scheme: Dettmers et al., LLM.int8(), 2022, section 2 (row-wise, column-wise scales).

#include "gemm/tiles.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose quantized copy is held at once
constexpr int kInputs = 8;                      // rows are padded with zeros to a multiple of it

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
  int8_t w[16], a[16];
  memcpy(w, &weight, 16);
  memcpy(a, &x, 16);
  for (int i = 0; i < 16; ++i) acc[i / 4] += w[i] * a[i];
  return acc;
#endif
}

// How activations lie: [inputs / step][R][step] elements of T in a tile of R rows.
struct Bytes {
  using T = int8_t;
  static constexpr int step = 4;
};
#if defined(__AVX2__) && !defined(__AVX512F__)
struct Words {  // two 16-bit halves a lane: products of full bytes would saturate otherwise
  using T = int16_t;
  static constexpr int step = 2;
};
using Int8Rows = Words;
#else
using Int8Rows = Bytes;
#endif

// The quantized rows of a block.
struct Rows {
  void* values;     // tiles, one after the other
  float* scales;    // [rows]
  int32_t* sums;    // [rows, groups]: sums of the quantized inputs
  int64_t inputs;   // K padded
  int64_t groups;
  int64_t group;
};

struct RowScale {
  float scale, inverse;
};

// The scale that maps a row's largest magnitude to 127; NaN when the row holds a number that is not
// finite, so that it shows in every output.
DT_INLINE RowScale row_scale(const float* x, int64_t size) {
  Vec most = zero(), finite = zero();
  int64_t k = 0;
  for (; k + kLanes <= size; k += kLanes) {
    const Vec v = load(x + k);
    most = max(most, max(v, sub(zero(), v)));
    finite = fma(v, zero(), finite);
  }
  if (k < size) {
    const Vec v = load_some(x + k, static_cast<int>(size - k), 0.0f);
    most = max(most, max(v, sub(zero(), v)));
    finite = fma(v, zero(), finite);
  }
  const float peak = largest(most), broken = sum(finite);
  return {peak / 127.0f + broken, peak > 0 ? 127.0f / peak : 0.0f};
}

template <class Kind>
DT_INLINE void quantize_row(const float* x, int64_t size, int rows, int row, const Rows& to,
                            float* scale, int32_t* sums, typename Kind::T* values) {
  const RowScale found = row_scale(x, size);
  *scale = found.scale;
  const Vec inverse = set1(found.inverse);
  constexpr int kPiece = 64;
  int32_t piece[kPiece];
  for (int64_t g = 0; g < to.groups; ++g) sums[g] = 0;
  for (int64_t k0 = 0; k0 < to.inputs; k0 += kPiece) {
    const int64_t count = to.inputs - k0 < kPiece ? to.inputs - k0 : kPiece;
    for (int64_t k = 0; k < count; k += kLanes) {
      const int64_t left = size - k0 - k;
      const Vec v = left >= kLanes ? load(x + k0 + k)
                    : left > 0     ? load_some(x + k0 + k, static_cast<int>(left), 0.0f)
                                   : zero();
      istore(piece + k, to_int(mul(v, inverse)));
    }
    constexpr int step = Kind::step;
    for (int64_t k = 0; k < count; k += step) {
      typename Kind::T* at = values + ((k0 + k) / step * rows + row) * step;
      for (int s = 0; s < step; ++s) at[s] = static_cast<typename Kind::T>(piece[k + s]);
    }
    for (int64_t k = 0; k < count;) {
      const int64_t g = (k0 + k) / to.group, end = (g + 1) * to.group - k0;
      const int64_t stop = end < count ? end : count;
      int32_t total = 0;
      for (; k < stop; ++k) total += piece[k];
      sums[g] += total;
    }
  }
}

template <class Kind>
bool quantize(const GemmArgs& args, int64_t row0, int64_t rows, const Tiling& tiling, Rows& to) {
  to.inputs = divide_up(args.in_size, kInputs) * kInputs;
  to.group = args.format == kInt8 ? to.inputs : args.group;
  to.groups = divide_up(to.inputs, to.group);
  to.values = scratch(3, rows * to.inputs * sizeof(typename Kind::T));
  to.scales = static_cast<float*>(scratch(4, rows * (1 + to.groups) * 4));
  if (!to.values || !to.scales) return false;
  to.sums = reinterpret_cast<int32_t*>(to.scales + rows);
  parallel(tiling.count, [&](int64_t t) {
    const int64_t first = tiling.first_row(t);
    for (int i = 0; i < tiling.rows(t); ++i)
      quantize_row<Kind>(args.x + (row0 + first + i) * args.x_stride, args.in_size, tiling.rows(t),
                         i, to, to.scales + first + i, to.sums + (first + i) * to.groups,
                         static_cast<typename Kind::T*>(to.values) + first * to.inputs);
  });
  return true;
}

DT_INLINE IVec broadcast(const void* four_bytes) {
  int32_t x;
  memcpy(&x, four_bytes, 4);
  return iset1(x);
}

struct Int8 {
  using Kind = Int8Rows;
  static int64_t panel_bytes(const GemmArgs& args) {
    return divide_up(args.in_size, kInt8Step) * kInt8Step * kPanel;
  }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             float* c) {
    const auto* a = static_cast<const Kind::T*>(rows.values) + first * rows.inputs;
    const auto* w = static_cast<const int8_t*>(args.weight) + panel * panel_bytes(args);
    IVec sums[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) sums[i][j] = iset1(-kInt8Offset * rows.sums[first + i]);
    const int64_t lanes = divide_up(args.in_size, kInt8Step);
    for (int64_t k = 0; k < lanes; ++k, a += R * Kind::step, w += kPanel * kInt8Step) {
#if defined(__AVX2__) && !defined(__AVX512F__)
      const auto* p = reinterpret_cast<const __m128i*>(w);
      const IVec w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(p));
      const IVec w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1));
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * Kind::step);
        sums[i][0] = iadd(sums[i][0], _mm256_madd_epi16(w0, x));
        sums[i][1] = iadd(sums[i][1], _mm256_madd_epi16(w1, x));
      }
#else
      const IVec w0 = iload(w), w1 = iload(w + 4 * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * Kind::step);
        sums[i][0] = dot4(sums[i][0], w0, x);
        sums[i][1] = dot4(sums[i][1], w1, x);
      }
#endif
    }
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) {
        const Vec scale = load(args.scales + panel * kPanel + j * kLanes);
        store(c + i * kPanel + j * kLanes,
              mul(mul(to_float(sums[i][j]), scale), set1(rows.scales[first + i])));
      }
  }
};

struct Int4 {
  using Kind = Bytes;
  static int64_t panel_bytes(const GemmArgs& args) {
    return divide_up(args.in_size, 8) * kPanel * 4;
  }
  // The integer sums of one group: 8 inputs a 32-bit lane, the first four in the lower nibbles.
  template <int R>
  static DT_INLINE void group_sums(const int8_t* a, const uint8_t* w, int64_t lanes,
                                   IVec (&sums)[R][2]) {
    const IVec low = iset1(0x0f0f0f0f);
#if defined(__AVX2__) && !defined(__AVX512F__)
    // 16-bit sums hold 8 steps of two products below 15 * 127 each: 4 lanes between the flushes.
    const IVec ones = _mm256_set1_epi16(1);
    constexpr int kFlush = 4;
    for (int64_t l0 = 0; l0 < lanes; l0 += kFlush) {
      IVec pairs[R][2];
      for (int i = 0; i < R; ++i) pairs[i][0] = pairs[i][1] = iset1(0);
      const int64_t stop = l0 + kFlush < lanes ? l0 + kFlush : lanes;
      for (int64_t l = l0; l < stop; ++l, a += R * 8, w += kPanel * 4) {
        const IVec p0 = iload(w), p1 = iload(w + 4 * kLanes);
        const IVec w00 = iand(p0, low), w01 = iand(p1, low);
        const IVec w10 = iand(shift_right<4>(p0), low), w11 = iand(shift_right<4>(p1), low);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) {
          const IVec x = broadcast(a + i * 4), y = broadcast(a + (R + i) * 4);
          pairs[i][0] = _mm256_add_epi16(pairs[i][0], _mm256_maddubs_epi16(w00, x));
          pairs[i][1] = _mm256_add_epi16(pairs[i][1], _mm256_maddubs_epi16(w01, x));
          pairs[i][0] = _mm256_add_epi16(pairs[i][0], _mm256_maddubs_epi16(w10, y));
          pairs[i][1] = _mm256_add_epi16(pairs[i][1], _mm256_maddubs_epi16(w11, y));
        }
      }
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j)
          sums[i][j] = iadd(sums[i][j], _mm256_madd_epi16(pairs[i][j], ones));
    }
#else
    for (int64_t l = 0; l < lanes; ++l, a += R * 8, w += kPanel * 4) {
      const IVec p0 = iload(w), p1 = iload(w + 4 * kLanes);
      const IVec w00 = iand(p0, low), w01 = iand(p1, low);
      const IVec w10 = iand(shift_right<4>(p0), low), w11 = iand(shift_right<4>(p1), low);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * 4), y = broadcast(a + (R + i) * 4);
        sums[i][0] = dot4(sums[i][0], w00, x);
        sums[i][1] = dot4(sums[i][1], w01, x);
        sums[i][0] = dot4(sums[i][0], w10, y);
        sums[i][1] = dot4(sums[i][1], w11, y);
      }
    }
#endif
  }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             float* c) {
    const auto* a = static_cast<const int8_t*>(rows.values) + first * rows.inputs;
    const auto* w = static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args);
    const float* scales = args.scales + panel * rows.groups * kPanel;
    const float* zeros = args.zeros ? args.zeros + panel * rows.groups * kPanel : nullptr;
    Vec totals[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) totals[i][0] = totals[i][1] = zero();
    const int64_t lanes_a_group = rows.group / 8;
    for (int64_t g = 0; g < rows.groups; ++g) {
      const int64_t done = g * lanes_a_group, left = rows.inputs / 8 - done;
      const int64_t lanes = left < lanes_a_group ? left : lanes_a_group;
      IVec sums[R][2];
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const int32_t start = zeros ? 0 : -8 * rows.sums[(first + i) * rows.groups + g];
        sums[i][0] = sums[i][1] = iset1(start);
      }
      group_sums<R>(a + done * R * 8, w + done * kPanel * 4, lanes, sums);
      for (int j = 0; j < 2; ++j) {
        const Vec scale = load(scales + g * kPanel + j * kLanes);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(sums[i][j]), scale, totals[i][j]);
        if (!zeros) continue;
        const Vec zero_point = load(zeros + g * kPanel + j * kLanes);
        for (int i = 0; i < R; ++i) {
          const float total = -static_cast<float>(rows.sums[(first + i) * rows.groups + g]);
          totals[i][j] = fma(set1(total), zero_point, totals[i][j]);
        }
      }
    }
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j)
        store(c + i * kPanel + j * kLanes, mul(totals[i][j], set1(rows.scales[first + i])));
  }
};

template <class Weight>
int multiply(const GemmArgs& args) {
  const int64_t panels = num_panels(args.out_size, args.is_gated);
  for (int64_t row0 = 0; row0 < args.rows; row0 += kBlockRows) {
    const int64_t count = args.rows - row0 < kBlockRows ? args.rows - row0 : kBlockRows;
    const Tiling tiling(count);
    Rows rows;
    if (!quantize<typename Weight::Kind>(args, row0, count, tiling, rows)) return 1;
    const int64_t some = panels_a_task(panels, Weight::panel_bytes(args), count);
    parallel(divide_up(panels, some), [&](int64_t task) {
      const int64_t last = (task + 1) * some < panels ? (task + 1) * some : panels;
      for (int64_t panel = task * some; panel < last; ++panel) {
        float c[kTileRows * kPanel];
        for (int64_t t = 0; t < tiling.count; ++t) {
          const int64_t first = tiling.first_row(t);
          with_rows(tiling.rows(t),
                    [&](auto r) { Weight::template tile<r.value>(args, rows, first, panel, c); });
          finish(args, c, tiling.rows(t), row0 + first, panel);
        }
      }
    });
  }
  return 0;
}

}  // namespace

// Returns 0; 1 when memory for the quantized rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_int8, GemmArgs) {
  switch (args.format) {
    case kInt8: return multiply<Int8>(args);
    case kInt4Int8: return multiply<Int4>(args);
    default: return 2;
  }
}
