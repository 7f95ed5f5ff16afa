// What product is told. In Python: `dovetail_kernels.product.native.ProductArgs`.
#pragma once

#include "isa.h"

// out[t, c] = x[t, c] * act(gate[t, c]) * factors[c]
struct ProductArgs {
  const float* x;        // [T, C], rows x_stride floats apart
  const float* gate;     // [T, C], rows gate_stride floats apart; null: 1
  const float* factors;  // [C]; null: 1
  float* out;            // [T, C] contiguous
  int64_t x_stride, gate_stride;
  int64_t rows, size;  // T, C
  int32_t activation;  // an Activation (activations.h)
  int32_t reserved;
};
