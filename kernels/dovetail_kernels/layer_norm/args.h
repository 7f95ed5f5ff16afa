// What layer_norm is told. In Python: `dovetail_kernels.layer_norm.native.LayerNormArgs`.
#pragma once

#include "isa.h"

// x[t] += delta[t], if there is a delta; then
// out[t] = (x[t] - mean) / sqrt(variance + eps) * (weight + offset) + bias
struct LayerNormArgs {
  float* x;             // [T, E], rows x_stride floats apart
  const float* delta;   // [T, E], rows delta_stride floats apart; or null
  const float* weight;  // [E]; null: ones, whatever the offset
  const float* bias;    // [E]; null: zeros
  float* out;           // [T, E] contiguous
  int64_t x_stride, delta_stride;
  int64_t rows, size;  // T, E
  float eps, offset;
};
