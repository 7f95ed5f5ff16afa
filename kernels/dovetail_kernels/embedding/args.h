// What embedding is told. In Python: `dovetail_kernels.embedding.native.EmbeddingArgs`.
#pragma once

#include "gemm/args.h"

// out[t] = onto[t] + table[ids[t] - first] * factor, with zeros for a row that the table does not hold.
struct EmbeddingArgs {
  const void* table;    // [V, E] contiguous, of the format
  const float* scales;  // int8: [V]
  const int64_t* ids;   // [T]; null: the table's first row for all
  const float* onto;    // [T, E] contiguous, may be out itself; null: zeros
  float* out;           // [T, E] contiguous
  int64_t rows, size;   // T, E
  int64_t first, table_rows;
  float factor;
  int32_t format;  // a Format: a float one or kInt8
};
