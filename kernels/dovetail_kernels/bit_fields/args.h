// What bit_fields takes. The same structs in Python are in `dovetail_kernels.bit_fields.native`.
#pragma once

#include <stdint.h>

struct PlaneArgs {
  int32_t start, bytes;  // of a block
  int32_t bits, run, shift;
};

struct BitFieldsArgs {
  const uint8_t* blocks;  // [count, block_bytes]
  uint8_t* values;        // [count, block_values]
  int64_t count, block_bytes, block_values;
  int64_t num_planes;
  PlaneArgs planes[3];
};
