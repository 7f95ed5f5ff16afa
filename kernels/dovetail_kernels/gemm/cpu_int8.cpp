// Matrix products in integers: activations become int8, one scale a row, as the product begins;
// weights are int8 with a scale per output, or 2- to 8-bit with a scale per group of inputs.
//
// The integer sums are exact, so they are the same on every instruction set and in every tile.
// out[m, n] = x_scale[m] * w_scale[n] * sum_k xq[m, k] wq[n, k]
// Source of the scheme: Dettmers et al., LLM.int8(), 2022, section 2 (row-wise, column-wise scales).

#include "gemm/grouped.h"
#include "gemm/integer_rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose quantized copy is held at once

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
  static int64_t wide_bytes(const GemmArgs&, int64_t units) {
    return units * kPanel * kInt8Step * static_cast<int64_t>(sizeof(Wide));
  }
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
            scratch(1, Weight::wide_bytes(args, depth)));
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
  return with_way<Own>(args, [&](auto way) { return multiply<decltype(way)>(args); });
}

int multiply_any(const GemmArgs& args) {
  switch (args.format) {
    case kInt8: return multiply<Int8>(args);
    case kInt4Int8: return multiply_grouped<Nibbles>(args);
    case kInt8Int8: return multiply_grouped<GroupedBytes>(args);
    case kInt2Int8: return multiply_grouped<Narrow<2>>(args);
    case kInt3Int8: return multiply_grouped<Narrow<3>>(args);
    case kInt5Int8: return multiply_grouped<Narrow<5>>(args);
    case kInt6Int8: return multiply_grouped<Narrow<6>>(args);
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
