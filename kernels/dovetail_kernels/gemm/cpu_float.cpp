// Matrix products with float activations: weights float32, bfloat16, half,
// or in groups: float8 or 2 to 8 bits.
//
// A narrow weight becomes float in a register, next to its multiply-add, for one row. Where rows share a
// panel, it becomes float once, into the first-level cache. Both ways give the same bits.
// Work: M*N*K multiply-adds; bytes: the packed weight once for every kBlockRows rows.

#include "gemm/float_weights.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kDepth = kBeside == 1 ? 128 : 64;  // inputs of a panel that few tiles multiply at once
constexpr int64_t kWideDepth = kBeside == 1 ? 128 : 256;  // the same of many, and of those held as floats
constexpr int64_t kWide = (kWideDepth + 16) * kPanel;  // floats of a panel's piece, and of a raw load more
#if defined(__AVX512F__)
constexpr int64_t kExpandTiles = 3;  // from so many tiles on, a panel of 16 bits is made float once
constexpr int64_t kStreamRows = 8;   // up to so many rows, a panel is read as one stream
#elif defined(__AVX2__)
constexpr int64_t kExpandTiles = 4, kStreamRows = 0;
#else
constexpr int64_t kExpandTiles = 2, kStreamRows = 0;
#endif

// How each format's panel is laid out and read. `step` inputs lie together: raw() loads them, and
// get<s>() makes the weights of the s-th of them floats, two registers of columns. One row is
// multiplied by `beside` panels at once.
struct NoScale {};

// Floats of 32 bits, and such made of narrower ones.
struct Float32 {
  static constexpr bool is_scaled = false, is_direct = true;
  static constexpr int beside = 1, step = 1;
  static int64_t panel_bytes(const GemmArgs& a) { return a.in_size * kPanel * 4; }
  using Scale = NoScale;
  const float* at;
  DT_INLINE explicit Float32(const float* weights) : at(weights) {}
  DT_INLINE Float32(const GemmArgs& args, int64_t panel)
      : at(static_cast<const float*>(args.weight) + panel * args.in_size * kPanel) {}
  DT_INLINE Float32 next(const GemmArgs&, int64_t, int) const { return *this; }
  struct Raw { Vec w[2]; };
  DT_INLINE Raw raw(int64_t k) const {
    return {{load(at + k * kPanel), load(at + k * kPanel + kLanes)}};
  }
  DT_INLINE Scale scale(int64_t) const { return {}; }
  template <int s> DT_INLINE Vec get(const Raw& raw, const Scale&, int j) const { return raw.w[j]; }
};

// Floats of 16 bits, T holding the inputs that lie together; panels are interleaved.
template <class T, int inputs>
struct Halves {
  static constexpr bool is_scaled = false, is_direct = false;
  static constexpr int beside = kBeside, step = inputs;
  using Scale = NoScale;
  static int64_t units(const GemmArgs& a) { return divide_up(a.in_size, step); }
  static int64_t panel_bytes(const GemmArgs& a) { return units(a) * kPanel * sizeof(T); }
  const T* at;
  int64_t stride;  // of an input
  DT_INLINE Halves(const T* weights, int64_t stride) : at(weights), stride(stride) {}
  DT_INLINE Halves(const GemmArgs& args, int64_t panel) {
    const Interleaved lies(args, panel, units(args));
    at = static_cast<const T*>(args.weight) + lies.first * kPanel;
    stride = lies.stride * kPanel / step;
  }
  DT_INLINE const T* unit(int64_t k) const { return at + k * stride; }
  DT_INLINE Scale scale(int64_t) const { return {}; }
};

struct Float16 : Halves<f16, 1> {
  using Halves::Halves;
  DT_INLINE Float16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  using Raw = Float32::Raw;
  DT_INLINE Raw raw(int64_t k) const { return {{load_f16(unit(k)), load_f16(unit(k) + kLanes)}}; }
  template <int s> DT_INLINE Vec get(const Raw& raw, const Scale&, int j) const { return raw.w[j]; }
};

// Two inputs share a 32-bit lane, the even one in its lower half; an odd last input has a zero
// beside it.
struct Bfloat16 : Halves<uint32_t, 2> {
  using Halves::Halves;
  DT_INLINE Bfloat16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  struct Raw { const uint32_t* pairs; };
  DT_INLINE Raw raw(int64_t k) const { return {unit(k)}; }
  template <int s> DT_INLINE Vec get(const Raw& raw, const Scale&, int j) const {
    const uint32_t* from = raw.pairs + j * kLanes;
#if defined(__AVX2__) && !defined(__AVX512F__)
    asm volatile("" : "+r"(from));  // load pairs twice: registers are for the sums
#endif
    const IVec pairs = iload(from);
    if constexpr (s == 0) return as_float(shift_left<16>(pairs));
    return as_float(iand(pairs, iset1(static_cast<int32_t>(0xffff0000))));
  }
};

// Values in groups: a weight is value * scale + what is added, rounded once. Groups are multiples of
// `step` inputs.
template <class Values>
struct Scaled {
  static constexpr bool is_scaled = true, is_direct = false;
  static constexpr int beside = Values::beside, step = Values::step;
  static int64_t panel_bytes(const GemmArgs& a) { return Values::panel_bytes(a); }
  Values values;
  GroupScales<Values> scales;
  DT_INLINE Scaled(const GemmArgs& args, int64_t panel) : values(args, panel), scales(args, panel) {}
  DT_INLINE Scaled next(const GemmArgs& args, int64_t panel, int p) const { return {args, panel + p}; }
  using Scale = typename GroupScales<Values>::Scale;
  using Raw = typename Values::Raw;
  DT_INLINE Scale scale(int64_t g) const { return scales.of(g); }
  DT_INLINE Raw raw(int64_t k) const { return values.raw(k); }
  template <int s> DT_INLINE Vec get(const Raw& raw, const Scale& scale, int j) const {
    const Vec value = values.template value<s>(raw, j);
    if constexpr (Values::has_added) return fma(value, scale.scale[j], scale.zero[j]);
    else return mul(value, scale.scale[j]);
  }
};

// A weight that prefetches what is read next while it is multiplied; a unit is an input.
template <class Weight>
struct Prefetching : Weight {
  Prefetch prefetch;
  DT_INLINE Prefetching(const Weight& weight, Prefetch prefetch) : Weight(weight), prefetch(prefetch) {}
  DT_INLINE typename Weight::Raw raw(int64_t k) const {
    prefetch.unit(k);
    return Weight::raw(k);
  }
};

// sums[j] += x w[j]. On AVX2 a tile has all sixteen registers: any order but this makes the compiler keep
// sums in memory.
DT_INLINE void add_row(const float* x, Vec w0, Vec w1, Vec (&sums)[2]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  Vec all;
  asm volatile(
      "vbroadcastss %[x], %[all]\n\t"
      "vfmadd231ps %[all], %[w0], %[s0]\n\t"
      "vfmadd231ps %[all], %[w1], %[s1]"
      : [s0] "+x"(sums[0]), [s1] "+x"(sums[1]), [all] "=&x"(all)
      : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*x));
#else
  const Vec all = set1(*x);
  sums[0] = fma(all, w0, sums[0]);
  sums[1] = fma(all, w1, sums[1]);
#endif
}

// Adds the products of inputs s .. of one raw load; a holds their activations, R apart.
template <int R, class Weight, int s = 0>
DT_INLINE void add_products(const float* a, const Weight& weight, const typename Weight::Raw& raw,
                            const typename Weight::Scale& scale, Vec (&sums)[R][2]) {
  const Vec w0 = weight.template get<s>(raw, scale, 0), w1 = weight.template get<s>(raw, scale, 1);
  if constexpr (R == 1) {  // several panels share the row's input
    const Vec x = set1(*a);
    sums[0][0] = fma(x, w0, sums[0][0]);
    sums[0][1] = fma(x, w1, sums[0][1]);
  } else {
    repeat<R>([&](auto i) __attribute__((always_inline)) { add_row(a + i.value, w0, w1, sums[i.value]); });
  }
  if constexpr (s + 1 < Weight::step)
    add_products<R, Weight, s + 1>(a + R, weight, raw, scale, sums);
}

// c[R, kPanel] (+)= a[k, R]^T w[k, kPanel] over `inputs` inputs from k0 on; a starts at k0.
template <int R, class Weight>
DT_INLINE void tile(const float* a, const Weight& weight, int64_t k0, int64_t inputs, float* c,
                    bool adds) {
  constexpr int step = Weight::step;
  Vec sums[R][2];
  repeat<R>([&](auto i) __attribute__((always_inline)) {
    const float* from = c + i.value * kPanel;
    sums[i.value][0] = adds ? load(from) : zero();
    sums[i.value][1] = adds ? load(from + kLanes) : zero();
  });
  int64_t k = 0;
  for (; k + step <= inputs; k += step, a += R * step)
    add_products<R, Weight>(a, weight, weight.raw(k0 + k), {}, sums);
  if (step > 1 && k < inputs) {  // the last inputs of a raw load, zeros beside them
    float padded[R * step] = {};
    for (int64_t i = 0; i < (inputs - k) * R; ++i) padded[i] = a[i];
    add_products<R, Weight>(padded, weight, weight.raw(k0 + k), {}, sums);
  }
  repeat<R>([&](auto i) __attribute__((always_inline)) {
    store(c + i.value * kPanel, sums[i.value][0]);
    store(c + i.value * kPanel + kLanes, sums[i.value][1]);
  });
}

// One row by P panels: c[P, kPanel].
template <int P, class Weight>
DT_INLINE void row(const GemmArgs& args, const float* x, int64_t panel, float* c) {
  constexpr int step = Weight::step;
  const Beside<Weight, P> weights(args, panel);
  Vec sums[P][1][2];
  for (int p = 0; p < P; ++p) sums[p][0][0] = sums[p][0][1] = zero();
  const int64_t run = Weight::is_scaled ? args.group : args.in_size;
  for (int64_t k = 0, g = 0; k < args.in_size; ++g) {
    const int64_t stop = k + run < args.in_size ? k + run : args.in_size;
    typename Weight::Scale scales[P];
    for (int p = 0; p < P; ++p) scales[p] = weights.at[p].scale(g);
    const auto add_at = [&](const float* from) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p)
        add_products<1, Weight>(from, weights.at[p], weights.at[p].raw(k), scales[p], sums[p]);
    };
    for (; k + step <= stop; k += step) add_at(x + k);
    if (step > 1 && k < stop) {
      float padded[step] = {};
      for (int64_t i = k; i < stop; ++i) padded[i - k] = x[i];
      add_at(padded);
      k = stop;
    }
  }
  for (int p = 0; p < P; ++p)
    for (int j = 0; j < 2; ++j) store(c + p * kPanel + j * kLanes, sums[p][0][j]);
}

// Inputs s .. of a raw load of a panel as floats.
template <class Weight, int s = 0>
DT_INLINE void widen_raw(const Weight& weight, const typename Weight::Raw& raw,
                         const typename Weight::Scale& scale, float* to) {
  for (int j = 0; j < 2; ++j) store(to + j * kLanes, weight.template get<s>(raw, scale, j));
  if constexpr (s + 1 < Weight::step) widen_raw<Weight, s + 1>(weight, raw, scale, to + kPanel);
}

// Inputs [k0, k1) of a panel as floats; up to a raw load's worth more is written.
template <class Weight>
DT_INLINE void widen(const GemmArgs& args, int64_t panel, int64_t k0, int64_t k1, float* to) {
  const Weight weight(args, panel);
  const int64_t run = Weight::is_scaled ? args.group : args.in_size;
  for (int64_t k = k0, g = k0 / run; k < k1; ++g) {
    const int64_t stop = (g + 1) * run < k1 ? (g + 1) * run : k1;
    const typename Weight::Scale scale = weight.scale(g);
    for (; k < stop; k += Weight::step, to += Weight::step * kPanel)
      widen_raw<Weight>(weight, weight.raw(k), scale, to);
  }
}

// Rows [row0, row0 + rows) of x become tiles, inputs outermost: a[first_row * K + k * R + i].
void pack_rows(const GemmArgs& args, int64_t row0, const Tiling& tiling, float* a) {
  constexpr int64_t kPiece = 1024;
  const int64_t pieces = divide_up(args.in_size, kPiece);
  parallel(tiling.count * pieces, [&](int64_t task) {
    const int64_t t = task / pieces, first = task % pieces * kPiece;
    const int64_t last = first + kPiece < args.in_size ? first + kPiece : args.in_size;
    const int rows = tiling.rows(t);
    float* to = a + tiling.first_row(t) * args.in_size;
    const float* from = args.x + (row0 + tiling.first_row(t)) * args.x_stride;
    for (int64_t k = first; k < last; ++k)
      for (int i = 0; i < rows; ++i) to[k * rows + i] = from[i * args.x_stride + k];
  });
}

// A piece of a panel for all tiles: c[rows, kPanel] (+)= the products of inputs [k0, k0 + inputs), which
// are those from `from` on in of_tile(t), the weight as tile t reads it.
template <class OfTile>
__attribute__((noinline)) void piece_of_tiles(const GemmArgs& args, const Tiling& tiling, const float* a,
                                              const OfTile& of_tile, int64_t from, int64_t k0,
                                              int64_t inputs, float* c) {
  for (int64_t t = 0; t < tiling.count; ++t) {
    const int64_t first = tiling.first_row(t);
    with_rows(tiling.rows(t), [&](auto rows) {
      tile<rows.value>(a + first * args.in_size + k0 * rows.value, of_tile(t), from, inputs,
                       c + first * kPanel, k0 > 0);
    });
  }
}

// P panels for all tiles, some inputs at a time: made float once, or as they are where they are floats
// or serve few tiles. Each tile prefetches its part of the next piece, so that memory is not idle
// meanwhile; one panel for few rows is a stream, which the processor sees by itself.
template <int P, class Weight>
DT_INLINE void panels_of_tiles(const GemmArgs& args, int64_t row0, const Tiling& tiling, const float* a,
                               int64_t panel) {
  auto* wide = static_cast<float*>(scratch(1, kWide * sizeof(float)));
  auto* c = static_cast<float*>(scratch(2, P * kBlockRows * kPanel * sizeof(float)));
  const bool has_few = !Weight::is_scaled && tiling.count < kExpandTiles;
  const bool is_direct = Weight::is_direct || has_few;
  const bool is_stream = has_few && tiling.count == 1 && tiling.rows(0) <= kStreamRows;
  const int64_t depth = is_stream ? args.in_size : has_few ? kDepth : kWideDepth;
  const int64_t bytes = Weight::panel_bytes(args) / args.in_size;  // of an input
  const char* next = static_cast<const char*>(args.weight) + panel * Weight::panel_bytes(args);
  for (int64_t k0 = 0; k0 < args.in_size; k0 += depth) {
    const int64_t inputs = args.in_size - k0 < depth ? args.in_size - k0 : depth;
    next += inputs * bytes * P;
    for (int p = 0; p < P; ++p) {
      float* to = c + p * kBlockRows * kPanel;
      const Prefetch share{next + p * inputs * bytes, bytes};
      if constexpr (!Weight::is_scaled) {
        if (is_direct) {
          const Weight weight(args, panel + p);
          const auto of_tile = [&](int64_t t) __attribute__((always_inline)) {
            return Prefetching<Weight>(weight, share.part(inputs, t, tiling.count).from(-k0));
          };
          const auto as_it_is = [&](int64_t) __attribute__((always_inline)) { return weight; };
          if (is_stream) piece_of_tiles(args, tiling, a, as_it_is, k0, k0, inputs, to);
          else piece_of_tiles(args, tiling, a, of_tile, k0, k0, inputs, to);
          continue;
        }
      }
      widen<Weight>(args, panel + p, k0, k0 + inputs, wide);
      const auto of_tile = [&](int64_t t) __attribute__((always_inline)) {
        return Prefetching<Float32>(Float32(wide), share.part(inputs, t, tiling.count));
      };
      piece_of_tiles(args, tiling, a, of_tile, 0, k0, inputs, to);
    }
  }
  for (int64_t t = 0; t < tiling.count; ++t)
    for (int p = 0; p < P; ++p) {  // of the same rows: what is written shares lines and pages
      const int64_t first = tiling.first_row(t);
      finish(args, c + (p * kBlockRows + first) * kPanel, tiling.rows(t), row0 + first, panel + p);
    }
}

template <int P, class Weight>
void panels_of_row(const GemmArgs& args, const float* x, int64_t row0, int64_t panel) {
  float c[P * kPanel];
  row<P, Weight>(args, x, panel, c);
  for (int p = 0; p < P; ++p) finish(args, c + p * kPanel, 1, row0, panel + p);
}

template <class Weight>
int multiply(const GemmArgs& args) {
  const int64_t bytes = Weight::panel_bytes(args);
  return each_block(args.rows, [&](int64_t row0, int64_t rows) {
    if (rows == 1) {
      const float* x = args.x + row0 * args.x_stride;
      each_panels(args, Weight::beside, bytes, 1, [&](int64_t panel, int64_t count) {
        if (count == Weight::beside) return panels_of_row<Weight::beside, Weight>(args, x, row0, panel);
        for (int64_t p = panel; p < panel + count; ++p) panels_of_row<1, Weight>(args, x, row0, p);
      });
      return 0;
    }
    const Tiling tiling(rows);
    float* a = static_cast<float*>(scratch(0, rows * args.in_size * sizeof(float)));
    if (!a) return 1;
    pack_rows(args, row0, tiling, a);
    constexpr int some = Weight::is_scaled ? 1 : Weight::beside;
    each_panels(args, some, bytes, rows, [&](int64_t panel, int64_t count) {
      if (count == some) return panels_of_tiles<some, Weight>(args, row0, tiling, a, panel);
      for (int64_t p = panel; p < panel + count; ++p) panels_of_tiles<1, Weight>(args, row0, tiling, a, p);
    });
    return 0;
  });
}

int multiply_any(const GemmArgs& args) {
  switch (args.format) {
    case kFloat32: return multiply<Float32>(args);
    case kBfloat16: return multiply<Bfloat16>(args);
    case kFloat16: return multiply<Float16>(args);
    case kInt4: return multiply<Scaled<FourBits>>(args);
    case kFloat8: return multiply<Scaled<ByteValues<true>>>(args);
    case kInt8Float32: return multiply<Scaled<ByteValues<false>>>(args);
    case kTable4: return multiply<Scaled<TableCodes>>(args);
    case kInt2: return multiply<Scaled<PlaneValues<2>>>(args);
    case kInt3: return multiply<Scaled<PlaneValues<3>>>(args);
    case kInt5: return multiply<Scaled<PlaneValues<5>>>(args);
    case kInt6: return multiply<Scaled<PlaneValues<6>>>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 1 when memory for the packed rows cannot be had; 2 for a format not known here.
DT_KERNEL(gemm_float, GemmArgs) { return multiply_any(args); }

// The same for several; stops at the first that fails.
DT_KERNEL(gemm_float_group, GroupArgs) {
  int failed = 0;
  for (int64_t i = 0; i < args.count && !failed; ++i) failed = multiply_any(args.items[i]);
  return failed;
}
