// What gated_norm is told. The same struct in Python: `dovetail_kernels.gated_norm.native.GatedNormArgs`.
#pragma once

#include "isa.h"

// gate_first: out = norm(x silu(gate)) weight; else norm(x) weight silu(gate); over each group.
struct GatedNormArgs {
  const float* x;       // [T, D], rows x_stride floats apart
  const float* gate;    // [T, D], rows gate_stride floats apart
  const float* weight;  // of group g: from weight + g * weight_stride on
  float* out;           // [T, D] contiguous
  int64_t x_stride, gate_stride;
  int64_t weight_stride;  // the group's size, or 0: all groups have the same weight
  int64_t rows, groups, group_size;
  float eps;
  int32_t gate_first;
};
