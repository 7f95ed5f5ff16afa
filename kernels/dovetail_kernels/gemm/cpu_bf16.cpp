// Matrix products of activations rounded to bfloat16, sums in float. Weights are bfloat16, or values in
// groups that bfloat16 holds exactly (float8, integers; a table's are rounded to it), whose scale is
// multiplied with the sum of the group.
//
// With AVX512-BF16 one instruction multiplies and adds two inputs a lane, twice the rate of float
// multiply-adds. Elsewhere the same products are made in float, at the rate of gemm_float.
// A weight that is not stored in pairs becomes pairs in registers for one row, and for more once, into
// the first-level cache. Both ways give the same bits.

#include "gemm/float_weights.h"
#include "gemm/products.h"
#if defined(__AMX_TILE__)
#include "gemm/amx_bfloat16.h"
#endif

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kDepth = 256;                 // inputs of a panel that are pairs at a time
constexpr int kGroupedRows = kTileRows < 6 ? kTileRows : 6;  // of a tile that keeps sums of groups and totals
constexpr int32_t kHighHalf = static_cast<int32_t>(0xffff0000);

// acc + the products of the lower halves + those of the upper halves.
DT_INLINE Vec dot2(Vec acc, IVec w, IVec x) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
#else
  const IVec high = iset1(kHighHalf);
  acc = fma(as_float(shift_left<16>(x)), as_float(shift_left<16>(w)), acc);
  return fma(as_float(iand(x, high)), as_float(iand(w, high)), acc);
#endif
}

// Two registers of floats that are exact in bfloat16, as pairs.
DT_INLINE IVec paired(Vec low, Vec high) {
  return put(as_int(high), iset1(kHighHalf), shift_right<16>(as_int(low)));
}

// How each format's panel is read as pairs of inputs. `step` inputs lie together: raw() finds them,
// pair<i>() makes the i-th pair of them bfloat16. A pair's inputs are `apart` from one another.
// `added`: a group's sum of activations is multiplied by this, and added.
struct Bfloat16 {
  static constexpr bool is_scaled = false;
  static constexpr int step = 2, apart = 1, beside = kBeside;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 2) * kPanel * 4; }
  static bool has_added(const GemmArgs&) { return false; }
  const uint32_t* at;
  int64_t stride;
  DT_INLINE Bfloat16(const uint32_t* at, int64_t stride) : at(at), stride(stride) {}
  DT_INLINE Bfloat16(const GemmArgs& args, int64_t panel) {
    const Interleaved lies(args, panel, divide_up(args.in_size, 2));
    at = static_cast<const uint32_t*>(args.weight) + lies.first * kPanel;
    stride = lies.stride * kPanel;
  }
  DT_INLINE Bfloat16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  using Raw = const uint32_t*;
  struct Scale { Vec scale[2], added[2]; };
  DT_INLINE Raw raw(int64_t k) const { return at + k / 2 * stride; }
  DT_INLINE Scale scale(int64_t) const { return {}; }
  template <int i> DT_INLINE IVec pair(Raw raw, int j) const { return iload(raw + j * kLanes); }
};

template <class Values>
struct Scaled {
  static constexpr bool is_scaled = true;
  static constexpr int step = Values::step, apart = 1, beside = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return Values::panel_bytes(a); }
  static bool has_added(const GemmArgs& a) {
    return Values::has_added && (Values::usual != 0 || a.zeros || a.offsets);
  }
  Values values;
  GroupScales<Values> scales;
  DT_INLINE Scaled(const GemmArgs& args, int64_t panel) : values(args, panel), scales(args, panel) {}
  DT_INLINE Scaled next(const GemmArgs& args, int64_t panel, int p) const { return {args, panel + p}; }
  using Raw = typename Values::Raw;
  struct Scale { Vec scale[2], added[2]; };
  DT_INLINE Scale scale(int64_t g) const {
    const auto found = scales.of(g);
    if constexpr (Values::has_added) return {{found.scale[0], found.scale[1]}, {found.zero[0], found.zero[1]}};
    else return {{found.scale[0], found.scale[1]}, {}};
  }
  DT_INLINE Raw raw(int64_t k) const { return values.raw(k); }
  template <int i> DT_INLINE IVec pair(const Raw& raw, int j) const {
    return paired(values.template value<2 * i>(raw, j), values.template value<2 * i + 1>(raw, j));
  }
};

// Sixteen numbers in bfloat16, looked up for the inputs s and s + 4 of eight in nibbles at once.
struct PairTable {
#if defined(__AVX512F__)
  static constexpr int apart = 4;
  __m512i words;
  DT_INLINE explicit PairTable(const float* p) {
    bf16 rounded[32];
    store_bf16(rounded, load(p));
    store_bf16(rounded + 16, load(p));
    words = iload(rounded);
  }
  template <int i> DT_INLINE IVec pair(IVec packed) const {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(packed, 4 * i), words);
  }
#else
  static constexpr int apart = 1;
  float rounded[16];
  DT_INLINE explicit PairTable(const float* p) {
    for (int i = 0; i < 16; ++i) rounded[i] = bf16_to_float(float_to_bf16(p[i]));
  }
  template <int i> DT_INLINE IVec pair(IVec packed) const {
    const Table16 table(rounded);
    return paired(table(shift_right<8 * i>(packed)), table(shift_right<8 * i + 4>(packed)));
  }
#endif
};

// Four bits: codes of a table, or integers, which are codes of a table of integers around zero.
template <bool is_table>
struct Nibbles {
  static constexpr bool is_scaled = true;
  static constexpr int step = 8, apart = PairTable::apart, beside = 2;
  using Values = std::conditional_t<is_table, TableCodes, FourBits>;
  static int64_t panel_bytes(const GemmArgs& a) { return Values::panel_bytes(a); }
  static bool has_added(const GemmArgs& a) { return !is_table && (a.zeros || a.offsets); }
  static const float* table_of(const GemmArgs& args) {
    static constexpr float kIntegers[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return is_table ? args.table : kIntegers;
  }
  const uint32_t* at;
  PairTable table;
  GroupScales<Values> scales;
  DT_INLINE Nibbles(const GemmArgs& args, int64_t panel)
      : at(nibbles_of(args, panel)), table(table_of(args)), scales(args, panel) {}
  DT_INLINE Nibbles next(const GemmArgs& args, int64_t panel, int p) const { return {args, panel + p}; }
  using Raw = NibbleRaw;
  struct Scale { Vec scale[2], added[2]; };
  DT_INLINE Scale scale(int64_t g) const {
    const auto found = scales.of(g);
    Scale made{{found.scale[0], found.scale[1]}, {}};
    if constexpr (!is_table)
      for (int j = 0; j < 2; ++j) made.added[j] = fma(found.scale[j], set1(8.0f), found.zero[j]);
    return made;
  }
  DT_INLINE Raw raw(int64_t k) const { return nibbles_at(at, k); }
  template <int i> DT_INLINE IVec pair(const Raw& raw, int j) const {
    return table.template pair<i>(raw.packed[j]);
  }
};

// The rounded rows of a block: tiles one after the other, [pairs, R] in each, and [groups, R] sums of
// the activations of groups where they are needed.
struct Rounded {
  uint32_t* pairs;
  float* sums;
  int64_t num_pairs, num_groups;
};

constexpr int64_t kPiece = 1024;

// Inputs from k0 on, a piece of them, of one row of a tile of `rows`.
void round_piece(const float* x, int64_t size, int64_t k0, int64_t inputs, int apart, int rows,
                 uint32_t* to) {
  bf16 rounded[kPiece];
  const int64_t end = size - k0 < inputs ? size - k0 : inputs;
  int64_t k = 0;
  for (; k + kLanes <= end; k += kLanes) store_bf16(rounded + k, load(x + k0 + k));
  for (; k < end; ++k) rounded[k] = float_to_bf16(x[k0 + k]);
  for (; k < inputs; ++k) rounded[k] = 0;
  to += k0 / 2 * rows;
  for (int64_t p = 0; apart == 1 && p < inputs / 2; ++p) memcpy(to + p * rows, rounded + 2 * p, 4);
  for (int64_t p = 0; apart == 4 && p < inputs / 2; ++p) {
    const int64_t low = p / 4 * 8 + p % 4;
    to[p * rows] = uint32_t{rounded[low + 4]} << 16 | rounded[low];
  }
}

// The sums of groups of a row, as the pairs have them: eight of each in turn.
void sum_groups(const Rounded& all, const uint32_t* pairs, int64_t group_pairs, int rows, float* sums) {
  for (int64_t g = 0; g < all.num_groups; ++g) {
    const int64_t first = g * group_pairs, full = first + group_pairs;
    const int64_t stop = full < all.num_pairs ? full : all.num_pairs;
    float total[2][4] = {};
    for (int64_t p = first; p < stop; ++p) {
      total[0][p % 4] += from_bits(pairs[p * rows] << 16);
      total[1][p % 4] += from_bits(pairs[p * rows] & 0xffff0000);
    }
    for (int i = 1; i < 8; ++i) total[0][0] += total[i / 4][i % 4];
    sums[g * rows] = total[0][0];
  }
}

// Some groups of a panel, or a part of one, for one tile: a [pairs, R] and w [pairs, kPanel].
struct Piece {
  const uint32_t *a, *w;
  int64_t stride;               // from a pair's weights to the next one's
  Prefetch prefetch;            // a unit is a pair
  const float *scales, *added;  // [groups, kPanel]; null: the sums are what is wanted
  const float* row_sums;        // [groups, R]
  float *partial, *totals;      // [R, kPanel]: of a group that is not finished; of finished ones
  int64_t pairs, group_pairs;
  bool begins, ends, is_first;
};

// Calls body(row, half) for the registers of a tile.
template <int R, class Body>
DT_INLINE void each_register(const Body& body) {
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < 2; ++j) body(i, j);
}

template <int R>
DT_INLINE void tile(const Piece& piece) {
  const uint32_t *a = piece.a, *w = piece.w;
  const bool has_totals = piece.ends && !piece.is_first;
  Vec totals[R][2];
  each_register<R>([&](int i, int j) __attribute__((always_inline)) {
    totals[i][j] = has_totals ? load(piece.totals + i * kPanel + j * kLanes) : zero();
  });
  for (int64_t g = 0, k = 0; k < piece.pairs; ++g) {
    Vec sums[R][2];
    each_register<R>([&](int i, int j) __attribute__((always_inline)) {
      sums[i][j] = piece.begins ? zero() : load(piece.partial + i * kPanel + j * kLanes);
    });
    const int64_t full = k + piece.group_pairs, stop = full < piece.pairs ? full : piece.pairs;
    for (; k < stop; ++k, a += R, w += piece.stride) {
      piece.prefetch.unit<kPanel * 4>(k);
      const IVec w0 = iload(w), w1 = iload(w + kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = iset1(static_cast<int32_t>(a[i]));
        sums[i][0] = dot2(sums[i][0], w0, x);
        sums[i][1] = dot2(sums[i][1], w1, x);
      }
    }
    if (!piece.ends || !piece.scales) {
      float* to = piece.ends ? piece.totals : piece.partial;
      return each_register<R>([&](int i, int j) __attribute__((always_inline)) {
        store(to + i * kPanel + j * kLanes, sums[i][j]);
      });
    }
    const float* scale = piece.scales + g * kPanel;
    each_register<R>([&](int i, int j) __attribute__((always_inline)) {
      totals[i][j] = fma(sums[i][j], load(scale + j * kLanes), totals[i][j]);
    });
    if (!piece.added) continue;
    const float *added = piece.added + g * kPanel, *row_sums = piece.row_sums + g * R;
    each_register<R>([&](int i, int j) __attribute__((always_inline)) {
      totals[i][j] = fma(set1(row_sums[i]), load(added + j * kLanes), totals[i][j]);
    });
  }
  each_register<R>([&](int i, int j) __attribute__((always_inline)) {
    store(piece.totals + i * kPanel + j * kLanes, totals[i][j]);
  });
}
__attribute__((noinline)) void any_tile(int rows, const Piece& piece) {
  with_rows(rows, [&](auto r) { tile<r.value>(piece); });
}

// Adds the products of pair i .. of one raw load and one row.
template <class Weight, int i = 0>
DT_INLINE void add_pairs(const Weight& weight, const typename Weight::Raw& raw, const uint32_t* a,
                         Vec (&sums)[2]) {
  const IVec x = iset1(static_cast<int32_t>(a[i]));
  for (int j = 0; j < 2; ++j) sums[j] = dot2(sums[j], weight.template pair<i>(raw, j), x);
  if constexpr (i + 1 < Weight::step / 2) add_pairs<Weight, i + 1>(weight, raw, a, sums);
}

// One row by P panels: c[P, kPanel].
template <int P, class Weight>
DT_INLINE void row(const GemmArgs& args, const Rounded& rows, int64_t panel, float* c) {
  const Beside<Weight, P> weights(args, panel);
  Vec totals[P][2];
  for (int p = 0; p < P; ++p) totals[p][0] = totals[p][1] = zero();
  const int64_t inputs = 2 * rows.num_pairs, run = Weight::is_scaled ? args.group : inputs;
  for (int64_t k = 0, g = 0; k < inputs; ++g) {
    Vec sums[P][2];
    for (int p = 0; p < P; ++p) sums[p][0] = sums[p][1] = zero();
    const int64_t stop = k + run < inputs ? k + run : inputs;
    for (; k < stop; k += Weight::step)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        add_pairs<Weight>(weights.at[p], weights.at[p].raw(k), rows.pairs + k / 2, sums[p]);
    for (int p = 0; p < P; ++p) {
      const auto scale = weights.at[p].scale(g);
      for (int j = 0; j < 2; ++j) {
        totals[p][j] = Weight::is_scaled ? fma(sums[p][j], scale.scale[j], totals[p][j]) : sums[p][j];
        if (rows.sums) totals[p][j] = fma(set1(rows.sums[g]), scale.added[j], totals[p][j]);
      }
    }
  }
  for (int p = 0; p < P; ++p)
    for (int j = 0; j < 2; ++j) store(c + p * kPanel + j * kLanes, totals[p][j]);
}

template <int P, class Weight>
void panels_of_row(const GemmArgs& args, const Rounded& rows, int64_t row0, int64_t panel) {
  float c[P * kPanel];
  row<P, Weight>(args, rows, panel, c);
  for (int p = 0; p < P; ++p) finish(args, c + p * kPanel, 1, row0, panel + p);
}

template <class Weight, int i = 0>
DT_INLINE void widen_raw(const Weight& weight, const typename Weight::Raw& raw, uint32_t* to) {
  for (int j = 0; j < 2; ++j) istore(to + j * kLanes, weight.template pair<i>(raw, j));
  if constexpr (i + 1 < Weight::step / 2) widen_raw<Weight, i + 1>(weight, raw, to + kPanel);
}

// What tiles share of a piece of a panel, near: pairs, scales, and what is added.
struct Near {
  static constexpr int64_t kGroups = kDepth / 8;
  uint32_t pairs[kDepth / 2 * kPanel];
  float scales[kGroups * kPanel], added[kGroups * kPanel];
};

// Inputs [k, stop) of a panel.
template <class Weight>
DT_INLINE void widen(const GemmArgs& args, const Weight& weight, int64_t k, int64_t stop, Near& to) {
  for (int64_t g = k / args.group; g * args.group < stop; ++g) {
    const auto scale = weight.scale(g);
    const int64_t at = (g - k / args.group) * kPanel;
    for (int j = 0; j < 2; ++j) {
      store(to.scales + at + j * kLanes, scale.scale[j]);
      store(to.added + at + j * kLanes, scale.added[j]);
    }
  }
  for (uint32_t* pairs = to.pairs; k < stop; k += Weight::step, pairs += Weight::step / 2 * kPanel)
    widen_raw<Weight>(weight, weight.raw(k), pairs);
}

// One panel for all tiles: whole groups, or a part of one, at a time.
template <class Weight>
DT_INLINE void panel_of_tiles(const GemmArgs& args, int64_t row0, const Tiling& tiling,
                              const Rounded& rows, int64_t panel) {
  const Weight weight(args, panel);
  auto* totals = static_cast<float*>(scratch(2, 2 * kBlockRows * kPanel * sizeof(float)));
  auto* near = static_cast<Near*>(Weight::is_scaled ? scratch(1, sizeof(Near)) : nullptr);
  const int64_t inputs = 2 * rows.num_pairs, group = Weight::is_scaled ? args.group : inputs;
  const int64_t bytes = Weight::panel_bytes(args) / rows.num_pairs;
  const char* packed = static_cast<const char*>(args.weight) + panel * Weight::panel_bytes(args);
  const int64_t some = !Weight::is_scaled || group > kDepth ? group : kDepth / group * group;
  for (int64_t k0 = 0; k0 < inputs; k0 += some) {
    const int64_t end = k0 + some < inputs ? k0 + some : inputs;
    const int64_t depth = Weight::is_scaled ? kDepth : tiling.count == 1 ? inputs : kDepth / 2;
    for (int64_t k = k0; k < end; k += depth) {
      const int64_t stop = k + depth < end ? k + depth : end;
      if constexpr (Weight::is_scaled) widen(args, weight, k, stop, *near);
      for (int64_t t = 0; t < tiling.count; ++t) {
        const int64_t first = tiling.first_row(t), count = tiling.rows(t), g = k0 / group;
        Piece piece{};
        piece.a = rows.pairs + first * rows.num_pairs + k / 2 * count;
        if constexpr (Weight::is_scaled) {
          piece.w = near->pairs, piece.stride = kPanel, piece.scales = near->scales;
          piece.prefetch = Prefetch::after(packed + k / 2 * bytes, (stop - k) / 2, bytes, t, tiling.count);
        } else {
          const int64_t unit_bytes = weight.stride * 4;
          piece.w = weight.raw(k), piece.stride = weight.stride;
          piece.prefetch = tiling.count == 1
                            ? Prefetch::along(piece.w, unit_bytes)
                            : Prefetch::after(piece.w, (stop - k) / 2, unit_bytes, t, tiling.count);
        }
        if (rows.sums) {
          piece.added = near->added;
          piece.row_sums = rows.sums + first * rows.num_groups + g * count;
        }
        piece.totals = totals + first * kPanel;
        piece.partial = piece.totals + kBlockRows * kPanel;
        piece.pairs = (stop - k) / 2, piece.group_pairs = group / 2;
        piece.begins = k == k0, piece.ends = stop == end, piece.is_first = k0 == 0;
        any_tile(static_cast<int>(count), piece);
      }
    }
  }
  for (int64_t t = 0; t < tiling.count; ++t) {
    const int64_t first = tiling.first_row(t);
    finish(args, totals + first * kPanel, tiling.rows(t), row0 + first, panel);
  }
}

// See products.h.
template <class Weight>
class Product {
 public:
  explicit Product(const GemmArgs& args) : args_(args) {
    rows_.num_pairs = divide_up(args.in_size, Weight::step) * Weight::step / 2;
    rows_.num_groups = Weight::is_scaled ? divide_up(args.in_size, args.group) : 1;
  }
  int64_t panel_bytes() const { return Weight::panel_bytes(args_); }
  static int64_t most_beside(int64_t rows) { return rows > 1 ? 1 : Weight::beside; }
  bool reserve(const Batch& batch) {
    rows_.pairs = static_cast<uint32_t*>(scratch(0, batch.rows * rows_.num_pairs * 4));
    const bool has_sums = Weight::has_added(args_);
    rows_.sums = has_sums ? static_cast<float*>(scratch(4, batch.rows * rows_.num_groups * 4)) : nullptr;
    return rows_.pairs && (rows_.sums || !has_sums);
  }
  void prepare(const Batch& batch) const {
    const int64_t inputs = 2 * rows_.num_pairs, pieces = divide_up(inputs, kPiece);
    const auto tasks = [&](const Block& block) { return tiling_of(block).count * pieces; };
    each_task(batch, tasks, [&](const Block& block, int64_t task) {
      const Tiling tiling = tiling_of(block);
      const int64_t t = task / pieces, k0 = task % pieces * kPiece, first = tiling.first_row(t);
      const int64_t some = inputs - k0 < kPiece ? inputs - k0 : kPiece;
      uint32_t* to = of(block).pairs + first * rows_.num_pairs;
      for (int i = 0; i < tiling.rows(t); ++i)
        round_piece(block.row(first + i), args_.in_size, k0, some, Weight::apart, tiling.rows(t), to + i);
    });
    if (!rows_.sums) return;
    const auto tiles = [&](const Block& block) { return tiling_of(block).count; };
    each_task(batch, tiles, [&](const Block& block, int64_t t) {
      const Tiling tiling = tiling_of(block);
      const Rounded rows = of(block);
      const int64_t first = tiling.first_row(t);
      for (int i = 0; i < tiling.rows(t); ++i)
        sum_groups(rows, rows.pairs + first * rows.num_pairs + i, args_.group / 2, tiling.rows(t),
                   rows.sums + first * rows.num_groups + i);
    });
  }
  void panels(const Block& block, int64_t panel, int64_t count) const {
    const GemmArgs& args = *block.args;
    if (block.rows > 1) panel_of_tiles<Weight>(args, block.row0, tiling_of(block), of(block), panel);
    else if (count == Weight::beside) panels_of_row<Weight::beside, Weight>(args, of(block), block.row0, panel);
    else panels_of_row<1, Weight>(args, of(block), block.row0, panel);
  }

 private:
  const GemmArgs& args_;
  Rounded rows_;
  Tiling tiling_of(const Block& block) const {
    return Tiling(block.rows, rows_.num_groups > 1 ? kGroupedRows : kTileRows);
  }
  Rounded of(const Block& block) const {
    Rounded own = rows_;
    own.pairs += block.before * rows_.num_pairs;
    if (own.sums) own.sums += block.before * rows_.num_groups;
    return own;
  }
};

template <class Weight>
int multiply(const GroupArgs& group) { return multiply_all<Product<Weight>>(group); }

int multiply_any(const GroupArgs& args) {
  if (!args.count) return 0;
  switch (args.items[0].format) {
#if defined(__AMX_TILE__)
    case kBfloat16Bfloat16: return multiply_all<amx_tiles::Product>(args);
#else
    case kBfloat16Bfloat16: return multiply<Bfloat16>(args);
#endif
    case kInt4: return multiply<Nibbles<false>>(args);
    case kTable4: return multiply<Nibbles<true>>(args);
    case kFloat8: return multiply<Scaled<ByteValues<true>>>(args);
    case kInt8Float32: return multiply<Scaled<ByteValues<false>>>(args);
    case kInt2: return multiply<Scaled<PlaneValues<2>>>(args);
    case kInt3: return multiply<Scaled<PlaneValues<3>>>(args);
    case kInt5: return multiply<Scaled<PlaneValues<5>>>(args);
    case kInt6: return multiply<Scaled<PlaneValues<6>>>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 1 when memory for the rounded rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_bf16, GemmArgs) { return multiply_any({&args, 1}); }

// The same for several; stops at the first batch that fails.
DT_KERNEL(gemm_bf16_group, GroupArgs) { return multiply_any(args); }
