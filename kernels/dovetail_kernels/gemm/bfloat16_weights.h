// How weights in bfloat16 that are multiplied as floats lie in a panel, and how they become floats.
//
// With AVX2 an input has its columns side by side, the second and third quarter of them exchanged: unpacking
// the words of both halves of a register puts them in order. Elsewhere two inputs share a 32-bit lane.
#pragma once

#include "gemm/tiles.h"

namespace dt {
namespace DT_ISA {

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kBfloat16Step = 1;
DT_INLINE int bfloat16_place(int column) {
  constexpr int kQuarter = kPanel / 4;
  const int quarter = column / kQuarter;
  return quarter == 1 ? column + kQuarter : quarter == 2 ? column - kQuarter : column;
}

// The first (0) or second (1) half of the columns of an input. Words are interleaved with zeros, on a port
// that Intel's processors do not multiply on, as they shift; the zeros take no register this way.
template <int half> DT_INLINE Vec unpack_bf16(const bf16* p) {
  Vec x;
  const __m256i_u& words = *reinterpret_cast<const __m256i_u*>(p);
  if constexpr (half == 0) asm volatile("vpxor %x0, %x0, %x0\n\tvpunpcklwd %1, %0, %0" : "=x"(x) : "m"(words));
  else asm volatile("vpxor %x0, %x0, %x0\n\tvpunpckhwd %1, %0, %0" : "=x"(x) : "m"(words));
  return x;
}
#else
constexpr int kBfloat16Step = 2;
DT_INLINE int bfloat16_place(int column) { return column; }
#endif

}  // namespace DT_ISA
}  // namespace dt
