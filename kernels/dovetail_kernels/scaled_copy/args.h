// What scaled_copy is told. In Python: `dovetail_kernels.scaled_copy.native.ScaledCopyArgs`.
#pragma once

#include "gemm/args.h"

// A matrix [rows, columns]: target[i, j] = scale * source[i, j]. Strides count numbers, not bytes.
struct ScaledCopy {
  const void* source;
  void* target;
  int64_t rows, columns;
  int64_t source_row, source_column;
  int64_t target_row, target_column;
  int64_t source_format, target_format;  // Formats: float ones
  double scale;
};

struct ScaledCopyArgs {
  const ScaledCopy* copies;  // [C]
  int64_t count;
  int64_t* broken;  // the number of the first whose result is not finite; -1: none
};
