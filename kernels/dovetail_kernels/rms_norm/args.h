// What rms_norm is told. The same struct in Python: `dovetail_kernels.rms_norm.native.RmsNormArgs`.
#pragma once

#include "isa.h"

// x[t] += delta[t], if there is a delta; then
// out[t] = x[t] / rms(x[t]) * (weight + offset) + residual[t]
struct RmsNormArgs {
  float* x;               // [T, E], rows x_stride floats apart
  const float* delta;     // [T, E], rows delta_stride floats apart; or null
  const float* residual;  // [T, E] contiguous, may be out itself; or null
  const float* weight;    // [E]; null: the norm is not scaled
  float* out;             // [T, E] contiguous
  int64_t x_stride, delta_stride;
  int64_t rows, size;  // T, E
  float eps, offset;
};
