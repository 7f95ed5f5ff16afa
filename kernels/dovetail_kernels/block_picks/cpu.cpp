// block_picks: scores of a query's heads for every key before it, the best of each block of keys, and
// the best blocks.
//
// Work of a query that sees S keys: 2 H D S floating-point operations. Bytes: each key once, S D numbers;
// so with H = 4 heads and bfloat16 4 operations a byte: the floor is memory.
//
// A score's bits depend on its query and its key alone: over the numbers by registers in order, then over
// lanes. What is picked follows from the scores' bits and positions.

#include "block_picks/args.h"
#include "entries.h"
#include "index_picks/best.h"
#include "pool.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int kNearHeads = 4;
constexpr int64_t kTaskKeys = 1024;  // keys that a task scores, at least

// A query: its token, its row, how many keys it sees and how many blocks these are.
struct Query {
  int64_t token, row, seen, blocks;
};

struct Room {
  float *q, *key;  // [H filled up, D filled up], [D filled up]
};

DT_INLINE int64_t filled_up(int64_t count, int64_t by) { return divide_up(count, by) * by; }

bool get_room(const BlockArgs& args, Room* room) {
  const int64_t heads = filled_up(args.num_heads, kNearHeads), size = filled_up(args.head_size, kLanes);
  room->q = static_cast<float*>(scratch(0, (heads + 1) * size * sizeof(float)));
  if (!room->q) return false;
  room->key = room->q + heads * size;
  return true;
}

// Heads that only fill up score nothing that is read.
void pack_query(const BlockArgs& args, int64_t token, const Room& room) {
  const int64_t heads = filled_up(args.num_heads, kNearHeads), size = filled_up(args.head_size, kLanes);
  memset(room.q, 0, static_cast<size_t>(heads * size) * sizeof(float));
  const float* from = args.q + token * args.q_stride;
  for (int64_t h = 0; h < args.num_heads; ++h)
    memcpy(room.q + h * size, from + h * args.head_size, static_cast<size_t>(args.head_size) * sizeof(float));
}

DT_INLINE Vec first_floats(const float* from, int count) { return load_up_to(from, count); }
template <class Entry>
DT_INLINE Vec first_floats(const Entry* from, int count) {
  return load_first(from, count);
}

// best[h] = max(best[h], q[h] . key)
void score_key(const Room& room, int64_t heads, int64_t size, float* best) {
  for (int64_t h = 0; h < heads; h += kNearHeads) {
    Vec sums[kNearHeads];
    repeat<kNearHeads>([&](auto i) { sums[i.value] = zero(); });
    for (int64_t d = 0; d < size; d += kLanes) {
      const Vec part = load(room.key + d);
      repeat<kNearHeads>([&](auto i) {
        sums[i.value] = fma(load(room.q + (h + i.value) * size + d), part, sums[i.value]);
      });
    }
    for (int i = 0; i < kNearHeads && h + i < heads; ++i) {
      const float score = sum(sums[i]) + 0.0f;  // -0 becomes 0
      if (score > best[h + i]) best[h + i] = score;
    }
  }
}

// Scores blocks first .. end - 1 of a query, heads `stride` apart.
template <class Entry>
void score(const BlockArgs& args, const Query& query, int64_t first, int64_t end, const Room& room,
           int64_t stride, float* scores) {
  constexpr int kMostHeads = 64;
  const int64_t size = args.head_size, width = filled_up(size, kLanes), heads = args.num_heads;
  const int32_t* table = args.block_table + query.row * args.table_stride;
  const int64_t own = (query.seen - 1) / args.block_size;
  pack_query(args, query.token, room);
  for (int64_t block = first; block < end; ++block) {
    float best[kMostHeads];
    const bool is_near = block > own - args.num_local;
    for (int64_t h = 0; h < heads; ++h) best[h] = is_near ? __builtin_inff() : -__builtin_inff();
    const int64_t start = block * args.block_size, after = start + args.block_size;
    const int64_t last = after < query.seen ? after : query.seen;
    for (int64_t key = start; key < last && !is_near; ++key) {
      const int64_t at = table[key / args.cache_tokens], offset = key % args.cache_tokens;
      const auto* from = static_cast<const Entry*>(args.cache) + at * args.block_stride + offset * size;
      for (int64_t d = 0; d < width; d += kLanes)
        store(room.key + d, first_floats(from + d, static_cast<int>(size - d < kLanes ? size - d : kLanes)));
      score_key(room, heads, width, best);
    }
    for (int64_t h = 0; h < heads; ++h) scores[h * stride + block] = best[h];
  }
}

// Lists the queries that see more blocks than they pick; writes what the others pick. Returns their number.
int64_t list_queries(const BlockArgs& args, Query* queries) {
  int64_t listed = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t start = args.query_start[row], end = args.query_start[row + 1];
    for (int64_t token = start; token < end; ++token) {
      const int64_t seen = args.seq_lens[row] - (end - 1 - token), blocks = divide_up(seen, args.block_size);
      if (blocks > args.num_picked) {
        queries[listed++] = {token, row, seen, blocks};
        continue;
      }
      int32_t* picks = args.picks + token * args.num_heads * args.num_picked;
      for (int64_t i = 0; i < args.num_heads * args.num_picked; ++i) {
        const int64_t at = i % args.num_picked;
        picks[i] = at < blocks ? static_cast<int32_t>(at) : -1;
      }
    }
  }
  return listed;
}

// Scores and picks for some queries, whose scores lie H `stride` apart. Returns 0, or 1 without memory.
template <class Entry>
int pick_for(const BlockArgs& args, const Query* queries, int64_t count, int64_t stride, float* scores) {
  const int64_t task_blocks = divide_up(kTaskKeys, args.block_size), pieces = divide_up(stride, task_blocks);
  const int64_t heads = args.num_heads;
  int32_t has_failed = 0;
  parallel(count * pieces, [&](int64_t task) {
    const Query& query = queries[task / pieces];
    const int64_t first = task % pieces * task_blocks;
    const int64_t end = first + task_blocks < query.blocks ? first + task_blocks : query.blocks;
    if (first >= end) return;
    Room room;
    if (get_room(args, &room))
      score<Entry>(args, query, first, end, room, stride, scores + task / pieces * heads * stride);
    else
      __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  if (has_failed) return 1;
  parallel(count * heads, [&](int64_t i) {
    const Query& query = queries[i / heads];
    int32_t* picks = args.picks + (query.token * heads + i % heads) * args.num_picked;
    pick(scores + i * stride, query.blocks, args.num_picked, picks);
  });
  return 0;
}

template <class Entry>
int pick_all(const BlockArgs& args) {
  const int64_t tokens = args.query_start[args.rows];
  auto* queries = static_cast<Query*>(scratch(1, tokens * sizeof(Query) + 64));
  if (!queries) return 1;
  const int64_t listed = list_queries(args, queries);
  const auto scores_of = [&](int64_t i) { return queries[i].blocks * args.num_heads; };
  return in_batches(listed, scores_of, [&](int64_t first, int64_t count, int64_t longest) {
    auto* scores = static_cast<float*>(scratch(2, count * longest * sizeof(float)));
    return scores ? pick_for<Entry>(args, queries + first, count, longest / args.num_heads, scores) : 1;
  });
}

}  // namespace

// Returns 0; 1 when memory cannot be had; 2 for a format not known here.
DT_KERNEL(block_picks, BlockArgs) {
  switch (args.format) {
    case kBlockFloat32: return pick_all<float>(args);
    case kBlockBfloat16: return pick_all<Bf16>(args);
    case kBlockFloat16: return pick_all<F16>(args);
    default: return 2;
  }
}
