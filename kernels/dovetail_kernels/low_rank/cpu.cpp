// low_rank: rows with different adapters, a thin product (shrink) and a wide one (expand) by each row's own.
//
// Rows are put in the order of their slots; rows of a slot share one reading of its weights. Shrink: tasks of
// up to kPiece ranks of a part, whose dot products lie in a line of memory of each row. Expand: tasks of
// some outputs. A result is one chain over the inputs (a register's lanes added at the end), then one over
// the ranks, then base, whatever the tile: a row's result does not depend on the rows beside it.
//
// Bytes: the weights of the slots that rows have, once; x, base and out once. Work: rank (P I + O)
// multiply-adds a row. Weights lie anywhere and end soon, which the processor's own prefetching is too late
// for: each tile asks for lines of itself and then of the tile after it.

#include "entries.h"
#include "low_rank/args.h"
#include "pool.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kPiece = 16;          // ranks of a row that lie side by side: a line
constexpr int64_t kFewestRanks = 4;     // of a task, where there are few tasks
constexpr int64_t kBlockRows = 16;      // rows of a task
constexpr int64_t kMostColumns = 512;   // outputs of a task
constexpr int64_t kFewestColumns = 128; // likewise where there are few tasks
constexpr int64_t kLineBytes = 64;
constexpr int64_t kAheadBytes = 512;    // shrink prefetches so far ahead in each row of a weight
constexpr int64_t kAheadRanks = 16;     // expand so many rows of a weight ahead
constexpr int kRowRanks = 8;            // rows of `down` that one row meets at once
constexpr int kRowVectors = 8;          // registers of outputs of one row
constexpr int kRanks = 4;               // the same of several rows
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kShrinkRows = 4, kExpandRows = 4, kVectors = 4;
#else
constexpr int kShrinkRows = 2, kExpandRows = 4, kVectors = 2;
#endif

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(Constant<n>) for the n that equals count, 1 .. most.
template <int most, class Body>
DT_INLINE void with_count(int64_t count, const Body& body) {
  if (count >= most) return body(Constant<most>{});
  if constexpr (most > 1) with_count<most - 1>(count, body);
}

// The rows of one slot; of none those with rank 0.
struct Group {
  int64_t slot, rank;
  int64_t first, rows;  // in the plan's order
  int64_t pieces;       // of a part's ranks
  float* h;             // [P, pieces, rows, kPiece]
  int64_t shrink_tasks, expand_tasks;
};

// ------------------------------------------------------------------------------------- the plan

struct Plan {
  const LowRankArgs& args;
  int32_t* order = nullptr;  // rows, those of a group side by side
  Group* groups = nullptr;
  int64_t num_groups = 0;
  int64_t ranks = kPiece;  // of a piece
  int64_t columns = kMostColumns, num_columns = 0;  // outputs of a task, and how many such there are
  int64_t shrink_tasks = 0, expand_tasks = 0;

  explicit Plan(const LowRankArgs& given) : args(given) {}

  int64_t slot_of(int64_t row) const {
    const int64_t slot = args.slots[row];
    return slot >= 0 && slot < args.num_slots && args.ranks[slot] > 0 ? slot : args.num_slots;
  }

  // Returns whether there was memory.
  bool make() {
    return sort_rows() && share_out();
  }

  // The outputs [first, last) of a part.
  struct Columns {
    int64_t part, first, last;
  };
  Columns columns_of(int64_t number) const {
    int64_t first = 0;
    for (int64_t part = 0;; ++part) {
      const int64_t end = args.ends[part], some = divide_up(end - first, columns);
      if (number < some) {
        const int64_t start = first + number * columns;
        return {part, start, least(start + columns, end)};
      }
      number -= some;
      first = end;
    }
  }

  // The group of a task, which becomes the group's own number of it.
  const Group& group_of(int64_t& task, int64_t Group::*tasks) const {
    const Group* group = groups;
    for (; task >= group->*tasks; ++group) task -= group->*tasks;
    return *group;
  }

 private:
  bool sort_rows() {
    const int64_t slots = args.num_slots + 1, most = least(slots, args.rows);
    auto* memory = static_cast<char*>(scratch(1, most * sizeof(Group) + (args.rows + slots) * sizeof(int32_t)));
    if (!memory) return false;
    groups = reinterpret_cast<Group*>(memory);
    order = reinterpret_cast<int32_t*>(groups + most);
    int32_t* next = order + args.rows;  // where a slot's next row goes
    memset(next, 0, slots * sizeof(int32_t));
    for (int64_t row = 0; row < args.rows; ++row) ++next[slot_of(row)];
    int32_t first = 0;
    for (int64_t slot = 0; slot < slots; ++slot) {
      const int32_t rows = next[slot];
      next[slot] = first;
      if (!rows) continue;
      const int64_t rank = slot < args.num_slots ? least(args.ranks[slot], args.rank) : 0;
      groups[num_groups++] = {slot, rank, first, rows, 0, nullptr, 0, 0};
      first += rows;
    }
    for (int64_t row = 0; row < args.rows; ++row) order[next[slot_of(row)]++] = static_cast<int32_t>(row);
    return true;
  }

  bool share_out() {
    const int64_t wanted = 2 * num_threads();
    for (count_shrink(); shrink_tasks < wanted && ranks > kFewestRanks; count_shrink()) ranks /= 2;
    for (count_expand(); expand_tasks < wanted && columns > kFewestColumns; count_expand()) columns /= 2;
    int64_t floats = 0;
    for (int64_t g = 0; g < num_groups; ++g) floats += size_of(groups[g]);
    auto* h = static_cast<float*>(scratch(0, floats * sizeof(float)));
    if (floats && !h) return false;
    for (int64_t g = 0; g < num_groups; ++g) {
      groups[g].h = h;
      h += size_of(groups[g]);
    }
    return true;
  }

  int64_t size_of(const Group& group) const { return args.num_parts * group.pieces * group.rows * kPiece; }

  void count_shrink() {
    shrink_tasks = 0;
    for (int64_t g = 0; g < num_groups; ++g) {
      Group& group = groups[g];
      group.pieces = divide_up(group.rank, ranks);
      group.shrink_tasks = divide_up(group.rows, kBlockRows) * args.num_parts * group.pieces;
      shrink_tasks += group.shrink_tasks;
    }
  }

  void count_expand() {
    num_columns = expand_tasks = 0;
    for (int64_t part = 0, first = 0; part < args.num_parts; first = args.ends[part++])
      num_columns += divide_up(args.ends[part] - first, columns);
    for (int64_t g = 0; g < num_groups; ++g) {
      groups[g].expand_tasks = divide_up(groups[g].rows, kBlockRows) * num_columns;
      expand_tasks += groups[g].expand_tasks;
    }
  }
};

// ------------------------------------------------------------------------------------- shrink

// h[m, n] = w[n] x[m] for N rows of a weight, `size` apart. `next` is the first weight that is read after
// these; null: they are at hand already.
template <int N, int M, class Entry>
DT_INLINE void dots(const Entry* w, const Entry* next, const float* const* x, int64_t size, float* h) {
  constexpr int64_t kLine = kLineBytes / sizeof(Entry), kAhead = kAheadBytes / sizeof(Entry);
  Vec sums[M][N];
  repeat<M>([&](auto m) __attribute__((always_inline)) {
    repeat<N>([&](auto n) __attribute__((always_inline)) { sums[m.value][n.value] = zero(); });
  });
  const auto add = [&](int64_t i, int count) __attribute__((always_inline)) {
    Vec weights[N];
    repeat<N>([&](auto n) __attribute__((always_inline)) {
      weights[n.value] = load_first(w + n.value * size + i, count);
    });
    repeat<M>([&](auto m) __attribute__((always_inline)) {
      const Vec own = load_first(x[m.value] + i, count);
      repeat<N>([&](auto n) __attribute__((always_inline)) {
        sums[m.value][n.value] = fma(own, weights[n.value], sums[m.value][n.value]);
      });
    });
  };
  int64_t i = 0;
  for (; i + kLine <= size; i += kLine) {
    if (next) {
      const Entry* ahead = i + kAhead < size ? w + i + kAhead : next + (i + kAhead - size);
      repeat<N>([&](auto n) __attribute__((always_inline)) { __builtin_prefetch(ahead + n.value * size); });
    }
#pragma GCC unroll 8
    for (int64_t j = 0; j < kLine; j += kLanes) add(i + j, kLanes);
  }
  for (; i + kLanes <= size; i += kLanes) add(i, kLanes);
  if (i < size) add(i, static_cast<int>(size - i));
  repeat<M>([&](auto m) __attribute__((always_inline)) {
    repeat<N>([&](auto n) __attribute__((always_inline)) {
      h[m.value * kPiece + n.value] = sum(sums[m.value][n.value]);
    });
  });
}

template <class Entry>
class Shrink {
 public:
  explicit Shrink(const Plan& plan) : plan_(plan), args_(plan.args) {}

  void operator()(int64_t task) const {
    const Part part = part_of(task);
    const Entry* next = task + 1 < plan_.shrink_tasks ? part_of(task + 1).weights : part.weights;
    const float* x[kBlockRows];
    for (int64_t i = 0; i < part.rows; ++i)
      x[i] = args_.x + plan_.order[part.group->first + part.first + i] * args_.x_stride;
    if (part.rows == 1) tiles<kRowRanks, 1>(part, next, x);
    else tiles<kRanks, kShrinkRows>(part, next, x);
  }

 private:
  const Plan& plan_;
  const LowRankArgs& args_;

  // What a task does: some ranks of some rows.
  struct Part {
    const Group* group;
    int64_t first, rows;
    const Entry* weights;
    int64_t ranks;
    float* h;  // [rows, kPiece]
  };

  Part part_of(int64_t task) const {
    const Group& group = plan_.group_of(task, &Group::shrink_tasks);
    const int64_t units = args_.num_parts * group.pieces, unit = task % units;
    const int64_t part = unit / group.pieces, rank = unit % group.pieces * plan_.ranks;
    const int64_t first = task / units * kBlockRows;
    const Entry* weights = static_cast<const Entry*>(args_.down) +
                           ((group.slot * args_.num_parts + part) * args_.rank + rank) * args_.in_size;
    return {&group, first, least(kBlockRows, group.rows - first), weights, least(plan_.ranks, group.rank - rank),
            group.h + (unit * group.rows + first) * kPiece};
  }

  template <int N, int M>
  void tiles(const Part& part, const Entry* next, const float* const* x) const {
    for (int64_t rank = 0; rank < part.ranks;) {
      const int64_t left = part.ranks - rank;
      const int64_t some = left >= N ? N : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const Entry* weights = part.weights + rank * args_.in_size;
      const Entry* after = some < left ? weights + some * args_.in_size : next;
      if (some == N) rows<N, M>(part, rank, weights, after, x);
      else if (N > 4 && some == 4) rows<4, M>(part, rank, weights, after, x);
      else if (some == 2) rows<2, M>(part, rank, weights, after, x);
      else rows<1, M>(part, rank, weights, after, x);
      rank += some;
    }
  }

  template <int N, int M>
  void rows(const Part& part, int64_t rank, const Entry* weights, const Entry* next, const float* const* x) const {
    for (int64_t row = 0; row < part.rows; row += M)
      with_count<M>(part.rows - row, [&](auto count) __attribute__((always_inline)) {
        dots<N, count.value>(weights, row ? nullptr : next, x + row, args_.in_size, part.h + row * kPiece + rank);
      });
  }
};

// ------------------------------------------------------------------------------------- expand

// What a tile of outputs is made of, from a column of `up` on. `next` is the first weight that is read after
// it; null: the tile's own are at hand already.
template <class Entry>
struct Tile {
  const Entry *up, *next;
  int64_t stride, rank;
  const float* h;  // [pieces, .., kPiece], pieces `apart` floats apart
  int64_t apart, ranks;
  float* const* out;
  const float* const* base;
  int64_t column;
};

// out[m, column + v] = sum over r of h[m, r] up[r, v], plus base, for V registers of outputs; `count` values
// are in the last one.
template <int M, int V, class Entry>
DT_INLINE void combine(const Tile<Entry>& tile, int count) {
  constexpr int64_t kBytes = V * kLanes * sizeof(Entry);
  const int64_t ahead = least(kAheadRanks, tile.rank);
  Vec sums[M][V];
  repeat<M>([&](auto m) __attribute__((always_inline)) {
    repeat<V>([&](auto v) __attribute__((always_inline)) { sums[m.value][v.value] = zero(); });
  });
  const Entry* up = tile.up;
  const float* h = tile.h;
  for (int64_t first = 0; first < tile.rank; first += tile.ranks, h += tile.apart) {
    const int64_t last = least(first + tile.ranks, tile.rank);
    for (int64_t r = first; r < last; ++r, up += tile.stride) {
      if (V > 1 && tile.next) {
        const Entry* then = r + ahead < tile.rank ? up + ahead * tile.stride
                                                  : tile.next + (r + ahead - tile.rank) * tile.stride;
        for (int64_t i = 0; i < kBytes; i += kLineBytes)
          __builtin_prefetch(reinterpret_cast<const char*>(then) + i);
      }
      Vec weights[V];
      repeat<V>([&](auto v) __attribute__((always_inline)) {
        weights[v.value] = V > 1 ? load_of(up + v.value * kLanes) : load_first(up, count);
      });
      repeat<M>([&](auto m) __attribute__((always_inline)) {
        const Vec own = set1(h[m.value * kPiece + r - first]);
        repeat<V>([&](auto v) __attribute__((always_inline)) {
          sums[m.value][v.value] = fma(own, weights[v.value], sums[m.value][v.value]);
        });
      });
    }
  }
  repeat<M>([&](auto m) __attribute__((always_inline)) {
    repeat<V>([&](auto v) __attribute__((always_inline)) {
      const int64_t at = tile.column + v.value * kLanes;
      const int some = V > 1 ? kLanes : count;
      Vec made = sums[m.value][v.value];
      if (tile.base[m.value]) made = add(made, load_first(tile.base[m.value] + at, some));
      if (some == kLanes) store(tile.out[m.value] + at, made);
      else store_some(tile.out[m.value] + at, some, made);
    });
  });
}

template <class Entry>
class Expand {
 public:
  explicit Expand(const Plan& plan) : plan_(plan), args_(plan.args) {}

  void operator()(int64_t task) const {
    const Part part = part_of(task);
    const Entry* next = nullptr;
    if (task + 1 < plan_.expand_tasks) {
      const Part after = part_of(task + 1);
      if (after.group->rank) next = after.weights;
    }
    float* out[kBlockRows];
    const float* base[kBlockRows];
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t row = plan_.order[part.group->first + part.first + i];
      out[i] = args_.out + row * args_.out_size;
      base[i] = args_.base ? args_.base + row * args_.base_stride : nullptr;
    }
    if (part.rows == 1) columns<1, kRowVectors>(part, next, out, base);
    else columns<kExpandRows, kVectors>(part, next, out, base);
  }

 private:
  const Plan& plan_;
  const LowRankArgs& args_;

  // What a task does: some outputs of some rows.
  struct Part {
    const Group* group;
    int64_t first, rows;
    Plan::Columns columns;
    const Entry* weights;
  };

  Part part_of(int64_t task) const {
    const Group& group = plan_.group_of(task, &Group::expand_tasks);
    const int64_t first = task / plan_.num_columns * kBlockRows;
    const Plan::Columns columns = plan_.columns_of(task % plan_.num_columns);
    const int64_t slot = group.rank ? group.slot : 0;
    const Entry* weights = static_cast<const Entry*>(args_.up) + slot * args_.rank * args_.out_size + columns.first;
    return {&group, first, least(kBlockRows, group.rows - first), columns, weights};
  }

  template <int M, int V>
  void columns(const Part& part, const Entry* next, float* const* out, const float* const* base) const {
    const Group& group = *part.group;
    const int64_t apart = group.rows * kPiece;
    const float* h = group.h + part.columns.part * group.pieces * apart + part.first * kPiece;
    Tile<Entry> tile{part.weights, next, args_.out_size, group.rank, h, apart, plan_.ranks, out, base,
                     part.columns.first};
    while (tile.column < part.columns.last) {
      const int64_t left = part.columns.last - tile.column;
      const int64_t some = left >= V * kLanes ? V * kLanes : least(left, kLanes);
      const Entry* after = some < left ? tile.up + some : next;
      if (some == V * kLanes) rows<M, V>(part, tile, after, kLanes);
      else rows<M, 1>(part, tile, after, static_cast<int>(some));
      tile.column += some;
      tile.up += some;
    }
  }

  template <int M, int V>
  void rows(const Part& part, Tile<Entry> tile, const Entry* next, int count) const {
    for (int64_t row = 0; row < part.rows; row += M, tile.h += M * kPiece, tile.out += M, tile.base += M) {
      tile.next = row ? nullptr : next;
      with_count<M>(part.rows - row, [&](auto some) __attribute__((always_inline)) {
        combine<some.value, V>(tile, count);
      });
    }
  }
};

template <class Entry>
int apply(const LowRankArgs& args) {
  if (args.rows == 0 || args.out_size == 0) return 0;
  Plan plan(args);
  if (!plan.make()) return 1;
  const Shrink<Entry> shrink(plan);
  const Expand<Entry> expand(plan);
  parallel(plan.shrink_tasks, [&](int64_t task) { shrink(task); });
  parallel(plan.expand_tasks, [&](int64_t task) { expand(task); });
  return 0;
}

}  // namespace

// Returns 0; 1 when memory for the thin product cannot be had; 2 for a format not known here.
DT_KERNEL(low_rank, LowRankArgs) {
  switch (args.format) {
    case kFloat32: return apply<float>(args);
    case kBfloat16: return apply<Bf16>(args);
    case kFloat16: return apply<F16>(args);
    default: return 2;
  }
}
