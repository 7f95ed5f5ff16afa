// Integer products in segments of inputs (grouped.h) by AMX, for many rows: a tile of 16 rows by 16 columns
// of a panel.
//
// A piece of a panel becomes signed bytes once, for all tiles of rows. The integer sums of a segment are the
// ones that vectors make, and become floats by the same operations in the same order: both ways give
// the same bits. While tiles are in use a core makes half as many multiply-adds of vectors, so a segment's
// scales take longer than its products.
#pragma once

#include "gemm/amx_tiles.h"
#include "gemm/grouped.h"

namespace dt {
namespace DT_ISA {
namespace amx_bytes {

using namespace amx_tiles;

static_assert(kRows == kAmxRows && kRows == kLanes, "a tile of sums is a register for each row");

constexpr int64_t kDepth = 512;  // inputs of a panel that all rows are multiplied by at a time

// sums += rows of signed bytes times columns of bytes.
template <int sums, int x, int w, bool is_signed> DT_INLINE void add_products() {
  if (is_signed) asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(w));
  else asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(w));
}

// Inputs k0 .. k1 of a panel as bytes, [inputs / 4][kPanel][4], anything beyond k1.
struct Piece {
  int64_t k0, k1;
  const uint8_t* bytes;
  const SpelledFactors& factors;
  bool is_last;  // of its panel
};

// Returns a piece as bytes, less `zero`.
template <class Own>
DT_INLINE const uint8_t* bytes_of(const uint8_t* w, int64_t inputs, int zero) {
  const int64_t lanes = divide_up(inputs, Own::kStep), room = divide_up(inputs, 64) * 64 * kPanel;
  auto* to = static_cast<uint8_t*>(scratch(1, room));
  if constexpr (Own::kBits == 8) memcpy(to, w, lanes * Own::kStep * kPanel);
  else Own::widen(w, lanes, to);
  if (!zero) return to;
  const IVec less = _mm512_set1_epi8(static_cast<char>(zero));
  for (int64_t i = 0; i < inputs * kPanel; i += 64) istore(to + i, _mm512_sub_epi8(iload(to + i), less));
  return to;
}

// The sums of a segment's products, of 16 rows and 16 columns. a and w go on to the next segment.
template <int chunk, bool is_signed>
DT_INLINE void sum_segment(const int8_t*& a, const uint8_t*& w, int64_t chunks, int32_t* sums) {
  clear_tile<0>();
  do {
    load_tile<4>(a, chunk);
    load_tile<6>(w, kStride);
    add_products<0, 4, 6, is_signed>();
    a += kRows * chunk, w += chunk * kPanel;
  } while (chunk == 64 && --chunks > 0);  // where a tile is smaller it is a segment
  store_tile<0>(sums, kLanes * 4);
}

// Tile t of the rows by columns j * kLanes on. What the loop needs is in few variables: they stay in registers.
template <int chunk, bool is_signed>
__attribute__((noinline)) void multiply_tile(const Rows& rows, const Piece& piece, int64_t t, int j,
                                             float* kept) {
  const SpelledFactors& factors = piece.factors;
  const int64_t first = t * kRows, inputs = piece.k1 - piece.k0, chunks = divide_up(rows.segment, chunk);
  const auto* a = static_cast<const int8_t*>(rows.values) + first * rows.inputs + piece.k0 * kRows;
  const uint8_t* w = piece.bytes + j * kLanes * 4;
  const float* row_scales = rows.scales + first * rows.segments + divide_up(piece.k0, rows.segment) * kRows;
  const float* row_sums = rows.sums + first * rows.groups + factors.first * kRows;
  const float *scales = factors.scales + j * kLanes, *end = scales + factors.count * kPanel;
  const int64_t offsets = factors.offsets ? factors.offsets - factors.scales : 0;
  const int64_t segments = divide_up(rows.group < inputs ? rows.group : inputs, rows.segment);
  const bool is_open = !piece.is_last && piece.k1 % rows.group;  // the last group ends in a later piece
  int64_t left = divide_up(inputs, chunk);
  alignas(64) int32_t sums[kRows * kLanes];
  Vec totals[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) totals[i] = piece.k0 ? load(kept + i * kPanel) : zero();
  for (; scales < end; scales += kPanel, row_sums += kRows) {
    const Vec scale = load(scales);
    for (int64_t n = segments; n > 0 && left > 0; --n, left -= chunks, row_scales += kRows) {
      sum_segment<chunk, is_signed>(a, w, left < chunks ? left : chunks, sums);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i)
        totals[i] = fma(mul(to_float(iload(sums + i * kLanes)), set1(row_scales[i])), scale, totals[i]);
    }
    if (!offsets || (is_open && scales + kPanel == end)) continue;
    const Vec offset = load(scales + offsets);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) totals[i] = fma(set1(row_sums[i]), offset, totals[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) store(kept + i * kPanel, totals[i]);
}

template <bool is_signed>
void multiply_piece(const Rows& rows, const Piece& piece, int64_t count, float* kept) {
  const auto tile = rows.chunk == 64   ? multiply_tile<64, is_signed>
                    : rows.chunk == 32 ? multiply_tile<32, is_signed>
                                       : multiply_tile<16, is_signed>;
  for (int64_t t = 0; t * kRows < count; ++t)
    for (int j = 0; j < 2; ++j) tile(rows, piece, t, j, kept + t * kRows * kPanel + j * kLanes);
}

// Some panels for all rows of a block: a part of the inputs for every panel, then the next, since all of their
// inputs are more than a core's own cache.
template <class Own>
void multiply_panels(const GemmArgs& args, const Rows& rows, const Block& block, int64_t panel,
                     int64_t num_panels) {
  const int64_t kept_size = divide_up(block.rows, kRows) * kRows * kPanel;
  auto* kept = static_cast<float*>(scratch(2, num_panels * kept_size * sizeof(float)));
  const int64_t unit = rows.group <= kDepth ? rows.group : rows.segment, depth = divide_up(kDepth, unit) * unit;
  const int zero = Grouped<Own>::start(args);
  const Registers registers(kRows, rows.chunk);
  for (int64_t k = 0; k < args.in_size; k += depth) {
    const int64_t end = k + depth < args.in_size ? k + depth : args.in_size, group = k / rows.group;
    for (int64_t p = 0; p < num_panels; ++p) {
      const SpelledFactors factors(args, panel + p, group, divide_up(end, rows.group) - group);
      const auto* packed = static_cast<const uint8_t*>(args.weight) + (panel + p) * Grouped<Own>::panel_bytes(args);
      const uint8_t* bytes = bytes_of<Own>(packed + Grouped<Own>::bytes(k), end - k, zero);
      const Piece piece{k, end, bytes, factors, end == args.in_size};
      if (zero) multiply_piece<true>(rows, piece, block.rows, kept + p * kept_size);
      else multiply_piece<false>(rows, piece, block.rows, kept + p * kept_size);
    }
  }
  for (int64_t p = 0; p < num_panels; ++p)
    finish(args, kept + p * kept_size, static_cast<int>(block.rows), block.row0, panel + p);
}

}  // namespace amx_bytes
}  // namespace DT_ISA
}  // namespace dt
