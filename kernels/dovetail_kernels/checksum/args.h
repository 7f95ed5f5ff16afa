// What checksum takes. The same struct in Python: `dovetail_kernels.checksum.native`.
#pragma once

#include <stdint.h>

struct ChecksumArgs {
  const uint8_t* data;  // [size]
  uint32_t* sums;       // [pieces, 2, 16]
  int64_t size, piece;  // piece: a multiple of 64 bytes
};
