// Matrix products with float activations: weights float32, bfloat16, half,
// or in groups: float8 or 2 to 8 bits.
//
// A narrow weight becomes float in a register, next to its multiply-add. Where many rows share a
// panel, it becomes float once, into the first-level cache. Both ways give the same bits.
// Work: M*N*K multiply-adds; bytes: the packed weight once for every kBlockRows rows.

#include "gemm/planes.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose packed copy is held at once
constexpr int64_t kDepth = 128;                 // inputs whose weights are held as floats at once
#if defined(__AVX512F__)
constexpr int64_t kExpandTiles = 3;  // from so many tiles on, a panel is made float once
#else
constexpr int64_t kExpandTiles = 2;
#endif

// How each format's panel is laid out and read. `step` inputs lie together: raw() loads them, and
// get<s>() makes the weights of the s-th of them floats, two registers of columns.
struct Float32 {
  static constexpr int step = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return a.in_size * kPanel * 4; }
  const float* at;
  DT_INLINE explicit Float32(const float* weights) : at(weights) {}
  DT_INLINE Float32(const GemmArgs& args, int64_t panel)
      : at(static_cast<const float*>(args.weight) + panel * args.in_size * kPanel) {}
  struct Raw { Vec w[2]; };
  DT_INLINE Raw raw(int64_t k) const {
    return {{load(at + k * kPanel), load(at + k * kPanel + kLanes)}};
  }
  template <int s> static DT_INLINE Vec get(const Raw& raw, int j) { return raw.w[j]; }
};

struct Float16 {
  static constexpr int step = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return a.in_size * kPanel * 2; }
  const f16* at;
  DT_INLINE Float16(const GemmArgs& args, int64_t panel)
      : at(static_cast<const f16*>(args.weight) + panel * args.in_size * kPanel) {}
  using Raw = Float32::Raw;
  DT_INLINE Raw raw(int64_t k) const {
    return {{load_f16(at + k * kPanel), load_f16(at + k * kPanel + kLanes)}};
  }
  template <int s> static DT_INLINE Vec get(const Raw& raw, int j) { return raw.w[j]; }
};

// Two inputs share a 32-bit lane, the even one in its lower half; an odd last input has a zero
// beside it.
struct Bfloat16 {
  static constexpr int step = 2;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 2) * kPanel * 4; }
  const uint32_t* at;
  DT_INLINE Bfloat16(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 2) * kPanel) {}
  struct Raw { IVec pairs[2]; };
  DT_INLINE Raw raw(int64_t k) const {
    return {{iload(at + k / 2 * kPanel), iload(at + k / 2 * kPanel + kLanes)}};
  }
  template <int s> static DT_INLINE Vec get(const Raw& raw, int j) {
    if constexpr (s == 0) return as_float(shift_left<16>(raw.pairs[j]));
    return as_float(iand(raw.pairs[j], iset1(static_cast<int32_t>(0xffff0000))));
  }
};

// Eight inputs share a 32-bit lane, the first in its lowest bits. A weight is q * scale + what is
// added, rounded once. The group is a multiple of eight.
struct Int4 {
  static constexpr int step = 8;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 8) * kPanel * 4; }
  const uint32_t* at;
  Factors scales;
  Added added;
  int64_t group;
  DT_INLINE Int4(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 8) * kPanel),
        scales(args, args.scales, args.steps, panel),
        added(args, panel),
        group(args.group) {}
  struct Raw {
    IVec packed[2];
    Vec scale[2], zero[2];
  };
  DT_INLINE Raw raw(int64_t k) const {
    Raw r;
    const int64_t g = k / group;
    for (int j = 0; j < 2; ++j) {
      r.packed[j] = iload(at + k / 8 * kPanel + j * kLanes);
      r.scale[j] = scales.load(g, j * kLanes);
      r.zero[j] = added.load(g, j * kLanes, r.scale[j], set1(8.0f));
    }
    return r;
  }
  template <int s> static DT_INLINE Vec get(const Raw& raw, int j) {
    const Vec q = to_float(iand(shift_right<4 * s>(raw.packed[j]), iset1(15)));
    return fma(q, raw.scale[j], raw.zero[j]);
  }
};

// Planes of 2, 3, 5 or 6 bits, otherwise as Int4. The group is a multiple of a unit.
template <int bits>
struct Narrow {
  static constexpr int step = Planes<bits>::kUnit;
  static int64_t panel_bytes(const GemmArgs& a) { return Planes<bits>::panel_bytes(a.in_size); }
  const uint8_t* at;
  Factors scales;
  Added added;
  int64_t group;
  DT_INLINE Narrow(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args)),
        scales(args, args.scales, args.steps, panel),
        added(args, panel),
        group(args.group) {}
  struct Raw {
    const uint8_t* at;
    Vec scale[2], zero[2];
  };
  DT_INLINE Raw raw(int64_t k) const {
    Raw r;
    r.at = at + k / step * Planes<bits>::kUnitBytes;
    const int64_t g = k / group;
    for (int j = 0; j < 2; ++j) {
      r.scale[j] = scales.load(g, j * kLanes);
      r.zero[j] = added.load(g, j * kLanes, r.scale[j], set1(1 << (bits - 1)));
    }
    return r;
  }
  template <int s> static DT_INLINE Vec get(const Raw& raw, int j) {
    return fma(to_float(Planes<bits>::template wide<s>(raw.at, j)), raw.scale[j], raw.zero[j]);
  }
};

// One byte an input and column, as in Float32; eight inputs at a time, so that they share a scale.
// The panel's last eight are padded. A weight is e4m3 * scale or q * scale + what is added.
template <bool is_float8>
struct Bytes {
  static constexpr int step = 8;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 8) * 8 * kPanel; }
  const uint8_t* at;
  Factors scales;
  Added added;
  int64_t group;
  DT_INLINE Bytes(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint8_t*>(args.weight) + panel * divide_up(args.in_size, 8) * 8 * kPanel),
        scales(args, args.scales, args.steps, panel),
        added(args, panel),
        group(args.group) {}
  struct Raw {
    const uint8_t* at;
    Vec scale[2], zero[2];
  };
  DT_INLINE Raw raw(int64_t k) const {
    Raw r;
    r.at = at + k * kPanel;
    const int64_t g = k / group;
    for (int j = 0; j < 2; ++j) {
      const Vec scale = scales.load(g, j * kLanes);
      r.scale[j] = is_float8 ? mul(scale, set1(256.0f)) : scale;
      r.zero[j] = !is_float8 && added.is_there() ? added.load(g, j * kLanes, scale, zero()) : zero();
    }
    return r;
  }
  template <int s> DT_INLINE Vec get(const Raw& raw, int j) const {
    const uint8_t* here = raw.at + s * kPanel + j * kLanes;
    if constexpr (is_float8) return mul(load_e4m3_256ths(here), raw.scale[j]);
    return fma(load_s8(reinterpret_cast<const int8_t*>(here)), raw.scale[j], raw.zero[j]);
  }
};

// Laid out as Int4. A weight is table[code] * scale, the scale times the output's outer one.
struct Table4 {
  static constexpr int step = 8;
  static int64_t panel_bytes(const GemmArgs& a) { return Int4::panel_bytes(a); }
  const uint32_t* at;
  Table16 table;
  Factors scales;
  Vec outer[2];
  int64_t group;
  DT_INLINE Table4(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 8) * kPanel),
        table(args.table),
        scales(args, args.scales, args.steps, panel),
        group(args.group) {
    for (int j = 0; j < 2; ++j)
      outer[j] = args.outer ? load(args.outer + panel * kPanel + j * kLanes) : set1(1.0f);
  }
  struct Raw {
    IVec packed[2];
    Vec scale[2];
  };
  DT_INLINE Raw raw(int64_t k) const {
    Raw r;
    for (int j = 0; j < 2; ++j) {
      r.packed[j] = iload(at + k / 8 * kPanel + j * kLanes);
      r.scale[j] = mul(scales.load(k / group, j * kLanes), outer[j]);
    }
    return r;
  }
  template <int s> DT_INLINE Vec get(const Raw& raw, int j) const {
    return mul(table(shift_right<4 * s>(raw.packed[j])), raw.scale[j]);
  }
};

// Adds the products of inputs s .. of one raw load; a holds their activations, R apart.
template <int R, class Weight, int s = 0>
DT_INLINE void add_products(const float* a, const Weight& weight, const typename Weight::Raw& raw,
                            Vec (&sums)[R][2]) {
  const Vec w0 = weight.template get<s>(raw, 0), w1 = weight.template get<s>(raw, 1);
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) {
    const Vec x = set1(a[i]);
    sums[i][0] = fma(x, w0, sums[i][0]);
    sums[i][1] = fma(x, w1, sums[i][1]);
  }
  if constexpr (s + 1 < Weight::step) add_products<R, Weight, s + 1>(a + R, weight, raw, sums);
}

// c[R, kPanel] (+)= a[k, R]^T w[k, kPanel] over `inputs` inputs from k0 on; a starts at k0.
template <int R, class Weight>
DT_INLINE void tile(const float* a, const Weight& weight, int64_t k0, int64_t inputs, float* c,
                    bool adds) {
  constexpr int step = Weight::step;
  Vec sums[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) sums[i][j] = adds ? load(c + i * kPanel + j * kLanes) : zero();
  int64_t k = 0;
  for (; k + step <= inputs; k += step, a += R * step)
    add_products<R, Weight>(a, weight, weight.raw(k0 + k), sums);
  if (step > 1 && k < inputs) {  // the last inputs of a raw load, zeros beside them
    float padded[R * step] = {};
    for (int64_t i = 0; i < (inputs - k) * R; ++i) padded[i] = a[i];
    add_products<R, Weight>(padded, weight, weight.raw(k0 + k), sums);
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(c + i * kPanel + j * kLanes, sums[i][j]);
}

// Inputs [k0, k0 + inputs) of a panel as floats; at least a raw load's worth more is written.
template <class Weight, int s = 0>
DT_INLINE void widen(const Weight& weight, const typename Weight::Raw& raw, float* to) {
  for (int j = 0; j < 2; ++j) store(to + j * kLanes, weight.template get<s>(raw, j));
  if constexpr (s + 1 < Weight::step) widen<Weight, s + 1>(weight, raw, to + kPanel);
}

// Rows [row0, row0 + rows) of x become tiles, inputs outermost: a[first_row * K + k * R + i].
void pack_rows(const GemmArgs& args, int64_t row0, const Tiling& tiling, float* a) {
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = divide_up(args.in_size, kPiece);
  parallel(tiling.count * pieces, [&](int64_t task) {
    const int64_t t = task / pieces, first = task % pieces * kPiece;
    const int64_t last = first + kPiece < args.in_size ? first + kPiece : args.in_size;
    const int rows = tiling.rows(t);
    float* to = a + tiling.first_row(t) * args.in_size;
    const float* from = args.x + (row0 + tiling.first_row(t)) * args.x_stride;
    for (int64_t k = first; k < last; ++k)
      for (int i = 0; i < rows; ++i) to[k * rows + i] = from[i * args.x_stride + k];
  });
}

// One panel for few tiles: weights become float in registers.
template <class Weight>
DT_INLINE void panel_direct(const GemmArgs& args, int64_t row0, const Tiling& tiling, const float* a,
                            int64_t panel) {
  const Weight weight(args, panel);
  float c[kTileRows * kPanel];
  for (int64_t t = 0; t < tiling.count; ++t) {
    const int64_t first = tiling.first_row(t);
    with_rows(tiling.rows(t), [&](auto rows) {
      tile<rows.value>(a + first * args.in_size, weight, 0, args.in_size, c, false);
    });
    finish(args, c, tiling.rows(t), row0 + first, panel);
  }
}

// One panel for many tiles: kDepth inputs at a time become float once and serve every tile.
template <class Weight>
DT_INLINE void panel_expanded(const GemmArgs& args, int64_t row0, const Tiling& tiling,
                              const float* a, int64_t panel) {
  constexpr bool is_wide = sizeof(typename Weight::Raw) == sizeof(Float32::Raw) && Weight::step == 1;
  const Weight weight(args, panel);
  auto* wide = static_cast<float*>(scratch(1, kDepth * kPanel * sizeof(float)));
  auto* c = static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
  for (int64_t k0 = 0; k0 < args.in_size; k0 += kDepth) {
    const int64_t inputs = args.in_size - k0 < kDepth ? args.in_size - k0 : kDepth;
    if constexpr (!is_wide)
      for (int64_t k = 0; k < inputs; k += Weight::step)
        widen<Weight>(weight, weight.raw(k0 + k), wide + k * kPanel);
    for (int64_t t = 0; t < tiling.count; ++t) {
      const int64_t first = tiling.first_row(t);
      with_rows(tiling.rows(t), [&](auto rows) {
        const float* from = a + first * args.in_size + k0 * rows.value;
        float* to = c + first * kPanel;
        if constexpr (is_wide) tile<rows.value>(from, weight, k0, inputs, to, k0 > 0);
        else tile<rows.value>(from, Float32(wide), 0, inputs, to, k0 > 0);
      });
    }
  }
  for (int64_t t = 0; t < tiling.count; ++t) {
    const int64_t first = tiling.first_row(t);
    finish(args, c + first * kPanel, tiling.rows(t), row0 + first, panel);
  }
}

template <class Weight>
int multiply(const GemmArgs& args) {
  for (int64_t row0 = 0; row0 < args.rows; row0 += kBlockRows) {
    const int64_t rows = args.rows - row0 < kBlockRows ? args.rows - row0 : kBlockRows;
    const Tiling tiling(rows);
    const float* a = args.x + row0 * args.x_stride;
    if (rows > 1) {
      float* packed = static_cast<float*>(scratch(0, rows * args.in_size * sizeof(float)));
      if (!packed) return 1;
      pack_rows(args, row0, tiling, packed);
      a = packed;
    }
    each_panel(args, Weight::panel_bytes(args), rows, [&](int64_t panel) {
      if (tiling.count < kExpandTiles) panel_direct<Weight>(args, row0, tiling, a, panel);
      else panel_expanded<Weight>(args, row0, tiling, a, panel);
    });
  }
  return 0;
}

int multiply_any(const GemmArgs& args) {
  switch (args.format) {
    case kFloat32: return multiply<Float32>(args);
    case kBfloat16: return multiply<Bfloat16>(args);
    case kFloat16: return multiply<Float16>(args);
    case kInt4: return multiply<Int4>(args);
    case kFloat8: return multiply<Bytes<true>>(args);
    case kInt8Float32: return multiply<Bytes<false>>(args);
    case kTable4: return multiply<Table4>(args);
    case kInt2: return multiply<Narrow<2>>(args);
    case kInt3: return multiply<Narrow<3>>(args);
    case kInt5: return multiply<Narrow<5>>(args);
    case kInt6: return multiply<Narrow<6>>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 1 when memory for the packed rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_float, GemmArgs) { return multiply_any(args); }

// The same for several; stops at the first that fails.
DT_KERNEL(gemm_float_group, GroupArgs) {
  int failed = 0;
  for (int64_t i = 0; i < args.count && !failed; ++i) failed = multiply_any(args.items[i]);
  return failed;
}
