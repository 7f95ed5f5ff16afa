// Weights below two bits a value and the like: how they lie in a panel, and how they become numbers.
//
// Vectors: a code is the number of a point, 4 or 8 values that follow one another; a bit each may turn
// their signs. A unit is kUnit inputs of all columns of a panel: the codes' low bytes, then planes of
// their other bits (eight, four, two, one, as far as the width has them), then the signs, a byte for
// eight inputs. Points are fetched into registers and turned into the order of integer
// products: four inputs of a column in a 32-bit lane.
// Trits: five digits of base 3 in a byte, as a fraction of 256: three times the byte is the first digit
// above eight bits, and the next ones' byte below. A register holds 20 inputs, four in every step.
#pragma once

#include <string.h>

#include "gemm/tiles.h"

namespace dt {
namespace DT_ISA {

constexpr int64_t kUnit = 32;
constexpr int kUnitBytes = kUnit * kPanel;  // of a unit whose values are bytes
constexpr int kPointZero = 64;              // what is added to a point's values so that none is negative
constexpr int kTritZero = 1;
constexpr int kTritsAByte = 5;

DT_INLINE bool is_trits(int32_t format) { return format == kTrits || format == kTritsInt8; }

// ------------------------------------------------------------------------------------- bytes

#if defined(__AVX512F__)
DT_INLINE IVec add_bytes(IVec a, IVec b) { return _mm512_add_epi8(a, b); }
DT_INLINE IVec bset1(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
// kPointZero plus v, less v where its bit is set.
DT_INLINE IVec with_signs(IVec v, const uint8_t* bits) {
  uint64_t mask;
  memcpy(&mask, bits, 8);
  return _mm512_mask_sub_epi8(add_bytes(bset1(kPointZero), v), mask, bset1(kPointZero), v);
}
// The first digits.
DT_INLINE IVec digits(IVec x) {
  const IVec one = _mm512_maskz_mov_epi8(_mm512_cmpgt_epu8_mask(x, bset1(85)), bset1(1));
  return _mm512_mask_mov_epi8(one, _mm512_cmpgt_epu8_mask(x, bset1(170)), bset1(2));
}
#elif defined(__AVX2__)
DT_INLINE IVec add_bytes(IVec a, IVec b) { return _mm256_add_epi8(a, b); }
DT_INLINE IVec bset1(uint8_t x) { return _mm256_set1_epi8(static_cast<char>(x)); }
DT_INLINE IVec with_signs(IVec v, const uint8_t* bits) {
  int32_t four;
  memcpy(&four, bits, 4);
  const IVec each = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const IVec bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const IVec spread = iand(_mm256_shuffle_epi8(iset1(four), each), bit);
  const IVec mask = _mm256_cmpeq_epi8(spread, bit);
  return add_bytes(bset1(kPointZero), _mm256_sub_epi8(_mm256_xor_si256(v, mask), mask));
}
DT_INLINE IVec digits(IVec x) {
  const IVec one = _mm256_cmpeq_epi8(_mm256_max_epu8(x, bset1(86)), x);
  const IVec two = _mm256_cmpeq_epi8(_mm256_max_epu8(x, bset1(171)), x);
  return _mm256_sub_epi8(_mm256_setzero_si256(), add_bytes(one, two));
}
#else
typedef uint8_t BVec __attribute__((vector_size(16)));
DT_INLINE IVec add_bytes(IVec a, IVec b) { return (IVec)((BVec)a + (BVec)b); }
DT_INLINE IVec bset1(uint8_t x) { return (IVec)(BVec{} + x); }
DT_INLINE IVec with_signs(IVec v, const uint8_t* bits) {
  const uint64_t each = 0x0101010101010101, one = 0x8040201008040201;
  const uint64_t spread[2] = {bits[0] * each & one, bits[1] * each & one}, both[2] = {one, one};
  const BVec mask = (BVec)((BVec)iload(spread) == (BVec)iload(both));
  return (IVec)((((BVec)v ^ mask) - mask) + static_cast<uint8_t>(kPointZero));
}
DT_INLINE IVec digits(IVec x) {
  const BVec one = (BVec)((BVec)x > 85), two = (BVec)((BVec)x > 170);
  return (IVec)(-(one + two));
}
#endif
DT_INLINE IVec tripled(IVec x) { return add_bytes(add_bytes(x, x), x); }

// The even and the odd 32-bit lanes of two registers, in the order that `slot_of` makes up for.
#if defined(__AVX512F__)
DT_INLINE IVec evens(IVec a, IVec b) { return as_int(_mm512_shuffle_ps(as_float(a), as_float(b), 0x88)); }
DT_INLINE IVec odds(IVec a, IVec b) { return as_int(_mm512_shuffle_ps(as_float(a), as_float(b), 0xdd)); }
#elif defined(__AVX2__)
DT_INLINE IVec evens(IVec a, IVec b) { return as_int(_mm256_shuffle_ps(as_float(a), as_float(b), 0x88)); }
DT_INLINE IVec odds(IVec a, IVec b) { return as_int(_mm256_shuffle_ps(as_float(a), as_float(b), 0xdd)); }
#else
DT_INLINE IVec evens(IVec a, IVec b) { return IVec{a[0], a[2], b[0], b[2]}; }
DT_INLINE IVec odds(IVec a, IVec b) { return IVec{a[1], a[3], b[1], b[3]}; }
#endif
DT_INLINE int slot_of(int column) {
  const int lane = column % kLanes;
  return column - lane + lane / 4 * 2 + lane % 2 + (lane % 4 < 2 ? 0 : kLanes / 2);
}

// ------------------------------------------------------------------------------------- codes

// `count` codes of a unit, of 8 to 16 bits.
template <int count>
struct Codes {
  static constexpr int kWidths[] = {8, 4, 2, 1};
  static DT_INLINE void read(const uint8_t* from, int bits, uint16_t* codes) {
    for (int i = 0; i < count; ++i) codes[i] = from[i];
    from += count;
    int done = 8;
    add<8>(from, bits, done, codes);
    add<4>(from, bits, done, codes);
    add<2>(from, bits, done, codes);
    add<1>(from, bits, done, codes);
  }
  // Adds code i to zeroed memory.
  static void write(uint8_t* to, int bits, int i, unsigned code) {
    to[i] = static_cast<uint8_t>(code);
    to += count;
    int done = 8;
    for (const int width : kWidths) {
      if (!((bits - 8) & width)) continue;
      const int some = count * width / 8;
      to[i % some] |= static_cast<uint8_t>((code >> done & ((1u << width) - 1)) << i / some * width);
      to += some;
      done += width;
    }
  }

 private:
  template <int width>
  static DT_INLINE void add(const uint8_t*& from, int bits, int& done, uint16_t* codes) {
    constexpr int some = count * width / 8;
    if (!((bits - 8) & width)) return;
    for (int s = 0; s < 8 / width; ++s)
      for (int i = 0; i < some; ++i)
        codes[s * some + i] = static_cast<uint16_t>(
            codes[s * some + i] | (from[i] >> s * width & ((1 << width) - 1)) << done);
    from += some;
    done += width;
  }
};

typedef uint64_t Point8 __attribute__((may_alias));
typedef uint32_t Point4 __attribute__((may_alias));
constexpr int kEights = kUnit / 8 * kPanel;  // runs of eight inputs in a unit

// How the units of vectors lie. Code i of a book is of the run i / (8 / size) of eight inputs, and run i
// of inputs 8 (i / kPanel) on of a column.
struct VectorUnits {
  const VectorArgs& what;
  DT_INLINE int64_t code_bytes() const { return kEights * 8 / what.size * what.code_bits / 8; }
  DT_INLINE int64_t signs_at() const { return what.num_books * code_bytes(); }
  DT_INLINE int64_t bytes() const { return signs_at() + (what.has_signs ? kEights : 0); }
  DT_INLINE int slot(int column) const { return what.is_float ? column : slot_of(column); }
};

DT_INLINE int64_t num_units(int64_t in_size) { return divide_up(in_size, kUnit); }

DT_INLINE int64_t vectors_panel_bytes(int32_t format, const VectorArgs* vectors, int64_t in_size) {
  if (is_trits(format)) return divide_up(num_units(in_size) * (kUnit / 4), kTritsAByte) * kPanel * 4;
  return num_units(in_size) * VectorUnits{*vectors}.bytes();
}

// The points of as many codes as fill a register.
DT_INLINE IVec points_at(const Point8* p, const uint16_t* c) {
#if defined(__AVX512F__)
  return _mm512_set_epi64(p[c[7]], p[c[6]], p[c[5]], p[c[4]], p[c[3]], p[c[2]], p[c[1]], p[c[0]]);
#elif defined(__AVX2__)
  return _mm256_set_epi64x(p[c[3]], p[c[2]], p[c[1]], p[c[0]]);
#else
  const uint64_t both[2] = {p[c[0]], p[c[1]]};
  return iload(both);
#endif
}
DT_INLINE IVec points_at(const Point4* p, const uint16_t* c) {
  const auto two = [&](int i) { return p[c[i]] | uint64_t{p[c[i + 1]]} << 32; };
#if defined(__AVX512F__)
  return _mm512_set_epi64(two(14), two(12), two(10), two(8), two(6), two(4), two(2), two(0));
#elif defined(__AVX2__)
  return _mm256_set_epi64x(two(6), two(4), two(2), two(0));
#else
  const uint64_t both[2] = {two(0), two(2)};
  return iload(both);
#endif
}

// Some units of int8 points become bytes, in the order of integer products: calls sink(q, half, parity,
// bytes) for half of the columns, `half` and `parity`, q % 2, constants.
template <class Point, class Sink>
DT_INLINE void widen_points(const VectorUnits& units, const uint8_t* from, int64_t count, const Sink& sink) {
  constexpr int kCodes = 8 / sizeof(Point);  // codes of eight inputs
  const auto* points = static_cast<const Point*>(units.what.points);
  for (int64_t u = 0; u < count; ++u, from += units.bytes()) {
    uint16_t codes[kEights * kCodes];
    Codes<kEights * kCodes>::read(from, units.what.code_bits, codes);
    const uint8_t* signs = units.what.has_signs ? from + units.signs_at() : nullptr;
    const auto eights = [&](int first) __attribute__((always_inline)) {
      const IVec v = points_at(points, codes + first * kCodes);
      return signs ? with_signs(v, signs + first) : add_bytes(v, bset1(kPointZero));
    };
    for (int i = 0; i < kUnit / 8; ++i) {
      const auto turn = [&](auto half) __attribute__((always_inline)) {
        const int first = i * kPanel + half.value * kLanes;
        const IVec a = eights(first), b = eights(first + kLanes / 2);
        sink(u * 8 + 2 * i, half, Constant<0>{}, evens(a, b));
        sink(u * 8 + 2 * i + 1, half, Constant<1>{}, odds(a, b));
      };
      turn(Constant<0>{});
      turn(Constant<1>{});
    }
  }
}

// The same for trits. `from` is the panel, `first` the first four inputs' number, even as `count` is.
template <class Sink>
DT_INLINE void widen_trits(const uint8_t* from, int64_t first, int64_t count, const Sink& sink) {
  from += first / kTritsAByte * kPanel * 4;
  int done = static_cast<int>(first % kTritsAByte);
  IVec x[2] = {iload(from), iload(from + kLanes * 4)};
  for (int i = 0; i < done; ++i)
    for (auto& each : x) each = tripled(each);
  const auto four = [&](int64_t q, auto parity) __attribute__((always_inline)) {
    sink(q, Constant<0>{}, parity, digits(x[0]));
    sink(q, Constant<1>{}, parity, digits(x[1]));
    if (++done < kTritsAByte) {
      x[0] = tripled(x[0]);
      x[1] = tripled(x[1]);
    } else if (q + 1 < count) {
      from += kPanel * 4;
      x[0] = iload(from);
      x[1] = iload(from + kLanes * 4);
      done = 0;
    }
  };
  for (int64_t q = 0; q < count; q += 2) {
    four(q, Constant<0>{});
    four(q + 1, Constant<1>{});
  }
}

// A panel's units become bytes that stand for their value plus zero_of(format).
DT_INLINE int32_t zero_of(int32_t format) { return is_trits(format) ? kTritZero : kPointZero; }
template <class Args, class Sink>
DT_INLINE void each_register(const Args& args, int64_t panel, int64_t unit0, int64_t count, const Sink& sink) {
  const auto* from = static_cast<const uint8_t*>(args.weight) +
                     panel * vectors_panel_bytes(args.format, args.vectors, args.in_size);
  if (is_trits(args.format)) return widen_trits(from, unit0 * (kUnit / 4), count * (kUnit / 4), sink);
  const VectorUnits units{*args.vectors};
  from += unit0 * units.bytes();
  if (units.what.size == 8) widen_points<Point8>(units, from, count, sink);
  else widen_points<Point4>(units, from, count, sink);
}
template <class Args>
DT_INLINE void widen_bytes(const Args& args, int64_t panel, int64_t unit0, int64_t count, uint8_t* wide) {
  each_register(args, panel, unit0, count, [&](int64_t q, auto half, auto, IVec bytes)
                __attribute__((always_inline)) { istore(wide + (q * kPanel + half.value * kLanes) * 4, bytes); });
}

// ------------------------------------------------------------------------------------- scales

// The scale of a group: one of the float formats, or an odd code times the step of its run; times what
// all of an output have, if there is any.
struct GroupScales {
  Scales own, steps;
  const float* outer;
  const uint8_t* codes;
  int64_t first, first_step;
  int32_t shift;
  template <class Args>
  DT_INLINE GroupScales(const Args& args, int64_t panel)
      : own{args.scales, args.scale_format}, steps{args.steps, args.step_format},
        outer(args.outer ? args.outer + panel * kPanel : nullptr), shift(args.run_shift) {
    const int64_t groups = divide_up(args.in_size, args.group);
    first = panel * groups * kPanel;
    first_step = panel * divide_up(groups, int64_t{1} << shift) * kPanel;
    codes = static_cast<const uint8_t*>(args.scales) + panel * divide_up(groups, 2) * kPanel;
  }
  DT_INLINE bool has_codes() const { return steps.at; }
  DT_INLINE IVec code(int64_t g, int column) const {
    const IVec both = iload_s8(reinterpret_cast<const int8_t*>(codes) + g / 2 * kPanel + column);
    const IVec twice = g % 2 ? shift_right<3>(both) : shift_left<1>(both);
    return iadd(iand(twice, iset1(30)), iset1(1));
  }
  // Of what shares a scale: a group, or a run of them.
  DT_INLINE Vec shared(int64_t number, int column) const {
    const Vec x = has_codes() ? steps.load(first_step + number * kPanel + column)
                              : own.load(first + number * kPanel + column);
    return outer ? mul(x, DT_ISA::load(outer + column)) : x;
  }
  DT_INLINE Vec load(int64_t g, int column) const {
    return has_codes() ? mul(to_float(code(g, column)), shared(g >> shift, column)) : shared(g, column);
  }
};

// ------------------------------------------------------------------------------------- floats

#if defined(__AVX2__)
// Eight points of two times eight columns: register h becomes value h of all of them.
DT_INLINE void turn_halves(const f16* points, const uint16_t* codes, __m256i (&x)[8]) {
  const auto point = [&](int i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(points + int64_t{codes[i]} * 8));
  };
  __m256i y[8];
  for (int i = 0; i < 8; ++i) x[i] = _mm256_set_m128i(point(i + 8), point(i));
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm256_unpacklo_epi16(x[2 * i], x[2 * i + 1]);      // values 0 to 3 of columns 2 i, 2 i + 1
    y[4 + i] = _mm256_unpackhi_epi16(x[2 * i], x[2 * i + 1]);  // values 4 to 7
  }
  for (int i = 0; i < 4; ++i) {  // values 2 i and 2 i + 1 of columns 0 to 3, then of 4 to 7
    const __m256i* from = y + i / 2 * 4;
    x[2 * i] = i % 2 ? _mm256_unpackhi_epi32(from[0], from[1]) : _mm256_unpacklo_epi32(from[0], from[1]);
    x[2 * i + 1] = i % 2 ? _mm256_unpackhi_epi32(from[2], from[3]) : _mm256_unpacklo_epi32(from[2], from[3]);
  }
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm256_unpacklo_epi64(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm256_unpackhi_epi64(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < 8; ++i) x[i] = y[i];
}
DT_INLINE Vec half_floats(__m256i x, int j) {
#if defined(__AVX512F__)
  (void)j;
  return _mm512_cvtph_ps(x);
#else
  return _mm256_cvtph_ps(j ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x));
#endif
}
// The sums of several books' points, of which each has `apart` values: eight inputs of all columns.
DT_INLINE void sum_halves(const f16* points, int64_t apart, const uint16_t* codes, int books, float* to) {
  constexpr int kParts = 16 / kLanes;
  for (int c = 0; c < kPanel; c += 16) {
    Vec sums[8][kParts];
    for (int b = 0; b < books; ++b) {
      __m256i x[8];
      turn_halves(points + b * apart, codes + b * kEights + c, x);
#pragma GCC unroll 8
      for (int h = 0; h < 8; ++h)
        for (int j = 0; j < kParts; ++j) {
          const Vec v = half_floats(x[h], j);
          sums[h][j] = b ? add(sums[h][j], v) : v;
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < 8; ++h)
      for (int j = 0; j < kParts; ++j) store(to + h * kPanel + c + j * kLanes, sums[h][j]);
  }
}
#else
DT_INLINE void sum_halves(const f16* points, int64_t apart, const uint16_t* codes, int books, float* to) {
  for (int c = 0; c < kPanel; ++c)
    for (int h = 0; h < 8; ++h) {
      float sum = f16_to_float(points[int64_t{codes[c]} * 8 + h]);
      for (int b = 1; b < books; ++b)
        sum += f16_to_float(points[b * apart + int64_t{codes[b * kEights + c]} * 8 + h]);
      to[h * kPanel + c] = sum;
    }
}
#endif

constexpr int kMostBooks = 8;

// A unit of points of halves becomes floats, without the output's scale.
template <class Args>
DT_INLINE void widen_halves(const Args& args, int64_t panel, int64_t unit, float* wide) {
  const VectorUnits units{*args.vectors};
  const uint8_t* from = static_cast<const uint8_t*>(args.weight) +
                        (panel * num_units(args.in_size) + unit) * units.bytes();
  uint16_t codes[kMostBooks * kEights];
  const int books = units.what.num_books;
  for (int b = 0; b < books; ++b)
    Codes<kEights>::read(from + b * units.code_bytes(), units.what.code_bits, codes + b * kEights);
  const auto* points = static_cast<const f16*>(units.what.points);
  for (int i = 0; i < kUnit / 8; ++i, wide += 8 * kPanel)
    sum_halves(points, int64_t{8} << units.what.code_bits, codes + i * kPanel, books, wide);
}
// Points of halves have a scale an output, multiplied in at the end.
template <class Args>
DT_INLINE bool has_output_scales(const Args& args) {
  return args.vectors && args.vectors->is_float;
}
template <class Args>
DT_INLINE void widen_integers(const Args& args, int64_t panel, int64_t unit, float* wide) {
  uint8_t bytes[kUnitBytes];
  widen_bytes(args, panel, unit, 1, bytes);
  const IVec zero = iset1(zero_of(args.format)), low = iset1(0xff);
  for (int k = 0; k < kUnit; k += 4)
    for (int j = 0; j < 2; ++j) {
      const IVec x = iload(bytes + k * kPanel + j * kLanes * 4);
      float* to = wide + k * kPanel + j * kLanes;
      store(to, sub(to_float(iand(x, low)), to_float(zero)));
      store(to + kPanel, sub(to_float(iand(shift_right<8>(x), low)), to_float(zero)));
      store(to + 2 * kPanel, sub(to_float(iand(shift_right<16>(x), low)), to_float(zero)));
      store(to + 3 * kPanel, sub(to_float(iand(shift_right<24>(x), low)), to_float(zero)));
    }
}

// Some units become floats, [inputs, kPanel], with the scales of their groups.
template <class Args>
DT_INLINE void widen_floats(const Args& args, int64_t panel, int64_t unit0, int64_t count, float* wide) {
  if (has_output_scales(args)) {
    for (int64_t u = 0; u < count; ++u) widen_halves(args, panel, unit0 + u, wide + u * kUnitBytes);
    return;
  }
  const GroupScales scales(args, panel);
  const int64_t last = divide_up(args.in_size, args.group) - 1;
  for (int64_t unit = unit0; unit < unit0 + count; ++unit) {
    widen_integers(args, panel, unit, wide);
    for (int64_t k = 0; k < kUnit; k += 16, wide += 16 * kPanel) {  // groups are multiples of it
      const int64_t g = (unit * kUnit + k) / args.group;
      for (int j = 0; j < 2; ++j) {
        const Vec scale = scales.load(g < last ? g : last, j * kLanes);
        for (int i = 0; i < 16; ++i) {
          float* at = wide + i * kPanel + j * kLanes;
          store(at, mul(load(at), scale));
        }
      }
    }
  }
}

}  // namespace DT_ISA
}  // namespace dt
