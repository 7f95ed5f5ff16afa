// What paged attention is told. The same struct in Python is
// `dovetail_kernels.paged_attention.native.AttentionArgs`.
#pragma once

#include "isa.h"

// Writes k and v into their slots (none where k is null), then attends.
struct AttentionArgs {
  const float* q;  // [T, H, D], tokens q_stride floats apart, heads D apart
  const float* k;  // [W, K, D], tokens k_stride apart; or null
  const float* v;  // [W, K, D], tokens v_stride apart
  float* out;      // [T, H, D] contiguous
  float* lse;      // [T, H], the scores' log-sum-exps without sinks; or null
  const float* sinks;  // [H] or null
  const float* bias;   // [H, 2 * bias_reach - 1] or null: of key j, query p at bias_reach - 1 + j - p
  const float* slopes;  // [H] or null: times |j - p|, subtracted from the score
  void* cache;         // blocks of cells, block_bytes apart, see layout.h
  const int32_t* block_table;  // [R, table_stride]
  const int32_t* query_start;  // [R + 1]
  const int32_t* seq_lens;     // [R]
  const int64_t* slots;        // [W]
  int64_t q_stride, k_stride, v_stride;
  int64_t table_stride;
  int64_t rows;          // R
  int64_t written;       // W, keys and values to write
  int64_t block_tokens;  // P, a multiple of 16
  int64_t block_bytes;   // from one block to the next
  int64_t window;        // keys a query sees, up to its own; without a mask as many after it; 0: all
  int64_t chunk;         // a query sees its own chunk of so many keys, up to its own; 0: all
  int64_t bias_reach;    // more than any key lies away from a query
  int32_t num_heads, num_kv_heads, head_size;
  int32_t format;  // a KvFormat
  int32_t is_causal;
  float scale;
  float soft_cap;  // 0: none
  int32_t may_round;  // queries and weights to bfloat16, where keys are such and that is faster
  int32_t rotates;    // queries and keys are rotated (rotate.h); the cache holds rotated keys
  float k_scale, v_scale;  // an 8-bit float in the cache times this is the key, the value; else 1
};

enum KvFormat : int32_t {
  kKvFloat32 = 0, kKvBfloat16 = 1, kKvFloat16 = 2, kKvE4m3 = 3, kKvE5m2 = 4, kKvInt8 = 5,
  kKvK8V4 = 6, kKvInt4 = 7,  // packed.h
};
