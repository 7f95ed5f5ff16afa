// Integer products of weights whose groups of inputs have a scale each: what a tile does.
//
// The sums of a group are exact integers. They become floats with the group's scale, or, where scales
// are small integers times a step that a run of groups shares, with the run's step.
#pragma once

#include "gemm/integer_rows.h"
#include "gemm/planes.h"

namespace dt {
namespace DT_ISA {

// How weights lie: four bits.
struct Nibbles {
  using Kind = Bytes;
  static constexpr int kStep = 8, kBits = 4;
  static constexpr bool widens = false;
  static int32_t usual_zero(bool is_added) { return is_added ? 0 : 8; }
  // The integer sums of one group: 8 inputs a 32-bit lane, the first four in the lower nibbles.
  template <int R>
  static DT_INLINE void add_group(const int8_t* a, const uint8_t* w, int64_t lanes, Ahead ahead,
                                  IVec (&sums)[R][2]) {
    const IVec low = iset1(0x0f0f0f0f);
#if defined(__AVX2__) && !defined(__AVX512F__)
    // 16-bit sums hold 8 steps of two products below 15 * 127 each: 4 lanes between the flushes.
    const IVec ones = _mm256_set1_epi16(1);
    constexpr int kFlush = 4;
    for (int64_t l0 = 0; l0 < lanes; l0 += kFlush) {
      IVec pairs[R][2];
      for (int i = 0; i < R; ++i) pairs[i][0] = pairs[i][1] = iset1(0);
      const auto add_lane = [&](int64_t l) __attribute__((always_inline)) {
        ahead.ask<kPanel * 4>(l);
        const IVec p0 = iload(w), p1 = iload(w + 4 * kLanes);
        const IVec w00 = iand(p0, low), w01 = iand(p1, low);
        const IVec w10 = iand(shift_right<4>(p0), low), w11 = iand(shift_right<4>(p1), low);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) {
          const IVec x = broadcast(a + i * 4), y = broadcast(a + (R + i) * 4);
          pairs[i][0] = _mm256_add_epi16(pairs[i][0], _mm256_maddubs_epi16(w00, x));
          pairs[i][1] = _mm256_add_epi16(pairs[i][1], _mm256_maddubs_epi16(w01, x));
          pairs[i][0] = _mm256_add_epi16(pairs[i][0], _mm256_maddubs_epi16(w10, y));
          pairs[i][1] = _mm256_add_epi16(pairs[i][1], _mm256_maddubs_epi16(w11, y));
        }
        a += R * 8, w += kPanel * 4;
      };
      if (R == 1 && lanes - l0 >= kFlush) {
#pragma GCC unroll 4
        for (int l = 0; l < kFlush; ++l) add_lane(l0 + l);
      } else {
        for (int64_t l = l0; l < lanes && l < l0 + kFlush; ++l) add_lane(l);
      }
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < 2; ++j)
          sums[i][j] = iadd(sums[i][j], _mm256_madd_epi16(pairs[i][j], ones));
    }
#else
    for (int64_t l = 0; l < lanes; ++l, a += R * 8, w += kPanel * 4) {
      ahead.ask<kPanel * 4>(l);
      const IVec p0 = iload(w), p1 = iload(w + 4 * kLanes);
      const IVec w00 = iand(p0, low), w01 = iand(p1, low);
      const IVec w10 = iand(shift_right<4>(p0), low), w11 = iand(shift_right<4>(p1), low);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * 4), y = broadcast(a + (R + i) * 4);
        sums[i][0] = dot4(sums[i][0], w00, x);
        sums[i][1] = dot4(sums[i][1], w01, x);
        sums[i][0] = dot4(sums[i][0], w10, y);
        sums[i][1] = dot4(sums[i][1], w11, y);
      }
    }
#endif
  }
};

// Bytes.
struct GroupedBytes {
  using Kind = Int8Rows;
  static constexpr int kStep = kInt8Step, kBits = 8;
  static constexpr bool widens = false;
  static int32_t usual_zero(bool) { return kInt8Offset; }
  template <int R>
  static DT_INLINE void add_group(const Kind::T* a, const uint8_t* w, int64_t lanes, Ahead ahead,
                                  IVec (&sums)[R][2]) {
    for (int64_t l = 0; l < lanes; ++l, a += R * kStep, w += kPanel * kStep) {
      ahead.ask<kPanel * kStep>(l);
      const IVec w0 = Kind::weights(w), w1 = Kind::weights(w + kLanes * kStep);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        const IVec x = broadcast(a + i * kStep);
        sums[i][0] = Kind::dot(sums[i][0], w0, x);
        sums[i][1] = Kind::dot(sums[i][1], w1, x);
      }
    }
  }
};

// What of four inputs' bytes is added to sums when. On AVX2 two products' sums are of 16 bits, which
// hold four times two products below 31 * 127, twice two below 63 * 127, before they are flushed.
template <int R, int bits, int q>
DT_INLINE void add_quarter(const int8_t* a, const IVec (&v)[2], IVec (&pairs)[R][2],
                           IVec (&sums)[R][2]) {
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i) {
    const IVec x = broadcast(a + (q * R + i) * 4);
    for (int j = 0; j < 2; ++j) {
#if defined(__AVX2__) && !defined(__AVX512F__)
      constexpr int kFlush = bits == 6 ? 2 : 4;
      const IVec two = _mm256_maddubs_epi16(v[j], x);
      pairs[i][j] = q % kFlush == 0 ? two : _mm256_add_epi16(pairs[i][j], two);
      if (q % kFlush == kFlush - 1)
        sums[i][j] = iadd(sums[i][j], _mm256_madd_epi16(pairs[i][j], _mm256_set1_epi16(1)));
#else
      (void)pairs;
      sums[i][j] = dot4(sums[i][j], v[j], x);
#endif
    }
  }
}

// A piece of a panel of planes, made bytes.
struct Widened {
  using Kind = Bytes;
  static constexpr int kStep = 16, kBits = 8;
  static constexpr bool widens = false;
  template <int R>
  static DT_INLINE void add_group(const int8_t* a, const uint8_t* w, int64_t lanes, Ahead ahead,
                                  IVec (&sums)[R][2]) {
    for (int64_t l = 0; l < lanes; ++l, a += R * kStep, w += kStep * kPanel) {
      ahead.ask(l);
      IVec pairs[R][2];
      add_quarters<R, 0>(a, w, pairs, sums);
    }
  }

 private:
  template <int R, int q>
  static DT_INLINE void add_quarters(const int8_t* a, const uint8_t* w, IVec (&pairs)[R][2],
                                     IVec (&sums)[R][2]) {
    const IVec v[2] = {iload(w + q * kPanel * 4), iload(w + (q * kPanel + kLanes) * 4)};
    add_quarter<R, 6, q>(a, v, pairs, sums);
    if constexpr (q < 3) add_quarters<R, q + 1>(a, w, pairs, sums);
  }
};

// Planes of bits.
template <int bits>
struct Narrow {
  using Kind = Bytes;
  static constexpr int kStep = Planes<bits>::kUnit, kBits = bits;
  static constexpr bool widens = true;
  static int32_t usual_zero(bool is_added) { return is_added ? 0 : 1 << (bits - 1); }
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
  static DT_INLINE void add_group(const int8_t* a, const uint8_t* w, int64_t lanes, Ahead ahead,
                                  IVec (&sums)[R][2]) {
    for (int64_t l = 0; l < lanes; ++l, a += R * kStep, w += Planes<bits>::kUnitBytes) {
      ahead.ask<Planes<bits>::kUnitBytes>(l);
      IVec pairs[R][2];
      add_quarters<R, 0>(a, w, pairs, sums);
    }
  }

 private:
  template <int R, int q>
  static DT_INLINE void add_quarters(const int8_t* a, const uint8_t* w, IVec (&pairs)[R][2],
                                     IVec (&sums)[R][2]) {
    const IVec v[2] = {Planes<bits>::template bytes<q>(w, 0), Planes<bits>::template bytes<q>(w, 1)};
    add_quarter<R, bits, q>(a, v, pairs, sums);
    if constexpr (q < 3) add_quarters<R, q + 1>(a, w, pairs, sums);
  }
};

// How a group's scale is found: among floats of any kind; among those of one, zero points or offsets
// too; as a small integer times a half that its run of groups shares, offsets likewise; or so, in one
// byte with the offset.
enum Way { kAnyScale, kBfloat16Scale, kFloat16Scale, kCodes, kCodePairs };

constexpr int64_t kMostInputsARun = 512;    // integer sums of so many inputs fit into 32 bits
constexpr int64_t kMostInputsAGroup = 256;  // sums of so many quantized inputs fit into 16 bits
constexpr int64_t kWideInputs = 256;        // inputs of a panel that are bytes at a time

// acc[lane] += the products of two numbers of 16 bits.
DT_INLINE IVec dot2_16(IVec acc, IVec a, IVec b) {
#if defined(__AVX512F__)
  return _mm512_dpwssd_epi32(acc, a, b);
#elif defined(__AVX2__)
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
#else
  const auto low = [](IVec x) { return (x << 16) >> 16; };
  return acc + low(a) * low(b) + (a >> 16) * (b >> 16);
#endif
}

template <class Own, Way way>
struct Grouped {
  using Kind = typename Own::Kind;
  static constexpr bool has_codes = way == kCodes || way == kCodePairs;
  // Integer sums of the group and float totals: fewer rows fit into the registers. Planes with scales
  // of a rare type get few, which compiles faster.
#if defined(__AVX512F__)
  static constexpr int kMost = has_codes ? 4 : 6;
#elif defined(__AVX2__)
  static constexpr int kMost = Own::kBits == 8 ? 3 : 4;
#else
  static constexpr int kMost = 4;
#endif
  static constexpr int kRows = Own::widens && way == kAnyScale && kMost > 4 ? 4 : kMost;
  static constexpr bool widens = Own::widens;
  static constexpr int beside = 1;
  using Wide = uint8_t;
  static int64_t depth(const GemmArgs& args) {
    const int64_t some = widens ? divide_up(kWideInputs, args.group) : 8;
    const int64_t run = int64_t{1} << args.run_shift;
    return divide_up(some, run) * run;
  }
  static int32_t usual_zero(const GemmArgs& args) { return Own::usual_zero(args.zeros || args.offsets); }
  static int64_t units(const GemmArgs& args) { return divide_up(args.in_size, args.group); }
  // Bytes of so many inputs, a multiple of kStep.
  static int64_t bytes(int64_t inputs) { return inputs * Own::kBits * kPanel / 8; }
  static int64_t panel_bytes(const GemmArgs& args) {
    return bytes(divide_up(args.in_size, Own::kStep) * Own::kStep);
  }
  static constexpr int64_t kLaneBytes = Own::kStep * Own::kBits * kPanel / 8;
  static int64_t lanes(const GemmArgs& args) { return args.group / Own::kStep; }
  static DT_INLINE const uint8_t* weights(const GemmArgs& args, int64_t panel, int64_t unit) {
    return static_cast<const uint8_t*>(args.weight) + panel * panel_bytes(args) + bytes(unit * args.group);
  }
  static int64_t wide_bytes(const GemmArgs& args, int64_t units) {
    return units * args.group * kPanel;
  }
  static DT_INLINE void widen(const GemmArgs& args, int64_t panel, int64_t unit0, int64_t units,
                              Wide* wide) {
    const int64_t left = args.in_size - unit0 * args.group;
    const int64_t inputs = left < units * args.group ? left : units * args.group;
    if constexpr (widens) Own::widen(weights(args, panel, unit0), divide_up(inputs, Own::kStep), wide);
  }
  template <int R>
  static DT_INLINE void tile(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                             int64_t unit0, int64_t units, float* kept, const Wide* wide,
                             const Ahead& ahead) {
    if constexpr (widens && R > kRows / 2)  // there are at least three tiles then
      if (wide) return Grouped<Widened, way>::template piece<R>(args, rows, first, panel, wide, unit0, units, kept, ahead);
    piece<R>(args, rows, first, panel, weights(args, panel, unit0), unit0, units, kept, ahead);
  }
  static DT_INLINE void scale(const GemmArgs&, const Rows& rows, int64_t row, int64_t, float* kept) {
    for (int j = 0; j < 2; ++j) {
      float* at = kept + j * kLanes;
      store(at, mul(load(at), set1(rows.scales[row])));
    }
  }

  // The weights of `unit0` and what follows are at w.
  template <int R>
  static DT_INLINE void piece(const GemmArgs& args, const Rows& rows, int64_t first, int64_t panel,
                              const uint8_t* w, int64_t unit0, int64_t units, float* kept,
                              const Ahead& ahead) {
    const auto* a = static_cast<const typename Kind::T*>(rows.values) + first * rows.inputs;
    const Factors scales(args, args.scales, args.steps, panel);
    const Added added(args, panel);
    const bool is_added = added.is_there();
    const int32_t* row_sums = rows.sums + first * rows.groups;
    const int32_t* row_starts = rows.starts + first * rows.groups;
    Vec totals[R][2];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j)
        totals[i][j] = unit0 ? load(kept + i * kPanel + j * kLanes) : zero();
    const auto sum_group = [&](int64_t g, IVec (&sums)[R][2]) __attribute__((always_inline)) {
      const int64_t done = g * rows.group, left = args.in_size - done;
      const int64_t lanes = divide_up(left < rows.group ? left : rows.group, Own::kStep);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = iset1(row_starts[g * R + i]);
      scales.ask_for(g);
      Own::template add_group<R>(a + done * R, w + bytes((g - unit0) * rows.group), lanes,
                                 ahead.from((g - unit0) * Grouped::lanes(args)), sums);
    };
    const auto add_runs = [&](const IVec (&runs)[R][2], const Factors& from, int64_t g)
        __attribute__((always_inline)) {
      for (int j = 0; j < 2; ++j) {
        const Vec step = from.step(g >> args.run_shift, j * kLanes);
#pragma GCC unroll 12
        for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(runs[i][j]), step, totals[i][j]);
      }
    };
    const int64_t last = unit0 + units;
    if constexpr (has_codes) {
      for (int64_t g = unit0; g < last; g += int64_t{1} << args.run_shift) {
        const int64_t full = g + (int64_t{1} << args.run_shift), stop = full < last ? full : last;
        IVec runs[R][2], sums[R][2];
        for (int i = 0; i < R; ++i) runs[i][0] = runs[i][1] = iset1(0);
        for (int64_t h = g; h < stop; ++h) {
          sum_group(h, sums);
          for (int j = 0; j < 2; ++j) {
            IVec code = scales.code(h, j * kLanes);
            if constexpr (way == kCodePairs) code = iand(code, iset1(15));
#pragma GCC unroll 12
            for (int i = 0; i < R; ++i) runs[i][j] = iadd(runs[i][j], imul(sums[i][j], code));
          }
        }
        add_runs(runs, scales, g);
        if (!is_added) continue;
        for (int i = 0; i < R; ++i) runs[i][0] = runs[i][1] = iset1(0);
        for (int64_t h = g; h < stop; h += 2) {  // two groups' sums and codes at a time
          const int32_t* low = row_sums + h * R;
          const bool has_next = h + 1 < stop;
          for (int j = 0; j < 2; ++j) {
            const IVec first = offset_code(added.offsets, h, j * kLanes);
            const IVec next = has_next ? offset_code(added.offsets, h + 1, j * kLanes) : iset1(0);
            const IVec both = put(first, iset1(0xffff), shift_left<16>(next));
#pragma GCC unroll 12
            for (int i = 0; i < R; ++i) {
              const uint32_t high = has_next ? static_cast<uint32_t>(low[R + i]) << 16 : 0;
              const IVec pair = iset1(static_cast<int32_t>(high | (low[i] & 0xffff)));
              runs[i][j] = dot2_16(runs[i][j], both, pair);
            }
          }
        }
        add_runs(runs, added.offsets, g);
      }
    } else {
      for (int64_t g = unit0; g < last; ++g) {
        IVec sums[R][2];
        sum_group(g, sums);
        for (int j = 0; j < 2; ++j) {
          const Vec scale = scale_of(scales, g, j * kLanes);
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i) totals[i][j] = fma(to_float(sums[i][j]), scale, totals[i][j]);
          if (!is_added) continue;
          const Vec more = more_of(added, g, j * kLanes, scale);
#pragma GCC unroll 12
          for (int i = 0; i < R; ++i)
            totals[i][j] = fma(to_float(iset1(row_sums[g * R + i])), more, totals[i][j]);
        }
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < 2; ++j) store(kept + i * kPanel + j * kLanes, totals[i][j]);
  }

 private:
  static DT_INLINE IVec offset_code(const Factors& offsets, int64_t g, int column) {
    const IVec code = offsets.code(g, column);
    return way == kCodePairs ? iand(shift_right<4>(code), iset1(15)) : code;
  }
  static DT_INLINE Vec scale_of(const Factors& scales, int64_t g, int column) {
    if constexpr (way == kBfloat16Scale) return scales.template plain<kBfloat16>(g, column);
    else if constexpr (way == kFloat16Scale) return scales.template plain<kFloat16>(g, column);
    else return scales.load(g, column);
  }
  static DT_INLINE Vec more_of(const Added& added, int64_t g, int column, Vec scale) {
    if constexpr (way == kAnyScale) return added.load(g, column, scale, zero());
    else if (added.offsets.own.at) return scale_of(added.offsets, g, column);
    else return sub(zero(), mul(scale, scale_of(added.zeros, g, column)));
  }
};

// Calls body(Grouped) for the way that fits the arguments best.
template <class Own, class Body>
int with_way(const GemmArgs& args, const Body& body) {
  const bool has_halves = args.steps && args.step_format == kFloat16 && !args.zeros &&
                          !args.offsets == !args.offset_steps &&
                          args.group <= kMostInputsAGroup &&
                          args.group << args.run_shift <= kMostInputsARun;
  if (has_halves && args.scale_format == kInt8) return body(Grouped<Own, kCodes>{});
  if constexpr (Own::kBits == 2)
    if (has_halves && args.scale_format == kLowCodes) return body(Grouped<Own, kCodePairs>{});
  if (!args.steps && !args.offset_steps) {
    if constexpr (!Own::widens)
      if (args.scale_format == kBfloat16) return body(Grouped<Own, kBfloat16Scale>{});
    if (args.scale_format == kFloat16) return body(Grouped<Own, kFloat16Scale>{});
  }
  return body(Grouped<Own, kAnyScale>{});
}

}  // namespace DT_ISA
}  // namespace dt
