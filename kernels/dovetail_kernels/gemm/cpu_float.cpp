// Matrix products with float activations: weights float32, bfloat16, half, or 4-bit in groups.
//
// A narrow weight becomes float in a register, next to its multiply-add. Where many rows share a
// panel, it becomes float once, into the first-level cache. Both ways give the same bits.
// Work: M*N*K multiply-adds; bytes: the packed weight once for every kBlockRows rows.

#include "gemm/tiles.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose packed copy is held at once
constexpr int64_t kDepth = 128;                 // inputs whose weights are held as floats at once
constexpr int64_t kExpandTiles = 3;             // from so many tiles on, a panel is made float once

// How each format's panel is laid out and read. `step` inputs are read together by load(), which
// gives the weights of input k + s, columns j * kLanes ..., as w[s][j].
struct Float32 {
  static constexpr int step = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return a.in_size * kPanel * 4; }
  const float* at;
  DT_INLINE Float32(const GemmArgs& args, int64_t panel)
      : at(static_cast<const float*>(args.weight) + panel * args.in_size * kPanel) {}
  DT_INLINE void load(int64_t k, Vec (&w)[step][2]) const {
    for (int j = 0; j < 2; ++j) w[0][j] = DT_ISA::load(at + k * kPanel + j * kLanes);
  }
};

struct Float16 {
  static constexpr int step = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return a.in_size * kPanel * 2; }
  const f16* at;
  DT_INLINE Float16(const GemmArgs& args, int64_t panel)
      : at(static_cast<const f16*>(args.weight) + panel * args.in_size * kPanel) {}
  DT_INLINE void load(int64_t k, Vec (&w)[step][2]) const {
    for (int j = 0; j < 2; ++j) w[0][j] = load_f16(at + k * kPanel + j * kLanes);
  }
};

// Two inputs share a 32-bit lane, the even one in its lower half; an odd last input has a zero
// beside it.
struct Bfloat16 {
  static constexpr int step = 2;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 2) * kPanel * 4; }
  const uint32_t* at;
  DT_INLINE Bfloat16(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 2) * kPanel) {}
  DT_INLINE void load(int64_t k, Vec (&w)[step][2]) const {
    for (int j = 0; j < 2; ++j) {
      const IVec pair = iload(at + k / 2 * kPanel + j * kLanes);
      w[0][j] = as_float(shift_left<16>(pair));
      w[1][j] = as_float(iand(pair, iset1(static_cast<int32_t>(0xffff0000))));
    }
  }
};

// Eight inputs share a 32-bit lane, the first in its lowest bits. A weight is q * scale - zero,
// rounded once. The group is a multiple of eight.
struct Int4 {
  static constexpr int step = 8;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 8) * kPanel * 4; }
  const uint32_t* at;
  const float *scales, *zeros;
  int64_t group;
  DT_INLINE Int4(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 8) * kPanel),
        group(args.group) {
    const int64_t offset = panel * divide_up(args.in_size, group) * kPanel;
    scales = args.scales + offset;
    zeros = args.zeros ? args.zeros + offset : nullptr;
  }
  template <int s> DT_INLINE void one(IVec packed, int j, Vec scale, Vec zero, Vec (&w)[step][2]) const {
    const Vec q = to_float(iand(shift_right<4 * s>(packed), iset1(15)));
    w[s][j] = fma(q, scale, zero);
    if constexpr (s + 1 < step) one<s + 1>(packed, j, scale, zero, w);
  }
  DT_INLINE void load(int64_t k, Vec (&w)[step][2]) const {
    for (int j = 0; j < 2; ++j) {
      const int64_t offset = k / group * kPanel + j * kLanes;
      const Vec scale = DT_ISA::load(scales + offset);
      const Vec zero = zeros ? sub(DT_ISA::zero(), DT_ISA::load(zeros + offset))
                             : mul(scale, set1(-8.0f));
      one<0>(iload(at + k / 8 * kPanel + j * kLanes), j, scale, zero, w);
    }
  }
};

// c[R, kPanel] (+)= a[k, R]^T w[k, kPanel] over `inputs` inputs from k0 on; a starts at k0.
template <int R, class Weight>
DT_INLINE void tile(const float* a, const Weight& weight, int64_t k0, int64_t inputs, float* c,
                    bool adds) {
  Vec sums[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) sums[i][j] = adds ? load(c + i * kPanel + j * kLanes) : zero();
  int64_t k = 0;
  constexpr int step = Weight::step;
  for (; k + step <= inputs; k += step, a += R * step) {
    Vec w[step][2];
    weight.load(k0 + k, w);
#pragma GCC unroll 8
    for (int s = 0; s < step; ++s) {
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const Vec x = set1(a[s * R + i]);
        sums[i][0] = fma(x, w[s][0], sums[i][0]);
        sums[i][1] = fma(x, w[s][1], sums[i][1]);
      }
    }
  }
  if (step > 1 && k < inputs) {
    Vec w[step][2];
    weight.load(k0 + k, w);
    for (int s = 0; k + s < inputs; ++s)
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) sums[i][j] = fma(set1(a[s * R + i]), w[s][j], sums[i][j]);
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(c + i * kPanel + j * kLanes, sums[i][j]);
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
  const Weight weight(args, panel);
  float* wide = static_cast<float*>(scratch(1, kDepth * kPanel * sizeof(float)));
  float* c = static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
  for (int64_t k0 = 0; k0 < args.in_size; k0 += kDepth) {
    const int64_t inputs = args.in_size - k0 < kDepth ? args.in_size - k0 : kDepth;
    for (int64_t k = 0; k < inputs; k += Weight::step) {
      Vec w[Weight::step][2];
      weight.load(k0 + k, w);
      for (int s = 0; s < Weight::step; ++s)
        for (int j = 0; j < 2; ++j) store(wide + (k + s) * kPanel + j * kLanes, w[s][j]);
    }
    GemmArgs wide_args = args;
    wide_args.weight = wide;
    const Float32 expanded(wide_args, 0);
    for (int64_t t = 0; t < tiling.count; ++t) {
      const int64_t first = tiling.first_row(t);
      with_rows(tiling.rows(t), [&](auto rows) {
        tile<rows.value>(a + first * args.in_size + k0 * rows.value, expanded, 0, inputs,
                         c + first * kPanel, k0 > 0);
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
  const int64_t panels = num_panels(args.out_size, args.is_gated);
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
    const int64_t some = panels_a_task(panels, Weight::panel_bytes(args), rows);
    parallel(divide_up(panels, some), [&](int64_t task) {
      const int64_t last = (task + 1) * some < panels ? (task + 1) * some : panels;
      for (int64_t panel = task * some; panel < last; ++panel) {
        if (tiling.count < kExpandTiles) panel_direct<Weight>(args, row0, tiling, a, panel);
        else panel_expanded<Weight>(args, row0, tiling, a, panel);
      }
    });
  }
  return 0;
}

}  // namespace

// Returns 0; 1 when memory for the packed rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_float, GemmArgs) {
  switch (args.format) {
    case kFloat32: return multiply<Float32>(args);
    case kBfloat16: return multiply<Bfloat16>(args);
    case kFloat16: return multiply<Float16>(args);
    case kInt4: return multiply<Int4>(args);
    default: return 2;
  }
}
