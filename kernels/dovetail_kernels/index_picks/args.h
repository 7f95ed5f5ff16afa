// What index_picks is told. The same struct in Python is `dovetail_kernels.index_picks.native.IndexArgs`.
#pragma once

#include "isa.h"

struct IndexArgs {
  const float* q;        // [T, H, D], tokens q_stride floats apart
  const float* weights;  // [T, H], tokens weights_stride floats apart
  const void* cache;     // blocks block_stride numbers apart, each [P, D]
  int32_t* picks;        // [T, K]
  const int32_t* block_table;  // [R, table_stride]
  const int32_t* query_start;  // [R + 1]
  const int32_t* seq_lens;     // [R]
  int64_t q_stride, weights_stride, block_stride, table_stride;
  int64_t rows;          // R
  int64_t block_tokens;  // P
  int64_t num_picked;    // K
  int32_t num_heads, head_size;
  int32_t format;        // an IndexFormat
  int32_t reserved;
};

enum IndexFormat : int32_t { kIndexFloat32 = 0, kIndexBfloat16 = 1, kIndexFloat16 = 2 };
