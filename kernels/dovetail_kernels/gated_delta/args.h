// What gated_delta is told. The same struct in Python:
// `dovetail_kernels.gated_delta.native.GatedDeltaArgs`.
#pragma once

#include "states.h"

// q, k = normed, q times scale; S = exp(-exp(a_log) softplus(decay + dt_bias)) S;
// S = S + k (outer) beta_scale sigmoid(beta) (v - k S), out = q S
struct GatedDeltaArgs {
  const float* q;        // [T, K, D], tokens q_stride floats apart, heads D apart; k likewise
  const float* k;
  const float* v;        // [T, H, V], tokens v_stride apart, heads V apart
  const float* decay;    // [T, H], or by channel [T, H, D] with heads D apart; tokens decay_stride apart
  const float* beta;     // [T, H], tokens beta_stride apart
  const float* a_log;    // [H]
  const float* dt_bias;  // like decay, of one token
  float* out;            // [T, H, V] contiguous
  void* state;           // [N, H, D, V] of `format`, blocks state_stride numbers apart
  StateRows rows;
  int64_t q_stride, k_stride, v_stride, decay_stride, beta_stride, state_stride;
  int64_t num_heads, num_key_heads;  // H, K
  int64_t key_size, value_size;      // D, V
  float scale, beta_scale;
  float least_log;  // not 0: S is times exp(least_log sigmoid(exp(a_log) (decay + dt_bias)))
  int32_t format;  // a StateFormat
  int32_t decays_by_channel;
};
