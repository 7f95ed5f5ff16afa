// Matrix products of bfloat16 weights and activations rounded to bfloat16, sums in float.
//
// With AVX512-BF16 one instruction multiplies and adds two inputs a lane, twice the rate of float
// multiply-adds. Elsewhere the same products are made in float, at the rate of gemm_float.

#include "gemm/tiles.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlockRows = 40 * kTileRows;  // rows whose rounded copy is held at once

// acc + the even inputs' products + the odd inputs' products.
DT_INLINE Vec dot2(Vec acc, IVec w, IVec x) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
#else
  const IVec high = iset1(static_cast<int32_t>(0xffff0000));
  acc = fma(as_float(shift_left<16>(x)), as_float(shift_left<16>(w)), acc);
  return fma(as_float(iand(x, high)), as_float(iand(w, high)), acc);
#endif
}

// c[R, kPanel] = the products of `pairs` pairs of inputs; a [pairs, R] and w [pairs, kPanel],
// two bfloat16 a lane.
template <int R>
DT_INLINE void tile(const uint32_t* a, const uint32_t* w, int64_t pairs, float* c) {
  Vec sums[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) sums[i][j] = zero();
  for (int64_t k = 0; k < pairs; ++k, a += R, w += kPanel) {
    const IVec w0 = iload(w), w1 = iload(w + kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const IVec x = iset1(static_cast<int32_t>(a[i]));
      sums[i][0] = dot2(sums[i][0], w0, x);
      sums[i][1] = dot2(sums[i][1], w1, x);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(c + i * kPanel + j * kLanes, sums[i][j]);
}

// Rows of x become tiles of rounded pairs: a[first_row * pairs + pair * R + i].
void pack_rows(const GemmArgs& args, int64_t row0, const Tiling& tiling, int64_t pairs, uint32_t* a) {
  constexpr int64_t kPiece = 512;
  const int64_t pieces = divide_up(pairs, kPiece);
  parallel(tiling.count * pieces, [&](int64_t task) {
    const int64_t t = task / pieces, first = task % pieces * kPiece;
    const int64_t last = first + kPiece < pairs ? first + kPiece : pairs;
    const int rows = tiling.rows(t);
    uint32_t* to = a + tiling.first_row(t) * pairs;
    for (int i = 0; i < rows; ++i) {
      const float* from = args.x + (row0 + tiling.first_row(t) + i) * args.x_stride;
      bf16 rounded[2 * kPiece];
      int64_t k = first * 2;
      const int64_t end = last * 2 < args.in_size ? last * 2 : args.in_size;
      for (; k + kLanes <= end; k += kLanes) store_bf16(rounded + k - first * 2, load(from + k));
      for (; k < end; ++k) rounded[k - first * 2] = float_to_bf16(from[k]);
      for (; k < last * 2; ++k) rounded[k - first * 2] = 0;
      for (int64_t p = first; p < last; ++p)
        memcpy(to + p * rows + i, rounded + (p - first) * 2, 4);
    }
  });
}

int multiply(const GemmArgs& args) {
  const int64_t pairs = divide_up(args.in_size, 2);
  for (int64_t row0 = 0; row0 < args.rows; row0 += kBlockRows) {
    const int64_t count = args.rows - row0 < kBlockRows ? args.rows - row0 : kBlockRows;
    const Tiling tiling(count);
    auto* a = static_cast<uint32_t*>(scratch(0, count * pairs * 4));
    if (!a) return 1;
    pack_rows(args, row0, tiling, pairs, a);
    each_panel(args, pairs * kPanel * 4, count, [&](int64_t panel) {
      const auto* w = static_cast<const uint32_t*>(args.weight) + panel * pairs * kPanel;
      float c[kTileRows * kPanel];
      for (int64_t t = 0; t < tiling.count; ++t) {
        const int64_t first = tiling.first_row(t);
        with_rows(tiling.rows(t), [&](auto r) { tile<r.value>(a + first * pairs, w, pairs, c); });
        finish(args, c, tiling.rows(t), row0 + first, panel);
      }
    });
  }
  return 0;
}

}  // namespace

// Returns 0; 1 when memory for the rounded rows cannot be had.
DT_KERNEL(gemm_bf16, GemmArgs) { return multiply(args); }

// The same for several; stops at the first that fails.
DT_KERNEL(gemm_bf16_group, GroupArgs) {
  int failed = 0;
  for (int64_t i = 0; i < args.count && !failed; ++i) failed = multiply(args.items[i]);
  return failed;
}
