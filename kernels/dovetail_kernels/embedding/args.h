// What embedding is told. In Python: `dovetail_kernels.embedding.native.EmbeddingArgs`.
#pragma once

#include "gemm/args.h"

// out[t] = table[ids[t] - first] * factor, or zeros where the table does not hold that row.
struct EmbeddingArgs {
  const void* table;    // [V, E] contiguous, of the format
  const float* scales;  // int8: [V]
  const int64_t* ids;   // [T]
  float* out;           // [T, E] contiguous
  int64_t rows, size;   // T, E
  int64_t first, table_rows;
  float factor;
  int32_t format;  // a Format: a float one or kInt8
};
