// What group_fit takes. The same struct in Python: `dovetail_kernels.group_fit.native`.
#pragma once

#include <stdint.h>

struct GroupFitArgs {
  const void* weight;         // [outputs, inputs], elements of `format`
  const float* importances;   // [inputs]; null: 1
  const float* ends;          // [num_ends]
  uint8_t* values;            // [outputs, inputs]
  int8_t* scales;             // [outputs, groups]
  int8_t* offsets;            // the same; null: symmetric levels
  float* steps;               // [outputs, runs]
  float* offset_steps;        // the same; null like offsets
  int64_t outputs, inputs;
  int64_t group;              // inputs of a group
  int64_t run;                // groups of a run
  int64_t num_ends;
  int32_t format;             // of gemm/args.h: kFloat32, kBfloat16 or kFloat16
  int32_t bits;
};
