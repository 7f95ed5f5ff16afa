// What selective_scan is told. The same struct in Python:
// `dovetail_kernels.selective_scan.native.SelectiveScanArgs`.
#pragma once

#include "states.h"

// delta = softplus(dt + dt_bias), h = exp(delta a) h + delta x b, out = (c . h + d x) silu(z)
struct SelectiveScanArgs {
  const float* x;        // [T, D], rows x_stride floats apart; dt and z likewise
  const float* dt;
  const float* z;        // or null
  const float* b;        // [T, S], rows b_stride floats apart; c likewise
  const float* c;
  const float* a;        // [D, S] contiguous
  const float* d;        // [D]
  const float* dt_bias;  // [D] or null
  float* out;            // [T, D] contiguous
  void* state;           // [N, D, S] of `format`, blocks state_stride numbers apart
  StateRows rows;
  int64_t x_stride, dt_stride, z_stride, b_stride, c_stride, state_stride;
  int64_t channels;    // D
  int64_t state_size;  // S
  int32_t format;      // a StateFormat
  int32_t reserved;
};
