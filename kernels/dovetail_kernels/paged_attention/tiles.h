// One tile, up to kMaxRows rows of one kv head, against one partition of up to 256 keys: scores,
// softmax weights, weighted values. Knows no batch.
//
// Every number has one order of sums. A score is one chain over D; a weight's partition is cut at
// absolute positions; a value column is one chain over the row's visible keys of the partition. So
// a row's numbers do not depend on the tile that it sits in.
#pragma once

#include "paged_attention/formats.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kPartition = 256;  // keys under one softmax step, from multiples of 256
constexpr int kCells = kPartition / kCell;
constexpr int kQueryRow = 528;  // factors of a query's row, 33 lines: rows do not share cache sets
constexpr int kWaitingRows = 4;  // tiles up to this size wait for memory more than they compute
constexpr int kNear = 2048;      // bytes
constexpr float kHidden = -1e30f;  // the score of a key that is not seen; its weight is exactly 0

// Rows of a tile, one of these numbers; and the registers that hold a tile's sums.
template <int... n> struct Sizes {};
#if defined(__AVX512F__)
using RowSizes = Sizes<1, 2, 3, 4, 6, 8, 12>;
constexpr int kMaxRows = 12, kSums = 24;
#elif defined(__AVX2__)
using RowSizes = Sizes<1, 2, 3, 4, 6>;
constexpr int kMaxRows = 6, kSums = 12;
#elif defined(__aarch64__)
using RowSizes = Sizes<1, 2, 4, 6>;
constexpr int kMaxRows = 6, kSums = 24;
#else
using RowSizes = Sizes<1, 2, 3>;
constexpr int kMaxRows = 3, kSums = 12;
#endif


// Calls body(Constant<R>) for the smallest size R that holds `rows`.
template <int first, int... rest, class Body>
DT_INLINE void with_rows(int rows, Sizes<first, rest...>, const Body& body) {
  if constexpr (sizeof...(rest) > 0) {
    if (rows > first) return with_rows(rows, Sizes<rest...>{}, body);
  }
  body(Constant<first>{});
}

// Panels that a tile of `rows` rows takes side by side: a power of two, at most 8.
constexpr int columns(int rows) {
  int n = 8;
  while (n > 1 && n * rows * kVecs > kSums) n /= 2;
  return n;
}

// What is added to a row's scores before the cap.
struct Added {
  const float* bias;  // that of key 0, or null
  float slope;        // ALiBi's; 0: none
  int64_t position;   // the query's
};

// What the stages hand on; lives in a thread's scratch memory. Rows are kPartition apart.
struct Tile {
  int rows;                           // of the tile that are real
  const int64_t *first, *last;        // [rows] the keys that a row sees, absolute
  const Added* added;                 // [rows] or null
  const void* q;                      // [R][kQueryRow] factors
  const float* q_scales;              // [R] int8 only
  float* scores;                      // [kMaxRows][kPartition], then the weights
  int32_t* weights16;                 // [kMaxRows][kPartition / 2] weights of 16 bits, in pairs
  float* values;                      // [kMaxRows][D] the partition's result
  float top[kMaxRows], total[kMaxRows];  // of the softmax; total 0 where a row sees nothing
};

struct Context {
  int64_t head_size;
  Layout layout;
  float soft_cap;
  const char* cells[kCells];  // those of the partition that are seen by some row
  const uint32_t* masks;      // [kPartition] all bits: the score of the cell's first key is added; or null
  const char* next[kCells];   // those of the partition after it, or what is there already
};

// sums[R][C] += a[k + i * kRow] * panel(j)[k] for the step k + s of the group at k.
template <class F, int R, int C, int kRow, int s, class Panel>
DT_INLINE void add_step(typename F::Sum (&sums)[R][C * kVecs], const typename F::Factor* a,
                        int64_t k, const Panel& panel) {
  using Register = decltype(F::spread(*a));
  const auto* at = a + k + s;
  if constexpr (R > C * kVecs) {  // few registers of the panels, held; rows pass by
    Register w[C][kVecs];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      const char* from = panel(j);
#if defined(__AVX2__) && !defined(__AVX512F__)
      __asm__ volatile("" : "+r"(from));  // step 1 reads anew: no register is free to hold a pair
#endif
      F::template load<s>(from, k, w[j]);
    }
#if defined(__AVX2__) && !defined(__AVX512F__)
    // 12 sums, 2 registers of a panel and 1 of a row are all there are; GCC 12 spills without this.
    if constexpr (F::has_float_sums && C == 1) {
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        Register x;
        __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
                : "+x"(sums[i][0]), "+x"(sums[i][1]), "=&x"(x)
                : "m"(at[i * kRow]), "x"(w[0][0]), "x"(w[0][1]));
      }
      return;
    }
#endif
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const Register x = F::spread(at[i * kRow]);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v)
          sums[i][j * kVecs + v] = F::add_product(x, w[j][v], sums[i][j * kVecs + v]);
    }
  } else {  // few rows, held; panels pass by
    Register x[R];
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) x[i] = F::spread(at[i * kRow]);
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      Register w[kVecs];
      F::template load<s>(panel(j), k, w);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v)
          sums[i][j * kVecs + v] = F::add_product(x[i], w[v], sums[i][j * kVecs + v]);
    }
  }
}

// The same over steps k0 .. k1 - 1. Where steps come in twos, k0 and k1 are even, or R is 1. What
// lies `ahead` bytes on is asked for meanwhile, a line at a time: it is needed next, and lies where
// no machine could guess. Few rows wait for memory, and a busy machine drops what it is asked for:
// they ask again `near` before they need it (Zen 4: 10 to 14 % less time).
template <class F, int R, int C, int kRow, class Panel>
DT_INLINE void multiply_add(typename F::Sum (&sums)[R][C * kVecs], const typename F::Factor* a,
                            int64_t k0, int64_t k1, int64_t ahead, int64_t near,
                            const Panel& panel) {
  constexpr int kStepBytes = kCell * F::item * F::fold, kLineSteps = 64 / kStepBytes;
  int64_t k = k0;
  if constexpr (F::step == 2 && R == 1) {
    if (k % 2 && k < k1) add_step<F, R, C, kRow, 1>(sums, a, k++ - 1, panel);
  }
  for (; k + kLineSteps <= k1; k += kLineSteps) {
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      __builtin_prefetch(panel(j) + k * kStepBytes + ahead, 0, 2);
      if constexpr (R <= kWaitingRows) __builtin_prefetch(panel(j) + k * kStepBytes + near, 0, 2);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kLineSteps; i += F::step) {
      add_step<F, R, C, kRow, 0>(sums, a, k + i, panel);
      if constexpr (F::step == 2) add_step<F, R, C, kRow, 1>(sums, a, k + i, panel);
    }
  }
  if constexpr (F::step == 2 && kLineSteps > 2) {
    for (; k + 2 <= k1; k += 2) {
      add_step<F, R, C, kRow, 0>(sums, a, k, panel);
      add_step<F, R, C, kRow, 1>(sums, a, k, panel);
    }
  }
  if constexpr (F::step == 1 && kLineSteps > 1) {
    for (; k < k1; ++k) add_step<F, R, C, kRow, 0>(sums, a, k, panel);
  }
  if constexpr (F::step == 2 && R == 1) {
    if (k < k1) add_step<F, R, C, kRow, 0>(sums, a, k, panel);
  }
}

DT_INLINE Vec score_of(Vec sum, float, const char*) { return sum; }
DT_INLINE Vec score_of(IVec sum, float q_scale, const char* key_scales) {
  return mul(to_float(sum), mul(set1(q_scale), load(reinterpret_cast<const float*>(key_scales))));
}

// scores[R][cells c .. c + C - 1]
template <class F, int R, int C>
DT_INLINE void score_cells(const Context& context, Tile& tile, int c) {
  typename F::Sum sums[R][C * kVecs];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < C * kVecs; ++v) sums[i][v] = F::none();
  const char* at[C];
  for (int j = 0; j < C; ++j) at[j] = context.cells[c + j];
  multiply_add<F, R, C, kQueryRow>(sums, static_cast<const typename F::Factor*>(tile.q), 0,
                              context.head_size / F::fold, context.layout.values_at, kNear,
                              [&](int j) { return at[j]; });
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < C * kVecs; ++v) {
      const char* scales = at[v / kVecs] + context.layout.scales_at + v % kVecs * kLanes * 4;
      store(tile.scores + i * kPartition + c * kCell + v * kLanes,
            score_of(sums[i][v], tile.q_scales[i], scales));
    }
}

template <class F, int R, int C = columns(R)>
DT_INLINE void score(const Context& context, Tile& tile, int c, int end) {
  for (; c + C <= end; c += C) score_cells<F, R, C>(context, tile, c);
  if constexpr (C > 1) score<F, R, C / 2>(context, tile, c, end);
}

// c tanh(s / c) = c (1 - 2 / (e^(2 s / c) + 1)); a NaN stays one, which exp alone would lose.
DT_INLINE Vec capped(Vec s, float cap) {
  const Vec one = set1(1.0f);
  const Vec e = exp(mul(s, set1(2.0f / cap)));
  return fma(s, zero(), mul(set1(cap), sub(one, div(set1(2.0f), add(e, one)))));
}

// Adds to the scores of keys first .. last - 1 of the partition that starts at key `base`.
DT_INLINE void add_positions(float* s, int first, int last, int64_t base, const Added& added) {
  if (added.bias)
    for (int k = first; k < last; ++k) s[k] += added.bias[base + k];
  if (added.slope == 0) return;
  alignas(64) static constexpr float kCounted[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  const int begin = first / kLanes * kLanes;
  const Vec slope = set1(added.slope);
  Vec past = add(load(kCounted), set1(static_cast<float>(base + begin - added.position)));
  for (int k = begin; k < last; k += kLanes, past = add(past, set1(kLanes)))
    store(s + k, fma(slope, min(past, sub(zero(), past)), load(s + k)));
}

// Keys stored as differences from their cell's first key: adds the first key's score to theirs.
DT_INLINE void add_first(float* s, const uint32_t* masks, int first, int end) {
  for (int c = first; c < end; c += kCell) {
    const IVec own = iset1(static_cast<int32_t>(to_bits(s[c])));
    for (int k = c; k < c + kCell; k += kLanes)
      store(s + k, add(load(s + k), as_float(iand(iload(masks + k), own))));
  }
}

// A row's scores of keys first .. last - 1 become e^(s - top), those beside them in its cells 0.
template <class F>
DT_INLINE void weigh(float* s, int32_t* pairs, int first, int last, float cap, float* top,
                     float* total) {
  const int begin = first / kCell * kCell, end = (last + kCell - 1) / kCell * kCell;
  for (int k = begin; k < first; ++k) s[k] = kHidden;
  for (int k = last; k < end; ++k) s[k] = kHidden;
  if (cap > 0) {
    for (int k = begin; k < end; k += kLanes) store(s + k, capped(load(s + k), cap));
    for (int k = begin; k < first; ++k) s[k] = kHidden;
    for (int k = last; k < end; ++k) s[k] = kHidden;
  }
  Vec most = set1(kHidden), sums = zero();
  for (int k = begin; k < end; k += kLanes) most = max(most, load(s + k));
  *top = largest(most);
  const Vec peak = set1(*top);
  for (int k = begin; k < end; k += kLanes)
    sums = add(sums, F::keep(F::weight(sub(load(s + k), peak)), s + k, pairs + k / 2));
  *total = sum(sums);
}

// to[R][panels d .. d + C - 1] (+)= weights of keys first .. last - 1 times their values
template <class F, int R, int C, int kRow, class Finish>
DT_INLINE void value_panels(const Context& context, const typename F::Factor* weights, int first,
                            int last, int64_t d, float* to, bool adds, const Finish& finish) {
  typename F::Sum sums[R][C * kVecs];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < C * kVecs; ++v) {
      sums[i][v] = F::none();
      if constexpr (F::has_float_sums) {
        if (adds) sums[i][v] = load(to + i * context.head_size + d * kCell + v * kLanes);
      }
    }
  constexpr int kPanelBytes = kCell * kCell * F::item, kSteps = kCell / F::fold;
  const int64_t offset = context.layout.values_at + d * kPanelBytes;
  for (int c = first / kCell; c * kCell < last; ++c) {
    const char* at = context.cells[c] + offset;
    const int k0 = first > c * kCell ? (first - c * kCell) / F::fold : 0;
    const int k1 = last < (c + 1) * kCell ? (last - c * kCell) / F::fold : kSteps;
    const int64_t ahead = context.next[c] - context.cells[c] - context.layout.values_at;
    const int64_t near = (c + 1) * kCell < last ? context.cells[c + 1] - context.cells[c] : 0;
    multiply_add<F, R, C, kRow>(sums, weights + c * kSteps, k0, k1, ahead, near,
                                   [&](int j) { return at + j * kPanelBytes; });
  }
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 16
    for (int v = 0; v < C * kVecs; ++v)
      store(to + i * context.head_size + d * kCell + v * kLanes, finish(sums[i][v], i));
}

template <class F, int R, int kRow, class Finish, int C = columns(R)>
DT_INLINE void value(const Context& context, const typename F::Factor* weights, int first, int last,
                     float* to, bool adds, const Finish& finish, int64_t d = 0) {
  for (; d + C <= context.head_size / kCell; d += C)
    value_panels<F, R, C, kRow>(context, weights, first, last, d, to, adds, finish);
  if constexpr (C > 1)
    value<F, R, kRow, Finish, C / 2>(context, weights, first, last, to, adds, finish, d);
}

// Where a tile's weights are, rows kPartition / F::fold apart.
template <class F> DT_INLINE const typename F::Factor* weights_of(const Tile& tile) {
  if constexpr (F::fold == 1) return tile.scores;
  else return reinterpret_cast<const typename F::Factor*>(tile.weights16);
}

// to[D] (+)= the weight of one key of a pair times its value; the other of the two is not seen.
template <class F>
DT_INLINE void value_of_half(const Context& context, typename F::Factor weight, int key, float* to,
                             bool adds) {
  const IVec mask = iset1(static_cast<int32_t>(key % 2 ? 0xffff0000 : 0xffff));
  const char* at = context.cells[key / kCell] + context.layout.values_at +
                   key % kCell / 2 * (2 * kCell * F::item);
  for (int64_t d = 0; d < context.head_size; d += kCell, at += kCell * kCell * F::item) {
    IVec w[kVecs];
    F::template load<0>(at, 0, w);
    for (int v = 0; v < kVecs; ++v) {
      float* sum = to + d + v * kLanes;
      store(sum, F::add_product(F::spread(weight), iand(w[v], mask), adds ? load(sum) : zero()));
    }
  }
}

// One row's float values: to[D] (+)= weights of keys first .. last - 1 times their values.
template <class F>
__attribute__((noinline)) void value_row(const Context& context, const typename F::Factor* weights,
                                         int first, int last, float* to, bool adds) {
  constexpr int kRow = kPartition / F::fold;
  const auto keep = [](Vec sum, int) { return sum; };
  if constexpr (F::fold == 1) {
    value<F, 1, kRow>(context, weights, first, last, to, adds, keep);
  } else {
    if (first % 2) {
      value_of_half<F>(context, weights[first / 2], first, to, adds);
      adds = true;
      ++first;
    }
    const int whole = last - last % 2;
    if (first < whole) {
      value<F, 1, kRow>(context, weights, first, whole, to, adds, keep);
      adds = true;
    }
    if (whole < last) value_of_half<F>(context, weights[whole / 2], whole, to, adds);
  }
}

// The keys that a row, and all rows, and any row of a tile see in a partition.
struct Span {
  int first, last;
  DT_INLINE bool empty() const { return first >= last; }
  DT_INLINE bool has(int64_t key) const { return key >= first && key < last; }
};
DT_INLINE Span seen(const Tile& tile, int i, int64_t base) {
  const int64_t a = tile.first[i] - base, b = tile.last[i] - base;
  return {static_cast<int>(a > 0 ? a : 0), static_cast<int>(b < kPartition ? b : kPartition)};
}

// Float values: keys that all rows see go through the tile, those at the edges row by row, so that
// no row meets a number that it must not see, be it NaN.
template <class F, int R>
DT_INLINE void weigh_values(const Context& context, Tile& tile, int64_t base) {
  constexpr int kRow = kPartition / F::fold, kTogether = F::step * F::fold;
  const typename F::Factor* weights = weights_of<F>(tile);
  const auto to = [&](int i) { return tile.values + i * context.head_size; };
  Span all{0, kPartition};
  int least = kPartition;
  for (int i = 0; i < tile.rows; ++i) {
    const Span own = seen(tile, i, base);
    least = own.first < least ? own.first : least;
    all.first = own.first > all.first ? own.first : all.first;
    all.last = own.last < all.last ? own.last : all.last;
  }
  all.first += all.first % kTogether;
  all.last -= all.last > 0 ? all.last % kTogether : 0;
  const bool is_shared = tile.rows > 1 && !all.empty();
  if (is_shared) {
    const bool adds = least < all.first;
    for (int i = 0; adds && i < tile.rows; ++i) {
      const Span own = seen(tile, i, base);
      if (own.first < all.first)
        value_row<F>(context, weights + i * kRow, own.first, all.first, to(i), false);
      else
        for (int64_t d = 0; d < context.head_size; d += kLanes) store(to(i) + d, zero());
    }
    value<F, R, kRow>(context, weights, all.first, all.last, tile.values, adds,
                      [](Vec sum, int) { return sum; });
  }
  for (int i = 0; i < tile.rows; ++i) {
    const Span own = seen(tile, i, base);
    const int from = is_shared ? all.last : own.first;
    if (from >= own.last) continue;
    value_row<F>(context, weights + i * kRow, from, own.last, to(i), is_shared);
  }
}

// int8 values: a weight times its value's scale becomes 16 bits, one scale a row and partition.
// Returns that scale, NaN where a number is. An unseen key's weight is 0, and 0 times a byte is 0.
DT_INLINE float narrow_weights(float* s, const float* value_scales, Span own, Span any,
                               int16_t* to) {
  const int begin = own.first / kCell * kCell, end = (own.last + kCell - 1) / kCell * kCell;
  for (int k = begin; k < end; k += kLanes) store(s + k, mul(load(s + k), load(value_scales + k)));
  for (int k = begin; k < own.first; ++k) s[k] = 0;
  for (int k = own.last; k < end; ++k) s[k] = 0;
  Vec most = zero(), broken = zero();
  for (int k = begin; k < end; k += kLanes) {
    const Vec x = load(s + k);
    most = max(most, x);
    broken = fma(x, zero(), broken);
  }
  const float peak = largest(most);
  const Vec inverse = set1(peak > 0 ? 32767.0f / peak : 0.0f);
  const int stop = (any.last + kCell - 1) / kCell * kCell;
  for (int k = any.first / kCell * kCell; k < stop; k += kLanes) {
    const bool is_own = k >= begin && k < end;
    store_s16(to + k, is_own ? to_int(mul(load(s + k), inverse)) : iset1(0));
  }
  return peak / 32767.0f + sum(broken);
}

template <class F, int R>
DT_INLINE void weigh_values_int8(const Context& context, Tile& tile, int64_t base, Span any) {
  float value_scales[kPartition], scales[kMaxRows] = {};
  for (int c = any.first / kCell; c * kCell < any.last; ++c)
    memcpy(value_scales + c * kCell, context.cells[c] + context.layout.scales_at + kCell * 4,
           kCell * 4);
  const int begin = any.first / kCell * kCell, end = (any.last + kCell - 1) / kCell * kCell;
  for (int i = 0; i < R; ++i) {
    int32_t* to = tile.weights16 + i * (kPartition / 2);
    const Span own = i < tile.rows ? seen(tile, i, base) : Span{0, 0};
    if (own.empty()) memset(to + begin / 2, 0, (end - begin) * 2);
    else scales[i] = narrow_weights(tile.scores + i * kPartition, value_scales, own, any,
                                    reinterpret_cast<int16_t*>(to));
  }
  value<F, R, kPartition / 2>(context, tile.weights16, begin, end, tile.values, false,
                              [&](IVec sum, int i) { return mul(to_float(sum), set1(scales[i])); });
}

// The partition that starts at key `base` for a tile of at most R rows: fills tile.values, top and
// total.
template <class F, int R>
void attend_partition(const Context& context, Tile& tile, int64_t base) {
  Span any{kPartition, 0};
  for (int i = 0; i < tile.rows; ++i) {
    const Span own = seen(tile, i, base);
    if (own.empty()) continue;
    any.first = own.first < any.first ? own.first : any.first;
    any.last = own.last > any.last ? own.last : any.last;
  }
  for (int i = 0; i < tile.rows; ++i) tile.total[i] = 0;
  if (any.empty()) return;
  score<F, R>(context, tile, any.first / kCell, (any.last + kCell - 1) / kCell);
  for (int i = 0; i < tile.rows; ++i) {
    const Span own = seen(tile, i, base);
    if (own.empty()) continue;
    float* scores = tile.scores + i * kPartition;
    if constexpr (!F::has_float_sums) {
      if (context.masks)
        add_first(scores, context.masks, own.first / kCell * kCell, (own.last + kCell - 1) / kCell * kCell);
    }
    if (tile.added) add_positions(scores, own.first, own.last, base, tile.added[i]);
    weigh<F>(scores, tile.weights16 + i * (kPartition / 2), own.first, own.last, context.soft_cap,
             &tile.top[i], &tile.total[i]);
  }
  if constexpr (F::has_float_sums) weigh_values<F, R>(context, tile, base);
  else weigh_values_int8<F, R>(context, tile, base, any);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
