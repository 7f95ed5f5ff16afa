// index_picks: scores of a query for every key before it, and the positions of the highest.
//
// Work of a query that sees S keys: 2 H D S floating-point operations, and three looks at S scores. Bytes: each
// key once, S D numbers; so with H = 64 heads and bfloat16 64 operations a byte: the floor is the
// multiply-adds. A register holds one number of several heads, so a key's numbers are spread over it, and
// heads are added up last.
//
// A score's bits depend on its query and its key alone: over the numbers in order, then over heads by
// registers, then over lanes. What is picked follows from the scores' bits and positions.

#include "entries.h"
#include "index_picks/args.h"
#include "index_picks/best.h"
#include "pool.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

#if defined(__AVX512F__)
constexpr int kHeadRegisters = 4, kNearKeys = 6;
#else
constexpr int kHeadRegisters = 2, kNearKeys = 4;
#endif
constexpr int64_t kTaskKeys = 1020;        // keys that a task scores, a multiple of kNearKeys
static_assert(kTaskKeys % kNearKeys == 0, "tasks end with whole tiles");

// A query: its token, its row and how many keys it sees.
struct Query {
  int64_t token, row, seen;
};

struct Room {
  float *q, *weights, *keys;  // [D, heads filled up], [heads filled up], [kNearKeys, D filled up]
};

DT_INLINE int64_t filled_up(int64_t count) { return divide_up(count, kLanes) * kLanes; }

bool get_room(const IndexArgs& args, Room* room) {
  const int64_t heads = filled_up(args.num_heads), size = filled_up(args.head_size);
  const int64_t floats = heads * (args.head_size + 1) + kNearKeys * size;
  room->q = static_cast<float*>(scratch(0, floats * sizeof(float)));
  if (!room->q) return false;
  room->weights = room->q + heads * args.head_size;
  room->keys = room->weights + heads;
  return true;
}

// Lays a query's numbers side by side for all heads; heads that only fill up weigh nothing.
void pack_query(const IndexArgs& args, int64_t token, const Room& room) {
  const int64_t heads = filled_up(args.num_heads), size = args.head_size;
  const float* from = args.q + token * args.q_stride;
  const float* weights = args.weights + token * args.weights_stride;
  memset(room.q, 0, static_cast<size_t>(heads * (size + 1)) * sizeof(float));
  for (int64_t h = 0; h < args.num_heads; ++h, from += size) {
    room.weights[h] = weights[h];
    for (int64_t d = 0; d < size; ++d) room.q[d * heads + h] = from[d];
  }
}

// totals[k] += weights * relu(q . keys[k]), of some registers of heads.
template <int kRegisters>
DT_INLINE void add_heads(const float* q, const float* weights, int64_t heads, int64_t size,
                         const float* const* keys, Vec* totals) {
  Vec sums[kRegisters * kNearKeys];
  repeat<kRegisters * kNearKeys>([&](auto i) { sums[i.value] = zero(); });
  for (int64_t d = 0; d < size; ++d, q += heads) {
    Vec part[kRegisters];
    repeat<kRegisters>([&](auto r) { part[r.value] = load(q + r.value * kLanes); });
    repeat<kNearKeys>([&](auto k) {
      const Vec x = set1(keys[k.value][d]);
      repeat<kRegisters>([&](auto r) {
        constexpr int n = k.value * kRegisters + r.value;
        sums[n] = fma(part[r.value], x, sums[n]);
      });
    });
  }
  repeat<kRegisters>([&](auto r) {
    const Vec by = load(weights + r.value * kLanes);
    repeat<kNearKeys>([&](auto k) {
      totals[k.value] = fma(by, max(sums[k.value * kRegisters + r.value], zero()), totals[k.value]);
    });
  });
}

void score_near(const IndexArgs& args, const Room& room, const float* const* keys, float* scores) {
  const int64_t heads = filled_up(args.num_heads), size = args.head_size;
  Vec totals[kNearKeys];
  repeat<kNearKeys>([&](auto k) { totals[k.value] = zero(); });
  int64_t h = 0;
  for (; h + kHeadRegisters * kLanes <= heads; h += kHeadRegisters * kLanes)
    add_heads<kHeadRegisters>(room.q + h, room.weights + h, heads, size, keys, totals);
  for (; h < heads; h += kLanes)
    add_heads<1>(room.q + h, room.weights + h, heads, size, keys, totals);
  for (int k = 0; k < kNearKeys; ++k) scores[k] = sum(totals[k]) + 0.0f;  // -0 becomes 0
}

DT_INLINE const float* key_as_floats(const float* from, int64_t, float*) { return from; }
template <class Entry>
DT_INLINE const float* key_as_floats(const Entry* from, int64_t size, float* to) {
  each_register(size, [&](int64_t i, int count) { store(to + i, load_first(from + i, count)); });
  return to;
}

// Scores keys first .. end - 1 of a query.
template <class Entry>
void score(const IndexArgs& args, const Query& query, int64_t first, int64_t end, const Room& room,
           float* scores) {
  const int64_t size = args.head_size, width = filled_up(size);
  const int32_t* blocks = args.block_table + query.row * args.table_stride;
  pack_query(args, query.token, room);
  for (int64_t key = first; key < end; key += kNearKeys) {
    const int64_t count = end - key < kNearKeys ? end - key : kNearKeys;
    const float* keys[kNearKeys];
    for (int64_t k = 0; k < count; ++k) {
      const int64_t block = blocks[(key + k) / args.block_tokens], offset = (key + k) % args.block_tokens;
      const auto* from = static_cast<const Entry*>(args.cache) + block * args.block_stride + offset * size;
      keys[k] = key_as_floats(from, size, room.keys + k * width);
    }
    for (int64_t k = count; k < kNearKeys; ++k) keys[k] = keys[0];
    float found[kNearKeys];
    score_near(args, room, keys, found);
    memcpy(scores + key, found, static_cast<size_t>(count) * sizeof(float));
  }
}

// Lists the queries that see more keys than they pick; writes what the others pick. Returns their number.
int64_t list_queries(const IndexArgs& args, Query* queries) {
  int64_t listed = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t start = args.query_start[row], end = args.query_start[row + 1];
    for (int64_t token = start; token < end; ++token) {
      const int64_t seen = args.seq_lens[row] - (end - 1 - token);
      if (seen > args.num_picked) {
        queries[listed++] = {token, row, seen};
        continue;
      }
      int32_t* picks = args.picks + token * args.num_picked;
      for (int64_t i = 0; i < args.num_picked; ++i) picks[i] = i < seen ? static_cast<int32_t>(i) : -1;
    }
  }
  return listed;
}

// Scores and picks for some queries, whose scores lie `stride` apart. Returns 0, or 1 without memory.
template <class Entry>
int pick_for(const IndexArgs& args, const Query* queries, int64_t count, int64_t stride, float* scores) {
  const int64_t pieces = divide_up(stride, kTaskKeys);
  int32_t has_failed = 0;
  parallel(count * pieces, [&](int64_t task) {
    const Query& query = queries[task / pieces];
    const int64_t first = task % pieces * kTaskKeys;
    const int64_t end = first + kTaskKeys < query.seen ? first + kTaskKeys : query.seen;
    if (first >= end) return;
    Room room;
    if (get_room(args, &room)) score<Entry>(args, query, first, end, room, scores + task / pieces * stride);
    else __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  if (has_failed) return 1;
  parallel(count, [&](int64_t i) {
    pick(scores + i * stride, queries[i].seen, args.num_picked, args.picks + queries[i].token * args.num_picked);
  });
  return 0;
}

template <class Entry>
int pick_all(const IndexArgs& args) {
  const int64_t tokens = args.query_start[args.rows];
  auto* queries = static_cast<Query*>(scratch(1, tokens * sizeof(Query) + 64));
  if (!queries) return 1;
  const int64_t listed = list_queries(args, queries);
  const auto scores_of = [&](int64_t i) { return queries[i].seen; };
  return in_batches(listed, scores_of, [&](int64_t first, int64_t count, int64_t longest) {
    auto* scores = static_cast<float*>(scratch(2, count * longest * sizeof(float)));
    return scores ? pick_for<Entry>(args, queries + first, count, longest, scores) : 1;
  });
}

}  // namespace

// Returns 0; 1 when memory cannot be had; 2 for a format not known here.
DT_KERNEL(index_picks, IndexArgs) {
  switch (args.format) {
    case kIndexFloat32: return pick_all<float>(args);
    case kIndexBfloat16: return pick_all<Bf16>(args);
    case kIndexFloat16: return pick_all<F16>(args);
    default: return 2;
  }
}
