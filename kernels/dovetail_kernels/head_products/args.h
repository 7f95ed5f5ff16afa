// What head_products is told. In Python: `dovetail_kernels.head_products.native.HeadProductsArgs`.
#pragma once

#include "isa.h"

struct HeadProductsArgs {
  const float* x;      // [T, H, I + S], tokens x_stride floats apart
  float* out;          // [T, H, O + S] contiguous
  const void* weight;  // [H, O / 64 rounded up] panels of [I, 64], zeros behind the last output
  int64_t x_stride;
  int64_t tokens, num_heads, in_size, out_size, rest;  // T, H, I, O, S
  int32_t format;  // a HeadFormat
  int32_t reserved;
};

// The last two are bytes under scales in float32 that stand behind a panel's bytes: of 32 outputs of one
// input, [I, 2], or of 32 inputs of one output, [I / 32, 64].
enum HeadFormat : int32_t {
  kHeadFloat32 = 0, kHeadBfloat16 = 1, kHeadFloat16 = 2, kHeadByOutputs = 3, kHeadByInputs = 4,
};
