// Weights that products multiply as floats: how the formats with scales lie in a panel, and what one
// of their values is. Knows no product.
//
// `step` inputs lie together: raw() finds them, value<s>() makes those of the s-th of them floats, a
// register of columns, before any scale. One row is multiplied by `beside` panels at once. Values are exact in bfloat16 but for tables that are not.
#pragma once

#include <utility>

#include "gemm/planes.h"

namespace dt {
namespace DT_ISA {

// Eight inputs share a 32-bit lane, the first in its lowest bits.
struct NibbleRaw {
  IVec packed[2];
};
DT_INLINE const uint32_t* nibbles_of(const GemmArgs& args, int64_t panel) {
  return static_cast<const uint32_t*>(args.weight) + panel * divide_up(args.in_size, 8) * kPanel;
}
DT_INLINE NibbleRaw nibbles_at(const uint32_t* at, int64_t k) {
  return {{iload(at + k / 8 * kPanel), iload(at + k / 8 * kPanel + kLanes)}};
}

struct FourBits {
  static constexpr int step = 8, beside = 2;
  static constexpr bool has_added = true;
  static constexpr float usual = 8, unit = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 8) * kPanel * 4; }
  const uint32_t* at;
  DT_INLINE FourBits(const GemmArgs& args, int64_t panel) : at(nibbles_of(args, panel)) {}
  using Raw = NibbleRaw;
  DT_INLINE Raw raw(int64_t k) const { return nibbles_at(at, k); }
  template <int s> DT_INLINE Vec value(const Raw& raw, int j) const {
    return to_float(iand(shift_right<4 * s>(raw.packed[j]), iset1(15)));
  }
};

// The same with a table of what the codes stand for.
struct TableCodes {
  static constexpr int step = 8, beside = 1;
  static constexpr bool has_added = false;
  static constexpr float usual = 0, unit = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return FourBits::panel_bytes(a); }
  const uint32_t* at;
  Table16 table;
  DT_INLINE TableCodes(const GemmArgs& args, int64_t panel)
      : at(nibbles_of(args, panel)), table(args.table) {}
  using Raw = NibbleRaw;
  DT_INLINE Raw raw(int64_t k) const { return nibbles_at(at, k); }
  template <int s> DT_INLINE Vec value(const Raw& raw, int j) const {
    return table(shift_right<4 * s>(raw.packed[j]));
  }
};

// Planes of 2, 3, 5 or 6 bits.
template <int bits>
struct PlaneValues {
  static constexpr int step = Planes<bits>::kUnit, beside = 1;
  static constexpr bool has_added = true;
  static constexpr float usual = 1 << (bits - 1), unit = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return Planes<bits>::panel_bytes(a.in_size); }
  const uint8_t* at;
  DT_INLINE PlaneValues(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args)) {}
  using Raw = const uint8_t*;
  DT_INLINE Raw raw(int64_t k) const { return at + k / step * Planes<bits>::kUnitBytes; }
  template <int s> DT_INLINE Vec value(Raw raw, int j) const {
    return to_float(Planes<bits>::template wide<s>(raw, j));
  }
};

// One byte an input and column, all columns of an input side by side; the panel's last eight inputs
// are padded. e4m3 as its 256th, or an integer.
template <bool is_float8>
struct ByteValues {
  static constexpr int step = 8, beside = 1;
  static constexpr bool has_added = !is_float8;
  static constexpr float usual = 0, unit = is_float8 ? 256 : 1;
  static int64_t panel_bytes(const GemmArgs& a) { return divide_up(a.in_size, 8) * 8 * kPanel; }
  const uint8_t* at;
  DT_INLINE ByteValues(const GemmArgs& args, int64_t panel)
      : at(static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args)) {}
  using Raw = const uint8_t*;
  DT_INLINE Raw raw(int64_t k) const { return at + k * kPanel; }
  template <int s> DT_INLINE Vec value(Raw raw, int j) const {
    const uint8_t* here = raw + s * kPanel + j * kLanes;
    if constexpr (is_float8) return load_e4m3_256ths(here);
    else return load_s8(reinterpret_cast<const int8_t*>(here));
  }
};

// What the values of a panel are multiplied by, and what is then added to each.
template <class Values>
struct GroupScales {
  Factors scales;
  Added added;
  const float* outer;
  DT_INLINE GroupScales(const GemmArgs& args, int64_t panel)
      : scales(args, args.scales, args.steps, panel),
        added(args, panel),
        outer(args.outer ? args.outer + panel * kPanel : nullptr) {}
  struct Scale {
    Vec scale[2], zero[2];
  };
  DT_INLINE Scale of(int64_t g) const {
    Scale found;
    for (int j = 0; j < 2; ++j) {
      const Vec own = scales.load(g, j * kLanes);
      found.scale[j] = outer ? mul(own, load(outer + j * kLanes)) : own;
      if constexpr (Values::has_added) {
        const bool is_there = Values::usual != 0 || added.is_there();
        found.zero[j] = is_there ? added.load(g, j * kLanes, own, set1(Values::usual)) : zero();
      }
      if constexpr (Values::unit != 1) found.scale[j] = mul(found.scale[j], set1(Values::unit));
    }
    return found;
  }
};

// The same kind of weight, of P panels that follow one another.
template <class Weight, int P>
struct Beside {
  Weight at[P];
  DT_INLINE Beside(const GemmArgs& args, int64_t panel)
      : Beside(args, Weight(args, panel), panel, std::make_integer_sequence<int, P>{}) {}

 private:
  template <int... p>
  DT_INLINE Beside(const GemmArgs& args, const Weight& first, int64_t panel,
                   std::integer_sequence<int, p...>)
      : at{first.next(args, panel, p)...} {}
};

}  // namespace DT_ISA
}  // namespace dt
