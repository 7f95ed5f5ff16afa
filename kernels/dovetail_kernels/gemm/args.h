// What a matrix product is told. The same struct in Python is `dovetail_kernels.gemm.native.GemmArgs`.
#pragma once

#include "isa.h"

// What the codes of a matrix of vectors stand for (vectors.h): a code is the number of a point.
struct VectorArgs {
  const void* points;  // [books, 2 ^ code_bits, size]: int8, or halves where is_float
  int32_t size;        // values of a point: 4 or 8; of halves 8
  int32_t code_bits;   // 8 to 16
  int32_t num_books;   // of so many books a code each is added; of int8 one
  int32_t has_signs;   // int8: a bit for every value says whether it is negative
  int32_t is_float;
};

// out[m, n] = act(sum_k x[m, k] w[n, k] + bias[m, n]) + residual[m, n]
// gated: w holds F gate rows and F up rows, out[m, f] = act(gate) * up, no residual.
struct GemmArgs {
  const float* x;         // [M, K], rows x_stride floats apart
  float* out;             // [M, N] (gated: [M, N / 2]), rows out_stride floats apart
  const void* weight;     // packed by gemm_pack
  const void* scales;     // int8: [N padded]; in groups: [panels, K / group, panel columns]
  const void* zeros;      // the zero points like scales; null: half the values (2 to 6 bits) or 0
  const void* offsets;    // like scales, added instead of zero points; kLowCodes: scales; or null
  const void* steps;      // [panels, runs of groups, panel columns]: a factor of the run's scales
  const void* offset_steps;  // the same for offsets; both null: 1
  const float* table;     // table4: what the sixteen codes stand for
  const float* outer;     // table4: [N padded], a factor of all scales of an output; or null
  const VectorArgs* vectors;  // kVectors: its points; null for others
  const float* bias;      // [M, N], rows bias_stride floats apart; or null
  const float* residual;  // like out, may be out itself; or null
  const int32_t* picks;   // [M]: the rows of x that are multiplied; null: all, as they come
  int64_t x_stride, out_stride;
  int64_t bias_stride;              // 0: all rows have one
  int64_t rows, in_size, out_size;  // M, K, N
  int64_t group;                    // inputs that share a scale of the weight
  int64_t rounded_inputs;           // integer products: inputs that share a scale of a row; 0: all
  int32_t format;                   // a Format
  int32_t activation;               // an Activation (activations.h)
  int32_t is_gated;
  int32_t scale_format;             // the Format of scales, zeros and offsets: a float one, kInt8, kLowCodes
  int32_t step_format;              // the Format of steps: a float one
  int32_t run_shift;                // 2 ^ run_shift groups share a step
  float limit;                      // of gates that clamp both halves

  const float* row(int64_t m) const { return x + (picks ? picks[m] : m) * x_stride; }
};

// What gemm_pack is told: the weight as a checkpoint has it becomes panels. Weights of 8 bits and
// less come as one byte per value.
struct PackArgs {
  const void* weight;  // [N, K] contiguous, elements of the format; kVectors: codes [N, K / size, books] of 16 bits
  const void* const* rows;  // [N], for weights that are neither kVectors nor fields: where each row lies, not in weight; or null
  const void* signs;   // kVectors: [N, K / 8], the lowest bit is the first input's; or null
  const VectorArgs* vectors;
  void* packed;        // packed_bytes long, 64-aligned
  int64_t in_size, out_size;
  int64_t packed_bytes;
  int32_t format;
  int32_t is_gated;
};

// Several products in one call, of weights of one format and shape; experts of a mixture.
struct GroupArgs {
  const GemmArgs* items;
  int64_t count;
};

// What gemm_rows is told: out[i] = the matrix's row index[i] - first, as floats; zeros where there is no such row. Not
// for gated weights.
struct RowsArgs {
  const int64_t* index;
  float* out;  // [count, K]
  const void* weight;
  const void *scales, *zeros, *offsets, *steps, *offset_steps;  // as in GemmArgs
  const float *table, *outer;
  const VectorArgs* vectors;
  int64_t count, in_size, out_size, group, first;
  int32_t format;
  int32_t scale_format, step_format, run_shift;

  // The matrix's row that out[i] is, or -1, and zeros in out[i].
  int64_t row(int64_t i) const {
    const int64_t row = index[i] - first;
    if (row >= 0 && row < out_size) return row;
    for (int64_t k = 0; k < in_size; ++k) out[i * in_size + k] = 0.0f;
    return -1;
  }
};

enum Format : int32_t { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kInt8 = 3, kInt4 = 4, kInt4Int8 = 5,
  kBfloat16Bfloat16 = 6,
  kFloat8 = 7,  // e4m3: a sign, four bits of exponent (bias 7), three of fraction
  kTable4 = 8,
  kInt8Float32 = 9,
  kInt8Int8 = 10,
  kInt2 = 11, kInt3 = 12, kInt5 = 13, kInt6 = 14,  // planes of bits (planes.h), float activations
  kInt2Int8 = 15, kInt3Int8 = 16, kInt5Int8 = 17, kInt6Int8 = 18,  // likewise, int8 activations
  // Rows of vectors.h, which takes scales beside steps as odd codes below 32, two groups' in a byte.
  kVectors = 19, kVectorsInt8 = 20,  // codes of points
  kTrits = 21, kTritsInt8 = 22,      // 0, 1 or 2, five in a byte
  // Of scales and offsets only: a byte holds the scale's code in its low half, the offset's above.
  kLowCodes = 64, kHighCodes = 65,
};
