// Integer products in segments of inputs: what a tile does.
//
// The sums of a segment (integer_rows.h) are exact integers. They become floats with the row's scale and
// that of the weight's group.
#pragma once

#include <type_traits>

#include "gemm/integer_rows.h"
#include "gemm/planes.h"

namespace dt {
namespace DT_ISA {

// How weights lie: `kStep` inputs of a panel in a lane of `kBits` each. What they stand for is kZero less,
// unless they have zero points or offsets, which row sums make up for; and kStart less. The sums of a segment
// begin at what that makes of its rounded inputs: add_segment() adds to it where there is a kStart.
//
// Four bits.
struct Nibbles {
  using Kind = Bytes;
  using Wider = void;
  static constexpr int kStep = 8, kBits = 4;
  static constexpr int kZero = 8, kStart = 0;
  // A piece of a panel becomes bytes, [inputs / 4][kPanel][4].
  static DT_INLINE void widen(const uint8_t* w, int64_t lanes, uint8_t* wide) {
    const IVec low = iset1(0x0f0f0f0f);
    for (int64_t i = 0; i < lanes; ++i, w += kPanel * 4, wide += 2 * kPanel * 4)
      for (int j = 0; j < 2; ++j) {
        const IVec x = iload(w + j * kLanes * 4);
        istore(wide + j * kLanes * 4, iand(x, low));
        istore(wide + (kPanel + j * kLanes) * 4, iand(shift_right<4>(x), low));
      }
  }
  // The integer sums of a segment: 8 inputs a 32-bit lane, the first four in the lower nibbles.
  template <int R>
  static DT_INLINE void add_segment(const int8_t* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                    IVec (&sums)[R][2]) {
#if defined(DT_ADDS_PAIRS)
    // 16-bit sums hold 8 steps of two products below 15 * 127 each: 4 lanes between the flushes.
    constexpr int64_t kFlush = 4;
    const auto add_pairs = [&](int64_t l, int64_t some, auto is_first) __attribute__((always_inline)) {
      IVec pairs[R][2];
      for (int i = 0; i < R; ++i) pairs[i][0] = pairs[i][1] = iset1(0);
      add_lanes<R>(a + l * R * 8, w + l * kPanel * 4, some, prefetch.from(l), pairs);
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) {
          const IVec two = _mm256_madd_epi16(pairs[i][j], _mm256_set1_epi16(1));
          sums[i][j] = is_first.value ? two : iadd(sums[i][j], two);
        }
    };
    if (lanes == kFlush) return add_pairs(0, kFlush, Constant<1>{});
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(0);
    for (int64_t l = 0; l < lanes; l += kFlush)
      add_pairs(l, lanes - l < kFlush ? lanes - l : kFlush, Constant<0>{});
#else
    for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(0);
    add_lanes<R>(a, w, lanes, prefetch, sums);
#endif
  }

 private:
  template <int R>
  static DT_INLINE void add_lanes(const int8_t* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                  IVec (&sums)[R][2]) {
    const auto add_lane = [&](int64_t l) __attribute__((always_inline)) {
      const IVec low = iset1(0x0f0f0f0f);
      prefetch.unit<kPanel * 4>(l);
      add_half<R>(a, iand(iload(w), low), iand(iload(w + 4 * kLanes), low), sums);
      add_half<R>(a + R * 4, iand(shift_right<4>(iload(w)), low),
                  iand(shift_right<4>(iload(w + 4 * kLanes)), low), sums);
      a += R * 8, w += kPanel * 4;
    };
    if (R == 1 && lanes == 4) {
#pragma GCC unroll 4
      for (int l = 0; l < 4; ++l) add_lane(l);
    } else {
      for (int64_t l = 0; l < lanes; ++l) add_lane(l);
    }
  }
  template <int R>
  static DT_INLINE void add_half(const int8_t* a, IVec w0, IVec w1, IVec (&sums)[R][2]) {
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const IVec x = broadcast(a + i * 4);
      add(sums[i][0], w0, x);
      add(sums[i][1], w1, x);
    }
  }
  static DT_INLINE void add(IVec& sum, IVec w, IVec x) {
#if defined(DT_ADDS_PAIRS)
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    keep_here(sum);
#else
    sum = dot4(sum, w, x);
#endif
  }
};

// Bytes, or words, which bytes become where a piece of a panel is multiplied by several tiles.
template <int bits>
struct Plain {
  using Kind = Int8Rows;
  using Wider = std::conditional_t<Kind::is_wide && bits == 8, Plain<16>, void>;
  static constexpr int kStep = kInt8Step, kBits = bits;
  static constexpr int kZero = 0, kStart = kInt8Offset;
  static DT_INLINE void widen(const uint8_t* w, int64_t lanes, uint8_t* wide) {
    for (int64_t i = 0; i < 2 * lanes; ++i, w += kLanes * kStep, wide += 2 * kLanes * kStep)
      istore(wide, Kind::weights(w));
  }
  template <int R>
  static DT_INLINE void add_segment(const Kind::T* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                    IVec (&sums)[R][2]) {
    if constexpr (Kind::is_wide && R > 1) add_apart<R>(a, w, lanes, prefetch, sums);
    else add_lanes<R>(a, w, lanes, prefetch, sums);
  }

 private:
  // All registers are for the sums of a long segment.
  template <int R>
  static __attribute__((noinline)) void add_apart(const Kind::T* a, const uint8_t* w, int64_t lanes,
                                                  Prefetch prefetch, IVec (&sums)[R][2]) {
    IVec own[R][2];
    add_lanes<R>(a, w, lanes, prefetch, own);
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) sums[i][0] = own[i][0], sums[i][1] = own[i][1];
  }
  template <int R>
  static DT_INLINE void add_lanes(const Kind::T* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                  IVec (&sums)[R][2]) {
    constexpr int64_t kHalf = kLanes * kStep * bits / 8;
    if (!kStart)
      for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(0);
    for (int64_t l = 0; l < lanes; ++l, a += R * kStep, w += 2 * kHalf) {
      prefetch.unit<kPanel * kStep>(l);
      const IVec w0 = read(w), w1 = read(w + kHalf);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * kStep);
        sums[i][0] = Kind::dot(sums[i][0], w0, x);
        sums[i][1] = Kind::dot(sums[i][1], w1, x);
      }
    }
  }
  static DT_INLINE IVec read(const uint8_t* w) { return bits == 8 ? Kind::weights(w) : iload(w); }
};

// What of four inputs' bytes is added to sums when. Where pairs are added, two products' sums are of 16 bits, which
// hold four times two products below 31 * 127, twice two below 63 * 127, before they are flushed.
template <int R, int bits, int q, bool is_first>
DT_INLINE void add_quarter(const int8_t* a, IVec v0, IVec v1, IVec (&pairs)[R][2], IVec (&sums)[R][2]) {
  const IVec v[2] = {v0, v1};
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) {
    const IVec x = broadcast(a + (q * R + i) * 4);
    for (int j = 0; j < 2; ++j) {
#if defined(DT_ADDS_PAIRS)
      constexpr int kFlush = bits == 6 ? 2 : 4;
      const IVec two = _mm256_maddubs_epi16(v[j], x);
      pairs[i][j] = q % kFlush == 0 ? two : _mm256_add_epi16(pairs[i][j], two);
      keep_here(pairs[i][j]);
      if (q % kFlush < kFlush - 1) continue;
      const IVec four = _mm256_madd_epi16(pairs[i][j], _mm256_set1_epi16(1));
      sums[i][j] = is_first && q < kFlush ? four : iadd(sums[i][j], four);
#else
      (void)pairs;
      sums[i][j] = dot4(is_first && q == 0 ? iset1(0) : sums[i][j], v[j], x);
#endif
    }
  }
}
// The same for a lane of 16 inputs: bytes(constant q, half) are four of them.
template <int R, int bits, bool is_first, class Bytes>
DT_INLINE void add_quarters(const int8_t* a, IVec (&sums)[R][2], const Bytes& bytes) {
  IVec pairs[R][2];
  const auto add = [&](auto q) __attribute__((always_inline)) {
    add_quarter<R, bits, q.value, is_first>(a, bytes(q, 0), bytes(q, 1), pairs, sums);
  };
  add(Constant<0>{});
  add(Constant<1>{});
  add(Constant<2>{});
  add(Constant<3>{});
}

// A piece of a panel of planes, made bytes.
struct Widened {
  using Kind = Bytes;
  static constexpr int kStep = 16, kBits = 8;
  template <int R>
  static DT_INLINE void add_segment(const int8_t* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                    IVec (&sums)[R][2]) {
    const auto add_lane = [&](int64_t l, auto is_first) __attribute__((always_inline)) {
      prefetch.unit(l);
      add_quarters<R, 6, is_first.value>(a, sums, [&](auto q, int j) __attribute__((always_inline)) {
        return iload(w + (q.value * kPanel + j * kLanes) * 4);
      });
      a += R * kStep, w += kStep * kPanel;
    };
    add_lane(0, Constant<1>{});
    for (int64_t l = 1; l < lanes; ++l) add_lane(l, Constant<0>{});
  }
};

// Planes of bits.
template <int bits>
struct Narrow {
  using Kind = Bytes;
  using Wider = Widened;
  static constexpr int kStep = Planes<bits>::kUnit, kBits = bits;
  static constexpr int kZero = 1 << (bits - 1), kStart = 0;
  static DT_INLINE void widen(const uint8_t* w, int64_t lanes, uint8_t* wide) {
    for (int64_t l = 0; l < lanes; ++l, w += Planes<bits>::kUnitBytes, wide += kStep * kPanel) {
      for (int j = 0; j < 2; ++j) {
        uint8_t* to = wide + j * kLanes * 4;
        istore(to, Planes<bits>::template bytes<0>(w, j));
        istore(to + kPanel * 4, Planes<bits>::template bytes<1>(w, j));
        istore(to + kPanel * 8, Planes<bits>::template bytes<2>(w, j));
        istore(to + kPanel * 12, Planes<bits>::template bytes<3>(w, j));
      }
    }
  }
  template <int R>
  static DT_INLINE void add_segment(const int8_t* a, const uint8_t* w, int64_t lanes, Prefetch prefetch,
                                    IVec (&sums)[R][2]) {
    const auto add_lane = [&](int64_t l, auto is_first) __attribute__((always_inline)) {
      prefetch.unit<Planes<bits>::kUnitBytes>(l);
      add_quarters<R, bits, is_first.value>(a, sums, [&](auto q, int j) __attribute__((always_inline)) {
        return Planes<bits>::template bytes<q.value>(w, j);
      });
      a += R * kStep, w += Planes<bits>::kUnitBytes;
    };
    add_lane(0, Constant<1>{});
    for (int64_t l = 1; l < lanes; ++l) add_lane(l, Constant<0>{});
  }
};

constexpr int64_t kPieceInputs = 512;  // inputs of a panel that all tiles multiply before the next
constexpr int64_t kWideInputs = 256;   // the same where they become bytes first
constexpr int64_t kAloneInputs = 4096;  // the same of one tile

// The scales of the groups first .. first + count of a panel as floats [count, kPanel], and what the
// sums of their inputs are multiplied by: offsets, or minus zero points times scales.
struct SpelledFactors {
  int64_t first, count;
  float *scales, *offsets;  // offsets is null where nothing is added
  DT_INLINE SpelledFactors(const GemmArgs& args, int64_t panel, int64_t first, int64_t count)
      : first(first), count(count) {
    const Added added(args, panel);
    scales = static_cast<float*>(scratch(0, 2 * count * kPanel * sizeof(float)));
    offsets = added.is_there() ? scales + count * kPanel : nullptr;
    spell(Factors(args, args.scales, args.steps, panel), scales);
    if (added.offsets.own.at) {
      spell(added.offsets, offsets);
    } else if (offsets) {
      spell(added.zeros, offsets);
      for (int64_t i = 0; i < count * kPanel; i += kLanes)
        store(offsets + i, sub(zero(), mul(load(offsets + i), load(scales + i))));
    }
  }

 private:
  // Loads of the usual kinds are known to the compiler.
  DT_INLINE void spell(const Factors& from, float* to) const {
    const bool has_halves = from.steps.format == kFloat16;
    if (from.steps.at && has_halves && from.own.format == kInt8) return spell_each<kInt8, true>(from, to);
    if (!from.steps.at && from.own.format == kBfloat16) return spell_each<kBfloat16, false>(from, to);
    if (!from.steps.at && from.own.format == kFloat16) return spell_each<kFloat16, false>(from, to);
    each(from, to, [&](int64_t g, int column) { return from.load(g, column); });
  }
  template <int32_t format, bool has_steps>
  DT_INLINE void spell_each(const Factors& from, float* to) const {
    each(from, to, [&](int64_t g, int column) __attribute__((always_inline)) {
      const Vec x = from.template plain<format>(g, column);
      return has_steps ? mul(x, from.step(g >> from.shift, column)) : x;
    });
  }
  template <class Load>
  DT_INLINE void each(const Factors& from, float* to, const Load& one) const {
    for (int64_t g = 0; g < count; ++g, to += kPanel) {
      from.prefetch(first + g);
      store(to, one(first + g, 0));
      store(to + kLanes, one(first + g, kLanes));
    }
  }
};

template <class Own>
struct Grouped {
  using Kind = typename Own::Kind;
  using Wider = typename Own::Wider;
  using Lying = Own;
  static constexpr bool may_use_amx = true;
  static constexpr bool widens = !std::is_void_v<Wider>;
#if defined(DT_ADDS_FOURS)
  static constexpr int kRows = 6;  // a segment's sums and totals, two registers each
#elif defined(__AVX2__)
  static constexpr int kRows = Own::kBits == 8 ? 6 : 4;
#else
  static constexpr int kRows = 4;
#endif
  static constexpr int kStep = Own::kStep, kStart = Own::kStart, beside = 1;
  static constexpr int64_t kLaneBytes = kStep * Own::kBits * kPanel / 8;
  // Whether all values have the usual zero point.
  static bool is_centered(const GemmArgs& args) { return Own::kZero && !args.zeros && !args.offsets; }
  static int32_t start(const GemmArgs& args) { return Own::kStart + (is_centered(args) ? Own::kZero : 0); }
  // Bytes of so many inputs, a multiple of kStep.
  static int64_t bytes(int64_t inputs) { return inputs * Own::kBits * kPanel / 8; }
  static int64_t panel_bytes(const GemmArgs& args) {
    return bytes(divide_up(args.in_size, kStep) * kStep);
  }
  static int64_t depth(const Rows& rows, int64_t tiles) {
    const int64_t most = tiles < 2 ? kAloneInputs : widens ? kWideInputs : kPieceInputs;
    const int64_t unit = rows.group <= most ? rows.group : rows.segment;
    return divide_up(most, unit) * unit;
  }

  // Inputs k0 .. k1 of a panel.
  struct Piece {
    const GemmArgs& args;
    const Rows& rows;
    int64_t k0, k1;
    const uint8_t* w;
    const uint8_t* wide = nullptr;
    SpelledFactors factors;
    DT_INLINE Piece(const GemmArgs& args, const Rows& rows, int64_t panel, int64_t k0, int64_t k1, bool may_widen)
        : args(args), rows(rows), k0(k0), k1(k1),
          w(static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args) + bytes(k0)),
          factors(args, panel, k0 / rows.group, divide_up(k1, rows.group) - k0 / rows.group) {
      if constexpr (widens)
        if (may_widen) {
          auto* to = static_cast<uint8_t*>(scratch(1, divide_up(k1 - k0, 16) * 16 * kPanel * Wider::kBits / 8));
          Own::widen(w, divide_up(k1 - k0, kStep), to);
          wide = to;
        }
    }
    template <int R>
    DT_INLINE void multiply(int64_t first, float* kept, const Prefetch& prefetch) const {
      if constexpr (widens && R > kRows / 2)  // there are at least three tiles then
        if (wide) return add<Wider, R>(wide, first, kept, prefetch);
      add<Own, R>(w, first, kept, prefetch);
    }

   private:
    template <class Found, int R>
    DT_INLINE void add(const uint8_t* w, int64_t first, float* kept, const Prefetch& prefetch) const {
      const auto* a = static_cast<const typename Kind::T*>(rows.values) + first * rows.inputs;
      const float* row_scales = rows.scales + first * rows.segments;
      const int32_t* starts = rows.starts + first * rows.segments;
      const float* row_sums = rows.sums + first * rows.groups;
      int64_t segment = divide_up(k0, rows.segment);
      Vec totals[R][2];
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) totals[i][j] = k0 ? load(kept + i * kPanel + j * kLanes) : zero();
      int64_t k = k0;
      for (int64_t g = 0; g < factors.count; ++g) {
        const int64_t group = factors.first + g, next = (group + 1) * rows.group;
        const int64_t last = next < k1 ? next : k1;
        const Vec scale[2] = {load(factors.scales + g * kPanel), load(factors.scales + g * kPanel + kLanes)};
        for (; k < last; k += rows.segment, ++segment) {
          const int64_t left = last - k;
          const int64_t lanes = divide_up(left < rows.segment ? left : rows.segment, Found::kStep);
          IVec sums[R][2];
#pragma GCC unroll 12
          for (int i = 0; i < R && Own::kStart; ++i)
            sums[i][0] = sums[i][1] = iset1(starts[segment * R + i]);
          Found::template add_segment<R>(a + k * R, w + (k - k0) * Found::kBits * kPanel / 8, lanes,
                                         prefetch.from((k - k0) / Found::kStep), sums);
          if (Own::kZero && !factors.offsets)
#pragma GCC unroll 12
            for (int i = 0; i < R; ++i)
              for (int j = 0; j < 2; ++j) sums[i][j] = iadd(sums[i][j], iset1(starts[segment * R + i]));
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) {
            const Vec x = set1(row_scales[segment * R + i]);
            for (int j = 0; j < 2; ++j)
              totals[i][j] = fma(mul(to_float(sums[i][j]), x), scale[j], totals[i][j]);
          }
        }
        if (factors.offsets && (k >= next || k1 == args.in_size))
          add_sums<R>(factors.offsets + g * kPanel, row_sums + group * R, totals);
      }
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
    }
    template <int R>
    static DT_INLINE void add_sums(const float* offsets, const float* row_sums, Vec (&totals)[R][2]) {
      const Vec offset[2] = {load(offsets), load(offsets + kLanes)};
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const Vec sum = set1(row_sums[i]);
        for (int j = 0; j < 2; ++j) totals[i][j] = fma(sum, offset[j], totals[i][j]);
      }
    }
  };
  static DT_INLINE void scale(const GemmArgs&, const Rows&, int64_t, int64_t, float*) {}
};

}  // namespace DT_ISA
}  // namespace dt
