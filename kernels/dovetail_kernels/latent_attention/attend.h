// Attention over latents in partitions, for any kind of number (see `Floats` for what a kind is).
#pragma once

#include "latent_attention/args.h"
#include "entries.h"
#include "pool.h"
#include "rows.h"

namespace dt {
namespace DT_ISA {
namespace latent {
namespace {

constexpr int kMostKeys = 64;          // the most latents that a kind takes at a time
constexpr int64_t kPartition = 256;    // latents summed up for themselves
constexpr int kTileRows = kLanes / 4;  // rows that meet four latents at a time
constexpr int kRowMultiple = 4;        // rows of a unit are filled up to this
constexpr int64_t kNearRows = 8;       // rows whose scores are computed together
constexpr int64_t kUnitRows = 64;      // rows that share a reading of the latents, or one query's
constexpr int64_t kMaxHeads = 512;
constexpr float kHidden = -2e30f, kNone = -1e30f;  // a score not seen; the top of none

// The sums over lanes of kLanes registers, in order.
DT_INLINE Vec lane_sums(const Vec* x) {
#if defined(__AVX512F__)
  Vec s[4];
  repeat<4>([&](auto g) {
    const Vec *a = x + 4 * g.value;
    const Vec ab = add(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    const Vec cd = add(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    s[g.value] = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  });
  const Vec u = add(_mm512_shuffle_f32x4(s[0], s[1], 0x88), _mm512_shuffle_f32x4(s[0], s[1], 0xdd));
  const Vec v = add(_mm512_shuffle_f32x4(s[2], s[3], 0x88), _mm512_shuffle_f32x4(s[2], s[3], 0xdd));
  return add(_mm512_shuffle_f32x4(u, v, 0x88), _mm512_shuffle_f32x4(u, v, 0xdd));
#elif defined(__AVX2__)
  Vec s[2];
  repeat<2>([&](auto g) {
    const Vec *a = x + 4 * g.value;
    const Vec ab = add(_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1]));
    const Vec cd = add(_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3]));
    s[g.value] = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  });
  return add(_mm256_permute2f128_ps(s[0], s[1], 0x20), _mm256_permute2f128_ps(s[0], s[1], 0x31));
#else
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = sum(x[i]);
  return load(lanes);
#endif
}

struct Sizes {
  int64_t size, width, value_width;  // L + R; the numbers of a latent and of a sum, filled up
  DT_INLINE Sizes(const LatentArgs& args, int64_t multiple) {
    size = args.latent_size + args.rope_size;
    value_width = divide_up(args.latent_size, 4 * kLanes) * 4 * kLanes;
    width = divide_up(size, multiple) * multiple;
    if (width < value_width) width = value_width;
  }
};

// Some queries of a row: positions first .. first + queries - 1, tokens from `token` on. Where positions are
// picked, one query, that sees its picks as if they were all positions up to `first`.
struct Unit {
  int64_t row, token, first, queries;
  int64_t count, pieces;  // partitions, and the tasks that share them
  int64_t parts_at;       // where partitions' sums are kept, if there are several tasks
};
// Partitions first .. first + count - 1 of a unit.
struct Piece {
  int64_t unit, first, count;
};

struct Plan {
  const LatentArgs* args;
  Sizes sizes;
  int64_t unit_rows;  // rows of the largest unit, filled up
  Unit* units;
  Piece* pieces;
  int32_t* left;
  float* parts;
  int64_t num_units, num_pieces;
};

// The softmax state of rows: sums weighted by e^(s - top).
struct State {
  float *values, *top, *total;  // [rows, value_width], [rows], [rows]
};
DT_INLINE State state_at(float* memory, int64_t rows, int64_t width) {
  return {memory, memory + rows * width, memory + rows * (width + 1)};
}

// A thread's memory for one piece, and where the latents at hand are.
struct Room {
  float *q, *latents, *scores;  // [rows, width], [kKeys + 1, width], [rows, kKeys], or narrower
  float *part, *state, *pairs;  // pairs: of two latents' values, [kKeys / 2, value_width]
  const void* keys[kMostKeys];
};
template <class Kind>
DT_INLINE bool get_room(const Plan& plan, Room* room) {
  const int64_t rows = plan.unit_rows, width = plan.sizes.width, values = plan.sizes.value_width;
  const int64_t counts[] = {rows * width, (Kind::kKeys + 1) * width, rows * Kind::kKeys,
                            rows * (values + 2), rows * (values + 2),
                            Kind::kFold > 1 ? Kind::kKeys / 2 * values : 0};
  float** places[] = {&room->q, &room->latents, &room->scores, &room->part, &room->state, &room->pairs};
  int64_t floats = 0;
  for (const int64_t count : counts) floats += divide_up(count, 16) * 16;
  float* at = static_cast<float*>(scratch(0, floats * sizeof(float)));
  if (!at) return false;
  for (int i = 0; i < 6; at += divide_up(counts[i], 16) * 16, ++i) *places[i] = at;
  return true;
}

DT_INLINE int64_t filled_up(int64_t rows) { return divide_up(rows, kRowMultiple) * kRowMultiple; }

// Finds latents first .. first + count - 1 of a row, and zeros behind them, up to kKeys: where they are, if
// they can be used so, else copies of them as the kind's numbers.
template <class Kind>
void gather(const Plan& plan, const Unit& unit, int64_t first, int64_t count, Room* room) {
  using Number = typename Kind::Number;
  const LatentArgs& args = *plan.args;
  const int64_t size = plan.sizes.size, width = plan.sizes.width;
  const int32_t* blocks = args.block_table + unit.row * args.table_stride;
  const int32_t* picks = args.picks ? args.picks + unit.token * args.num_picked + first : nullptr;
  int64_t block = first / args.block_tokens, offset = first % args.block_tokens;
  Number* to = reinterpret_cast<Number*>(room->latents);
  for (int64_t i = 0; i < count; ++i, to += width) {
    if (picks) {
      block = picks[i] / args.block_tokens;
      offset = picks[i] % args.block_tokens;
    }
    const auto* from = static_cast<const typename Kind::Entry*>(args.cache) +
                       blocks[block] * args.block_stride + offset * size;
    if (Kind::is_kept_so && width == size) {
      room->keys[i] = from;
    } else {
      Kind::copy(from, size, to, width);
      room->keys[i] = to;
    }
    if (++offset == args.block_tokens) {
      offset = 0;
      ++block;
    }
  }
  if (count == Kind::kKeys) return;
  memset(to, 0, static_cast<size_t>(width) * sizeof(Number));
  for (int64_t i = count; i < Kind::kKeys; ++i) room->keys[i] = to;
}

template <class Kind>
void pack_queries(const Plan& plan, const Unit& unit, const Room& room) {
  using Number = typename Kind::Number;
  const LatentArgs& args = *plan.args;
  const int64_t size = plan.sizes.size, width = plan.sizes.width;
  Number* to = reinterpret_cast<Number*>(room.q);
  for (int64_t query = 0; query < unit.queries; ++query) {
    const float* from = args.q + (unit.token + query) * args.q_stride;
    for (int64_t head = 0; head < args.num_heads; ++head, from += size, to += width)
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = size - i;
        const Vec x = left <= 0 ? zero() : load_up_to(from + i, static_cast<int>(left < kLanes ? left : kLanes));
        Kind::put(to + i, mul(x, set1(args.scale)));
      }
  }
  const int64_t rows = unit.queries * args.num_heads;
  memset(to, 0, static_cast<size_t>((filled_up(rows) - rows) * width) * sizeof(Number));
}

// scores[r][k] = q[r] . latents[k]. A few rows stay in the first-level cache while latents pass by.
template <class Kind>
void score(const Room& room, int64_t rows, int64_t width) {
  using Number = typename Kind::Number;
  const auto* q = reinterpret_cast<const Number*>(room.q);
  const auto* keys = reinterpret_cast<const Number* const*>(room.keys);
  for (int64_t first = 0; first < rows; first += kNearRows) {
    const int64_t end = first + kNearRows < rows ? first + kNearRows : rows;
    for (int64_t k = 0; k < Kind::kKeys; k += 4)
      for (int64_t r = first; r < end; r += kTileRows) {
        const Number* from = q + r * width;
        Vec sums[kLanes];
        repeat<kLanes>([&](auto i) { sums[i.value] = zero(); });
        for (int64_t d = 0; d < width; d += Kind::kStep) {
          typename Kind::Register key[4];
          repeat<4>([&](auto i) { key[i.value] = Kind::load(keys[k + i.value] + d); });
          repeat<kTileRows>([&](auto t) {
            const auto x = Kind::load(from + t.value * width + d);
            repeat<4>([&](auto i) {
              constexpr int n = t.value * 4 + i.value;
              sums[n] = Kind::add_product(x, key[i.value], sums[n]);
            });
          });
        }
        float found[kLanes];
        store(found, lane_sums(sums));
        for (int t = 0; t < kTileRows; ++t)
          memcpy(room.scores + (r + t) * Kind::kKeys + k, found + 4 * t, 4 * sizeof(float));
      }
  }
}

// Turns a row's scores into weights e^(s - top), the first `seen` of them; returns by what older sums
// shrink.
template <class Kind>
DT_INLINE float weigh(float* scores, int64_t seen, float* top, float* total) {
  constexpr int kKeys = Kind::kKeys;
  for (int64_t k = seen < 0 ? 0 : seen; k < kKeys; ++k) scores[k] = kHidden;
  Vec most = load(scores), broken = zero();
  for (int k = kLanes; k < kKeys; k += kLanes) most = max(most, load(scores + k));
  float peak = largest(most);
  if (!(peak > *top)) peak = *top;
  const Vec by = set1(peak);
  Vec added = zero();
  for (int k = 0; k < kKeys; k += kLanes) {
    const Vec x = sub(load(scores + k), by);
    broken = fma(x, zero(), broken);  // exp loses a NaN
    added = add(added, Kind::keep_weights(scores, k, exp(x)));
  }
  float both[kLanes] = {*top - peak};
  store(both, exp(load(both)));
  *total = *total * both[0] + sum(add(added, broken));
  *top = peak;
  return both[0];
}

// values[r] = values[r] * shrink[r] + sum over k of weights[r][k] latents[k]
template <class Kind>
void add_values(const Room& room, const float* shrink, int64_t rows, int64_t value_width,
                float* values) {
  for (int64_t d = 0; d < value_width; d += 4 * kLanes) {
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const float* weights = room.scores + r * Kind::kKeys;
      Vec sums[kLanes];
      float* to = values + r * value_width + d;
      repeat<kTileRows>([&](auto t) {
        const Vec by = set1(shrink[r + t.value]);
        repeat<4>([&](auto i) {
          sums[t.value * 4 + i.value] = mul(load(to + t.value * value_width + i.value * kLanes), by);
        });
      });
      for (int k = 0; k < Kind::kKeys; k += Kind::kFold) {
        typename Kind::Register part[4];
        repeat<4>([&](auto i) { part[i.value] = Kind::values(room, k, d + i.value * kLanes, value_width); });
        repeat<kTileRows>([&](auto t) {
          const auto x = Kind::spread(weights + t.value * Kind::kKeys, k);
          repeat<4>([&](auto i) {
            constexpr int n = t.value * 4 + i.value;
            sums[n] = Kind::add_product(x, part[i.value], sums[n]);
          });
        });
      }
      repeat<kTileRows>([&](auto t) {
        repeat<4>([&](auto i) {
          store(to + t.value * value_width + i.value * kLanes, sums[t.value * 4 + i.value]);
        });
      });
    }
  }
}

DT_INLINE void clear(const State& state, int64_t rows, int64_t width) {
  memset(state.values, 0, static_cast<size_t>(rows * width) * sizeof(float));
  for (int64_t r = 0; r < rows; ++r) {
    state.top[r] = kNone;
    state.total[r] = 0;
  }
}

// Sums up one partition for all rows of a unit.
template <class Kind>
void attend_partition(const Plan& plan, const Unit& unit, int64_t number, Room* room,
                      const State& state) {
  constexpr int64_t kKeys = Kind::kKeys;
  const int64_t heads = plan.args->num_heads, rows = filled_up(unit.queries * heads);
  const int64_t values = plan.sizes.value_width;
  const int64_t last = unit.first + unit.queries;  // what the last query sees ends here
  const int64_t end = (number + 1) * kPartition < last ? (number + 1) * kPartition : last;
  clear(state, rows, values);
  float shrink[kMaxHeads];
  for (int64_t key = number * kPartition; key < end; key += kKeys) {
    gather<Kind>(plan, unit, key, end - key < kKeys ? end - key : kKeys, room);
    score<Kind>(*room, rows, plan.sizes.width);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t seen = unit.first + r / heads + 1 - key;
      const bool is_real = r < unit.queries * heads;
      shrink[r] = weigh<Kind>(room->scores + r * kKeys, is_real ? (seen < kKeys ? seen : kKeys) : 0,
                              &state.top[r], &state.total[r]);
    }
    Kind::fold(room, values);
    add_values<Kind>(*room, shrink, rows, values, state.values);
  }
}

// Adds a partition's row to a state's. A row that saw nothing has total 0.
DT_INLINE void merge_row(const State& state, const State& part, int64_t row, int64_t width) {
  if (part.total[row] == 0) return;
  const float* from = part.values + row * width;
  float* to = state.values + row * width;
  if (state.total[row] == 0) {
    memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
    state.top[row] = part.top[row];
    state.total[row] = part.total[row];
    return;
  }
  const float peak = part.top[row] > state.top[row] ? part.top[row] : state.top[row];
  float both[kLanes] = {state.top[row] - peak, part.top[row] - peak};
  store(both, exp(load(both)));
  const Vec old = set1(both[0]), fresh = set1(both[1]);
  for (int64_t d = 0; d < width; d += kLanes)
    store(to + d, fma(load(from + d), fresh, mul(load(to + d), old)));
  state.total[row] = part.total[row] * both[1] + state.total[row] * both[0];
  state.top[row] = peak;
}

// Returns what divides a row's sums if its softmax has a sink, too.
DT_INLINE float share(float top, float total, float sink) {
  const float peak = top > sink ? top : sink;
  float both[kLanes] = {top - peak, sink - peak};
  store(both, exp(load(both)));
  return both[0] / (total * both[0] + both[1]);
}

void finish(const Plan& plan, const Unit& unit, const State& state) {
  const int64_t size = plan.args->latent_size, heads = plan.args->num_heads;
  for (int64_t r = 0; r < unit.queries * heads; ++r) {
    const float* sinks = plan.args->sinks;
    const Vec by = set1(sinks ? share(state.top[r], state.total[r], sinks[r % heads])
                              : 1.0f / state.total[r]);
    const float* from = state.values + r * plan.sizes.value_width;
    float* out = plan.args->out + (unit.token * heads + r) * size;
    each_register(size, [&](int64_t i, int count) {
      store_up_to(out + i, count, mul(load(from + i), by));
    });
  }
}

template <class Kind>
void run_piece(const Plan& plan, const Piece& piece, Room* room) {
  const Unit& unit = plan.units[piece.unit];
  const int64_t width = plan.sizes.value_width, rows = unit.queries * plan.args->num_heads;
  const int64_t part_floats = filled_up(rows) * (width + 2);
  const State state = state_at(room->state, filled_up(rows), width);
  for (int64_t r = 0; r < rows; ++r) state.total[r] = 0;
  pack_queries<Kind>(plan, unit, *room);
  for (int64_t p = piece.first; p < piece.first + piece.count; ++p) {
    const bool is_kept = unit.pieces > 1;
    float* at = is_kept ? plan.parts + unit.parts_at + p * part_floats : room->part;
    const State part = state_at(at, filled_up(rows), width);
    attend_partition<Kind>(plan, unit, p, room, part);
    if (!is_kept)
      for (int64_t r = 0; r < rows; ++r) merge_row(state, part, r, width);
  }
  if (unit.pieces == 1) return finish(plan, unit, state);
  if (__atomic_sub_fetch(&plan.left[piece.unit], 1, __ATOMIC_ACQ_REL) != 0) return;
  for (int64_t p = 0; p < unit.count; ++p) {
    const State part = state_at(plan.parts + unit.parts_at + p * part_floats, filled_up(rows), width);
    for (int64_t r = 0; r < rows; ++r) merge_row(state, part, r, width);
  }
  finish(plan, unit, state);
}

// Lists the units of all rows, `most` queries each; returns the partitions of all.
int64_t make_units(Plan* plan, int64_t most) {
  const LatentArgs& args = *plan->args;
  int64_t all = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t start = args.query_start[row], count = args.query_start[row + 1] - start;
    for (int64_t query = 0; query < count; query += most) {
      Unit& unit = plan->units[plan->num_units++];
      unit.row = row;
      unit.token = start + query;
      unit.first = args.seq_lens[row] - count + query;
      unit.queries = count - query < most ? count - query : most;
      if (args.picks && unit.first >= args.num_picked) unit.first = args.num_picked - 1;
      unit.count = divide_up(unit.first + unit.queries, kPartition);
      all += unit.count;
    }
  }
  return all;
}

// Divides long units where there are fewer than threads could use; returns the floats of the sums.
int64_t divide_units(Plan* plan, int64_t all) {
  const int64_t wanted = num_threads() == 1 ? 1 : 4 * num_threads();
  int64_t floats = 0;
  for (int64_t u = 0; u < plan->num_units; ++u) {
    Unit& unit = plan->units[u];
    unit.pieces = plan->num_units >= wanted ? 1 : divide_up(unit.count * wanted, all);
    if (unit.pieces > unit.count) unit.pieces = unit.count;
    unit.parts_at = floats;
    if (unit.pieces > 1)
      floats += unit.count * filled_up(unit.queries * plan->args->num_heads) *
                (plan->sizes.value_width + 2);
    plan->num_pieces += unit.pieces;
  }
  return floats;
}

// Returns 0, or 1 when memory cannot be had.
template <class Kind>
int attend(const LatentArgs& args) {
  Plan plan{&args, Sizes(args, Kind::kStep), 0, nullptr, nullptr, nullptr, nullptr, 0, 0};
  const int64_t most = args.picks || args.num_heads >= kUnitRows ? 1 : kUnitRows / args.num_heads;
  plan.unit_rows = filled_up(most * args.num_heads);
  int64_t units = 0;
  for (int64_t row = 0; row < args.rows; ++row)
    units += divide_up(args.query_start[row + 1] - args.query_start[row], most);
  if (!units) return 0;
  plan.units = static_cast<Unit*>(scratch(1, units * (sizeof(Unit) + sizeof(int32_t))));
  if (!plan.units) return 1;
  plan.left = reinterpret_cast<int32_t*>(plan.units + units);
  const int64_t floats = divide_units(&plan, make_units(&plan, most));
  plan.pieces = static_cast<Piece*>(scratch(2, plan.num_pieces * sizeof(Piece)));
  plan.parts = static_cast<float*>(scratch(3, floats * sizeof(float) + 64));
  if (!plan.pieces || !plan.parts) return 1;
  Piece* piece = plan.pieces;
  for (int64_t u = 0; u < plan.num_units; ++u) {
    const Unit& unit = plan.units[u];
    plan.left[u] = static_cast<int32_t>(unit.pieces);
    for (int64_t i = 0; i < unit.pieces; ++i) {
      const int64_t from = unit.count * i / unit.pieces, to = unit.count * (i + 1) / unit.pieces;
      *piece++ = {u, from, to - from};
    }
  }
  int32_t has_failed = 0;
  parallel(plan.num_pieces, [&](int64_t task) {
    Room room;
    if (get_room<Kind>(plan, &room)) run_piece<Kind>(plan, plan.pieces[task], &room);
    else __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  return has_failed;
}

}  // namespace
}  // namespace latent
}  // namespace DT_ISA
}  // namespace dt
