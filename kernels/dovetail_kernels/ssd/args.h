// What ssd is told. The same struct in Python: `dovetail_kernels.ssd.native.SsdArgs`.
#pragma once

#include "states.h"

// delta = clamp(softplus(dt + dt_bias), low, high), or 1 where dt is null;
// h = exp(delta a) h + delta x (outer) b, out = h c + d x
struct SsdArgs {
  const float* x;        // [T, H, P], tokens x_stride floats apart, heads P apart
  const float* dt;       // [T, H], tokens dt_stride apart; or null
  const float* b;        // [T, G, S], tokens b_stride apart, groups S apart; c likewise
  const float* c;
  const float* a;        // [H], negative
  const float* d;        // [H] or null
  const float* dt_bias;  // [H] or null
  float* out;            // [T, H, P] contiguous
  void* state;           // [N, H, P, S] of `format`, blocks state_stride numbers apart
  StateRows rows;
  int64_t x_stride, dt_stride, b_stride, c_stride, state_stride;
  int64_t num_heads, num_groups;  // H, G
  int64_t head_size, state_size;  // P, S
  float low, high;
  int32_t format;  // a StateFormat
  int32_t reserved;
};
