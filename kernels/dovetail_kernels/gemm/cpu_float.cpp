// Matrix products with float activations: weights float32, bfloat16, half,
// or in groups: float8 or 2 to 8 bits.
//
// A narrow weight becomes float in a register, next to its multiply-add, for one row. Where rows share a
// panel, it becomes float once, into the first-level cache. Both ways give the same bits.
// Work: M*N*K multiply-adds; bytes: the packed weight once for every kBlockRows rows.

#include "gemm/bfloat16_weights.h"
#include "gemm/float_weights.h"
#include "gemm/products.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kDepth = 128;  // inputs of a panel that few tiles multiply at once
constexpr int64_t kTileDepth = kBeside == 1 ? 128 : 64;  // the same of one tile
constexpr int64_t kWideDepth = kBeside == 1 ? 128 : 256;  // the same of many, and of those held as floats
constexpr int64_t kWide = (kWideDepth + 16) * kPanel;  // floats of a panel's piece, and of a raw load more
#if defined(__AVX512F__)
constexpr int64_t kExpandTiles = 3;  // from so many tiles on, a panel of 16 bits is made float once
constexpr int64_t kStreamRows = 8;   // up to so many rows, a panel is read as one stream
#elif defined(__AVX2__)
constexpr int64_t kExpandTiles = 5, kStreamRows = 0;
#else
constexpr int64_t kExpandTiles = 2, kStreamRows = 0;
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool kHasStrips = true;  // of two to four vectors, by the number of rows
constexpr int kRawsAtOnce = 2;
#else
constexpr bool kHasStrips = false;
constexpr int kRawsAtOnce = 1;
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
  using Raw = const float*;
  DT_INLINE Raw raw(int64_t k) const { return at + k * kPanel; }
  DT_INLINE Raw after(Raw raw) const { return raw + kPanel; }
  DT_INLINE Scale scale(int64_t) const { return {}; }
  template <int s> DT_INLINE Vec get(Raw raw, const Scale&, int j) const { return load(raw + j * kLanes); }
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
  using Raw = const T*;
  DT_INLINE Raw raw(int64_t k) const { return at + k * stride; }
  DT_INLINE Raw after(Raw raw) const { return raw + stride * step; }
  DT_INLINE Scale scale(int64_t) const { return {}; }
};

struct Float16 : Halves<f16, 1> {
  using Halves::Halves;
  DT_INLINE Float16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  template <int s> DT_INLINE Vec get(Raw raw, const Scale&, int j) const { return load_f16(raw + j * kLanes); }
};

#if defined(__AVX2__) && !defined(__AVX512F__)
// An input's columns lie as bfloat16_weights.h says.
struct Bfloat16 : Halves<bf16, 1> {
  using Halves::Halves;
  DT_INLINE Bfloat16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  template <int s> DT_INLINE Vec get(Raw raw, const Scale&, int j) const {
    const bf16* from = raw + j / 2 * kPanel;
    return j % 2 ? unpack_bf16<1>(from) : unpack_bf16<0>(from);
  }
};
#else
// Two inputs share a 32-bit lane, the even one in its lower half; an odd last input has a zero
// beside it.
struct Bfloat16 : Halves<uint32_t, 2> {
  using Halves::Halves;
  DT_INLINE Bfloat16 next(const GemmArgs&, int64_t, int p) const { return {at + p * kPanel, stride}; }
  template <int s> DT_INLINE Vec get(Raw raw, const Scale&, int j) const {
    const IVec pairs = iload(raw + j * kLanes);
    if constexpr (s == 0) return as_float(shift_left<16>(pairs));
    return as_float(iand(pairs, iset1(static_cast<int32_t>(0xffff0000))));
  }
};
#endif

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

// sums[i][j] += a[i] w[j].
template <int R, int V>
DT_INLINE void add_rows(const float* a, const Vec (&w)[V], Vec (&sums)[R][V]) {
  repeat<R>([&](auto i) __attribute__((always_inline)) {
    const Vec x = set1(a[i.value]);
    repeat<V>([&](auto j) __attribute__((always_inline)) {
      sums[i.value][j.value] = fma(x, w[j.value], sums[i.value][j.value]);
    });
  });
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// A tile has all sixteen registers; of anything but one statement the compiler keeps sums in memory.
#define DT_ROW2(row, s0, s1)                                                                        \
  "vbroadcastss 4*" #row "(%[a]), %[x]\n\tvfmadd231ps %[w0], %[x], %" #s0 "\n\tvfmadd231ps %[w1], %[x], %" #s1 "\n\t"
#define DT_ROW3(row, s0, s1, s2) DT_ROW2(row, s0, s1) "vfmadd231ps %[w2], %[x], %" #s2 "\n\t"
#define DT_SUMS2(row) "+x"(sums[row][0]), "+x"(sums[row][1])
#define DT_SUMS3(row) DT_SUMS2(row), "+x"(sums[row][2])
#define DT_INPUTS(rows)                                                                             \
  [a] "r"(a), "m"(*reinterpret_cast<const float(*)[rows]>(a)), [w0] "x"(w[0]), [w1] "x"(w[1])

#define DT_ADD_ROWS(R, V, text, outputs, inputs)                                                    \
  template <> DT_INLINE void add_rows<R, V>(const float* a, const Vec (&w)[V], Vec (&sums)[R][V]) { \
    Vec x;                                                                                          \
    asm volatile(text : outputs, [x] "=&x"(x) : inputs);                                            \
  }
#define DT_AND ,
DT_ADD_ROWS(4, 2, DT_ROW2(0, 0, 1) DT_ROW2(1, 2, 3) DT_ROW2(2, 4, 5) DT_ROW2(3, 6, 7),
            DT_SUMS2(0) DT_AND DT_SUMS2(1) DT_AND DT_SUMS2(2) DT_AND DT_SUMS2(3), DT_INPUTS(4))
DT_ADD_ROWS(5, 2, DT_ROW2(0, 0, 1) DT_ROW2(1, 2, 3) DT_ROW2(2, 4, 5) DT_ROW2(3, 6, 7) DT_ROW2(4, 8, 9),
            DT_SUMS2(0) DT_AND DT_SUMS2(1) DT_AND DT_SUMS2(2) DT_AND DT_SUMS2(3) DT_AND DT_SUMS2(4), DT_INPUTS(5))
DT_ADD_ROWS(6, 2, DT_ROW2(0, 0, 1) DT_ROW2(1, 2, 3) DT_ROW2(2, 4, 5) DT_ROW2(3, 6, 7) DT_ROW2(4, 8, 9) DT_ROW2(5, 10, 11),
            DT_SUMS2(0) DT_AND DT_SUMS2(1) DT_AND DT_SUMS2(2) DT_AND DT_SUMS2(3) DT_AND DT_SUMS2(4) DT_AND DT_SUMS2(5), DT_INPUTS(6))
DT_ADD_ROWS(3, 3, DT_ROW3(0, 0, 1, 2) DT_ROW3(1, 3, 4, 5) DT_ROW3(2, 6, 7, 8),
            DT_SUMS3(0) DT_AND DT_SUMS3(1) DT_AND DT_SUMS3(2), DT_INPUTS(3) DT_AND [w2] "x"(w[2]))
DT_ADD_ROWS(4, 3, DT_ROW3(0, 0, 1, 2) DT_ROW3(1, 3, 4, 5) DT_ROW3(2, 6, 7, 8) DT_ROW3(3, 9, 10, 11),
            DT_SUMS3(0) DT_AND DT_SUMS3(1) DT_AND DT_SUMS3(2) DT_AND DT_SUMS3(3), DT_INPUTS(4) DT_AND [w2] "x"(w[2]))
#endif

// Adds the products of inputs s .. of one raw load and vectors `first` .. of it; a holds their activations,
// R apart.
template <int R, int V, int first, class Weight, int s = 0>
DT_INLINE void add_products(const float* a, const Weight& weight, const typename Weight::Raw& raw,
                            const typename Weight::Scale& scale, Vec (&sums)[R][V]) {
  Vec w[V];
  repeat<V>([&](auto j) __attribute__((always_inline)) {
    w[j.value] = weight.template get<s>(raw, scale, first + j.value);
  });
  add_rows<R, V>(a, w, sums);
  if constexpr (s + 1 < Weight::step)
    add_products<R, V, first, Weight, s + 1>(a + R, weight, raw, scale, sums);
}

// The sums of a row and a vector of the panels that a block multiplies at once.
DT_INLINE float* sums_at(float* c, int row, int vector) {
  return c + vector / 2 * kBlockRows * kPanel + row * kPanel + vector % 2 * kLanes;
}

// R rows by V vectors of columns, from `first` on, of panels that lie side by side: (+)= a[k, R]^T w[k, V]
// over `inputs` inputs from k0 on; a starts at k0.
template <int R, int V, int first, class Weight>
DT_INLINE void tile(const float* a, const Weight& weight, const Prefetch& prefetch, int64_t k0, int64_t inputs,
                    float* c, bool adds) {
  constexpr int step = Weight::step, some = step * kRawsAtOnce;
  Vec sums[R][V];
  repeat<R>([&](auto i) __attribute__((always_inline)) {
    repeat<V>([&](auto j) __attribute__((always_inline)) {
      sums[i.value][j.value] = adds ? load(sums_at(c, i.value, first + j.value)) : zero();
    });
  });
  int64_t k = 0;
  auto raw = weight.raw(k0);
  for (; k + some <= inputs; k += some) {
    repeat<kRawsAtOnce>([&](auto r) __attribute__((always_inline)) {
      prefetch.unit(k + r.value * step);
      add_products<R, V, first, Weight>(a, weight, raw, {}, sums);
      a += R * step;
      raw = weight.after(raw);
    });
  }
  if constexpr (kRawsAtOnce > 1)
    for (; k + step <= inputs; k += step, a += R * step, raw = weight.after(raw))
      add_products<R, V, first, Weight>(a, weight, raw, {}, sums);
  if (step > 1 && k < inputs) {  // the last inputs of a raw load, zeros beside them
    float padded[R * step] = {};
    for (int64_t i = 0; i < (inputs - k) * R; ++i) padded[i] = a[i];
    add_products<R, V, first, Weight>(padded, weight, raw, {}, sums);
  }
  repeat<R>([&](auto i) __attribute__((always_inline)) {
    repeat<V>([&](auto j) __attribute__((always_inline)) {
      store(sums_at(c, i.value, first + j.value), sums[i.value][j.value]);
    });
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
        add_products<1, 2, 0, Weight>(from, weights.at[p], weights.at[p].raw(k), scales[p], sums[p]);
    };
    for (; k + 2 * step <= stop; k += step) {  // two raw loads a turn: the loop's own work is half
      add_at(x + k);
      k += step;
      add_at(x + k);
    }
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

constexpr int64_t kPackedInputs = 1024;  // of a tile that are packed by one task

// A piece of the inputs of a tile, inputs outermost: a[first_row * K + k * R + i].
void pack_piece(const Block& block, const Tiling& tiling, int64_t t, int64_t first, float* a) {
  const int64_t size = block.args->in_size, end = first + kPackedInputs, last = end < size ? end : size;
  const int rows = tiling.rows(t);
  float* to = a + tiling.first_row(t) * size;
  const float* from[kTileRows];
  for (int i = 0; i < rows; ++i) from[i] = block.row(tiling.first_row(t) + i);
  int i = 0;
#if defined(__AVX2__)
  const int64_t whole = first + (last - first) / 4 * 4;
  for (; i + 4 <= rows; i += 4) {
    for (int64_t k = first; k < whole; k += 4) {
      __m128 x[4];
      for (int r = 0; r < 4; ++r) x[r] = _mm_loadu_ps(from[i + r] + k);
      _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
      for (int r = 0; r < 4; ++r) _mm_storeu_ps(to + (k + r) * rows + i, x[r]);
    }
    for (int64_t k = whole; k < last; ++k)
      for (int r = i; r < i + 4; ++r) to[k * rows + r] = from[r][k];
  }
#endif
  for (int64_t k = first; k < last; ++k)
    for (int r = i; r < rows; ++r) to[k * rows + r] = from[r][k];
}

// What is multiplied at once: a piece of panels, inputs [k0, k0 + inputs) of all rows. `next` is the piece
// after it; every tile over this one prefetches so much of that, so that memory is not idle meanwhile.
struct Piece {
  const Tiling& tiling;
  const float* a;
  int64_t in_size, k0, inputs;
  Prefetch next;
};

// V vectors of columns from `first` on for all tiles. The piece is that from input `from` on of the weight.
template <int V, int first, class Weight>
__attribute__((noinline)) void strip_of_tiles(const Piece& piece, const Weight& weight, int64_t from, float* c,
                                              int64_t pass) {
  const Tiling& tiling = piece.tiling;
  constexpr int most = V == 2 ? kTileRows : 4;
  const auto tiles = [&](int64_t t, int64_t end) __attribute__((always_inline)) {
    if (t == end) return;
    with_rows<most>(tiling.rows(t), [&](auto rows) __attribute__((always_inline)) {
      constexpr int R = rows.value;
      const float* a = piece.a + tiling.first_row(t) * piece.in_size + piece.k0 * R;
      float* to = c + tiling.first_row(t) * kPanel;
      Prefetch share{piece.next.next + (pass + t) * piece.inputs * piece.next.bytes, piece.next.bytes};
      for (; t < end; ++t, a += R * piece.in_size, to += R * kPanel, share.next += piece.inputs * share.bytes)
        tile<R, V, first>(a, weight, share, from, piece.inputs, to, piece.k0 > 0);
    });
  };
  tiles(0, tiling.num_large);
  tiles(tiling.num_large, tiling.count);
}

// Vectors of columns of a tile: with fewer rows more, so that there are enough sums to hide the latency of a
// multiply-add. P panels side by side have 2 P.
template <int P, class Body>
DT_INLINE void with_width(int rows, const Body& body) {
  if constexpr (kHasStrips && P == 4) {
    if (rows == 3 || rows == 4) return body(Constant<3>{});
  }
  body(Constant<2>{});
}

// The strips of V vectors that P panels are cut into; the last one may be narrower.
template <int P, int V, int first = 0, class Body>
DT_INLINE void each_strip(const Body& body) {
  constexpr int width = first + V <= 2 * P ? V : 2 * P - first;
  body(Constant<first>{}, Constant<width>{}, first / V);
  if constexpr (first + width < 2 * P) each_strip<P, V, first + width>(body);
}

// P panels for all tiles, some inputs at a time: made float once, or as they are where they are floats
// or serve few tiles.
template <int P, class Weight>
DT_INLINE void panels_of_tiles(const GemmArgs& args, int64_t row0, const Tiling& tiling, const float* a,
                               int64_t panel) {
  auto* wide = static_cast<float*>(scratch(1, kWide * sizeof(float)));
  auto* c = static_cast<float*>(scratch(2, P * kBlockRows * kPanel * sizeof(float)));
  const bool has_few = !Weight::is_scaled && tiling.count < kExpandTiles;
  const bool is_stream = has_few && tiling.count == 1 && tiling.rows(0) <= kStreamRows;
  const int64_t depth = is_stream ? args.in_size : !has_few ? kWideDepth : tiling.count > 1 ? kDepth : kTileDepth;
  const int64_t bytes = Weight::panel_bytes(args) / args.in_size * P;  // of an input
  const char* next = static_cast<const char*>(args.weight) + panel * Weight::panel_bytes(args);
  for (int64_t k0 = 0; k0 < args.in_size; k0 += depth) {
    const int64_t inputs = args.in_size - k0 < depth ? args.in_size - k0 : depth;
    next += inputs * bytes;
    Piece piece{tiling, a, args.in_size, k0, inputs, {next, 0}};
    if constexpr (!Weight::is_scaled) {
      if (Weight::is_direct || has_few) {
        with_width<P>(tiling.rows(0), [&](auto width) {
          if (!is_stream) piece.next.bytes = divide_up(bytes, tiling.count * divide_up(2 * P, width.value));
          const Weight weight(args, panel);
          each_strip<P, width.value>([&](auto first, auto vectors, int64_t strip) {
            strip_of_tiles<vectors.value, first.value>(piece, weight, k0, c, strip * tiling.count);
          });
        });
        continue;
      }
    }
    piece.next.bytes = divide_up(bytes, tiling.count * P);
    for (int p = 0; p < P; ++p) {
      widen<Weight>(args, panel + p, k0, k0 + inputs, wide);
      strip_of_tiles<2, 0>(piece, Float32(wide), 0, c + p * kBlockRows * kPanel, p * tiling.count);
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

// See products.h. A row that is alone is read where it lies.
template <class Weight>
class Product {
 public:
  explicit Product(const GemmArgs& args) : args_(args) {}
  int64_t panel_bytes() const { return Weight::panel_bytes(args_); }
  static int64_t most_beside(int64_t rows) { return rows > 1 && Weight::is_scaled ? 1 : Weight::beside; }
  bool reserve(const Batch& batch) {
    const bool is_alone = batch.rows == batch.count;
    if (!is_alone) rows_ = static_cast<float*>(scratch(0, batch.rows * args_.in_size * sizeof(float)));
    return is_alone || rows_;
  }
  void prepare(const Batch& batch) const {
    const int64_t pieces = divide_up(args_.in_size, kPackedInputs);
    const auto tasks = [&](const Block& block) { return block.rows > 1 ? Tiling(block.rows).count * pieces : 0; };
    if (rows_)
      each_task(batch, tasks, [&](const Block& block, int64_t task) {
        pack_piece(block, Tiling(block.rows), task / pieces, task % pieces * kPackedInputs, packed(block));
      });
  }
  void panels(const Block& block, int64_t panel, int64_t count) const {
    constexpr int some = Weight::beside, few = Weight::is_scaled ? 1 : some;
    const GemmArgs& args = *block.args;
    if (block.rows == 1) {
      if (count == some) panels_of_row<some, Weight>(args, block.row(0), block.row0, panel);
      else panels_of_row<1, Weight>(args, block.row(0), block.row0, panel);
    } else {
      const Tiling tiling(block.rows);
      if (count == few) panels_of_tiles<few, Weight>(args, block.row0, tiling, packed(block), panel);
      else panels_of_tiles<1, Weight>(args, block.row0, tiling, packed(block), panel);
    }
  }

 private:
  const GemmArgs& args_;
  float* rows_ = nullptr;
  float* packed(const Block& block) const { return rows_ + block.before * args_.in_size; }
};

template <class Weight>
int multiply(const GroupArgs& group) { return multiply_all<Product<Weight>>(group); }

int multiply_any(const GroupArgs& args) {
  if (!args.count) return 0;
  switch (args.items[0].format) {
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
DT_KERNEL(gemm_float, GemmArgs) { return multiply_any({&args, 1}); }

// The same for several; stops at the first batch that fails.
DT_KERNEL(gemm_float_group, GroupArgs) { return multiply_any(args); }
