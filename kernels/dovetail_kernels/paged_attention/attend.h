// A step's attention: rows become units of queries, units become pieces of context, pieces go to
// the pool; each piece runs its partitions through tiles.h.
//
// A piece that has all of its unit's context merges partitions as it goes. Otherwise every
// partition's result is kept, and the piece that finishes last merges them. The order is the same,
// first partition to last, and so are the bits.
#pragma once

#include "paged_attention/packed.h"
#include "paged_attention/rotate.h"
#include "paged_attention/tiles.h"
#include "pool.h"

namespace dt {
namespace DT_ISA {
namespace attention {

constexpr int kUnitRows = 48;       // query rows that share a pass over the context
constexpr int64_t kLeastCost = 1024;  // rows times keys worth a task of their own
constexpr int64_t kPiecesAThread = 6;


// Consecutive queries of one row, all heads. Partitions first .. first + count - 1 are seen.
struct Unit {
  int64_t row, query, queries;    // the first of its queries, counted within the row
  int64_t position;               // of that query
  int64_t first_key, end_key;     // seen by some query
  int64_t first, count;           // partitions
  int64_t pieces;
};

struct Piece {
  int64_t unit, head, first, count;  // partitions
};

// All that the tasks of one call share.
struct Plan {
  const AttentionArgs* args;
  float score_scale, value_scale;  // of products with what the cache holds
  Layout layout;
  int64_t is_packed;   // 1 where cells are unpacked first
  int64_t partition;   // keys, a multiple of kPartition
  int64_t group;       // query heads of a kv head
  int64_t unit_rows;   // rows of the largest unit
  Unit* units;
  Piece* pieces;
  int64_t num_units, num_pieces;
  float* parts;        // results of partitions of divided units
  int64_t* parts_at;   // [units, K] where in `parts`
  int32_t* left;       // [units, K] pieces not done
};

DT_INLINE void see(const AttentionArgs& args, int64_t length, int64_t position, int64_t* first,
                   int64_t* last) {
  *last = args.is_causal ? position + 1 : length;
  if (!args.is_causal && args.window > 0 && position + args.window < length)
    *last = position + args.window;
  *first = args.window > 0 && position - args.window + 1 > 0 ? position - args.window + 1 : 0;
  if (args.chunk > 0) *first = position - position % args.chunk;
}

// Fills `unit` with queries query .. query + queries - 1 of a row.
DT_INLINE void set_unit(const Plan& plan, int64_t row, int64_t query, int64_t queries, Unit* unit) {
  const AttentionArgs& args = *plan.args;
  const int64_t length = args.seq_lens[row];
  const int64_t start = length - (args.query_start[row + 1] - args.query_start[row]);
  int64_t ignored;
  *unit = {row, query, queries, start + query, 0, 0, 0, 0, 1};
  see(args, length, unit->position, &unit->first_key, &ignored);
  see(args, length, unit->position + queries - 1, &ignored, &unit->end_key);
  unit->first = unit->first_key / plan.partition;
  unit->count = divide_up(unit->end_key, plan.partition) - unit->first;
}

// Late queries first: they cost the most.
inline void make_units(Plan* plan) {
  const AttentionArgs& args = *plan->args;
  const int64_t most = plan->unit_rows / plan->group;
  Unit* unit = plan->units;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t queries = args.query_start[row + 1] - args.query_start[row];
    for (int64_t n = divide_up(queries, most); n-- > 0;) {
      const int64_t end = (n + 1) * most < queries ? (n + 1) * most : queries;
      set_unit(*plan, row, n * most, end - n * most, unit++);
    }
  }
  plan->num_units = unit - plan->units;
}

// Divides the context of units that cost much beside the whole.
inline void divide_units(Plan* plan) {
  const int64_t heads = plan->args->num_kv_heads;
  int64_t total = 0;
  for (int64_t u = 0; u < plan->num_units; ++u)
    total += plan->units[u].queries * (plan->units[u].end_key - plan->units[u].first_key);
  total *= heads * plan->group;
  const int64_t share = total / (num_threads() * kPiecesAThread);
  const int64_t most = share > kLeastCost ? share : kLeastCost;
  plan->num_pieces = 0;
  for (int64_t u = 0; u < plan->num_units; ++u) {
    Unit& unit = plan->units[u];
    const int64_t cost = unit.queries * plan->group * plan->partition;
    const int64_t parts = num_threads() == 1 ? unit.count : most / cost > 1 ? most / cost : 1;
    unit.pieces = divide_up(unit.count, parts);
    plan->num_pieces += unit.pieces * heads;
  }
}

// Lists the pieces; returns how many floats the partitions of divided units take.
inline int64_t list_pieces(Plan* plan) {
  const int64_t heads = plan->args->num_kv_heads;
  Piece* piece = plan->pieces;
  int64_t floats = 0;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t u = 0; u < plan->num_units; ++u) {
      const Unit& unit = plan->units[u];
      plan->left[u * heads + head] = static_cast<int32_t>(unit.pieces);
      plan->parts_at[u * heads + head] = floats;
      if (unit.pieces > 1)
        floats += unit.count * unit.queries * plan->group * (plan->args->head_size + 2);
      for (int64_t i = 0; i < unit.pieces; ++i) {
        const int64_t from = unit.count * i / unit.pieces, to = unit.count * (i + 1) / unit.pieces;
        *piece++ = {u, head, unit.first + from, to - from};
      }
    }
  }
  return floats;
}

// The softmax state of rows: sums weighted by e^(s - top).
struct State {
  float *values, *top, *total;  // [rows, D], [rows], [rows]
};
DT_INLINE State state_at(float* memory, int64_t rows, int64_t head_size) {
  return {memory, memory + rows * head_size, memory + rows * (head_size + 1)};
}

DT_INLINE float first(Vec x) {
  float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

// Adds a partition's row to a state's row. A row that saw nothing has total 0.
DT_INLINE void merge_row(const State& state, int64_t row, const float* values, float top,
                         float total, int64_t head_size) {
  if (total == 0) return;
  float* to = state.values + row * head_size;
  if (state.total[row] == 0) {
    memcpy(to, values, head_size * sizeof(float));
    state.top[row] = top;
    state.total[row] = total;
    return;
  }
  const float peak = top > state.top[row] ? top : state.top[row];
  const Vec old = exp(set1(state.top[row] - peak)), fresh = exp(set1(top - peak));
  for (int64_t d = 0; d < head_size; d += kLanes)
    store(to + d, fma(load(values + d), fresh, mul(load(to + d), old)));
  state.total[row] = total * first(fresh) + state.total[row] * first(old);
  state.top[row] = peak;
}

// Divides by the softmax's denominator, where a sink has its share, and stores the row.
inline void finish(const Plan& plan, const Unit& unit, int64_t head, const State& state) {
  const AttentionArgs& args = *plan.args;
  const int64_t rows = unit.queries * plan.group, size = args.head_size;
  int64_t token = args.query_start[unit.row] + unit.query, member = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t q_head = head * plan.group + member;
    float total = state.total[i], factor = 1.0f;
    if (args.lse) args.lse[token * args.num_heads + q_head] = state.top[i] + __builtin_logf(total);
    if (args.sinks) {
      const float sink = args.sinks[q_head];
      const float peak = sink > state.top[i] ? sink : state.top[i];
      float both[kLanes] = {state.top[i] - peak, sink - peak};
      store(both, exp(load(both)));
      factor = both[0];
      total = total * factor + both[1];
    }
    const Vec by = set1(factor / total * plan.value_scale);
    float* out = args.out + (token * args.num_heads + q_head) * size;
    if (++member == plan.group) {
      member = 0;
      ++token;
    }
    const float* from = state.values + i * size;
    for (int64_t d = 0; d < size; d += kLanes) store(out + d, mul(load(from + d), by));
  }
}

DT_INLINE int64_t unpacked_bytes(const Plan& plan) { return plan.layout.scales_at + 2 * kCell * 4; }

// A thread's memory for one piece.
struct Room {
  int64_t tiles;
  int64_t *first, *last;  // [rows]
  Added* added;           // [rows]
  char* q;                // [tiles][kMaxRows][kQueryRow] of four bytes
  float* q_scales;        // [tiles][kMaxRows]
  float *state, *values, *scores;
  int32_t* weights16;
  char* cells;      // [kCells] of int8, where those stored are packed
  uint32_t* masks;  // [kPartition]
};

DT_INLINE bool get_room(const Plan& plan, Room* room) {
  const int64_t size = plan.args->head_size, rows = plan.unit_rows;
  room->tiles = divide_up(rows, kMaxRows);
  const int64_t counts[] = {rows * 8, rows * 8, rows * static_cast<int64_t>(sizeof(Added)),
                            room->tiles * kMaxRows * kQueryRow * 4, room->tiles * kMaxRows * 4,
                            rows * (size + 2) * 4, kMaxRows * size * 4, kMaxRows * kPartition * 4,
                            kMaxRows * kPartition * 2, plan.is_packed * unpacked_bytes(plan) * kCells,
                            plan.is_packed * kPartition * 4};
  int64_t bytes = 0;
  for (const int64_t count : counts) bytes += divide_up(count, 64) * 64;
  char* at = static_cast<char*>(scratch(0, bytes));
  if (!at) return false;
  char* places[11];
  for (int i = 0; i < 11; at += divide_up(counts[i], 64) * 64, ++i) places[i] = at;
  room->first = reinterpret_cast<int64_t*>(places[0]);
  room->last = reinterpret_cast<int64_t*>(places[1]);
  room->added = reinterpret_cast<Added*>(places[2]);
  room->q = places[3];
  room->q_scales = reinterpret_cast<float*>(places[4]);
  room->state = reinterpret_cast<float*>(places[5]);
  room->values = reinterpret_cast<float*>(places[6]);
  room->scores = reinterpret_cast<float*>(places[7]);
  room->weights16 = reinterpret_cast<int32_t*>(places[8]);
  room->cells = places[9];
  room->masks = reinterpret_cast<uint32_t*>(places[10]);
  return true;
}

// The rows that a tile of `rows` real ones is computed with.
DT_INLINE int64_t rows_of_tile(int64_t rows) {
  int64_t found = 0;
  with_rows(static_cast<int>(rows), RowSizes{}, [&](auto r) { found = decltype(r)::value; });
  return found;
}

// How a unit's rows become tiles: as few and as even as can be, each of some size.
struct Tiles {
  int64_t rows, count;
  DT_INLINE explicit Tiles(int64_t rows) : rows(rows), count(divide_up(rows, kMaxRows)) {}
  DT_INLINE int64_t first(int64_t t) const { return rows * t / count; }
};

DT_INLINE Added added_to(const AttentionArgs& args, int64_t head, int64_t position) {
  const int64_t own = head * (2 * args.bias_reach - 1) + args.bias_reach - 1 - position;
  return {args.bias ? args.bias + own : nullptr, args.slopes ? args.slopes[head] : 0.0f, position};
}

template <class F>
void pack_queries(const Plan& plan, const Unit& unit, int64_t head, const Room& room) {
  using Factor = typename F::Factor;
  const AttentionArgs& args = *plan.args;
  const Tiles tiles(unit.queries * plan.group);
  const int64_t size = args.head_size;
  const float* token = args.q + (args.query_start[unit.row] + unit.query) * args.q_stride;
  int64_t n = 0, query = 0, q_head = 0;
  float rotated[kMaxHeadSize];
  for (int64_t t = 0; t < tiles.count; ++t) {
    Factor* to = reinterpret_cast<Factor*>(room.q) + t * kMaxRows * kQueryRow;
    float* scales = room.q_scales + t * kMaxRows;
    int64_t i = 0;
    for (; n < tiles.first(t + 1); ++n, ++i) {
      const float* q = token + (head * plan.group + q_head) * size;
      if (args.rotates) {
        rotate(q, size, query_rotation(size), rotated);
        q = rotated;
      }
      F::pack(q, size, plan.score_scale, to + i * kQueryRow, scales + i);
      const int64_t position = unit.position + query;
      see(args, args.seq_lens[unit.row], position, room.first + n, room.last + n);
      if (args.bias || args.slopes)
        room.added[n] = added_to(args, head * plan.group + q_head, position);
      if (++q_head < plan.group) continue;
      q_head = 0;
      ++query;
      token += args.q_stride;
    }
    for (const int64_t rows = rows_of_tile(i); i < rows; ++i) {
      memset(to + i * kQueryRow, 0, size / F::fold * sizeof(Factor));
      scales[i] = 0;
    }
  }
}

// Where the cells of a partition are, as far as the unit sees them.
DT_INLINE void find_cells(const Plan& plan, const Unit& unit, int64_t head, int64_t base,
                          const char** cells) {
  const AttentionArgs& args = *plan.args;
  const Layout& layout = plan.layout;
  const int64_t first = unit.first_key / kCell * kCell, most = base + plan.partition;
  const int64_t end = unit.end_key < most ? unit.end_key : most;
  int64_t key = first > base ? first : base;
  const auto tokens = static_cast<uint32_t>(args.block_tokens);
  const uint32_t block = static_cast<uint32_t>(key) / tokens;  // 64 bits take three times as long
  const int32_t* blocks = args.block_table + unit.row * args.table_stride + block;
  int64_t left = args.block_tokens - (key - int64_t{block} * tokens);
  const char* at = layout.cell(args.cache, *blocks, head, args.block_tokens - left);
  const char** to = cells + (key - base) / kCell;
  while (key < end) {
    *to++ = at;
    key += kCell;
    left -= kCell;
    at += layout.cell_bytes;
    if (left > 0 || key >= end) continue;
    at = layout.cell(args.cache, *++blocks, head, 0);
    left = args.block_tokens;
  }
}

// Unpacks the cells of a partition that the unit sees, and points to them.
inline void unpack_partition(const Plan& plan, const Unit& unit, int64_t base, const Room& room,
                             Context* context) {
  const int64_t size = plan.args->head_size, most = base + kPartition;
  const PackedCell cell(plan.args->format, size);
  const int64_t end = unit.end_key < most ? unit.end_key : most;
  int64_t key = unit.first_key / kCell * kCell;
  for (key = key > base ? key : base; key < end; key += kCell) {
    const int64_t c = (key - base) / kCell;
    char* to = room.cells + c * unpacked_bytes(plan);
    unpack_cell(context->cells[c], cell, plan.layout, size, to, room.masks + c * kCell);
    context->cells[c] = to;
  }
}

// Merges the partitions of a divided unit, in order.
inline void merge_parts(const Plan& plan, const Unit& unit, int64_t head, float* parts,
                        const State& state) {
  const int64_t size = plan.args->head_size, rows = unit.queries * plan.group;
  for (int64_t i = 0; i < rows; ++i) state.total[i] = 0;
  for (int64_t p = 0; p < unit.count; ++p) {
    const State part = state_at(parts + p * rows * (size + 2), rows, size);
    for (int64_t i = 0; i < rows; ++i)
      merge_row(state, i, part.values + i * size, part.top[i], part.total[i], size);
  }
  finish(plan, unit, head, state);
}

// `after` is the piece that this thread will likely take next, or null: its first cells are asked
// for while the last of this one's are used, since they lie where no machine could guess.
template <class F>
void run_piece(const Plan& plan, const Piece& piece, const Piece* after, const Room& room) {
  const AttentionArgs& args = *plan.args;
  const Unit& unit = plan.units[piece.unit];
  const int64_t size = args.head_size, rows = unit.queries * plan.group;
  const Tiles tiles(rows);
  const int64_t number = piece.unit * args.num_kv_heads + piece.head;
  float* parts = plan.parts + plan.parts_at[number];
  Context context;
  context.head_size = size;
  context.layout = plan.layout;
  context.soft_cap = args.soft_cap;
  context.masks = plan.is_packed ? room.masks : nullptr;
  const State state = state_at(room.state, rows, size);
  for (int64_t i = 0; i < rows; ++i) state.total[i] = 0;
  pack_queries<F>(plan, unit, piece.head, room);
  for (int64_t p = piece.first; p < piece.first + piece.count; ++p) {
    if (p == piece.first) find_cells(plan, unit, piece.head, p * kPartition, context.next);
    memcpy(context.cells, context.next, sizeof context.cells);
    if (p + 1 < piece.first + piece.count)
      find_cells(plan, unit, piece.head, (p + 1) * kPartition, context.next);
    else if (after)
      find_cells(plan, plan.units[after->unit], after->head, after->first * kPartition, context.next);
    if constexpr (!F::has_float_sums) {
      if (plan.is_packed) unpack_partition(plan, unit, p * kPartition, room, &context);
    }
    for (int64_t t = 0; t < tiles.count; ++t) {
      const int64_t start = tiles.first(t);
      Tile tile;
      tile.rows = static_cast<int>(tiles.first(t + 1) - start);
      tile.first = room.first + start;
      tile.last = room.last + start;
      tile.added = args.bias || args.slopes ? room.added + start : nullptr;
      tile.q = room.q + t * kMaxRows * kQueryRow * 4;
      tile.q_scales = room.q_scales + t * kMaxRows;
      tile.scores = room.scores;
      tile.weights16 = room.weights16;
      tile.values = room.values;
      with_rows(tile.rows, RowSizes{}, [&](auto r) {
        attend_partition<F, decltype(r)::value>(context, tile, p * kPartition);
      });
      for (int64_t i = 0; i < tile.rows; ++i) {
        if (unit.pieces == 1) {
          merge_row(state, start + i, tile.values + i * size, tile.top[i], tile.total[i], size);
          continue;
        }
        const State part = state_at(parts + (p - unit.first) * rows * (size + 2), rows, size);
        memcpy(part.values + (start + i) * size, tile.values + i * size, size * sizeof(float));
        part.top[start + i] = tile.top[i];
        part.total[start + i] = tile.total[i];
      }
    }
  }
  if (unit.pieces == 1) return finish(plan, unit, piece.head, state);
  if (__atomic_sub_fetch(&plan.left[number], 1, __ATOMIC_ACQ_REL) == 0)
    merge_parts(plan, unit, piece.head, parts, state);
}

// Plans the call and runs its pieces: run(plan, piece, after) returns false where memory cannot be had.
// `unit` is that of the cache's numbers; units of more than one query have `rows` rows at most. Returns 0,
// or 1 without memory.
template <class Run>
int attend_in_pieces(const AttentionArgs& args, float unit, int64_t rows, int64_t partition, const Run& run) {
  Plan plan{};
  plan.partition = partition;
  plan.args = &args;
  plan.score_scale = args.scale * args.k_scale * unit;
  plan.value_scale = args.v_scale * unit;
  plan.layout = Layout(args);
  plan.is_packed = is_packed(args.format);
  plan.group = args.num_heads / args.num_kv_heads;
  plan.unit_rows = plan.group > rows ? plan.group : rows / plan.group * plan.group;
  const int64_t most = plan.unit_rows / plan.group, heads = args.num_kv_heads;
  int64_t units = 0;
  for (int64_t row = 0; row < args.rows; ++row)
    units += divide_up(args.query_start[row + 1] - args.query_start[row], most);
  plan.units = static_cast<Unit*>(scratch(1, units * sizeof(Unit)));
  if (!plan.units) return 1;
  make_units(&plan);
  divide_units(&plan);
  const int64_t numbers = units * heads;
  char* lists = static_cast<char*>(
      scratch(2, plan.num_pieces * sizeof(Piece) + numbers * (sizeof(int64_t) + sizeof(int32_t))));
  if (!lists) return 1;
  plan.pieces = reinterpret_cast<Piece*>(lists);
  plan.parts_at = reinterpret_cast<int64_t*>(plan.pieces + plan.num_pieces);
  plan.left = reinterpret_cast<int32_t*>(plan.parts_at + numbers);
  plan.parts = static_cast<float*>(scratch(3, list_pieces(&plan) * sizeof(float) + 64));
  if (!plan.parts) return 1;
  int32_t has_failed = 0;
  parallel(plan.num_pieces, [&](int64_t task) {
    const int64_t next = task + 1;
    const Piece* after = next < plan.num_pieces ? &plan.pieces[next] : nullptr;
    if (!run(plan, plan.pieces[task], after)) __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  return has_failed;
}

// Returns 0, or 1 when memory cannot be had.
template <class F>
int attend(const AttentionArgs& args) {
  const auto run = [](const Plan& plan, const Piece& piece, const Piece* after) {
    Room room;
    const bool has_room = get_room(plan, &room);
    if (has_room) run_piece<F>(plan, piece, after, room);
    return has_room;
  };
  return attend_in_pieces(args, F::unit, kUnitRows, kPartition, run);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
