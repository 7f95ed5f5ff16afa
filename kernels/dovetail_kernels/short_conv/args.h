// What short_conv is told. The same struct in Python: `dovetail_kernels.short_conv.native.ShortConvArgs`.
#pragma once

#include "states.h"

// out[t, c] = act(bias[c] + sum over i of weight[c, i] x[t - W + 1 + i, c])
struct ShortConvArgs {
  const float* x;       // [T, C], rows x_stride floats apart
  const float* weight;  // [C, W] contiguous
  const float* bias;    // [C] or null
  float* out;           // [T, C] contiguous
  void* state;          // [N, C, W - 1] of `format`, blocks state_stride numbers apart
  StateRows rows;
  int64_t x_stride, state_stride;
  int64_t channels;    // C
  int32_t width;       // W, 2 to 8
  int32_t activation;  // kNone or kSilu
  int32_t format;      // a StateFormat
  int32_t reserved;
};
