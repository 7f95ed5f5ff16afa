// What block_picks is told. The same struct in Python is `dovetail_kernels.block_picks.native.BlockArgs`.
#pragma once

#include "isa.h"

struct BlockArgs {
  const float* q;     // [T, H, D], tokens q_stride floats apart
  const void* cache;  // blocks block_stride numbers apart, each [P, D]
  int32_t* picks;     // [T, H, K]
  const int32_t* block_table;  // [R, table_stride]
  const int32_t* query_start;  // [R + 1]
  const int32_t* seq_lens;     // [R]
  int64_t q_stride, block_stride, table_stride;
  int64_t rows;          // R
  int64_t cache_tokens;  // P
  int64_t block_size;    // B
  int64_t num_picked;    // K
  int64_t num_local;
  int32_t num_heads, head_size;
  int32_t format;        // a BlockFormat
  int32_t reserved;
};

enum BlockFormat : int32_t { kBlockFloat32 = 0, kBlockBfloat16 = 1, kBlockFloat16 = 2 };
