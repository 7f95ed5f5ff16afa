// What wkv is told. The same struct in Python: `dovetail_kernels.wkv.native.WkvArgs`.
#pragma once

#include "states.h"

// out = sigmoid(r) (a + e^(u + k) v) / (b + e^(u + k)); a, b = e^w a + e^k v, e^w b + e^k
struct WkvArgs {
  const float* k;      // [T, C], rows k_stride floats apart; v and r likewise
  const float* v;
  const float* r;
  const float* decay;  // w [C]
  const float* first;  // u [C]
  float* out;          // [T, C] contiguous
  void* state;         // [N, 3, C] of `format`, blocks state_stride numbers apart
  StateRows rows;
  int64_t k_stride, v_stride, r_stride, state_stride;
  int64_t channels;  // C
  int32_t format;    // a StateFormat
  int32_t reserved;
};
