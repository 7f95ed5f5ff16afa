// Products of bfloat16 by AMX: one instruction multiplies 16 rows of 32 inputs by 32 inputs of 16 columns.
//
// A panel of bfloat16 pairs already lies as AMX reads it: 16 pairs of 16 columns are a tile. Rows are copied
// into tiles of their own, zeros where there are none: a tile takes the same time whatever is in it, and
// memory is what few rows wait for. Every output is the same chain of instructions whatever the rows beside
// it.
#pragma once

#include "gemm/amx_tiles.h"
#include "gemm/products.h"

namespace dt {
namespace DT_ISA {
namespace amx_tiles {

constexpr int64_t kInputs = 32;            // of a tile, in pairs
constexpr int64_t kDepth = 256;            // inputs of a panel that all rows are multiplied by at a time

// The rows of a block: for each 16 of them a tile for each 32 inputs.
struct Rows {
  char* at;
  int64_t count, blocks;  // tiles of rows, and of inputs
  DT_INLINE char* tile(int64_t t, int64_t block) const { return at + (t * blocks + block) * kTileBytes; }
};

constexpr int64_t kRoundedBlocks = 32;  // of a tile of rows that are rounded by one task

// Rounds some blocks of inputs of a tile of rows. Of fewer rows than a tile has, as Registers are told, no
// more are read.
inline void round_piece(const Block& from, const Rows& to, int64_t t, int64_t first) {
  const int64_t size = from.args->in_size, rows = from.rows < kRows ? from.rows : kRows;
  const int64_t last = first + kRoundedBlocks < to.blocks ? first + kRoundedBlocks : to.blocks;
  for (int64_t i = 0; i < rows; ++i) {
    const bool is_there = t * kRows + i < from.rows;
    const float* x = is_there ? from.row(t * kRows + i) : nullptr;
    for (int64_t block = first; block < last; ++block) {
      auto* pairs = reinterpret_cast<bf16*>(to.tile(t, block)) + i * kInputs;
      const int64_t left = is_there ? size - block * kInputs : 0;
      for (int64_t k = 0; k < kInputs; k += kLanes) {
        const int some = static_cast<int>(left - k < kLanes ? left - k : kLanes);
        const float* at = x + block * kInputs + k;
        store_bf16(pairs + k, some == kLanes ? load(at) : some > 0 ? load_some(at, some, 0.0f) : zero());
      }
    }
  }
}

// c[16 T rows, kPanel] (+)= the products of `blocks` tiles of inputs; a holds T tiles of rows, `apart` bytes
// from one another.
template <int T>
DT_INLINE void piece(const char* a, int64_t apart, const char* w, int64_t blocks, float* c, bool adds,
                     const Prefetch& prefetch) {
  if (adds) load_sums<T>(c, kStride);
  else clear_sums<T>();
  for (int64_t block = 0; block < blocks; ++block, a += kTileBytes, w += kRows * kStride) {
    multiply_tiles<T>(a, 64, apart, w, w + kRows * 4, kStride);
    for (int64_t line = 0; line < prefetch.bytes; line += kLineBytes)
      __builtin_prefetch(prefetch.next + block * prefetch.bytes + line);
  }
  store_sums<T>(c, kStride);
}

// Some panels for all rows: of many rows a part of the inputs for every panel, then the next, since all
// of their inputs are more than a core's own cache.
inline void panels_of_rows(const GemmArgs& args, int64_t row0, int64_t count, const Rows& rows, int64_t panel,
                           int64_t num_panels) {
  const int64_t pairs = divide_up(args.in_size, 2), whole = pairs / kRows, c_size = rows.count * kRows * kPanel;
  auto* c = static_cast<float*>(scratch(2, num_panels * c_size * sizeof(float)));
  const char* packed = static_cast<const char*>(args.weight) + panel * pairs * kStride;
  const Registers registers(count);
  const auto multiply = [&](const char* w, int64_t first, int64_t blocks, float* to, const char* after)
                            __attribute__((always_inline)) {
    const int64_t apart = rows.blocks * kTileBytes;
    const Prefetch next{after, kRows * kStride};
    for (int64_t t = 0; t < rows.count; t += 2) {
      const Prefetch share = next.part(blocks, t / 2, divide_up(rows.count, 2));
      float* sums = to + t * kRows * kPanel;
      if (t + 1 < rows.count) piece<2>(rows.tile(t, first), apart, w, blocks, sums, first > 0, share);
      else piece<1>(rows.tile(t, first), apart, w, blocks, sums, first > 0, share);
    }
  };
  const int64_t depth = rows.count <= 2 ? whole : kDepth / kInputs;
  for (int64_t block = 0; block < whole; block += depth)
    for (int64_t p = 0; p < num_panels; ++p) {
      const char* w = packed + (p * pairs + block * kRows) * kStride;
      const int64_t some = whole - block < depth ? whole - block : depth;
      const char* after = p + 1 < num_panels ? w + pairs * kStride : packed + (block + some) * kRows * kStride;
      multiply(w, block, some, c + p * c_size, rows.count <= 2 ? w + 4 * kPrefetchBytes : after);
    }
  for (int64_t p = 0; p < num_panels; ++p) {
    if (whole < rows.blocks) {  // the last pairs, zeros after them
      alignas(64) char last[kRows * kStride] = {};
      memcpy(last, packed + (p * pairs + whole * kRows) * kStride, (pairs - whole * kRows) * kStride);
      multiply(last, whole, 1, c + p * c_size, last);
    }
    finish(args, c + p * c_size, static_cast<int>(count), row0, panel + p);
  }
}

// See products.h.
class Product {
 public:
  explicit Product(const GemmArgs& args) : args_(args), blocks_(divide_up(args.in_size, kInputs)) {}
  int64_t panel_bytes() const { return divide_up(args_.in_size, 2) * kStride; }
  static int64_t most_beside(int64_t rows) { return rows < kManyRows ? 1 : kPanelsBeside; }
  bool reserve(const Batch& batch) {
    int64_t tiles = 0;
    for (int64_t b = 0; b < batch.count; ++b) {
      first_[b] = static_cast<int32_t>(tiles);
      tiles += divide_up(batch.blocks[b].rows, kRows);
    }
    start_ = batch.blocks;
    at_ = static_cast<char*>(scratch(0, tiles * blocks_ * kTileBytes));
    return at_;
  }
  void prepare(const Batch& batch) const {
    const int64_t pieces = divide_up(blocks_, kRoundedBlocks);
    each_task(batch, [&](const Block& block) { return divide_up(block.rows, kRows) * pieces; },
              [&](const Block& block, int64_t task) {
                round_piece(block, of(block), task / pieces, task % pieces * kRoundedBlocks);
              });
  }
  void panels(const Block& block, int64_t panel, int64_t count) const {
    panels_of_rows(*block.args, block.row0, block.rows, of(block), panel, count);
  }

 private:
  const GemmArgs& args_;
  int64_t blocks_;
  const Block* start_ = nullptr;
  char* at_ = nullptr;
  int32_t first_[kBlockRows];  // tile of each block of rows
  Rows of(const Block& block) const {
    return {at_ + first_[&block - start_] * blocks_ * kTileBytes, divide_up(block.rows, kRows), blocks_};
  }
};

}  // namespace amx_tiles
}  // namespace DT_ISA
}  // namespace dt
