// Latent attention: queries of all heads against one latent a token, which is key and value.
//
// Work of a query that sees S latents: 2 H S (2 L + R) floating-point operations. Bytes: each latent
// once for all heads of a query, S (L + R) numbers; so with H = 16 heads and bfloat16 30 operations a
// byte, with 128 heads 240. The floor is the multiply-adds; what is read is made floats once, a few
// latents at a time, and stays in the second-level cache for all heads.
//
// A row's bits do not depend on others: latents are summed up in partitions that begin at multiples
// of kPartition, each for itself, and merged in order, whoever computed them.

#include "latent_attention/args.h"
#include "entries.h"
#include "pool.h"
#include "rows.h"

namespace dt {
namespace DT_ISA {
namespace latent {
namespace {

constexpr int kKeys = 32;              // latents made floats at a time
constexpr int64_t kPartition = 256;    // latents summed up for themselves
constexpr int kTileRows = kLanes / 4;  // rows that meet four latents at a time
constexpr int kRowMultiple = 4;        // rows of a unit are filled up to this
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
  int64_t size, width, value_width;  // L + R; the floats of a latent and of a sum, filled up
  DT_INLINE explicit Sizes(const LatentArgs& args) {
    size = args.latent_size + args.rope_size;
    value_width = divide_up(args.latent_size, 4 * kLanes) * 4 * kLanes;
    width = divide_up(size, kLanes) * kLanes;
    if (width < value_width) width = value_width;
  }
};

// Some queries of a row: positions first .. first + queries - 1, tokens from `token` on.
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

// A thread's memory for one piece.
struct Room {
  float *q, *latents, *scores;  // [rows, width], [kKeys, width], [rows, kKeys]
  float *part, *state;
};
DT_INLINE bool get_room(const Plan& plan, Room* room) {
  const int64_t rows = plan.unit_rows, width = plan.sizes.width, values = plan.sizes.value_width;
  const int64_t counts[] = {rows * width, kKeys * width, rows * kKeys, rows * (values + 2),
                            rows * (values + 2)};
  float** places[] = {&room->q, &room->latents, &room->scores, &room->part, &room->state};
  int64_t floats = 0;
  for (const int64_t count : counts) floats += divide_up(count, 16) * 16;
  float* at = static_cast<float*>(scratch(0, floats * sizeof(float)));
  if (!at) return false;
  for (int i = 0; i < 5; at += divide_up(counts[i], 16) * 16, ++i) *places[i] = at;
  return true;
}

DT_INLINE int64_t filled_up(int64_t rows) { return divide_up(rows, kRowMultiple) * kRowMultiple; }

template <class Entry>
DT_INLINE void widen(const Entry* from, int64_t size, float* to, int64_t width) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(to + i, load_of(from + i));
  if (i < size) {
    store(to + i, load_first(from + i, static_cast<int>(size - i)));
    i += kLanes;
  }
  for (; i < width; i += kLanes) store(to + i, zero());
}

// Makes latents first .. first + count - 1 of a row floats; zeros behind them, up to kKeys.
template <class Entry>
void gather(const Plan& plan, const Unit& unit, int64_t first, int64_t count, float* to) {
  const LatentArgs& args = *plan.args;
  const int64_t size = plan.sizes.size, width = plan.sizes.width;
  const int32_t* blocks = args.block_table + unit.row * args.table_stride;
  int64_t block = first / args.block_tokens, offset = first % args.block_tokens;
  for (int64_t i = 0; i < count; ++i, to += width) {
    const Entry* from = static_cast<const Entry*>(args.cache) +
                        blocks[block] * args.block_stride + offset * size;
    widen(from, size, to, width);
    if (++offset == args.block_tokens) {
      offset = 0;
      ++block;
    }
  }
  memset(to, 0, static_cast<size_t>((kKeys - count) * width) * sizeof(float));
}

void pack_queries(const Plan& plan, const Unit& unit, float* to) {
  const LatentArgs& args = *plan.args;
  const int64_t size = plan.sizes.size, width = plan.sizes.width;
  const Vec scale = set1(args.scale);
  for (int64_t query = 0; query < unit.queries; ++query) {
    const float* from = args.q + (unit.token + query) * args.q_stride;
    for (int64_t head = 0; head < args.num_heads; ++head, from += size, to += width) {
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) store(to + i, mul(load(from + i), scale));
      if (i < size) {
        store(to + i, mul(load_some(from + i, static_cast<int>(size - i), 0.0f), scale));
        i += kLanes;
      }
      for (; i < width; i += kLanes) store(to + i, zero());
    }
  }
  const int64_t rows = unit.queries * args.num_heads;
  memset(to, 0, static_cast<size_t>((filled_up(rows) - rows) * width) * sizeof(float));
}

// scores[r][k] = q[r] . latents[k]
void score(const float* q, const float* latents, int64_t rows, int64_t width, float* scores) {
  for (int64_t k = 0; k < kKeys; k += 4) {
    const float* keys = latents + k * width;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const float* from = q + r * width;
      Vec sums[kLanes];
      repeat<kLanes>([&](auto i) { sums[i.value] = zero(); });
      for (int64_t d = 0; d < width; d += kLanes) {
        Vec key[4];
        repeat<4>([&](auto i) { key[i.value] = load(keys + i.value * width + d); });
        repeat<kTileRows>([&](auto t) {
          const Vec x = load(from + t.value * width + d);
          repeat<4>([&](auto i) {
            constexpr int n = t.value * 4 + i.value;
            sums[n] = fma(x, key[i.value], sums[n]);
          });
        });
      }
      float found[kLanes];
      store(found, lane_sums(sums));
      for (int t = 0; t < kTileRows; ++t)
        memcpy(scores + (r + t) * kKeys + k, found + 4 * t, 4 * sizeof(float));
    }
  }
}

// Turns a row's scores into weights e^(s - top), the first `seen` of them; returns by what older sums
// shrink.
DT_INLINE float weigh(float* scores, int64_t seen, float* top, float* total) {
  for (int64_t k = seen < 0 ? 0 : seen; k < kKeys; ++k) scores[k] = kHidden;
  Vec most = load(scores), broken = zero();
  for (int k = kLanes; k < kKeys; k += kLanes) most = max(most, load(scores + k));
  float peak = largest(most);
  if (!(peak > *top)) peak = *top;
  const Vec by = set1(peak);
  Vec added = zero();
  for (int k = 0; k < kKeys; k += kLanes) {
    const Vec x = sub(load(scores + k), by), weight = exp(x);
    broken = fma(x, zero(), broken);  // exp loses a NaN
    store(scores + k, weight);
    added = add(added, weight);
  }
  float both[kLanes] = {*top - peak};
  store(both, exp(load(both)));
  *total = *total * both[0] + sum(add(added, broken));
  *top = peak;
  return both[0];
}

// values[r] = values[r] * shrink[r] + sum over k of weights[r][k] latents[k]
void add_values(const float* weights, const float* latents, const float* shrink, int64_t rows,
                int64_t width, int64_t value_width, float* values) {
  for (int64_t d = 0; d < value_width; d += 4 * kLanes) {
    for (int64_t r = 0; r < rows; r += kTileRows) {
      Vec sums[kLanes];
      float* to = values + r * value_width + d;
      repeat<kTileRows>([&](auto t) {
        const Vec by = set1(shrink[r + t.value]);
        repeat<4>([&](auto i) {
          sums[t.value * 4 + i.value] = mul(load(to + t.value * value_width + i.value * kLanes), by);
        });
      });
      for (int k = 0; k < kKeys; ++k) {
        const float* from = latents + k * width + d;
        Vec part[4];
        repeat<4>([&](auto i) { part[i.value] = load(from + i.value * kLanes); });
        repeat<kTileRows>([&](auto t) {
          const Vec x = set1(weights[(r + t.value) * kKeys + k]);
          repeat<4>([&](auto i) {
            constexpr int n = t.value * 4 + i.value;
            sums[n] = fma(x, part[i.value], sums[n]);
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
template <class Entry>
void attend_partition(const Plan& plan, const Unit& unit, int64_t number, const Room& room,
                      const State& state) {
  const int64_t heads = plan.args->num_heads, rows = filled_up(unit.queries * heads);
  const int64_t width = plan.sizes.width, values = plan.sizes.value_width;
  const int64_t last = unit.first + unit.queries;  // what the last query sees ends here
  const int64_t end = (number + 1) * kPartition < last ? (number + 1) * kPartition : last;
  clear(state, rows, values);
  float shrink[kMaxHeads];
  for (int64_t key = number * kPartition; key < end; key += kKeys) {
    const int64_t count = end - key < kKeys ? end - key : kKeys;
    gather<Entry>(plan, unit, key, count, room.latents);
    score(room.q, room.latents, rows, width, room.scores);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t seen = unit.first + r / heads + 1 - key;
      const bool is_real = r < unit.queries * heads;
      shrink[r] = weigh(room.scores + r * kKeys, is_real ? (seen < kKeys ? seen : kKeys) : 0,
                        &state.top[r], &state.total[r]);
    }
    add_values(room.scores, room.latents, shrink, rows, width, values, state.values);
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

void finish(const Plan& plan, const Unit& unit, const State& state) {
  const int64_t size = plan.args->latent_size, heads = plan.args->num_heads;
  for (int64_t r = 0; r < unit.queries * heads; ++r) {
    const Vec by = set1(1.0f / state.total[r]);
    const float* from = state.values + r * plan.sizes.value_width;
    float* out = plan.args->out + (unit.token * heads + r) * size;
    each_register(size, [&](int64_t i, int count) {
      store_up_to(out + i, count, mul(load(from + i), by));
    });
  }
}

template <class Entry>
void run_piece(const Plan& plan, const Piece& piece, const Room& room) {
  const Unit& unit = plan.units[piece.unit];
  const int64_t width = plan.sizes.value_width, rows = unit.queries * plan.args->num_heads;
  const int64_t part_floats = filled_up(rows) * (width + 2);
  const State state = state_at(room.state, filled_up(rows), width);
  for (int64_t r = 0; r < rows; ++r) state.total[r] = 0;
  pack_queries(plan, unit, room.q);
  for (int64_t p = piece.first; p < piece.first + piece.count; ++p) {
    const bool is_kept = unit.pieces > 1;
    float* at = is_kept ? plan.parts + unit.parts_at + p * part_floats : room.part;
    const State part = state_at(at, filled_up(rows), width);
    attend_partition<Entry>(plan, unit, p, room, part);
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
template <class Entry>
int attend(const LatentArgs& args) {
  Plan plan{&args, Sizes(args), 0, nullptr, nullptr, nullptr, nullptr, 0, 0};
  const int64_t most = args.num_heads >= kUnitRows ? 1 : kUnitRows / args.num_heads;
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
    if (get_room(plan, &room)) run_piece<Entry>(plan, plan.pieces[task], room);
    else __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  return has_failed;
}

DT_INLINE void narrow(float* to, Vec x) { store(to, x); }
DT_INLINE void narrow(Bf16* to, Vec x) { store_bf16(&to->bits, x); }
DT_INLINE void narrow(F16* to, Vec x) { store_f16(&to->bits, x); }

// Stores the step's latents.
template <class Entry>
void write(const LatentArgs& args) {
  const int64_t size = args.latent_size + args.rope_size;
  each_row(args.query_start[args.rows], size, [&](int64_t token) {
    const float* from = args.latent + token * args.latent_stride;
    const int64_t block = args.slots[token] / args.block_tokens;
    const int64_t offset = args.slots[token] % args.block_tokens;
    Entry* to = static_cast<Entry*>(args.cache) + block * args.block_stride + offset * size;
    each_register(size, [&](int64_t i, int count) {
      const Vec x = load_up_to(from + i, count);
      if (count == kLanes) return narrow(to + i, x);
      Entry last[kLanes];
      narrow(last, x);
      memcpy(to + i, last, static_cast<size_t>(count) * sizeof(Entry));
    });
  });
}

template <class Entry>
int run_all(const LatentArgs& args) {
  if (args.latent) write<Entry>(args);
  return attend<Entry>(args);
}

}  // namespace
}  // namespace latent
}  // namespace DT_ISA
}  // namespace dt

// Returns 0; 1 when memory cannot be had; 2 for a format not known here, or too many heads.
DT_KERNEL(latent_attention, LatentArgs) {
  using namespace dt::DT_ISA;
  if (args.num_heads > latent::kMaxHeads) return 2;
  switch (args.format) {
    case kLatentFloat32: return latent::run_all<float>(args);
    case kLatentBfloat16: return latent::run_all<Bf16>(args);
    case kLatentFloat16: return latent::run_all<F16>(args);
    default: return 2;
  }
}
