// Products of bfloat16 by AMX: one instruction multiplies 16 rows of 32 inputs by 32 inputs of 16 columns.
//
// A panel of bfloat16 pairs already lies as AMX reads it: 16 pairs of 16 columns are a tile. Rows are copied
// into tiles of their own, zeros where there are none: a tile takes the same time whatever is in it, and
// memory is what few rows wait for. Every output is the same chain of instructions whatever the rows beside
// it. Source: Intel, Architecture Instruction Set Extensions Programming Reference, chapter 3
#pragma once

#include "gemm/products.h"

namespace dt {
namespace DT_ISA {
namespace amx_tiles {

constexpr int64_t kRows = 16;              // of a tile of activations, of sums; columns of sums
constexpr int64_t kInputs = 32;            // of a tile, in pairs
constexpr int64_t kTileBytes = 1024;       // 16 rows of 64 bytes
constexpr int64_t kDepth = 512;            // inputs of a panel that all rows are multiplied by at a time
constexpr int64_t kStride = kPanel * 4;    // bytes from a pair of a panel, or a row of sums, to the next

// What the eight tile registers hold: 0 to 3 sums, 4 and 5 activations, 6 and 7 weights. All are full, but
// that 0, 1 and 4 have no more rows than there are.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The tile registers are ours while this lives.
struct Registers {
  DT_INLINE explicit Registers(int64_t rows) {
    Config config;
    for (int t : {0, 1, 4}) config.rows[t] = static_cast<uint8_t>(rows < kRows ? rows : kRows);
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  DT_INLINE ~Registers() { asm volatile("tilerelease" ::); }
};

template <int t> DT_INLINE void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(t)); }
template <int t> DT_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t> DT_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
}
template <int sums, int x, int w> DT_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(w));
}

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
  float* low = c + kRows * kPanel;
  if (adds) {
    load_tile<0>(c, kStride), load_tile<1>(c + kRows, kStride);
    if (T == 2) load_tile<2>(low, kStride), load_tile<3>(low + kRows, kStride);
  } else {
    clear_tile<0>(), clear_tile<1>();
    if (T == 2) clear_tile<2>(), clear_tile<3>();
  }
  for (int64_t block = 0; block < blocks; ++block, a += kTileBytes, w += kRows * kStride) {
    load_tile<4>(a, 64);
    load_tile<6>(w, kStride);
    add_products<0, 4, 6>();
    if (T == 2) load_tile<5>(a + apart, 64), add_products<2, 5, 6>();
    load_tile<7>(w + kRows * 4, kStride);
    add_products<1, 4, 7>();
    if (T == 2) add_products<3, 5, 7>();
    for (int64_t line = 0; line < prefetch.bytes; line += kLineBytes)
      __builtin_prefetch(prefetch.next + block * prefetch.bytes + line);
  }
  store_tile<0>(c, kStride), store_tile<1>(c + kRows, kStride);
  if (T == 2) store_tile<2>(low, kStride), store_tile<3>(low + kRows, kStride);
}

// One panel for all rows.
inline void panel_of_rows(const GemmArgs& args, int64_t row0, int64_t count, const Rows& rows, int64_t panel) {
  const int64_t pairs = divide_up(args.in_size, 2), whole = pairs / kRows;
  const char* packed = static_cast<const char*>(args.weight) + panel * pairs * kStride;
  auto* c = static_cast<float*>(scratch(2, rows.count * kRows * kPanel * sizeof(float)));
  const Registers registers(count);
  const auto multiply = [&](const char* w, int64_t first, int64_t blocks) __attribute__((always_inline)) {
    const int64_t bytes = kRows * kStride, apart = rows.blocks * kTileBytes;
    const Prefetch next{rows.count <= 2 ? w + 4 * kPrefetchBytes : w + blocks * bytes, bytes};
    for (int64_t t = 0; t < rows.count; t += 2) {
      const Prefetch share = next.part(blocks, t / 2, divide_up(rows.count, 2));
      float* sums = c + t * kRows * kPanel;
      if (t + 1 < rows.count) piece<2>(rows.tile(t, first), apart, w, blocks, sums, first > 0, share);
      else piece<1>(rows.tile(t, first), apart, w, blocks, sums, first > 0, share);
    }
  };
  const int64_t depth = rows.count <= 2 ? whole : kDepth / kInputs;
  for (int64_t block = 0; block < whole; block += depth)
    multiply(packed + block * kRows * kStride, block, whole - block < depth ? whole - block : depth);
  if (whole < rows.blocks) {  // the last pairs, zeros after them
    alignas(64) char last[kRows * kStride] = {};
    memcpy(last, packed + whole * kRows * kStride, (pairs - whole * kRows) * kStride);
    multiply(last, whole, 1);
  }
  finish(args, c, static_cast<int>(count), row0, panel);
}

// See products.h.
class Product {
 public:
  explicit Product(const GemmArgs& args) : args_(args), blocks_(divide_up(args.in_size, kInputs)) {}
  int64_t panel_bytes() const { return divide_up(args_.in_size, 2) * kStride; }
  static int64_t most_beside(int64_t) { return 1; }
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
  void panels(const Block& block, int64_t panel, int64_t) const {
    panel_of_rows(*block.args, block.row0, block.rows, of(block), panel);
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
