// How keys and values lie in a block.
//
// A block holds, for one kv head after the other, cells of 16 tokens. A cell is the keys
// transposed, [D][16 keys], then the values in panels of 16 columns, [D / 16][16 keys][16 columns]:
// both products run along the slow axis of a panel 16 wide, so they are the same loop. In bfloat16
// and in 8 bits two steps of the slow axis lie in one lane: [D / 2][16][2] and [D / 16][8][16][2].
// int8 cells end with a float scale per key and one per value, [2][16]. Cells of fewer bits (packed.h)
// are stored in another form; for the products they are unpacked to cells of int8.
#pragma once

#include "paged_attention/args.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kCell = 16;

DT_INLINE int item_bytes(int32_t format) {
  return format == kKvFloat32 ? 4 : format == kKvBfloat16 || format == kKvFloat16 ? 2 : 1;
}

constexpr int kGroup = 32;  // numbers of 4 bits that share a step

// Where the parts of a stored cell with values, and maybe keys, of 4 bits begin.
struct PackedCell {
  int64_t values_at, key_groups_at, value_groups_at, first_at, scales_at, bytes;
  bool has_whole_keys;  // in 8 bits
  PackedCell() = default;
  DT_INLINE PackedCell(int32_t format, int64_t size) : has_whole_keys(format == kKvK8V4) {
    const int64_t groups = 2 * kCell * (size / kGroup);
    values_at = has_whole_keys ? kCell * size : kCell * size / 2;
    key_groups_at = values_at + kCell * size / 2;
    value_groups_at = key_groups_at + (has_whole_keys ? 0 : groups);
    first_at = value_groups_at + groups;
    scales_at = first_at + (has_whole_keys ? 0 : size);
    bytes = scales_at + 2 * kCell * 4;
  }
};
DT_INLINE bool is_packed(int32_t format) { return format == kKvK8V4 || format == kKvInt4; }

struct Layout {
  int64_t values_at, scales_at;                 // in a cell, unpacked
  int64_t cell_bytes, head_bytes, block_bytes;  // strides of what is stored
  Layout() = default;
  DT_INLINE explicit Layout(const AttentionArgs& args) {
    values_at = int64_t{kCell} * args.head_size * item_bytes(args.format);
    scales_at = 2 * values_at;
    cell_bytes = is_packed(args.format) ? PackedCell(args.format, args.head_size).bytes
                                        : scales_at + (args.format == kKvInt8 ? 2 * kCell * 4 : 0);
    head_bytes = args.block_tokens / kCell * cell_bytes;
    block_bytes = args.block_bytes;
  }
  // The cell of a kv head that holds token `offset` of a block.
  DT_INLINE char* cell(void* cache, int64_t block, int64_t head, int64_t offset) const {
    return static_cast<char*>(cache) + block * block_bytes + head * head_bytes +
           offset / kCell * cell_bytes;
  }
};

// Stores the step's keys and values; every task done when it returns.
void write_cache(const AttentionArgs& args);

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
