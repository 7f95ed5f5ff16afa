// Cells whose values, and maybe keys, take 4 bits a number; unpacked they are cells of int8 (layout.h).
//
// A token's numbers are first what int8 would store: whole numbers n of -127 .. 127 and one scale. In
// 4 bits, n becomes step * q + offset, q 0 .. 15, with a step of 1 .. 17 and an offset of 8 bits per 32
// numbers; that is again a whole number of 8 bits, so products are as exact as int8's.
//
// Keys of trained models have a large part that all share (Qwen2.5: 10 times the rest), which would
// take all of the 4 bits. So a key may be stored as its difference from the first key of its cell,
// where that is smaller: then its scale has its sign bit set, and the first key's score is added to
// its own. The first key of a cell itself is stored in 8 bits. KIVI and KVQuant remove that part by
// statistics per channel, which would need many tokens before the first can be stored.
//
// A stored cell, in this order:
//   keys    [D / 32][8][16 keys][2] bytes with 4 bits; [D / 2][16][2] with 8
//   values  [D / 32][8][16 columns][2 keys] bytes
//   steps   [D / 32][16 steps, 16 offsets], of keys if they have 4 bits, then of values
//   first   [D] bytes, the first key in 8 bits, if keys have 4
//   scales  [2][16] floats
// The upper half of a byte is the number 16 further on in D.
// Sources: Liu et al., KIVI, 2024; Hooper et al., KVQuant, 2024; Ashkboos et al., QuaRot, 2024.
#pragma once

#include <math.h>

#include "paged_attention/layout.h"
#include "vector.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kRowBytes = 2 * kCell;              // two numbers of 16 keys, or 16 of two
constexpr int kPackedGroup = kCell * kGroup / 2;  // bytes

#pragma GCC diagnostic ignored "-Wpsabi"  // all that takes such vectors is inlined
typedef uint16_t Words __attribute__((vector_size(kRowBytes)));
typedef uint8_t Bytes __attribute__((vector_size(kRowBytes)));
typedef uint8_t Half __attribute__((vector_size(kCell)));

DT_INLINE Words load_words(const void* from) {
  Words x;
  memcpy(&x, from, kRowBytes);
  return x;
}
DT_INLINE Words widen_bytes(const void* from) {
  Half x;
  memcpy(&x, from, kCell);
  return __builtin_convertvector(x, Words);
}
// to = products + offsets, byte by byte. A product of a byte is at most 15 * 17, so none carries.
DT_INLINE void store_bytes(char* to, const Words& products, const Words& offsets) {
  const Bytes x = (Bytes)products + (Bytes)offsets;
  memcpy(to, &x, kRowBytes);
}

// 32 numbers of each of 16 keys. Shapes: from [8][32 bytes], groups [2][16] -> to [2][8][32 bytes]
DT_INLINE void unpack_keys(const char* from, const uint8_t* groups, char* to) {
  const Words steps = widen_bytes(groups), offset = widen_bytes(groups + kCell);
  const Words offsets = offset | offset << 8;
  for (int at = 0; at < kPackedGroup; at += kRowBytes) {
    const Words x = load_words(from + at);
    store_bytes(to + at, (x & 0x0f0f) * steps, offsets);
    store_bytes(to + kPackedGroup + at, ((x >> 4) & 0x0f0f) * steps, offsets);
  }
}

// Two panels of values. Shapes: from [8][32 bytes], groups [2][16] -> to [2][8][32 bytes]
DT_INLINE void unpack_values(const char* from, const uint8_t* groups, char* to) {
  for (int j = 0; j < kCell / 2; ++j, to += kRowBytes) {
    const uint16_t even = groups[2 * j], odd = groups[2 * j + 1];
    const uint8_t* offset = groups + kCell + 2 * j;
    const Words offsets = Words{} + static_cast<uint16_t>(offset[0] | offset[1] << 8);
    const Words x = load_words(from + j * kRowBytes), y = x >> 4;
    store_bytes(to, (x & 0x000f) * even + (x & 0x0f00) * odd, offsets);
    store_bytes(to + kPackedGroup, (y & 0x000f) * even + (y & 0x0f00) * odd, offsets);
  }
}

// A cell of int8 from a stored one; `masks` [16] get all bits where a key's score adds the first's.
inline void unpack_cell(const char* from, const PackedCell& cell, const Layout& layout, int64_t size,
                        char* to, uint32_t* masks) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(from);
  if (cell.has_whole_keys) {
    memcpy(to, from, kCell * size);
  } else {
    for (int64_t g = 0; g < size / kGroup; ++g)
      unpack_keys(from + g * kPackedGroup, bytes + cell.key_groups_at + g * 2 * kCell,
                  to + g * 2 * kPackedGroup);
    for (int64_t d = 0; d < size; d += 2) memcpy(to + d * kCell, from + cell.first_at + d, 2);
  }
  for (int64_t g = 0; g < size / kGroup; ++g)
    unpack_values(from + cell.values_at + g * kPackedGroup,
                  bytes + cell.value_groups_at + g * 2 * kCell,
                  to + layout.values_at + g * 2 * kPackedGroup);
  memcpy(to + layout.scales_at, from + cell.scales_at, 2 * kCell * 4);
  uint32_t* scales = reinterpret_cast<uint32_t*>(to + layout.scales_at);
  for (int i = 0; i < kCell; ++i) {
    masks[i] = static_cast<uint32_t>(static_cast<int32_t>(scales[i]) >> 31);
    scales[i] &= 0x7fffffff;
  }
}

// The step and the offset of numbers, and their 4 bits. Shapes: x [32], whole numbers or not, of
// -127 .. 127 -> to [32]
DT_INLINE void narrow_group(const float* x, float factor, uint8_t* step, uint8_t* offset,
                            uint8_t* to) {
  Vec high = load(x), low = sub(zero(), high);
  for (int d = kLanes; d < kGroup; d += kLanes) {
    high = max(high, load(x + d));
    low = max(low, sub(zero(), load(x + d)));
  }
  const float most = largest(high) * factor, least = -largest(low) * factor;
  const int fewest = static_cast<int>(ceilf((most - least) / 15.0f));
  const int by = fewest < 1 ? 1 : fewest > 17 ? 17 : fewest;
  int from = static_cast<int>(lrintf(0.5f * (most + least) - 7.5f * static_cast<float>(by)));
  from = from > 127 - 15 * by ? 127 - 15 * by : from;
  from = from < -128 ? -128 : from;
  *step = static_cast<uint8_t>(by);
  *offset = static_cast<uint8_t>(from);
  const float inverse = 1.0f / static_cast<float>(by), start = static_cast<float>(from);
  for (int d = 0; d < kGroup; ++d) {
    const long q = lrintf((x[d] * factor - start) * inverse);
    to[d] = static_cast<uint8_t>(q < 0 ? 0 : q > 15 ? 15 : q);
  }
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
