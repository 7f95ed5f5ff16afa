// Products of matrices of vectors and of trits (vectors.h): activations as other integer products have
// them (integer_rows.h), or float32. A piece of a panel becomes bytes or floats once for all rows, however many there are.
//
// The pieces are the same for any number of rows, so a row's result does not depend on those beside it.

#include "gemm/integer_rows.h"
#include "gemm/products.h"
#include "gemm/vectors.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kByteUnits = 8, kFloatUnits = 2;  // units of a piece
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kIntegerRows = 6;  // sums of a segment and totals, two registers each
#else
constexpr int kIntegerRows = 4;
#endif

// total += a segment's sums times the row's scale and the group's.
DT_INLINE void add_segment(IVec sums, float row_scale, Vec scale, Vec& total) {
  total = fma(mul(to_float(sums), set1(row_scale)), scale, total);
}

// Inputs k0 .. k1 for one tile.
template <int R>
DT_INLINE void integer_tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                            int64_t k0, int64_t k1, const uint8_t* wide, float* kept) {
  const auto* a = static_cast<const int8_t*>(rows.values) + first * rows.inputs;
  const int32_t* starts = rows.starts + first * rows.segments;
  const float* row_scales = rows.scales + first * rows.segments;
  const GroupScales scales(args, panel);
  Vec totals[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) totals[i][j] = k0 ? load(kept + i * kPanel + j * kLanes) : zero();
  for (int64_t k = k0; k < k1; k += rows.segment) {
    const int64_t s = k / rows.segment, left = k1 - k;
    const int64_t quarters = (left < rows.segment ? left : rows.segment) / 4;
    const int8_t* x = a + k * R;
    const uint8_t* w = wide + (k - k0) * kPanel;
    IVec sums[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(starts[s * R + i]);
    for (int64_t q = 0; q < quarters; ++q, x += R * 4, w += kPanel * 4) {
      const IVec w0 = iload(w), w1 = iload(w + kLanes * 4);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec four = broadcast(x + i * 4);
        sums[i][0] = dot4(sums[i][0], w0, four);
        sums[i][1] = dot4(sums[i][1], w1, four);
      }
    }
    for (int j = 0; j < 2; ++j) {
      const Vec scale = scales.load(k / rows.group, j * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) add_segment(sums[i][j], row_scales[s * R + i], scale, totals[i][j]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
}

// The same for a whole panel and all rows there are, R: bytes are multiplied as they come.
template <int R>
void integer_panel(const GemmArgs& args, const Rows& rows, int64_t panel, float* kept) {
  const auto* a = static_cast<const int8_t*>(rows.values);
  const GroupScales scales(args, panel);
  IVec sums[R][2][2];  // of even and of odd lanes, so that one need not wait for the other
  Vec totals[R][2];
  int64_t segment = 0, left = 0;
  for (int i = 0; i < R; ++i) totals[i][0] = totals[i][1] = zero();
  const auto begin = [&]() __attribute__((always_inline)) {
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) {
        sums[i][j][0] = iset1(rows.starts[segment * R + i]);
        sums[i][j][1] = iset1(0);
      }
    left = rows.segment;
  };
  const auto end = [&]() __attribute__((always_inline)) {
    const int64_t g = segment * rows.segment / rows.group;
    for (int j = 0; j < 2; ++j) {
      const Vec scale = scales.load(g, j * kLanes);
      for (int i = 0; i < R; ++i)
        add_segment(iadd(sums[i][j][0], sums[i][j][1]), rows.scales[segment * R + i], scale, totals[i][j]);
    }
    ++segment;
  };
  const int64_t quarters = rows.inputs / 4;
  each_register(args, panel, 0, num_units(args.in_size), [&](int64_t q, auto half, auto parity, IVec bytes)
                __attribute__((always_inline)) {
    if (q >= quarters) return;
    if (half.value == 0 && parity.value == 0 && !left) begin();
    for (int i = 0; i < R; ++i) {
      IVec& sum = sums[i][half.value][parity.value];
      sum = dot4(sum, bytes, broadcast(a + (q * R + i) * 4));
    }
    if (half.value == 0 || parity.value == 0) return;
    left -= 8;
    if (!left || q + 1 == quarters) end();
  });
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
}

// One chain of multiply-adds over the inputs, in their order.
template <int R>
DT_INLINE void float_tile(const Block& block, int64_t row, int64_t k0, int64_t k1, const float* wide,
                          float* kept) {
  const float* x[R];
  for (int i = 0; i < R; ++i) x[i] = block.row(row + i);
  Vec totals[R][2];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) totals[i][j] = k0 ? load(kept + i * kPanel + j * kLanes) : zero();
  for (int64_t k = k0; k < k1; ++k, wide += kPanel) {
    const Vec w0 = load(wide), w1 = load(wide + kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const Vec one = set1(x[i][k]);
      totals[i][0] = fma(one, w0, totals[i][0]);
      totals[i][1] = fma(one, w1, totals[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
}

// Calls piece(unit0, units, wide) for the pieces of a panel, in order.
template <class T, class Body>
DT_INLINE void each_piece(const GemmArgs& args, int64_t depth, const Body& piece) {
  auto* wide = static_cast<T*>(scratch(1, depth * kUnitBytes * sizeof(T)));
  const int64_t units = num_units(args.in_size);
  for (int64_t unit = 0; unit < units; unit += depth)
    piece(unit, units - unit < depth ? units - unit : depth, wide);
}

DT_INLINE float* kept_sums() {
  return static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
}

DT_INLINE void scale(float* at, Vec by) { store(at, mul(load(at), by)); }

// See products.h. Points of int8.
class IntegerProduct {
 public:
  explicit IntegerProduct(const GemmArgs& args) : args_(args), rows_(args, zero_of(args.format)) {}
  int64_t panel_bytes() const { return num_units(args_.in_size) * kUnitBytes; }
  static int64_t most_beside(int64_t) { return 1; }
  bool reserve(const Batch& batch) { return rows_.reserve(batch); }
  void prepare(const Batch& batch) const { rows_.prepare(batch); }
  void panels(const Block& block, int64_t panel, int64_t) const {
    const GemmArgs& args = *block.args;
    const Rows rows = rows_.of(block);
    const Tiling tiling = rows_.tiling(block);
    float* kept = kept_sums();
    if (block.rows == 1) integer_panel<1>(args, rows, panel, kept);
    else if (block.rows == 2) integer_panel<2>(args, rows, panel, kept);
    else each_piece<uint8_t>(args, kByteUnits, [&](int64_t unit, int64_t units, uint8_t* wide) {
      widen_bytes(args, panel, unit, units, wide);
      const int64_t end = (unit + units) * kUnit, k1 = end < rows.inputs ? end : rows.inputs;
      for (int64_t t = 0; t < tiling.count; ++t)
        with_rows<kIntegerRows>(tiling.rows(t), [&](auto r) {
          const int64_t first = tiling.first_row(t);
          integer_tile<r.value>(args, rows, first, panel, unit * kUnit, k1, wide, kept + first * kPanel);
        });
    });
    finish(args, kept, static_cast<int>(block.rows), block.row0, panel);
  }

 private:
  const GemmArgs& args_;
  RoundedRows<Bytes, kIntegerRows> rows_;
};

// Points of halves, and activations as they are.
class FloatProduct {
 public:
  explicit FloatProduct(const GemmArgs& args) : args_(args) {}
  int64_t panel_bytes() const { return num_units(args_.in_size) * kUnitBytes; }
  static int64_t most_beside(int64_t) { return 1; }
  bool reserve(const Batch&) { return true; }
  void prepare(const Batch&) const {}
  void panels(const Block& block, int64_t panel, int64_t) const {
    const GemmArgs& args = *block.args;
    const Tiling tiling(block.rows);
    float* kept = kept_sums();
    each_piece<float>(args, kFloatUnits, [&](int64_t unit, int64_t units, float* wide) {
      widen_floats(args, panel, unit, units, wide);
      const int64_t end = (unit + units) * kUnit, k1 = end < args.in_size ? end : args.in_size;
      for (int64_t t = 0; t < tiling.count; ++t)
        with_rows(tiling.rows(t), [&](auto r) {
          const int64_t first = tiling.first_row(t);
          float_tile<r.value>(block, first, unit * kUnit, k1, wide, kept + first * kPanel);
        });
    });
    for (int j = 0; j < 2 && has_output_scales(args); ++j) {
      const Vec own = GroupScales(args, panel).shared(0, j * kLanes);
      for (int64_t row = 0; row < block.rows; ++row) scale(kept + row * kPanel + j * kLanes, own);
    }
    finish(args, kept, static_cast<int>(block.rows), block.row0, panel);
  }

 private:
  const GemmArgs& args_;
};

int multiply_any(const GroupArgs& args) {
  if (!args.count) return 0;
  const int32_t format = args.items[0].format;
  const bool rounds = format == kVectorsInt8 || format == kTritsInt8;
  return rounds ? multiply_all<IntegerProduct>(args) : multiply_all<FloatProduct>(args);
}

void pack_vectors(const PackArgs& args, int64_t row, int column, uint8_t* to) {
  const VectorUnits units{*args.vectors};
  const int books = units.what.num_books, size = units.what.size, slot = units.slot(column);
  const int64_t count = args.in_size / size;
  const auto* codes = static_cast<const uint16_t*>(args.weight) + row * count * books;
  for (int64_t v = 0; v < count; ++v) {
    const int64_t k = v * size;
    const int run = static_cast<int>(k % kUnit / 8) * kPanel + slot;
    const int i = run * (8 / size) + static_cast<int>(k % 8 / size);
    for (int b = 0; b < books; ++b) {
      uint8_t* at = to + k / kUnit * units.bytes() + b * units.code_bytes();
      const unsigned code = codes[v * books + b];
      if (size == 8) Codes<kEights>::write(at, units.what.code_bits, i, code);
      else Codes<2 * kEights>::write(at, units.what.code_bits, i, code);
    }
  }
  if (!args.signs) return;
  const auto* signs = static_cast<const uint8_t*>(args.signs) + row * (args.in_size / 8);
  for (int64_t e = 0; e < args.in_size / 8; ++e)
    to[e / (kUnit / 8) * units.bytes() + units.signs_at() + e % (kUnit / 8) * kPanel + slot] = signs[e];
}

void pack_trits(const PackArgs& args, int64_t row, int column, uint8_t* to) {
  const auto* values = static_cast<const uint8_t*>(args.weight) + row * args.in_size;
  const int64_t apart = 4 * kTritsAByte;  // inputs of a lane; those of a byte are 4 apart
  for (int64_t k0 = 0; k0 < args.in_size; k0 += apart)
    for (int b = 0; b < 4; ++b) {
      int number = 0;
      for (int64_t k = k0 + b; k < k0 + apart; k += 4)
        number = 3 * number + (k < args.in_size ? values[k] : 0);
      to[(k0 / apart * kPanel + column) * 4 + b] = static_cast<uint8_t>((number * 256 + 242) / 243);
    }
}

}  // namespace

// Returns 0, or 1 when memory for the rounded rows cannot be had.
DT_KERNEL(gemm_vectors, GemmArgs) { return multiply_any({&args, 1}); }

// The same for several; stops at the first batch that fails.
DT_KERNEL(gemm_vectors_group, GroupArgs) { return multiply_any(args); }

DT_KERNEL(vectors_panel_bytes, PackArgs) {
  return static_cast<int>(vectors_panel_bytes(args.format, args.vectors, args.in_size));
}

// Returns 0, or 1 when packed_bytes is not what the panels take.
DT_KERNEL(vectors_pack, PackArgs) {
  const int64_t panels = num_panels(args.out_size, args.is_gated);
  const int64_t bytes = vectors_panel_bytes(args.format, args.vectors, args.in_size);
  if (panels * bytes != args.packed_bytes) return 1;
  parallel(panels, [&](int64_t panel) {
    uint8_t* to = static_cast<uint8_t*>(args.packed) + panel * bytes;
    memset(to, 0, bytes);
    for (int column = 0; column < kPanel; ++column) {
      const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
      if (row < 0) continue;
      if (is_trits(args.format)) pack_trits(args, row, column, to);
      else pack_vectors(args, row, column, to);
    }
  });
  return 0;
}

// Reads a matrix back, row by row.
DT_KERNEL(vectors_rows, RowsArgs) {
  parallel(args.count, [&](int64_t i) {
    const int64_t row = args.row(i);
    if (row < 0) return;
    const int64_t panel = row / kPanel, column = row % kPanel;
    float wide[kUnitBytes];
    const bool is_scaled = has_output_scales(args);
    const float own = is_scaled ? GroupScales(args, panel).own.one(panel * kPanel + column) : 1.0f;
    for (int64_t unit = 0; unit < num_units(args.in_size); ++unit) {
      widen_floats(args, panel, unit, 1, wide);
      const int64_t left = args.in_size - unit * kUnit, some = left < kUnit ? left : kUnit;
      float* out = args.out + i * args.in_size + unit * kUnit;
      for (int64_t k = 0; k < some; ++k) out[k] = wide[k * kPanel + column] * own;
    }
  });
  return 0;
}
