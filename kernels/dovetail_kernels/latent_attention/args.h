// What latent attention is told. The same struct in Python is
// `dovetail_kernels.latent_attention.native.LatentArgs`.
#pragma once

#include "isa.h"

// Writes latents into their slots (none where latent is null), then attends.
struct LatentArgs {
  const float* q;       // [T, H, L + R], tokens q_stride floats apart
  const float* latent;  // [T, L + R], tokens latent_stride floats apart; or null
  float* out;           // [T, H, L] contiguous
  void* cache;          // blocks block_stride numbers apart, each [P, L + R]
  const int32_t* block_table;  // [R, table_stride]
  const int32_t* query_start;  // [R + 1]
  const int32_t* seq_lens;     // [R]
  const int64_t* slots;        // [T]
  const int32_t* picks;        // [T, num_picked] positions, the only ones that are attended to; or null
  const float* sinks;          // [H], the score of each head's sink; or null
  int64_t q_stride, latent_stride, block_stride;
  int64_t table_stride;
  int64_t rows;          // R
  int64_t block_tokens;  // P
  int64_t num_picked;    // of a query that sees as many, of another all
  int32_t num_heads, latent_size, rope_size;
  int32_t format;  // a LatentFormat
  float scale;
  int32_t may_round;  // queries and weights to bfloat16, where the cache holds it
};

enum LatentFormat : int32_t { kLatentFloat32 = 0, kLatentBfloat16 = 1, kLatentFloat16 = 2 };
