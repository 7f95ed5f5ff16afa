// What qk_rotary is told. In Python: `dovetail_kernels.qk_rotary.native.QkRotaryArgs`.
#pragma once

#include "isa.h"

// In place, for every q and k head of a row: the norm over D (where there is a weight), then the
// first 2 * half features turned by the angles of the row's position.
struct QkRotaryArgs {
  float* qkv;                // [T, (H + 2 K) D], rows qkv_stride floats apart; v is left alone
  const float* cos;          // [positions, half]
  const float* sin;          // [positions, half]
  const int64_t* positions;  // [T]
  const float* q_weight;     // [D] or null: no norm
  const float* k_weight;     // [D] or null: no norm
  int64_t qkv_stride;
  int64_t rows, num_heads, num_kv_heads, head_size, half;  // T, H, K, D
  float eps, offset;       // the norm's; the weight plus offset counts
  int32_t is_interleaved;  // pairs are (2 i, 2 i + 1) instead of (i, i + half)
  int32_t reserved;
};
