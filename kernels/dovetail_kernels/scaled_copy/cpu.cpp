// scaled_copy: matrices copied, multiplied and rounded in one pass that also finds numbers that are not finite.
//
// Runs on the calling thread alone: it is for what is read beside the steps, whose threads it must not take.
// Rows that are contiguous on both sides go by registers. Where the target is turned, blocks of kBlock rows
// are made floats in a buffer that stays in the first cache, and columns of it are written as rows.
//
// Bytes: each source and each target once. Work: a product and two comparisons a number.

#include "entries.h"
#include "narrow.h"
#include "scaled_copy/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kBlock = 64;    // rows of a block that is turned
constexpr int64_t kColumns = 64;  // and columns

// The smallest number that an Entry rounds to infinity.
template <class Entry> constexpr float kTooLarge = __builtin_inff();
template <> constexpr float kTooLarge<Bf16> = 0x1.ffp127f;
template <> constexpr float kTooLarge<F16> = 65520.0f;

// Four floats, turned in registers: the same on every machine.
typedef float Four __attribute__((vector_size(16)));
#ifdef __clang__
#define DT_FOUR(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t FourAt __attribute__((vector_size(16)));
#define DT_FOUR(a, b, i, j, k, l) __builtin_shuffle(a, b, FourAt{i, j, k, l})
#endif

DT_INLINE Four four_at(const float* p) {
  Four made;
  __builtin_memcpy(&made, p, sizeof made);
  return made;
}

// Writes four rows of four floats as columns.
DT_INLINE void turn_four(const float* from, int64_t from_row, float* to, int64_t to_row) {
  const Four a = four_at(from), b = four_at(from + from_row);
  const Four c = four_at(from + 2 * from_row), d = four_at(from + 3 * from_row);
  const Four ab = DT_FOUR(a, b, 0, 4, 1, 5), cd = DT_FOUR(c, d, 0, 4, 1, 5);
  const Four ab_high = DT_FOUR(a, b, 2, 6, 3, 7), cd_high = DT_FOUR(c, d, 2, 6, 3, 7);
  const Four made[4] = {DT_FOUR(ab, cd, 0, 1, 4, 5), DT_FOUR(ab, cd, 2, 3, 6, 7),
                        DT_FOUR(ab_high, cd_high, 0, 1, 4, 5), DT_FOUR(ab_high, cd_high, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) __builtin_memcpy(to + i * to_row, &made[i], sizeof made[i]);
}

// Sees numbers as they are written. `sums` becomes a NaN with the first one that is not finite.
template <class Entry>
struct Seen {
  Vec sums = zero(), most = zero();

  DT_INLINE void take(Vec x) {
    sums = fma(x, zero(), sums);
    most = max(most, max(x, sub(zero(), x)));
  }
  void take_one(float x) {
    if (!(x - x == 0.0f) || !(fabsf(x) < kTooLarge<Entry>)) most = set1(__builtin_inff());
  }
  bool is_finite() const { return sum(sums) == 0.0f && largest(most) < kTooLarge<Entry>; }
};

template <class From, class To>
struct Copier {
  const ScaledCopy& copy;
  Seen<To> seen;

  const From* source(int64_t row) const { return static_cast<const From*>(copy.source) + row * copy.source_row; }
  To* target(int64_t row) const { return static_cast<To*>(copy.target) + row * copy.target_row; }

  void rows() {
    const Vec scale = set1(static_cast<float>(copy.scale));
    for (int64_t row = 0; row < copy.rows; ++row) {
      const From* from = source(row);
      To* to = target(row);
      int64_t i = 0;
      for (; i + kLanes <= copy.columns; i += kLanes) {
        const Vec x = mul(load_of(from + i), scale);
        seen.take(x);
        store_of(to + i, x);
      }
      if (i < copy.columns) {
        const int rest = static_cast<int>(copy.columns - i);
        const Vec x = mul(load_first(from + i, rest), scale);
        seen.take(x);
        store_first(to + i, rest, x);
      }
    }
  }

  // Columns of the source become rows of memory: target_row is 1.
  void turned() {
    alignas(64) float block[kColumns * kBlock], wide[kBlock * kColumns];
    const float scale = static_cast<float>(copy.scale);
    const bool is_joined = copy.source_row == copy.columns && copy.columns <= kColumns && copy.columns % 4 == 0;
    const int64_t wide_row = is_joined ? copy.columns : kColumns;  // short rows without gaps are read as one
    for (int64_t row = 0; row < copy.rows; row += kBlock) {
      const int64_t count = copy.rows - row < kBlock ? copy.rows - row : kBlock;
      for (int64_t first = 0; first < copy.columns; first += kColumns) {
        const int64_t columns = copy.columns - first < kColumns ? copy.columns - first : kColumns;
        if (is_joined) widen(source(row), count * columns, wide);
        else
          for (int64_t r = 0; r < count; ++r) widen(source(row + r) + first, columns, wide + r * kColumns);
        for (int64_t r = 0; r < count; r += 4)
          for (int64_t c = 0; c < columns; c += 4)
            turn_four(wide + r * wide_row + c, wide_row, block + c * kBlock + r, kBlock);
        for (int64_t c = 0; c < columns; ++c) line(block + c * kBlock, first + c, row, count, set1(scale));
      }
    }
  }

  // What lies behind a row's end is turned along, and never read.
  static void widen(const From* from, int64_t columns, float* to) {
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) store(to + i, load_of(from + i));
    if (i < columns) store(to + i, load_first(from + i, static_cast<int>(columns - i)));
  }

  void line(const float* from, int64_t column, int64_t row, int64_t count, Vec scale) {
    To* to = static_cast<To*>(copy.target) + column * copy.target_column + row;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const Vec x = mul(load(from + i), scale);
      seen.take(x);
      store_of(to + i, x);
    }
    if (i < count) {
      const int rest = static_cast<int>(count - i);
      const Vec x = mul(load_first(from + i, rest), scale);
      seen.take(x);
      store_first(to + i, rest, x);
    }
  }

  void one_by_one() {
    const float scale = static_cast<float>(copy.scale);
    for (int64_t row = 0; row < copy.rows; ++row)
      for (int64_t c = 0; c < copy.columns; ++c) {
        const float x = one_of(source(row)[c * copy.source_column]) * scale;
        seen.take_one(x);
        set_one(target(row) + c * copy.target_column, x);
      }
  }

  bool run() {
    if (copy.source_column == 1 && copy.target_column == 1) rows();
    else if (copy.source_column == 1 && copy.target_row == 1) turned();
    else one_by_one();
    return seen.is_finite();
  }
};

template <class From>
int run_from(const ScaledCopy& copy) {
  switch (copy.target_format) {
    case kFloat32: return Copier<From, float>{copy, {}}.run();
    case kBfloat16: return Copier<From, Bf16>{copy, {}}.run();
    case kFloat16: return Copier<From, F16>{copy, {}}.run();
    default: return -1;
  }
}

// Returns whether the result is finite; -1 for a format not known here.
int run_one(const ScaledCopy& copy) {
  switch (copy.source_format) {
    case kFloat32: return run_from<float>(copy);
    case kBfloat16: return run_from<Bf16>(copy);
    case kFloat16: return run_from<F16>(copy);
    default: return -1;
  }
}

}  // namespace

// Returns 0, or 2 for a format not known here.
DT_KERNEL(scaled_copy, ScaledCopyArgs) {
  *args.broken = -1;
  for (int64_t i = 0; i < args.count; ++i) {
    const int is_finite = run_one(args.copies[i]);
    if (is_finite < 0) return 2;
    if (!is_finite) {
      *args.broken = i;
      return 0;
    }
  }
  return 0;
}
