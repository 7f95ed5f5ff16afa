// Where the rows of a step keep their states: which block has the state before a row's tokens, and
// which ones keep the states after them. Knows no recurrence.
//
// The state after a token of position p lies in block block_table[r, p / P] when that token is the
// last one computed of the block. So a row reads one state (zeros at its start) and writes one for
// every block that it ends, and one after its last token. The same struct in Python:
// `dovetail_kernels.states.StateRowsArgs`.
#pragma once

#include "isa.h"

struct StateRows {
  const int32_t* query_start;  // [R + 1]
  const int32_t* seq_lens;     // [R], tokens of a row after this step
  const int32_t* block_table;  // [R, B], rows table_stride apart
  int64_t table_stride;
  int64_t rows;          // R
  int64_t block_tokens;  // P
  const int32_t* row_block_tokens;  // [R], each row's P; or null
};

// What a state's numbers are; the place in `dovetail_kernels.states.FORMATS`.
enum StateFormat : int32_t { kStateFloat32 = 0, kStateBfloat16 = 1, kStateFloat16 = 2 };

namespace dt {
namespace DT_ISA {

// A row's tokens in this step: `count` of them from the `first` of the step on, the first one at
// position `start` of the row.
struct StateRow {
  int64_t first, count, start, block_tokens;
  const int32_t* blocks;

  DT_INLINE StateRow(const StateRows& all, int64_t row)
      : first(all.query_start[row]),
        count(all.query_start[row + 1] - first),
        start(all.seq_lens[row] - count),
        block_tokens(all.row_block_tokens ? all.row_block_tokens[row] : all.block_tokens),
        blocks(all.block_table + row * all.table_stride) {}

  DT_INLINE int64_t block_of(int64_t position) const { return blocks[position / block_tokens]; }

  // The block whose state comes before the row's first token here; -1: it begins with zeros.
  DT_INLINE int64_t initial_block() const { return start > 0 ? block_of(start - 1) : -1; }

  // Calls body(first, last, block) for the tokens of each block in order: they are first .. last - 1
  // of the step, and the state after them is kept in `block`.
  template <class Body>
  DT_INLINE void each_block(const Body& body) const {
    for (int64_t done = 0; done < count;) {
      const int64_t position = start + done, room = block_tokens - position % block_tokens;
      const int64_t some = room < count - done ? room : count - done;
      body(first + done, first + done + some, block_of(position));
      done += some;
    }
  }
};

}  // namespace DT_ISA
}  // namespace dt
