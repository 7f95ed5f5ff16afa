// What low_rank is told. In Python: `dovetail_kernels.low_rank.native.LowRankArgs`.
#pragma once

#include "gemm/args.h"

// out[t] = base + sum over r < ranks[s] of h_p[r] up[s, r] with h_p = down[s, p] x[t], s = slots[t] and p the
// part that the output is of. A row without a slot, or with one whose rank is 0, is base's.
struct LowRankArgs {
  const float* x;        // [T, I], rows x_stride floats apart
  float* out;            // [T, O] contiguous
  const int32_t* slots;  // [T]; what is not a slot's number is none
  const int32_t* ranks;  // [S]
  const void* down;      // [S, P, R, I] contiguous, of the format
  const void* up;        // [S, R, O] likewise
  const float* base;     // rows base_stride floats apart; null: zeros
  const int64_t* ends;   // [P]: the first output that is not of the part, or of those before it
  int64_t x_stride, base_stride;      // base_stride 0: all rows have one
  int64_t rows, in_size, out_size;    // T, I, O
  int64_t num_slots, num_parts, rank; // S, P, R
  int32_t format;                     // a Format: a float one
  int32_t reserved;
};
