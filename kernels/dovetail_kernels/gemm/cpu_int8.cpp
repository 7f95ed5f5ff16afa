// Matrix products in integers: activations become integers as the product begins (integer_rows.h);
// weights are int8 with a scale per output, or 2- to 8-bit with a scale per group of inputs.
//
// out[m, n] = sum_s x_scale[m, s] * w_scale[n, s] * sum_(k in s) xq[m, k] wq[n, k]
// The integer sums of a segment s are exact. Where a row has one scale and an output too, all of a row is
// one segment (Dettmers et al., LLM.int8(), 2022, section 2).

#include "gemm/grouped.h"
#include "gemm/integer_rows.h"
#include "gemm/products.h"
#if defined(__AMX_TILE__)
#include "gemm/amx_bytes.h"
constexpr bool has_amx = true;
constexpr int64_t kAmxPanels = dt::DT_ISA::amx_tiles::kPanelsBeside;
#else
constexpr bool has_amx = false;
constexpr int64_t kAmxPanels = 1;
#endif

using namespace dt;
using namespace dt::DT_ISA;

namespace {


// A format says how a piece of a panel is multiplied by a tile: [R, kPanel] of 32 bits each, begun with
// the first piece and added to with the next ones; and what is done to a finished row. Grouped is one, too.
struct Int8 {
  using Kind = Int8Rows;
  static constexpr int kRows = kTileRows, kStep = kInt8Step, kStart = kInt8Offset;
  static constexpr bool may_use_amx = false;
  static int32_t start(const GemmArgs&) { return kStart; }
  static constexpr int beside = kBeside;  // one row is multiplied by so many panels at once
  static constexpr int64_t kHalf = kLanes * kInt8Step;  // bytes of inputs that lie together
  static constexpr int64_t kLaneBytes = 2 * kHalf;
  static int64_t panel_bytes(const GemmArgs& args) {
    return divide_up(args.in_size, kStep) * kLaneBytes;
  }
  static int64_t depth(const Rows& rows, int64_t tiles) { return tiles < 2 ? rows.inputs : 512; }

  // Inputs k0 .. k1 of a panel. Bytes become words once, for all tiles, instead of in every tile.
  struct Piece {
    const Rows& rows;
    int64_t k0, lanes;
    const int8_t* w;
    const typename Kind::T* wide = nullptr;
    DT_INLINE Piece(const GemmArgs& args, const Rows& rows, int64_t panel, int64_t k0, int64_t k1, bool may_widen)
        : rows(rows), k0(k0), lanes(divide_up(k1 - k0, kStep)),
          w(static_cast<const int8_t*>(args.weight) + panel * panel_bytes(args) + k0 * kPanel) {
      if (!Kind::is_wide || !may_widen) return;
      auto* to = static_cast<typename Kind::T*>(scratch(1, lanes * kLaneBytes * sizeof(typename Kind::T)));
      for (int64_t i = 0; i < lanes * kLaneBytes; i += kHalf) istore(to + i, Kind::weights(w + i));
      wide = to;
    }
    template <int R>
    DT_INLINE void multiply(int64_t first, float* kept, const Prefetch& prefetch) const {
      const auto* a = static_cast<const Kind::T*>(rows.values) + first * rows.inputs + k0 * R;
      IVec sums[R][2];
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j)
          sums[i][j] = k0 ? iload(kept + i * kPanel + j * kLanes) : iset1(rows.starts[first + i]);
      if (Kind::is_wide && wide) {
        const auto* x = wide;
        for (int64_t l = 0; l < lanes; ++l, a += R * kStep, x += kLaneBytes) {
          prefetch.unit(l);
          add_lane<R>(iload(x), iload(x + kHalf), a, sums);
        }
      } else {
        const int8_t* x = w;
        for (int64_t l = 0; l < lanes; ++l, a += R * kStep, x += kLaneBytes) {
          if constexpr (R > 1) prefetch.unit<kLaneBytes>(l);
          add_lane<R>(Kind::weights(x), Kind::weights(x + kHalf), a, sums);
        }
      }
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) istore(kept + i * kPanel + j * kLanes, sums[i][j]);
    }
  };
  // One row by `beside` panels, a stream each: more lines are waited for at once than by one.
  static DT_INLINE void row(const GemmArgs& args, const Rows& rows, int64_t panel, float* kept) {
    const auto* a = static_cast<const Kind::T*>(rows.values);
    const int64_t apart = panel_bytes(args);
    const int8_t* w = static_cast<const int8_t*>(args.weight) + panel * apart;
    IVec sums[beside][2];
    for (auto& sum : sums) sum[0] = sum[1] = iset1(rows.starts[0]);
    for (int64_t k = divide_up(args.in_size, kStep); k > 0; --k, a += kStep, w += kLaneBytes) {
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
  static DT_INLINE void add_lane(IVec w0, IVec w1, const Kind::T* a, IVec (&sums)[R][2]) {
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const IVec x = broadcast(a + i * kStep);
      sums[i][0] = Kind::dot(sums[i][0], w0, x);
      sums[i][1] = Kind::dot(sums[i][1], w1, x);
    }
  }
};

// One panel for all tiles: some inputs at a time, so that what tiles share stays near.
template <class Weight>
DT_INLINE void multiply_panel(const GemmArgs& args, const Rows& rows, int64_t row0,
                              const Tiling& tiling, int64_t panel) {
  auto* kept = static_cast<float*>(scratch(2, kBlockRows * kPanel * sizeof(float)));
  const int64_t depth = Weight::depth(rows, tiling.count);
  for (int64_t k = 0; k < args.in_size; k += depth) {
    const int64_t end = k + depth < args.in_size ? k + depth : args.in_size;
    const typename Weight::Piece piece(args, rows, panel, k, end, tiling.count > 2);
    const int64_t lanes = divide_up(end - k, Weight::kStep);
    for (int64_t t = 0; t < tiling.count; ++t) {
      const int64_t first = tiling.first_row(t);
      const Prefetch prefetch = tiling.count == 1
                              ? Prefetch::along(piece.w, Weight::kLaneBytes)
                              : Prefetch::after(piece.w, lanes, Weight::kLaneBytes, t, tiling.count);
      with_rows<Weight::kRows>(tiling.rows(t), [&](auto r) __attribute__((always_inline)) {
        piece.template multiply<r.value>(first, kept + first * kPanel, prefetch);
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

// See products.h.
template <class Weight>
class Product {
 public:
  explicit Product(const GemmArgs& args) : args_(args), rows_(args, Weight::start(args)) {}
  int64_t panel_bytes() const { return Weight::panel_bytes(args_); }
  static int64_t most_beside(int64_t rows) {
    if (rows < 2) return Weight::beside;
    return has_amx && rows >= kLeastAmxRows ? kAmxPanels : 1;
  }
  bool reserve(const Batch& batch) { return rows_.reserve(batch); }
  void prepare(const Batch& batch) const { rows_.prepare(batch); }
  void panels(const Block& block, int64_t panel, int64_t count) const {
    const GemmArgs& args = *block.args;
    const Rows rows = rows_.of(block);
#if defined(__AMX_TILE__)
    if constexpr (Weight::may_use_amx)
      if (rows_.uses_amx(block))
        return amx_bytes::multiply_panels<typename Weight::Lying>(args, rows, block, panel, count);
#endif
    if constexpr (Weight::beside > 1)
      if (count == Weight::beside && block.rows == 1) return panels_of_row<Weight>(args, rows, block.row0, panel);
    for (int64_t p = 0; p < count; ++p)
      multiply_panel<Weight>(args, rows, block.row0, rows_.tiling(block), panel + p);
  }

 private:
  const GemmArgs& args_;
  RoundedRows<typename Weight::Kind, Weight::kRows, has_amx && Weight::may_use_amx> rows_;
};

template <class Weight>
int multiply(const GroupArgs& group) { return multiply_all<Product<Weight>>(group); }

// An output has one scale. Where a row has, too, a product is one sum; otherwise all inputs are a group.
int multiply_int8(const GroupArgs& group) {
  if (Int8Rows::is_wide || !group.items[0].rounded_inputs) return multiply<Int8>(group);
  auto* items = static_cast<GemmArgs*>(scratch(5, group.count * sizeof(GemmArgs)));
  if (!items) return 1;
  for (int64_t i = 0; i < group.count; ++i) {
    items[i] = group.items[i];
    items[i].group = items[i].in_size;
  }
  return multiply<Grouped<Plain<8>>>({items, group.count});
}

int multiply_any(const GroupArgs& args) {
  if (!args.count) return 0;
  switch (args.items[0].format) {
    case kInt8: return multiply_int8(args);
    case kInt4Int8: return multiply<Grouped<Nibbles>>(args);
    case kInt8Int8: return multiply<Grouped<Plain<8>>>(args);
    case kInt2Int8: return multiply<Grouped<Narrow<2>>>(args);
    case kInt3Int8: return multiply<Grouped<Narrow<3>>>(args);
    case kInt5Int8: return multiply<Grouped<Narrow<5>>>(args);
    case kInt6Int8: return multiply<Grouped<Narrow<6>>>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 1 when memory for the rounded rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_int8, GemmArgs) { return multiply_any({&args, 1}); }

// The same for several; stops at the first batch that fails.
DT_KERNEL(gemm_int8_group, GroupArgs) { return multiply_any(args); }
