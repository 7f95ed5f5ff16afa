// What all matrix products share: how rows become tiles, what happens to a finished tile.
//
// A weight is packed into panels of kPanel output columns (two registers wide); inside a panel the
// inputs follow one another, so a product reads its weight as one stream. A tile is up to kTileRows
// rows by one panel. Every output is one chain of multiply-adds over the inputs in order, whatever
// the tile: a row's result does not depend on the rows beside it.
#pragma once

#include "activations.h"
#include "gemm/args.h"
#include "pool.h"
#include "vector.h"

namespace dt {
namespace DT_ISA {

constexpr int kPanel = 2 * kLanes;
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
#elif defined(__aarch64__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 4;
#endif

// AVX2 adds up products of bytes in pairs of 16 bits, which saturate. AVX-512 and AVX-VNNI add four of
// them to 32 bits.
#if defined(__AVX512F__) || defined(__AVXVNNI__)
#define DT_ADDS_FOURS
#elif defined(__AVX2__)
#define DT_ADDS_PAIRS
#endif

// How byte weights lie in a panel: inputs that share a 32-bit lane, and, for nibbles, which of the
// lane's eight an input is. A stored int8 weight is the value plus kInt8Offset.
#if defined(DT_ADDS_FOURS)
constexpr int kInt8Step = 4, kInt8Offset = 128;
#elif defined(DT_ADDS_PAIRS)
constexpr int kInt8Step = 2, kInt8Offset = 0;
#else
constexpr int kInt8Step = 4, kInt8Offset = 0;
#endif
constexpr int kNibbleOfInput[8] = {0, 2, 4, 6, 1, 3, 5, 7};

// Weights are prefetched so many bytes before they are read: the processor itself does so too late where
// what is done with a line takes longer than reading it.
constexpr int64_t kPrefetchBytes = 4096, kLineBytes = 64;

// What a tile prefetches while it multiplies a piece of a panel, `bytes` a unit of it, so that memory is as
// busy as the arithmetic is.
struct Prefetch {
  const char* next;
  int64_t bytes;
  // The stream that the tile itself reads.
  static DT_INLINE Prefetch along(const void* stream, int64_t unit_bytes) {
    return {static_cast<const char*>(stream) + kPrefetchBytes, unit_bytes};
  }
  // The piece after this one, a part of it in each of the tiles that share this one.
  static DT_INLINE Prefetch after(const void* piece, int64_t units, int64_t unit_bytes, int64_t tile,
                                  int64_t tiles) {
    const char* next = static_cast<const char*>(piece) + units * unit_bytes;
    return Prefetch{next, unit_bytes}.part(units, tile, tiles);
  }
  // What one of the tiles that share `units` of it has.
  DT_INLINE Prefetch part(int64_t units, int64_t tile, int64_t tiles) const {
    const int64_t some = divide_up(bytes, tiles);
    return {next + units * tile * some, some};
  }
  DT_INLINE Prefetch from(int64_t unit) const { return {next + unit * bytes, bytes}; }
  // For one unit; `most` is what a unit has, known to the compiler.
  template <int64_t most = kLineBytes> DT_INLINE void unit(int64_t unit) const {
    for (int64_t i = 0; i < most; i += kLineBytes) __builtin_prefetch(next + unit * bytes + i);
  }
};

// Rows cut into the fewest tiles of at most `most`, as even as can be; the larger ones come first.
struct Tiling {
  int64_t count, small, num_large;
  DT_INLINE explicit Tiling(int64_t rows, int64_t most = kTileRows)
      : count(divide_up(rows, most)), small(rows / count), num_large(rows % count) {}
  // All of one size: the last one may have places without a row.
  static DT_INLINE Tiling whole(int64_t rows, int64_t size) { return Tiling(divide_up(rows, size) * size, size); }
  DT_INLINE int64_t first_row(int64_t tile) const {
    return tile * small + (tile < num_large ? tile : num_large);
  }
  DT_INLINE int rows(int64_t tile) const { return static_cast<int>(small + (tile < num_large)); }
};

// Rows whose packed or rounded copy, and whose sums, are held at once.
constexpr int64_t kBlockRows = 40 * kTileRows;

// Floats kept in one of the float formats, or small integers.
struct Scales {
  const void* at;
  int32_t format;
  DT_INLINE int64_t bytes() const {
    return format == kFloat32 ? 4 : format == kBfloat16 || format == kFloat16 ? 2 : 1;
  }
  DT_INLINE IVec codes(int64_t i) const { return iload_s8(static_cast<const int8_t*>(at) + i); }
  DT_INLINE Vec load(int64_t i) const {
    if (format == kBfloat16) return load_bf16(static_cast<const bf16*>(at) + i);
    if (format == kFloat16) return load_f16(static_cast<const f16*>(at) + i);
    if (format == kFloat8) return mul(load_e4m3_256ths(static_cast<const uint8_t*>(at) + i), set1(256.0f));
    if (format == kInt8) return load_s8(static_cast<const int8_t*>(at) + i);
    if (format == kLowCodes) return to_float(iand(codes(i), iset1(15)));
    if (format == kHighCodes) return to_float(iand(shift_right<4>(codes(i)), iset1(15)));
    return DT_ISA::load(static_cast<const float*>(at) + i);
  }
  DT_INLINE float one(int64_t i) const {
    if (format == kBfloat16) return bf16_to_float(static_cast<const bf16*>(at)[i]);
    if (format == kFloat16) return f16_to_float(static_cast<const f16*>(at)[i]);
    if (format == kFloat8) return e4m3_to_float(static_cast<const uint8_t*>(at)[i]);
    if (format == kInt8) return static_cast<const int8_t*>(at)[i];
    if (format == kLowCodes) return static_cast<float>(static_cast<const uint8_t*>(at)[i] & 15);
    if (format == kHighCodes) return static_cast<float>(static_cast<const uint8_t*>(at)[i] >> 4);
    return static_cast<const float*>(at)[i];
  }
};

// What the groups of a panel have each: a scale, say. Where runs of groups share a step, a group's
// own is its number times the step.
struct Factors {
  Scales own, steps;
  int64_t first, first_step;
  int32_t shift;
  template <class Args>
  DT_INLINE Factors(const Args& args, const void* at, const void* step, int64_t panel,
                    bool is_offset = false)
      : own{at, is_offset && args.scale_format == kLowCodes ? kHighCodes : args.scale_format},
        steps{step, args.step_format}, shift(args.run_shift) {
    const int64_t groups = args.group ? divide_up(args.in_size, args.group) : 1;
    first = panel * groups * kPanel;
    first_step = panel * divide_up(groups, int64_t{1} << shift) * kPanel;
  }
  DT_INLINE Vec load(int64_t g, int column) const {
    const Vec x = own.load(first + g * kPanel + column);
    return steps.at ? mul(x, steps.load(first_step + (g >> shift) * kPanel + column)) : x;
  }
  // Prefetches what groups soon after g have.
  DT_INLINE void prefetch(int64_t g) const {
    constexpr int64_t kDistance = 512;
    __builtin_prefetch(static_cast<const char*>(own.at) + (first + g * kPanel) * own.bytes() + kDistance);
  }
  // Loads of one kind: a group's number, or its run's step.
  template <int32_t format> DT_INLINE Vec plain(int64_t g, int column) const {
    return Scales{own.at, format}.load(first + g * kPanel + column);
  }
  DT_INLINE Vec step(int64_t run, int column) const {
    return Scales{steps.at, kFloat16}.load(first_step + run * kPanel + column);
  }
  DT_INLINE float one(int64_t g, int column) const {
    const float x = own.one(first + g * kPanel + column);
    return steps.at ? x * steps.one(first_step + (g >> shift) * kPanel + column) : x;
  }
};

// What is added to a group's values, scaled: offset, or minus the zero point times the scale.
struct Added {
  Factors zeros, offsets;
  DT_INLINE Added(const GemmArgs& args, int64_t panel)
      : zeros(args, args.zeros, nullptr, panel),
        offsets(args, args.offsets, args.offset_steps, panel, true) {}
  DT_INLINE bool is_there() const { return zeros.own.at || offsets.own.at; }
  // `usual` is the zero point where there is none.
  DT_INLINE Vec load(int64_t g, int column, Vec scale, Vec usual) const {
    if (offsets.own.at) return offsets.load(g, column);
    return sub(zero(), mul(scale, zeros.own.at ? zeros.load(g, column) : usual));
  }
};

// Calls body(constant<R>) for the R in 1 .. kTileRows that equals rows.
template <int n = kTileRows, class Body>
DT_INLINE void with_rows(int rows, const Body& body) {
  if (rows == n) return body(Constant<n>{});
  if constexpr (n > 1) with_rows<n - 1>(rows, body);
}

// Bias, activation and residual, then the store. c [rows, kPanel], the tile's sums.
__attribute__((noinline)) inline void finish(const GemmArgs& args, const float* c, int rows, int64_t row0, int64_t panel) {
  for (int i = 0; i < rows; ++i) {
    const int64_t row = row0 + i;
    Vec v[2];
    const int64_t half = args.out_size / 2;
    const float* bias = args.bias ? args.bias + row * args.bias_stride : nullptr;
    for (int j = 0; j < 2; ++j) {
      v[j] = load(c + i * kPanel + j * kLanes);
      if (!bias) continue;
      const int64_t at = args.is_gated ? j * half + panel * kLanes : panel * kPanel + j * kLanes;
      const int64_t left = (args.is_gated ? (j + 1) * half : args.out_size) - at;
      v[j] = add(v[j], left >= kLanes ? load(bias + at)
                       : left > 0     ? load_some(bias + at, static_cast<int>(left), 0.0f)
                                      : zero());
    }
    if (args.is_gated) {
      v[0] = gate(v[0], v[1], args.activation, args.limit);
    } else if (args.activation) {
      for (auto& x : v) x = activate(x, args.activation);
    }
    const int64_t width = args.is_gated ? half : args.out_size;
    for (int j = 0; j < (args.is_gated ? 1 : 2); ++j) {
      const int64_t at = panel * (args.is_gated ? kLanes : kPanel) + j * kLanes, left = width - at;
      if (left <= 0) break;
      float* out = args.out + row * args.out_stride + at;
      const float* residual = args.residual ? args.residual + row * args.out_stride + at : nullptr;
      if (left >= kLanes) {
        store(out, residual ? add(v[j], load(residual)) : v[j]);
      } else {
        const int some = static_cast<int>(left);
        store_some(out, some, residual ? add(v[j], load_some(residual, some, 0.0f)) : v[j]);
      }
    }
  }
}

// The row of the weight that a panel's column holds, or -1 where the panel is padding.
DT_INLINE int64_t source_row(int64_t panel, int column, int64_t out_size, bool is_gated) {
  const int64_t half = out_size / 2;
  if (!is_gated) {
    const int64_t row = panel * kPanel + column;
    return row < out_size ? row : -1;
  }
  const int64_t row = panel * kLanes + column % kLanes;
  return row >= half ? -1 : column < kLanes ? row : half + row;
}
DT_INLINE int64_t num_panels(int64_t out_size, bool is_gated) {
  return is_gated ? divide_up(out_size / 2, kLanes) : divide_up(out_size, kPanel);
}

// Panels a task takes, so that a task is worth handing out.
DT_INLINE int64_t panels_a_task(int64_t panels, int64_t panel_bytes, int64_t rows) {
  constexpr int64_t kTaskBytes = 1 << 15;
  const int64_t work = panel_bytes * (rows < 4 ? 1 : rows / 4);
  const int64_t some = divide_up(kTaskBytes, work > 0 ? work : 1);
  return some < panels ? some : panels;
}

// Where floats of 16 bits lie in a panel. One row has two chains of multiply-adds a panel, which
// registers of 128 and 256 bits are too short for: the chains' latency, not memory, would be waited for.
// There kBeside panels are interleaved and multiplied at once, in one stream; the last ones may be fewer.
#if defined(__AVX512F__)
constexpr int kBeside = 1;
#else
constexpr int kBeside = 4;
#endif

// Unit u of a panel (kPanel lanes of inputs that lie together) is at (first + u * stride) * kPanel.
struct Interleaved {
  int64_t first, stride;
  DT_INLINE Interleaved(int64_t panel, int64_t panels, int64_t units) {
    const int64_t start = panel / kBeside * kBeside, left = panels - start;
    first = start * units + panel - start;
    stride = left < kBeside ? left : kBeside;
  }
  DT_INLINE Interleaved(const GemmArgs& args, int64_t panel, int64_t units)
      : Interleaved(panel, num_panels(args.out_size, args.is_gated), units) {}
};

}  // namespace DT_ISA
}  // namespace dt
