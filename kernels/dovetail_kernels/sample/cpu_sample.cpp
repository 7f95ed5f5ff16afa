// Sampling: penalties, best token, top-k, top-p and min-p, the draw, logprobs; rows in parallel.
//
// Moved per row: V floats are read from memory once (4 V bytes) and again from the cache where
// their block may hold a token that counts. Arithmetic: a maximum a float, and e^x (20 operations)
// a float of the blocks that reach the bound: all of them for a plain draw or top-p alone, a few
// for top-k, min-p and greedy rows. So the floor is max(4 V bytes / read bandwidth, 25 V operations
// / float operations a second). No order of tokens is ever made: the token at which top-k or top-p
// stops is selected among those above a bound which the blocks' maxima give.

#include "sample/args.h"
#include "sample/logprobs.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr double kMassSlack = 1e-12;
constexpr int64_t kProbe = 64;  // blocks whose maxima give the first bound for top-p

// Buffers of one thread for rows of a vocabulary.
struct Buffers {
  float *maxima, *found, *weights, *spare_x, *spare_weights, *saved;
  int64_t* sums;
  // `saved_floats`: room for the logits that penalties change.
  bool take(int64_t vocab, int64_t blocks, int64_t saved_floats) {
    const size_t row = static_cast<size_t>(vocab + kLargeBlock) * sizeof(float);
    maxima = static_cast<float*>(scratch(0, static_cast<size_t>(blocks) * 12 + 64));
    found = static_cast<float*>(scratch(1, 2 * row));
    spare_x = static_cast<float*>(scratch(2, 2 * row));
    saved = static_cast<float*>(scratch(3, static_cast<size_t>(saved_floats) * sizeof(float) + 64));
    if (!maxima || !found || !spare_x || !saved) return false;
    weights = found + vocab + kLargeBlock;
    spare_weights = spare_x + vocab + kLargeBlock;
    sums = reinterpret_cast<int64_t*>(maxima + (blocks + 1) / 2 * 2);
    return true;
  }
};

struct Wish {
  int64_t top_k;
  double top_p;
  float least, factor;
  uint64_t seed, position;
};

uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double uniform_of(uint64_t seed, uint64_t position) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
  const uint64_t bits = mixed(mixed(seed + kGolden) + kGolden * (position + 1));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t goal_of(int64_t total, double top_p) {
  const int64_t goal = static_cast<int64_t>(ceil(static_cast<double>(total) * (top_p - kMassSlack)));
  return goal < 1 ? 1 : goal;
}

// The bound that top-k gives, and within it top-p.
float bound_of_top_k(const Row& row, const Wish& wish, Scale scale, const Buffers& own) {
  const float start = nth_maximum(row, scale, wish.top_k, own.spare_x);
  float bound = wish.least > start ? wish.least : start;
  if (bound < -FLT_MAX) bound = -FLT_MAX;
  const int64_t n = gather(row, scale, bound, own.found, nullptr);
  const bool is_short = n < wish.top_k;
  Cut cut = {wish.least, 0};
  if (!is_short) cut = select(own.found, nullptr, n, n, wish.top_k, own.spare_x, nullptr);
  if (wish.top_p >= 1.0) return cut.value;
  const int64_t all = weigh(own.found, n, own.weights);
  int64_t total = all;
  if (!is_short) {
    total = 0;
    int64_t tied = cut.rest;
    for (int64_t i = 0; i < n; ++i) {
      if (own.found[i] > cut.value || (own.found[i] == cut.value && tied-- > 0))
        total += static_cast<int64_t>(own.weights[i]);
    }
  }
  const int64_t goal = goal_of(total, wish.top_p);
  return select(own.found, own.weights, n, all, goal, own.spare_x, own.spare_weights).value;
}

// The bound that top-p gives on its own. Leaves the weights of blocks in own.sums.
float bound_of_top_p(const Row& row, const Wish& wish, Scale scale, const Buffers& own) {
  const int64_t total = row_weight(row, scale, wish.least, own.sums);
  const int64_t goal = goal_of(total, wish.top_p);
  float bound = nth_maximum(row, scale, kProbe, own.spare_x);
  int64_t n = 0, weight = 0;
  if (bound > wish.least) {
    n = gather(row, scale, bound, own.found, nullptr);
    weight = weigh(own.found, n, own.weights);
  }
  if (weight < goal) {
    // Tokens that weigh less than an even share of what top-p leaves out cannot be where it stops.
    const double share = (static_cast<double>(total - goal) / static_cast<double>(row.vocab)) - 1.0;
    bound = share < 2.0 ? kWeightless : static_cast<float>(log(share * 0x1p-40) - 0.01);
    if (bound < wish.least) bound = wish.least;
    if (bound < kWeightless) bound = kWeightless;
    n = gather(row, scale, bound, own.found, nullptr);
    weight = weigh(own.found, n, own.weights);
  }
  return select(own.found, own.weights, n, weight, goal, own.spare_x, own.spare_weights).value;
}

// The token whose weight, summed in the order of ids over x >= least, reaches past the target.
int64_t draw(const Row& row, Scale scale, float least, double uniform, int64_t total,
             const int64_t* sums) {
  int64_t target = static_cast<int64_t>(static_cast<double>(total) * uniform);
  if (target > total - 1) target = total - 1;
  int64_t block = 0;
  while (target >= sums[block]) target -= sums[block++];
  int64_t token = -1;
  const Vec bound = set1(least);
  row.each(block, [&](Vec logit, int64_t first, int count) {
    const Vec x = scale(logit);
    float lanes[kLanes];
    store(lanes, kept(weight(x), x, bound));
    for (int i = 0; i < count && token < 0; ++i) {
      target -= static_cast<int64_t>(lanes[i]);
      if (target < 0) token = first + i;
    }
  });
  return token;
}

int64_t draw_row(const Row& row, const Wish& wish, float best, const Buffers& own) {
  const Scale scale = {best, wish.factor};
  float least = wish.least;
  const bool is_top_k = wish.top_k > 0 && wish.top_k < row.vocab;
  if (is_top_k) least = bound_of_top_k(row, wish, scale, own);
  else if (wish.top_p < 1.0) least = bound_of_top_p(row, wish, scale, own);
  const int64_t total = row_weight(row, scale, least, own.sums);
  return draw(row, scale, least, uniform_of(wish.seed, wish.position), total, own.sums);
}

// Penalises the seen tokens of a row in place, keeping their logits in `saved`.
void penalise(const RowTables& tables, int64_t number, float* logits, float* saved) {
  const int32_t* ids = tables.seen_ids[number];
  const float* counts = tables.seen_counts[number];
  const float repetition = tables.repetition[number], frequency = tables.frequency[number];
  const float presence = tables.presence[number];
  for (int64_t i = 0; i < tables.num_seen[number]; ++i) {
    const float value = saved[i] = logits[ids[i]];
    const float repeated = value > 0.0f ? value / repetition : value * repetition;
    logits[ids[i]] = repeated - (frequency * counts[i] + presence * (counts[i] > 0.0f ? 1.0f : 0.0f));
  }
}

void restore(const RowTables& tables, int64_t number, float* logits, const float* saved) {
  const int32_t* ids = tables.seen_ids[number];
  for (int64_t i = 0; i < tables.num_seen[number]; ++i) logits[ids[i]] = saved[i];
}

void record(const RowTables& tables, int64_t number, int64_t token) {
  constexpr int64_t kStride = 16;
  int32_t* ids = tables.seen_ids[number];
  float* counts = tables.seen_counts[number];
  const int64_t n = tables.num_seen[number];
  const int32_t id = static_cast<int32_t>(token);
  int64_t i = 0;
  for (; i + kStride <= n; i += kStride) {
    int32_t is_here = 0;
    for (int64_t j = 0; j < kStride; ++j) is_here |= ids[i + j] == id;
    if (is_here) break;
  }
  while (i < n && ids[i] != id) ++i;
  if (i == n) {
    ids[n] = id;
    counts[n] = 0.0f;
    tables.num_seen[number] = n + 1;
  }
  counts[i] += 1.0f;
}

struct Told {
  double* logprob;
  int64_t* rank;
  int64_t* top_ids;
  double* top_logprobs;
};

// Logprobs of a row whose maxima are known. Overwrites the buffers.
void tell(const Row& row, float best, int64_t token, int64_t num_top, const Buffers& own, Told told) {
  const int64_t total = row_weight(row, Scale{best, 1.0f}, -kInfinity, own.sums);
  const double norm = log(static_cast<double>(total) * 0x1p-40) + static_cast<double>(best);
  const float chosen = row.logits[token];
  *told.logprob = clamped(static_cast<double>(chosen) - norm);
  *told.rank = 1 + count_above(row, chosen);
  if (num_top <= 0) return;
  int32_t* ids = reinterpret_cast<int32_t*>(own.weights);
  float values[kMaxTop];
  top_tokens(row, num_top, own.found, ids, own.spare_x, values);
  for (int64_t i = 0; i < num_top; ++i) {
    told.top_ids[i] = ids[i];
    told.top_logprobs[i] = clamped(static_cast<double>(values[i]) - norm);
  }
}

void sample_row(const SampleArgs& args, int64_t index, const Buffers& own) {
  const RowTables& tables = args.tables;
  const int64_t number = args.rows[index];
  float* logits = const_cast<float*>(args.logits) + index * args.vocab;
  const Row row(logits, args.vocab, own.maxima);
  const bool is_penalised = tables.num_seen[number] >= 0;
  if (is_penalised) penalise(tables, number, logits, own.saved);
  const float best = args.best[index] = args.raw_best[index] = scan(row);
  const bool is_finite = best - best == 0.0f;
  int64_t token = 0;
  const float factor = tables.inverse_temperature[number];
  if (is_finite && factor == 0.0f) {
    token = first_of(row, best);
  } else if (is_finite) {
    const Wish wish = {tables.top_k[number], tables.top_p[number], tables.least[number], factor,
                       tables.seed[number], static_cast<uint64_t>(args.positions[index])};
    token = draw_row(row, wish, best, own);
  }
  args.tokens[index] = token;
  float raw_best = best;
  const bool wants_logprobs = tables.num_top[number] >= 0 && !args.skips_logprobs && is_finite;
  if (is_penalised) {
    restore(tables, number, logits, own.saved);
    if (wants_logprobs || !is_finite) args.raw_best[index] = raw_best = scan(row);
    if (is_finite) record(tables, number, token);
  }
  if (!wants_logprobs) return;
  tell(row, raw_best, token, tables.num_top[number], own,
       {args.logprob + index, args.rank + index, args.top_ids + index * args.top_stride,
        args.top_logprobs + index * args.top_stride});
}

}  // namespace

// Returns 0, or 1 when memory for a row cannot be had. Logits are as before afterwards; what was
// drawn is recorded in the tables of rows with penalties.
DT_KERNEL(sample, SampleArgs) {
  const int64_t blocks = Row::blocks_of(args.vocab);
  int32_t has_failed = 0;
  parallel(args.count, [&](int64_t index) {
    const int64_t seen = args.tables.num_seen[args.rows[index]];
    Buffers own;
    if (own.take(args.vocab, blocks, seen > 0 ? seen : 0)) sample_row(args, index, own);
    else __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
  });
  return has_failed;
}

// Returns 0, or 1 when memory for a row cannot be had.
DT_KERNEL(sample_logprobs, LogprobArgs) {
  const int64_t blocks = Row::blocks_of(args.vocab);
  int32_t has_failed = 0;
  parallel(args.count, [&](int64_t index) {
    Buffers own;
    if (!own.take(args.vocab, blocks, 0)) {
      __atomic_store_n(&has_failed, 1, __ATOMIC_RELAXED);
      return;
    }
    const Row row(args.logits + index * args.vocab, args.vocab, own.maxima);
    const float best = scan(row);
    if (best - best != 0.0f) return;  // nothing can be said; results stay as they are
    tell(row, best, args.tokens[index], args.num_top[index], own,
         {args.logprob + index, args.rank + index, args.top_ids + index * args.top_stride,
          args.top_logprobs + index * args.top_stride});
  });
  return has_failed;
}
