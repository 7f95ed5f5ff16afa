// How keys and values lie in a block.
//
// A block holds, for one kv head after the other, cells of 16 tokens. A cell is the keys
// transposed, [D][16 keys], then the values in panels of 16 columns, [D / 16][16 keys][16 columns]:
// both products run along the slow axis of a panel 16 wide, so they are the same loop. In bfloat16
// and in 8 bits two steps of the slow axis lie in one lane: [D / 2][16][2] and [D / 16][8][16][2].
// int8 cells end with a float scale per key and one per value, [2][16].
#pragma once

#include "paged_attention/args.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kCell = 16;

DT_INLINE int item_bytes(int32_t format) {
  return format == kKvFloat32 ? 4 : format == kKvBfloat16 || format == kKvFloat16 ? 2 : 1;
}

struct Layout {
  int64_t values_at, scales_at;                 // in a cell
  int64_t cell_bytes, head_bytes, block_bytes;  // strides
  Layout() = default;
  DT_INLINE explicit Layout(const AttentionArgs& args) {
    values_at = int64_t{kCell} * args.head_size * item_bytes(args.format);
    scales_at = 2 * values_at;
    cell_bytes = scales_at + (args.format == kKvInt8 ? 2 * kCell * 4 : 0);
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
