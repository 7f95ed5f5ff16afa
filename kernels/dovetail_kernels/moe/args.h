// What moe is told. The same struct in Python is `dovetail_kernels.moe.native.MoeArgs`.
#pragma once

#include "gemm/args.h"

using MultiplyGroup = int (*)(const GroupArgs*);

// out[t] = sum over a of weights[t, a] * down[e] act(gate_up[e] x[t]) + residual[t], e = experts[t, a];
// plus sigmoid(shared_scores[t]) * shared[t]
struct MoeArgs {
  const float* x;          // [T, E], rows x_stride floats apart
  float* out;              // [T, E]
  const float* residual;   // like out; or null
  const float* shared;     // like out: what a shared expert made; or null
  const float* shared_scores;  // [T]: the shared expert's weight is their sigmoid; or null: 1
  const float* weights;    // [T, A]
  const int64_t* experts;  // [T, A]; an expert that is not one of the X adds nothing
  const GemmArgs* gate_up; // [X]: the products by each expert's matrices, all but their rows
  const GemmArgs* down;
  MultiplyGroup multiply_gate_up, multiply_down;
  int64_t x_stride;
  int64_t tokens, picked, num_experts;  // T, A, X
  int64_t size, inner;                  // E, F
  int32_t activation;      // an Activation
  float limit;             // see GemmArgs
  int32_t weighs_inputs;   // a weight multiplies what an expert reads, not what it makes
  int32_t is_gated;        // 0: one half, of which the activation is taken
};
