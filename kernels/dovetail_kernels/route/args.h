// What route is told. The same struct in Python is `dovetail_kernels.route.native.RouteArgs`.
#pragma once

#include "isa.h"

struct RouteArgs {
  const float* scores;  // [T, X], rows scores_stride floats apart
  const float* bias;    // [X], added for the choice alone; or null
  float* weights;       // [T, A]
  int64_t* experts;     // [T, A]
  int64_t scores_stride;
  int64_t tokens, num_experts, picked;   // T, X, A
  int64_t num_groups, num_kept_groups;
  float least_sum, factor;
  int32_t is_sigmoid;   // of each score alone; 0: softmax over all
  int32_t renormalizes;
  int32_t adds_two;     // a group's score is the sum of its two best; 0: its best
  int32_t reserved;
};
