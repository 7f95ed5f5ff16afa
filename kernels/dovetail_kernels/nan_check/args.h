// What nan_check takes. The same struct in Python: `dovetail_kernels.nan_check.native`.
#pragma once

#include <stdint.h>

struct NanCheckArgs {
  const void* bits;  // [size] of 2 or 4 bytes, at any address
  int64_t size;
  int32_t value_bytes;
  uint32_t infinity;
};
