// What output_gate is told. The same struct in Python: `dovetail_kernels.output_gate.native.OutputGateArgs`.
#pragma once

#include "isa.h"

// out = x sigmoid(gate)
struct OutputGateArgs {
  const float* x;     // [T, D], rows x_stride floats apart
  const float* gate;  // [T, D], rows gate_stride floats apart
  float* out;         // [T, D] contiguous
  int64_t x_stride, gate_stride;
  int64_t rows, size;
};
