// What sampling is told. The same structs in Python are in `dovetail_kernels.sample.native`.
#pragma once

#include "isa.h"

// How rows want to be sampled, one entry per row number (not per row of the call).
struct RowTables {
  const float* inverse_temperature;  // 0: greedy
  const int64_t* top_k;              // 0: off
  const double* top_p;               // 1: off
  const float* least;                // logarithm of min-p; -inf: off
  const float* repetition;           // the three penalties
  const float* frequency;
  const float* presence;
  int32_t* const* seen_ids;    // distinct tokens of the row; room for one more
  float* const* seen_counts;   // how often each was drawn
  int64_t* num_seen;           // -1: the row has no penalties
  const uint64_t* seed;
  const int64_t* num_top;      // -1: no logprobs
};

struct SampleArgs {
  RowTables tables;
  const float* logits;       // [S, V] contiguous
  const int64_t* rows;       // [S] row numbers, all different
  const int64_t* positions;  // [S] tokens that each row has drawn before
  int64_t* tokens;           // [S] the results; 0 where best is not finite
  float* best;               // [S] largest logit after penalties; NaN if there is one
  float* raw_best;           // [S] the same before penalties, where best is not finite
  double* logprob;           // [S]
  int64_t* rank;             // [S]
  int64_t* top_ids;          // [S, top_stride]
  double* top_logprobs;      // [S, top_stride]
  int64_t top_stride;
  int64_t count, vocab;  // S, V
  int32_t skips_logprobs;
  int32_t reserved;
};

// Logprobs of given tokens, without a draw; none for rows with a NaN or without finite maximum.
struct LogprobArgs {
  const float* logits;      // [S, V] contiguous
  const int64_t* tokens;    // [S]
  const int64_t* num_top;   // [S] at most kMaxTop and V
  double* logprob;          // [S]
  int64_t* rank;            // [S]
  int64_t* top_ids;         // [S, top_stride]
  double* top_logprobs;     // [S, top_stride]
  int64_t top_stride;
  int64_t count, vocab;
};

constexpr int64_t kMaxTop = 256;
