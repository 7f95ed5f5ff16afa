// One row of logits: its blocks and their largest logits, the tokens above a bound, selection
// without sorting. Nothing here knows parameters of sampling.
#pragma once

#include <float.h>
#include <math.h>

#include "pool.h"
#include "sample/lanes.h"

namespace dt {
namespace DT_ISA {

constexpr int64_t kLargeBlock = 128, kSmallBlock = 32;
constexpr int64_t kLargeVocab = 16384;
constexpr float kInfinity = INFINITY;

// x = (logit - best) * factor; {0, 1} leaves logits as they are.
struct Scale {
  float best = 0.0f, factor = 1.0f;
  DT_INLINE float operator()(float logit) const { return (logit - best) * factor; }
  DT_INLINE Vec operator()(Vec logit) const { return mul(sub(logit, set1(best)), set1(factor)); }
};

// Tokens lie in blocks, which are skipped when their largest logit does not matter.
struct Row {
  const float* logits;
  int64_t vocab, block_tokens, blocks;
  float* maxima;  // [blocks]

  Row(const float* its_logits, int64_t its_vocab, float* its_maxima)
      : logits(its_logits), vocab(its_vocab), block_tokens(tokens_of(its_vocab)),
        blocks(blocks_of(its_vocab)), maxima(its_maxima) {}
  static DT_INLINE int64_t tokens_of(int64_t vocab) {
    return vocab < kLargeVocab ? kSmallBlock : kLargeBlock;
  }
  static DT_INLINE int64_t blocks_of(int64_t vocab) {
    return (vocab + tokens_of(vocab) - 1) / tokens_of(vocab);
  }
  DT_INLINE int64_t begin(int64_t block) const { return block * block_tokens; }
  DT_INLINE int64_t end(int64_t block) const {
    const int64_t all = (block + 1) * block_tokens;
    return all < vocab ? all : vocab;
  }
  // body(Vec logits, int64_t first, int count) over a block; lanes from `count` on are -inf.
  template <class Body>
  DT_INLINE void each(int64_t block, const Body& body) const {
    const int64_t last = end(block);
    int64_t i = begin(block);
    for (; i + kLanes <= last; i += kLanes) body(load(logits + i), i, kLanes);
    if (i < last) {
      const int count = static_cast<int>(last - i);
      body(load_some(logits + i, count, -kInfinity), i, count);
    }
  }
};

// Fills the maxima and returns the largest; NaN if any logit is one.
static inline float scan(const Row& row) {
  float best = -kInfinity;
  Poison poison;
  for (int64_t block = 0; block < row.blocks; ++block) {
    const float* p = row.logits + row.begin(block);
    Vec a = set1(-kInfinity);
    if (row.end(block) - row.begin(block) == row.block_tokens) {
      Vec b = a;
      for (int64_t i = 0; i < row.block_tokens; i += 2 * kLanes) {
        const Vec x = load(p + i), y = load(p + i + kLanes);
        poison.look(x, y);
        a = max(a, x);
        b = max(b, y);
      }
      a = max(a, b);
    } else {
      row.each(block, [&](Vec x, int64_t, int) {
        poison.look(x, x);
        a = max(a, x);
      });
    }
    const float most = largest(a);
    row.maxima[block] = most;
    if (most > best) best = most;
  }
  return poison.is_met() ? NAN : best;
}

// The first token whose logit is `value`, which is the largest.
static inline int64_t first_of(const Row& row, float value) {
  int64_t block = 0;
  while (row.maxima[block] != value) ++block;
  int64_t i = row.begin(block);
  while (row.logits[i] != value) ++i;
  return i;
}

// The weights of a block's tokens with x >= least, in all.
DT_INLINE int64_t block_weight(const Row& row, int64_t block, Scale scale, float least) {
  WholeSum sum;
  const Vec bound = set1(least);
  row.each(block, [&](Vec logit, int64_t, int) {
    const Vec x = scale(logit);
    sum.add(kept(weight(x), x, bound));
  });
  return sum.total();
}

// The same for every block into sums [blocks]; returns the sum of all.
static inline int64_t row_weight(const Row& row, Scale scale, float least, int64_t* sums) {
  const float bound = least > kWeightless ? least : kWeightless;
  int64_t total = 0;
  for (int64_t block = 0; block < row.blocks; ++block) {
    sums[block] = scale(row.maxima[block]) < bound ? 0 : block_weight(row, block, scale, least);
    total += sums[block];
  }
  return total;
}

// Writes x, and unless `ids` is null the token, of every token with x >= bound. Returns how many.
// `found` needs room for a register more.
static inline int64_t gather(const Row& row, Scale scale, float bound, float* found, int32_t* ids) {
  int64_t n = 0;
  const Vec least = set1(bound);
  for (int64_t block = 0; block < row.blocks; ++block) {
    if (scale(row.maxima[block]) < bound) continue;
    row.each(block, [&](Vec logit, int64_t first, int count) {
      const Vec x = scale(logit);
      uint32_t mask = at_least(x, least) & ((1u << count) - 1);
      const int64_t start = n;
      n += pack(found + n, x, mask);
      if (!ids) return;
      for (int64_t i = start; mask; mask &= mask - 1)
        ids[i++] = static_cast<int32_t>(first + __builtin_ctz(mask));
    });
  }
  return n;
}

// Weights of n floats x <= 0, whose buffers end on a full register. Returns their sum.
static inline int64_t weigh(const float* x, int64_t n, float* weights) {
  int64_t total = 0;
  for (int64_t start = 0; start < n; start += kLargeBlock) {
    WholeSum sum;
    const int64_t last = start + kLargeBlock < n ? start + kLargeBlock : n;
    for (int64_t i = start; i < last; i += kLanes) {
      const bool is_full = i + kLanes <= n;
      const Vec w = weight(is_full ? load(x + i) : load_some(x + i, int(n - i), -kInfinity));
      store(weights + i, w);
      sum.add(w);
    }
    total += sum.total();
  }
  return total;
}

// Up to kSample of n floats, the largest first, with their weights.
struct Sample {
  static constexpr int kSample = 16;
  float x[kSample] = {};
  double weights[kSample], all = 0.0;
  int size = 0;

  Sample(const float* from, const float* from_weights, int64_t n) {
    const int64_t step = n < kSample ? 1 : n / kSample;
    for (int64_t i = step / 2; i < n && size < kSample; i += step) {
      const double weight = from_weights ? static_cast<double>(from_weights[i]) : 1.0;
      int place = size++;
      for (; place > 0 && x[place - 1] < from[i]; --place) {
        x[place] = x[place - 1];
        weights[place] = weights[place - 1];
      }
      x[place] = from[i];
      weights[place] = weight;
      all += weight;
    }
  }
  // The float above which `share` of the weight lies, or the next one away from the nearer end, so
  // that what is looked at afterwards is most likely the smaller part.
  DT_INLINE float at(double share) const {
    int place = 0;
    for (double sum = weights[0]; place < size - 1 && sum < all * share; sum += weights[place])
      ++place;
    place += share < 0.5 ? 1 : -1;
    return x[place < 0 ? 0 : place >= size ? size - 1 : place];
  }
};

// The weights of those of n floats that are at least, and at most, `bound`.
struct Split {
  static constexpr int64_t kPiece = 4096;  // weights whose sum is below 2^53
  int64_t at_least_it = 0, at_most_it = 0;

  Split(const float* x, const float* weights, int64_t n, float bound) {
    const Vec middle = set1(bound);
    for (int64_t start = 0; start < n; start += kPiece) {
      const int64_t last = start + kPiece < n ? start + kPiece : n;
      WholeSum high, low;
      for (int64_t i = start; i < last; i += kLanes) {
        const bool is_full = i + kLanes <= n;
        const Vec v = is_full ? load(x + i) : load_some(x + i, static_cast<int>(n - i), NAN);
        if (weights) {
          const Vec w = load(weights + i);
          high.add(kept(w, v, middle));
          low.add(kept(w, middle, v));
        } else {
          at_least_it += __builtin_popcount(at_least(v, middle));
          at_most_it += __builtin_popcount(at_least(middle, v));
        }
      }
      at_least_it += high.total();
      at_most_it += low.total();
    }
  }
};

// Takes over the floats above `bound`, or below it, with their weights. Returns how many. The
// targets may be the sources, and need room for a register more.
static inline int64_t take_side(const float* x, const float* weights, int64_t n, float bound,
                                bool is_above, float* to_x, float* to_weights) {
  const Vec middle = set1(bound);
  int64_t left = 0;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int count = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const Vec v = count == kLanes ? load(x + i) : load_some(x + i, count, bound);
    const uint32_t all = (1u << kLanes) - 1;
    const uint32_t mask = ~(is_above ? at_least(middle, v) : at_least(v, middle)) & all;
    if (weights) pack(to_weights + left, load(weights + i), mask);
    left += pack(to_x + left, v, mask);
  }
  return left;
}

struct Cut {
  float value;   // the largest v for which the weights of all x >= v reach the goal
  int64_t rest;  // what the x > v leave of the goal
};

// Where n floats that weigh `all` together (`weights` null: each weighs 1) reach a goal from 1 to
// `all`, from the largest down. Narrows down around a float chosen by a sample; the spare buffers
// take what is looked at next. Weights are readable up to a full register.
static inline Cut select(const float* x, const float* weights, int64_t n, int64_t all, int64_t goal,
                         float* spare_x, float* spare_weights) {
  for (;;) {
    const double share = static_cast<double>(goal) / static_cast<double>(all);
    const float middle = Sample(x, weights, n).at(share);
    const Split split(x, weights, n, middle);
    const int64_t above = all - split.at_most_it;
    if (above < goal && goal <= split.at_least_it) return {middle, goal - above};
    const bool is_above = goal <= above;
    n = take_side(x, weights, n, middle, is_above, spare_x, spare_weights);
    all = is_above ? above : all - split.at_least_it;
    if (!is_above) goal -= split.at_least_it;
    x = spare_x;
    if (weights) weights = spare_weights;
  }
}

// The n-th largest of the blocks' maxima as x, which at least n tokens reach; -inf: too few blocks.
static inline float nth_maximum(const Row& row, Scale scale, int64_t n, float* spare) {
  if (n > row.blocks) return -kInfinity;
  return scale(select(row.maxima, nullptr, row.blocks, row.blocks, n, spare, nullptr).value);
}

}  // namespace DT_ISA
}  // namespace dt
