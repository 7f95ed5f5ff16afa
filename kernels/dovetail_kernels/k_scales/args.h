// What k_scales takes. The same struct in Python is in `dovetail_kernels.k_scales.native`.
#pragma once

#include <stdint.h>

struct KScalesArgs {
  const uint8_t* blocks;  // [count, block_bytes]
  uint8_t *codes, *offset_codes;  // [count, 8]
  uint16_t *steps, *offset_steps;  // [count] float16
  int64_t count, block_bytes;
};
