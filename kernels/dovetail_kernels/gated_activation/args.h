// What gated_activation is told. In Python: `dovetail_kernels.gated_activation.native.GateArgs`.
#pragma once

#include "isa.h"

// out[t, f] = act(x[t, f]) * x[t, F + f]
struct GateArgs {
  const float* x;  // [T, 2 F], rows x_stride floats apart
  float* out;      // [T, F] contiguous
  int64_t x_stride;
  int64_t rows, size;  // T, F
  int32_t activation;  // an Activation (activations.h)
  int32_t reserved;
};
