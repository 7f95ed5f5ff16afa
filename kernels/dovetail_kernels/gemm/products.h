// How products are shared out to the threads: one, or those of several weights of one format and shape.
//
// Rows are cut into blocks, each of one product. Some blocks make a batch: their rows are prepared (packed,
// rounded) in one go, and then all panels of all of them are tasks of one list, so that many products of
// few rows each keep all threads as busy as one of many rows does.
#pragma once

#include "gemm/tiles.h"

namespace dt {
namespace DT_ISA {

// Rows [row0, row0 + rows) of a product, and where what is prepared of them lies in the batch's: behind that
// of `before` rows.
struct Block {
  const GemmArgs* args;
  int64_t row0, rows, before;
  int64_t beside;  // panels that are multiplied at once
  int64_t some;    // panels of a task
  DT_INLINE const float* row(int64_t i) const { return args->row(row0 + i); }
};

// Blocks with at most kBlockRows rows between them, of which each has one at least.
struct Batch {
  Block blocks[kBlockRows];
  int64_t count = 0, rows = 0;
};

// Calls body(block, task) for the tasks of all blocks of a batch, tasks(block) each.
template <class Count, class Body>
DT_INLINE void each_task(const Batch& batch, const Count& tasks, const Body& body) {
  if (batch.count == 1) {
    const Block& block = batch.blocks[0];
    return parallel(tasks(block), [&](int64_t task) { body(block, task); });
  }
  int64_t ends[kBlockRows], total = 0;
  for (int64_t b = 0; b < batch.count; ++b) ends[b] = total += tasks(batch.blocks[b]);
  parallel(total, [&](int64_t task) {
    int64_t low = 0;  // the first block that ends behind the task
    for (int64_t high = batch.count - 1; low < high;) {
      const int64_t middle = (low + high) / 2;
      if (ends[middle] > task) high = middle;
      else low = middle + 1;
    }
    body(batch.blocks[low], task - (low ? ends[low - 1] : 0));
  });
}

// What a product says of itself:
//   panel_bytes()            of the weight
//   most_beside(rows)        panels that it multiplies at once, those of so many rows
//   reserve(rows)            finds memory for so many prepared rows; false when there is none
//   prepare(batch)           fills it
//   panels(block, first, n)  multiplies n panels: as many as most_beside() says, or one
template <class Product>
int multiply_batch(Product& product, Batch& batch) {
  if (!product.reserve(batch)) return 1;
  product.prepare(batch);
  const GemmArgs& args = *batch.blocks[0].args;
  const int64_t panels = num_panels(args.out_size, args.is_gated);
  for (int64_t b = 0; b < batch.count; ++b) {
    Block& block = batch.blocks[b];
    const int64_t most = Product::most_beside(block.rows);
    // One at a time where there are too few panels for all threads.
    block.beside = panels * batch.count < 2 * most * num_threads() ? 1 : most;
    block.some = divide_up(panels_a_task(panels, product.panel_bytes(), block.rows), block.beside) * block.beside;
  }
  const auto tasks = [&](const Block& block) { return divide_up(panels, block.some); };
  each_task(batch, tasks, [&](const Block& block, int64_t task) {
    const int64_t first = task * block.some, last = first + block.some < panels ? first + block.some : panels;
    for (int64_t panel = first; panel < last; panel += block.beside) {
      if (panel + block.beside <= last) {
        product.panels(block, panel, block.beside);
        continue;
      }
      for (int64_t p = panel; p < last; ++p) product.panels(block, p, 1);
    }
  });
  return 0;
}

// Multiplies all of a group in batches. Returns 0, or 1 when there is no memory for prepared rows.
template <class Product>
int multiply_all(const GroupArgs& group) {
  if (!group.count) return 0;
  Product product(group.items[0]);
  Batch batch;
  int failed = 0;
  const auto end = [&]() {
    if (batch.count) failed = multiply_batch(product, batch);
    batch.count = batch.rows = 0;
  };
  for (int64_t i = 0; i < group.count && !failed; ++i) {
    const GemmArgs& args = group.items[i];
    // Blocks of whole tiles, as even as can be.
    int64_t most = args.rows;
    if (most > kBlockRows)
      most = divide_up(divide_up(most, divide_up(most, kBlockRows)), kTileRows) * kTileRows;
    for (int64_t row0 = 0; row0 < args.rows && !failed; row0 += most) {
      const int64_t rows = args.rows - row0 < most ? args.rows - row0 : most;
      if (batch.rows + rows > kBlockRows) end();
      batch.blocks[batch.count++] = {&args, row0, rows, batch.rows, 1, 1};
      batch.rows += rows;
    }
  }
  if (!failed) end();
  return failed;
}

}  // namespace DT_ISA
}  // namespace dt
