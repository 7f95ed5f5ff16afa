// What token_mask is told. The same struct in Python: `dovetail_kernels.token_mask.native`.
#pragma once

#include "isa.h"

// logits[indices[a]][t] = -inf where bit t of masks[a] is not set; NaN stays NaN.
struct TokenMaskArgs {
  float* logits;          // rows `stride` floats apart
  const uint32_t* masks;  // [count, words] contiguous
  const int64_t* indices; // [count]
  int64_t stride, count, words;
  int64_t size;           // V, at most 32 words
};
