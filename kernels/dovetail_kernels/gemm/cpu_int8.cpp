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

// A format: `units` of inputs (lanes for int8, groups of lanes for int4) of one panel for one tile,
// added to or begun in `sums` [R, kPanel] of 32 bits each; and how finished sums become floats. A lane
// is what a step of the innermost loop multiplies. One row is multiplied by `beside` panels at once.
struct Int8 {
  using Kind = Int8Rows;
  static constexpr int kRows = kTileRows, beside = kBeside;
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Bytes become words once, for all tiles, instead of in every tile.
  static constexpr bool widens = true;
  using Wide = int16_t;
#else
  static constexpr bool widens = false;
  using Wide = int8_t;
#endif
  static constexpr int64_t kHalf = kLanes * kInt8Step;  // bytes of inputs that lie together
  static DT_INLINE const int8_t* weights(const GemmArgs& args, int64_t panel, int64_t unit) {
    return static_cast<const int8_t*>(args.weight) + panel * panel_bytes(args) + unit * 2 * kHalf;
  }
  static DT_INLINE void widen(const GemmArgs& args, int64_t panel, int64_t unit0, int64_t units,
                              Wide* wide) {
    const int8_t* w = weights(args, panel, unit0);
    for (int64_t i = 0; i < units * 2 * kHalf; i += kHalf) istore(wide + i, Kind::weights(w + i));
  }
  static int64_t wide_bytes(const GemmArgs&, int64_t units) {
    return units * kPanel * kInt8Step * static_cast<int64_t>(sizeof(Wide));
  }
  static int64_t depth(const GemmArgs&) { return 512 / kInt8Step; }
  static int32_t usual_zero(const GemmArgs&) { return kInt8Offset; }
  static int64_t units(const GemmArgs& args) { return divide_up(args.in_size, kInt8Step); }
  static constexpr int64_t kLaneBytes = 2 * kHalf;
  static int64_t lanes(const GemmArgs&) { return 1; }
  static int64_t panel_bytes(const GemmArgs& args) { return units(args) * kInt8Step * kPanel; }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             int64_t unit0, int64_t units, float* kept, const Wide* wide,
                             const Ahead& ahead) {
    const auto* a = static_cast<const Kind::T*>(rows.values) + first * rows.inputs +
                    unit0 * R * Kind::step;
    IVec sums[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j)
        sums[i][j] = unit0 ? iload(kept + i * kPanel + j * kLanes)
                           : iset1(rows.starts[first + i]);
    if (widens && wide) {
      for (int64_t k = 0; k < units; ++k, a += R * Kind::step, wide += 2 * kHalf) {
        ahead.ask(k);
        add_unit<R>(iload(wide), iload(wide + kHalf), a, sums);
      }
    } else {
      const int8_t* w = weights(args, panel, unit0);
      for (int64_t k = 0; k < units; ++k, a += R * Kind::step, w += 2 * kHalf) {
        if constexpr (R > 1) ahead.ask<kLaneBytes>(k);
        add_unit<R>(Kind::weights(w), Kind::weights(w + kHalf), a, sums);
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) istore(kept + i * kPanel + j * kLanes, sums[i][j]);
  }
  // One row by `beside` panels, a stream each: more lines are waited for at once than by one.
  static DT_INLINE void row(const GemmArgs& args, const Rows& rows, int64_t panel, float* kept) {
    const auto* a = static_cast<const Kind::T*>(rows.values);
    const int8_t* w = weights(args, panel, 0);
    const int64_t apart = panel_bytes(args);
    IVec sums[beside][2];
    for (auto& sum : sums) sum[0] = sum[1] = iset1(rows.starts[0]);
    for (int64_t k = units(args); k > 0; --k, a += Kind::step, w += 2 * kHalf) {
      const IVec x = broadcast(a);
#pragma GCC unroll 4
      for (int p = 0; p < beside; ++p) {
        const int8_t* at = w + p * apart;
        sums[p][0] = Kind::dot(sums[p][0], Kind::weights(at), x);
        sums[p][1] = Kind::dot(sums[p][1], Kind::weights(at + kHalf), x);
      }
    }
    for (int p = 0; p < beside; ++p)
      for (int j = 0; j < 2; ++j) istore(kept + p * kPanel + j * kLanes, sums[p][j]);
  }
  static DT_INLINE void scale(const GemmArgs& args, const Rows& rows, int64_t row, int64_t panel,
                              float* kept) {
    for (int j = 0; j < 2; ++j) {
      float* at = kept + j * kLanes;
      const Vec scale = load(static_cast<const float*>(args.scales) + panel * kPanel + j * kLanes);
      store(at, mul(mul(to_float(iload(at)), scale), set1(rows.scales[row])));
    }
  }

 private:
  template <int R>
  static DT_INLINE void add_unit(IVec w0, IVec w1, const Kind::T* a, IVec (&sums)[R][2]) {
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const IVec x = broadcast(a + i * Kind::step);
      sums[i][0] = Kind::dot(sums[i][0], w0, x);
      sums[i][1] = Kind::dot(sums[i][1], w1, x);
    }
  }
};

// One panel for all tiles: some units at a time, so that what tiles share stays near.
template <class Weight>
DT_INLINE void multiply_panel(const GemmArgs& args, const Rows& rows, int64_t row0,
                              const Tiling& tiling, int64_t panel) {
  auto* kept = static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
  const int64_t units = Weight::units(args), depth = tiling.count < 2 ? units : Weight::depth(args);
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
      const auto* w = Weight::weights(args, panel, unit);
      const Ahead ahead = tiling.count == 1
                              ? Ahead::along(w, Weight::kLaneBytes)
                              : Ahead::after(w, some * Weight::lanes(args), Weight::kLaneBytes, t,
                                             tiling.count);
      with_rows<Weight::kRows>(tiling.rows(t), [&](auto r) {
        Weight::template tile<r.value>(args, rows, first, panel, unit, some, kept + first * kPanel,
                                       wide, ahead);
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

// `beside` panels for one row.
template <class Weight>
DT_INLINE void panels_of_row(const GemmArgs& args, const Rows& rows, int64_t row, int64_t panel) {
  float kept[Weight::beside * kPanel];
  Weight::row(args, rows, panel, kept);
  for (int p = 0; p < Weight::beside; ++p) {
    Weight::scale(args, rows, 0, panel + p, kept + p * kPanel);
    finish(args, kept + p * kPanel, 1, row, panel + p);
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
    constexpr int beside = Weight::beside;
    each_panels(args, count == 1 ? beside : 1, Weight::panel_bytes(args), count, [&](int64_t first, int64_t some) {
      if constexpr (beside > 1)
        if (some == beside) return panels_of_row<Weight>(args, rows, row0, first);
      for (int64_t panel = first; panel < first + some; ++panel)
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
