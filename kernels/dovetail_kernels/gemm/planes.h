// Values of 2, 3, 5 or 6 bits as planes: how they lie in a panel, and how they become bytes.
//
// A unit is kUnit inputs of all columns of a panel. It holds, as far as the width has them, a plane of
// the lowest four bits of every value, one of the next two bits, and one of the last bit, so nothing
// is padded. In a 32-bit lane byte b holds inputs 4 q + b: a shift and a mask make four inputs bytes.
#pragma once

#include "gemm/tiles.h"

namespace dt {
namespace DT_ISA {

// 2, 3, 5 or 6 for a format of planes, 0 for another.
DT_INLINE int plane_bits(int32_t format) {
  switch (format) {
    case kInt2:
    case kInt2Int8: return 2;
    case kInt3:
    case kInt3Int8: return 3;
    case kInt5:
    case kInt5Int8: return 5;
    case kInt6:
    case kInt6Int8: return 6;
    default: return 0;
  }
}

// (a & mask) | b
DT_INLINE IVec put(IVec a, IVec mask, IVec b) {
#if defined(__AVX512F__)
  return _mm512_ternarylogic_epi32(a, mask, b, 0xea);
#elif defined(__AVX2__)
  return _mm256_or_si256(_mm256_and_si256(a, mask), b);
#else
  return (a & mask) | b;
#endif
}
// Right for n > 0, left for n < 0.
template <int n> DT_INLINE IVec shifted(IVec x) {
  if constexpr (n > 0) return shift_right<n>(x);
  else if constexpr (n < 0) return shift_left<-n>(x);
  else return x;
}

template <int bits>
struct Planes {
  static constexpr int kUnit = 16;
  static constexpr int kNibbles = bits >> 2 & 1, kPairs = bits >> 1 & 1, kSingles = bits & 1;
  static constexpr int kPairShift = 4 * kNibbles, kSingleShift = kPairShift + 2 * kPairs;
  static constexpr int64_t kPairsAt = kNibbles * 2 * kPanel * 4;  // bytes into the unit
  static constexpr int64_t kSinglesAt = kPairsAt + kPairs * kPanel * 4;
  static constexpr int64_t kUnitBytes = kUnit * bits * kPanel / 8;
  static_assert(kUnitBytes == kSinglesAt + kSingles * kLanes * 4, "planes fill the unit");

  static DT_INLINE int64_t panel_bytes(int64_t in_size) {
    return divide_up(in_size, kUnit) * kUnitBytes;
  }
  // Inputs 4 q .. 4 q + 3 of half the columns of a unit, a byte each.
  template <int q> static DT_INLINE IVec bytes(const uint8_t* unit, int j) {
    IVec x = iset1(0);
    if constexpr (kNibbles)
      x = iand(shifted<q % 2 * 4>(iload(unit + (q / 2 * kPanel + j * kLanes) * 4)), iset1(0x0f0f0f0f));
    if constexpr (kPairs) {
      const IVec pairs = shifted<2 * q - kPairShift>(iload(unit + kPairsAt + j * kLanes * 4));
      constexpr int32_t mask = 0x03030303 << kPairShift;
      x = kNibbles ? put(pairs, iset1(mask), x) : iand(pairs, iset1(mask));
    }
    if constexpr (kSingles) {
      const IVec both = iload(unit + kSinglesAt);
      const IVec mask = iset1(0x01010101 << kSingleShift);
      x = j ? put(shifted<4 + q - kSingleShift>(both), mask, x)
            : put(shifted<q - kSingleShift>(both), mask, x);
    }
    return x;
  }
  // The same for one input as a number of 32 bits.
  template <int s> static DT_INLINE IVec wide(const uint8_t* unit, int j) {
    return iand(shifted<8 * (s % 4)>(bytes<s / 4>(unit, j)), iset1(0xff));
  }
};

// Adds sixteen values of a column, four to a word, to the zeroed planes of a unit.
DT_INLINE void put_unit(int bits, uint8_t* unit, int column, const uint32_t (&values)[4]) {
  uint32_t* at = reinterpret_cast<uint32_t*>(unit);
  int done = 0;
  if (bits & 4) {
    for (int q = 0; q < 4; ++q) at[q / 2 * kPanel + column] |= (values[q] & 0x0f0f0f0fu) << (q % 2 * 4);
    at += 2 * kPanel;
    done = 4;
  }
  if (bits & 2) {
    for (int q = 0; q < 4; ++q) at[column] |= (values[q] >> done & 0x03030303u) << (2 * q);
    at += kPanel;
    done += 2;
  }
  if (bits & 1)
    for (int q = 0; q < 4; ++q)
      at[column % kLanes] |= (values[q] >> done & 0x01010101u) << (4 * (column / kLanes) + q);
}

// Reads values of one column back from planes.
struct Plane {
  int bits;
  const uint8_t* at;  // the panel
  DT_INLINE int get(int64_t k, int column) const {
    const int q = static_cast<int>(k % 16) / 4, b = static_cast<int>(k % 4);
    const uint8_t* unit = at + k / 16 * (2 * bits * kPanel);
    int value = 0, done = 0;
    if (bits & 4) {
      value = unit[(q / 2 * kPanel + column) * 4 + b] >> (q % 2 * 4) & 15;
      unit += 2 * kPanel * 4;
      done = 4;
    }
    if (bits & 2) {
      value |= (unit[column * 4 + b] >> (2 * q) & 3) << done;
      unit += kPanel * 4;
      done += 2;
    }
    if (bits & 1) value |= (unit[column % kLanes * 4 + b] >> (4 * (column / kLanes) + q) & 1) << done;
    return value;
  }
};

}  // namespace DT_ISA
}  // namespace dt
