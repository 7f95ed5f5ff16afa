// Matrix products in integers: activations become int8, one scale a row, as the product begins;
// weights are int8 with a scale per output, or 8- or 4-bit with a scale per group of inputs.
//
// The integer sums are exact, so they are the same on every instruction set and in every tile.
// out[m, n] = x_scale[m] * w_scale[n] * sum_k xq[m, k] wq[n, k]
// Source of the scheme: Dettmers et al., LLM.int8(), 2022, section 2 (row-wise, column-wise scales).

#include "gemm/tiles.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose quantized copy is held at once
constexpr int kInputs = 16;                     // rows are padded with zeros to a multiple of it
constexpr int64_t kAloneInputs = 1 << 13;       // fewer inputs than this are not worth sharing out

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
  float* sums;      // [groups, R] for a tile, as the values lie: sums of the quantized inputs
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
                            float* scale, float* sums, int32_t* starts, int32_t zero,
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
    sums[g * rows + row] = static_cast<float>(sum);
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
  to.sums = to.scales + rows;
  to.starts = reinterpret_cast<int32_t*>(to.sums + rows * to.groups);
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

// A format: `units` of inputs (lanes for int8, groups for int4) of one panel for one tile, added to
// or begun in `sums` [R, kPanel] of 32 bits each; and how finished sums become floats.
struct Int8 {
  using Kind = Int8Rows;
  static constexpr int kRows = kTileRows;
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Bytes become words once, for all tiles, instead of in every tile.
  static constexpr bool widens = true;
  using Wide = int16_t;
  static DT_INLINE void widen(const GemmArgs& args, int64_t panel, int64_t unit0, int64_t units,
                              Wide* wide) {
    const auto* w = static_cast<const int8_t*>(args.weight) + panel * panel_bytes(args) +
                    unit0 * kPanel * kInt8Step;
    for (int64_t i = 0; i < units * kPanel * kInt8Step; i += 16)
      istore(wide + i, _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w + i))));
  }
#else
  static constexpr bool widens = false;
  using Wide = int8_t;
#endif
  static int64_t depth(const GemmArgs&) { return 512 / kInt8Step; }
  static int32_t usual_zero(const GemmArgs&) { return kInt8Offset; }
  static int64_t units(const GemmArgs& args) { return divide_up(args.in_size, kInt8Step); }
  static int64_t panel_bytes(const GemmArgs& args) { return units(args) * kInt8Step * kPanel; }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             int64_t unit0, int64_t units, float* kept,
                             [[maybe_unused]] const Wide* wide) {
    const auto* a = static_cast<const Kind::T*>(rows.values) + first * rows.inputs +
                    unit0 * R * Kind::step;
    const auto* w = static_cast<const int8_t*>(args.weight) + panel * panel_bytes(args) +
                    unit0 * kPanel * kInt8Step;
    IVec sums[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j)
        sums[i][j] = unit0 ? iload(kept + i * kPanel + j * kLanes)
                           : iset1(rows.starts[first + i]);
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (wide) {
      for (int64_t k = 0; k < units; ++k, a += R * Kind::step, wide += 2 * kPanel) {
        const IVec w0 = iload(wide), w1 = iload(wide + 2 * kLanes);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) {
          const IVec x = broadcast(a + i * Kind::step);
          sums[i][0] = iadd(sums[i][0], _mm256_madd_epi16(w0, x));
          sums[i][1] = iadd(sums[i][1], _mm256_madd_epi16(w1, x));
        }
      }
      units = 0;
    }
#endif
    for (int64_t k = 0; k < units; ++k, a += R * Kind::step, w += kPanel * kInt8Step) {
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
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) istore(kept + i * kPanel + j * kLanes, sums[i][j]);
  }
  static DT_INLINE void scale(const GemmArgs& args, const Rows& rows, int64_t row, int64_t panel,
                              float* kept) {
    for (int j = 0; j < 2; ++j) {
      float* at = kept + j * kLanes;
      const Vec scale = load(static_cast<const float*>(args.scales) + panel * kPanel + j * kLanes);
      store(at, mul(mul(to_float(iload(at)), scale), set1(rows.scales[row])));
    }
  }
};

// Weights whose groups of inputs have a scale each. `Own` knows how they lie.
struct Nibbles {
  using Kind = Bytes;
  static constexpr int kStep = 8, kInputsAByte = 2;
  static int32_t usual_zero(bool is_added) { return is_added ? 0 : 8; }
  // The integer sums of one group: 8 inputs a 32-bit lane, the first four in the lower nibbles.
  template <int R>
  static DT_INLINE void add_group(const int8_t* a, const uint8_t* w, int64_t lanes,
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
};

struct GroupedBytes {
  using Kind = Int8Rows;
  static constexpr int kStep = kInt8Step, kInputsAByte = 1;
  static int32_t usual_zero(bool) { return kInt8Offset; }
  template <int R>
  static DT_INLINE void add_group(const Kind::T* a, const uint8_t* w, int64_t lanes,
                                  IVec (&sums)[R][2]) {
    for (int64_t l = 0; l < lanes; ++l, a += R * kStep, w += kPanel * kStep) {
#if defined(__AVX2__) && !defined(__AVX512F__)
      const auto* p = reinterpret_cast<const __m128i*>(w);
      const IVec w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(p));
      const IVec w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1));
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * kStep);
        sums[i][0] = iadd(sums[i][0], _mm256_madd_epi16(w0, x));
        sums[i][1] = iadd(sums[i][1], _mm256_madd_epi16(w1, x));
      }
#else
      const IVec w0 = iload(w), w1 = iload(w + 4 * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * kStep);
        sums[i][0] = dot4(sums[i][0], w0, x);
        sums[i][1] = dot4(sums[i][1], w1, x);
      }
#endif
    }
  }
};

// How a group's scale is found: among scales of any kind, among floats of one with nothing added, or
// as a small integer times a half that its run of groups shares, offsets likewise.
enum Way { kAnyScale, kBfloat16Scale, kFloat16Scale, kCodes };

constexpr int64_t kMostInputsARun = 512;  // integer sums of so many inputs fit into 32 bits

template <class Own, Way way>
struct Grouped {
  using Kind = typename Own::Kind;
  // Integer sums of the group and float totals: fewer rows fit into the registers.
#if defined(__AVX512F__)
  static constexpr int kRows = way == kCodes ? 4 : 6;
#else
  static constexpr int kRows = 4;
#endif
  static constexpr bool widens = false;
  using Wide = int8_t;
  static int64_t depth(const GemmArgs& args) {
    return args.run_shift > 3 ? int64_t{1} << args.run_shift : 8;
  }
  static int32_t usual_zero(const GemmArgs& args) { return Own::usual_zero(args.zeros || args.offsets); }
  static int64_t units(const GemmArgs& args) { return divide_up(args.in_size, args.group); }
  static int64_t panel_bytes(const GemmArgs& args) {
    return divide_up(args.in_size, Own::kStep) * Own::kStep * kPanel / Own::kInputsAByte;
  }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             int64_t unit0, int64_t units, float* kept, const Wide*) {
    const auto* a = static_cast<const typename Kind::T*>(rows.values) + first * rows.inputs;
    const auto* w = static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args);
    const Factors scales(args, args.scales, args.steps, panel);
    const Added added(args, panel);
    const bool is_added = added.is_there();
    Vec totals[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j)
        totals[i][j] = unit0 ? load(kept + i * kPanel + j * kLanes) : zero();
    const auto sum_group = [&](int64_t g, IVec (&sums)[R][2]) __attribute__((always_inline)) {
      const int64_t done = g * rows.group, left = args.in_size - done;
      const int64_t lanes = divide_up(left < rows.group ? left : rows.group, Own::kStep);
      const int32_t* starts = rows.starts + first * rows.groups + g * R;
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(starts[i]);
      Own::template add_group<R>(a + done * R, w + done * kPanel / Own::kInputsAByte, lanes, sums);
    };
    const int64_t shift = way == kCodes ? args.run_shift : 0, last = unit0 + units;
    for (int64_t g = unit0; g < last; g += int64_t{1} << shift) {
      const float* row_sums = rows.sums + first * rows.groups;
      IVec sums[R][2];
      if constexpr (way == kCodes) {
        const int64_t stop = g + (int64_t{1} << shift) < last ? g + (int64_t{1} << shift) : last;
        IVec runs[R][2];
        for (int i = 0; i < R; ++i) runs[i][0] = runs[i][1] = iset1(0);
        for (int64_t h = g; h < stop; ++h) {
          sum_group(h, sums);
          for (int j = 0; j < 2; ++j) {
            const IVec code = scales.code(h, j * kLanes);
#pragma GCC unroll 12
            for (int i = 0; i < R; ++i) runs[i][j] = iadd(runs[i][j], imul(sums[i][j], code));
          }
        }
        for (int j = 0; j < 2; ++j) {
          const Vec step = scales.step(g >> shift, j * kLanes);
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(runs[i][j]), step, totals[i][j]);
        }
        if (!is_added) continue;
        for (int i = 0; i < R; ++i) runs[i][0] = runs[i][1] = iset1(0);
        for (int64_t h = g; h < stop; ++h) {
          const IVec low = added.offsets.code(h, 0), high = added.offsets.code(h, kLanes);
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) {
            const IVec sum = iset1(static_cast<int32_t>(row_sums[h * R + i]));
            runs[i][0] = iadd(runs[i][0], imul(low, sum));
            runs[i][1] = iadd(runs[i][1], imul(high, sum));
          }
        }
        for (int j = 0; j < 2; ++j) {
          const Vec step = added.offsets.step(g >> shift, j * kLanes);
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(runs[i][j]), step, totals[i][j]);
        }
        continue;
      }
      sum_group(g, sums);
      for (int j = 0; j < 2; ++j) {
        Vec scale;
        if constexpr (way == kBfloat16Scale) scale = scales.template plain<kBfloat16>(g, j * kLanes);
        else if constexpr (way == kFloat16Scale) scale = scales.template plain<kFloat16>(g, j * kLanes);
        else scale = scales.load(g, j * kLanes);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(sums[i][j]), scale, totals[i][j]);
        if (way != kAnyScale || !is_added) continue;
        const Vec more = added.load(g, j * kLanes, scale, zero());
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i)
          totals[i][j] = fma(set1(row_sums[g * R + i]), more, totals[i][j]);
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
  }
  static DT_INLINE void scale(const GemmArgs&, const Rows& rows, int64_t row, int64_t, float* kept) {
    for (int j = 0; j < 2; ++j) {
      float* at = kept + j * kLanes;
      store(at, mul(load(at), set1(rows.scales[row])));
    }
  }
};

// One panel for all tiles: some units at a time, so that what tiles share stays near.
template <class Weight>
DT_INLINE void multiply_panel(const GemmArgs& args, const Rows& rows, int64_t row0,
                              const Tiling& tiling, int64_t panel) {
  auto* kept = static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
  const int64_t units = Weight::units(args), depth = tiling.count < 3 ? units : Weight::depth(args);
  for (int64_t unit = 0; unit < units; unit += depth) {
    const int64_t some = units - unit < depth ? units - unit : depth;
    typename Weight::Wide* wide = nullptr;
    if constexpr (Weight::widens) {
      if (tiling.count > 2) {
        wide = static_cast<typename Weight::Wide*>(
            scratch(1, depth * kPanel * kInt8Step * sizeof(typename Weight::Wide)));
        Weight::widen(args, panel, unit, some, wide);
      }
    }
    for (int64_t t = 0; t < tiling.count; ++t) {
      const int64_t first = tiling.first_row(t);
      with_rows<Weight::kRows>(tiling.rows(t), [&](auto r) {
        Weight::template tile<r.value>(args, rows, first, panel, unit, some, kept + first * kPanel,
                                          wide);
      });
    }
  }
  for (int64_t t = 0; t < tiling.count; ++t) {
    const int64_t first = tiling.first_row(t);
    for (int i = 0; i < tiling.rows(t); ++i)
      Weight::scale(args, rows, first + i, panel, kept + (first + i) * kPanel);
    finish(args, kept + first * kPanel, tiling.rows(t), row0 + first, panel);
  }
}

template <class Weight>
int multiply(const GemmArgs& args) {
  for (int64_t row0 = 0; row0 < args.rows; row0 += kBlockRows) {
    const int64_t count = args.rows - row0 < kBlockRows ? args.rows - row0 : kBlockRows;
    const Tiling tiling(count, Weight::kRows);
    Rows rows;
    if (!quantize<typename Weight::Kind>(args, row0, count, tiling, Weight::usual_zero(args), rows))
      return 1;
    each_panel(args, Weight::panel_bytes(args), count, [&](int64_t panel) {
      multiply_panel<Weight>(args, rows, row0, tiling, panel);
    });
  }
  return 0;
}

template <class Own>
int multiply_grouped(const GemmArgs& args) {
  const bool has_codes = args.steps && args.scale_format == kInt8 && args.step_format == kFloat16 &&
                         !args.zeros && !args.offsets == !args.offset_steps &&
                         args.group << args.run_shift <= kMostInputsARun;
  if (has_codes) return multiply<Grouped<Own, kCodes>>(args);
  if (!args.steps && !args.zeros && !args.offsets) {
    if (args.scale_format == kBfloat16) return multiply<Grouped<Own, kBfloat16Scale>>(args);
    if (args.scale_format == kFloat16) return multiply<Grouped<Own, kFloat16Scale>>(args);
  }
  return multiply<Grouped<Own, kAnyScale>>(args);
}

int multiply_any(const GemmArgs& args) {
  switch (args.format) {
    case kInt8: return multiply<Int8>(args);
    case kInt4Int8: return multiply_grouped<Nibbles>(args);
    case kInt8Int8: return multiply_grouped<GroupedBytes>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 1 when memory for the quantized rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_int8, GemmArgs) { return multiply_any(args); }

// The same for several; stops at the first that fails.
DT_KERNEL(gemm_int8_group, GroupArgs) {
  int failed = 0;
  for (int64_t i = 0; i < args.count && !failed; ++i) failed = multiply_any(args.items[i]);
  return failed;
}
