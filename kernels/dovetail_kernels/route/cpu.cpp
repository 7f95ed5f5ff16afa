// route: each token's experts and their weights.
//
// Bytes: X floats read a token. Work: an exponential an expert, and A + 1 looks at X values.

#include <string.h>

#include "rows.h"
#include "route/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kCost = 16;  // a score's work, in values moved

// Fills likely[X] from a token's scores.
void softmax(const float* scores, int64_t size, float* likely) {
  Vec most = set1(-INFINITY);
  each_register(size, [&](int64_t i, int count) {
    most = max(most, count == kLanes ? load(scores + i) : load_some(scores + i, count, -INFINITY));
  });
  const Vec top = set1(largest(most));
  each_register(size, [&](int64_t i, int count) {
    store_up_to(likely + i, count, exp(sub(load_up_to(scores + i, count), top)));
  });
  const float total = ordered_sum(size, [&](Vec sum, int64_t i, int count) {
    return add(sum, load_up_to(likely + i, count));
  });
  each_register(size, [&](int64_t i, int count) {
    store_up_to(likely + i, count, div(load_up_to(likely + i, count), set1(total)));
  });
}

// exp() makes a number of everything. A score that is not one, or a largest that is infinite, spoils all of a
// softmax; of sigmoids only its own.
void spoil(const RouteArgs& args, const float* scores, float* likely) {
  bool is_spoilt = false;
  float most = -INFINITY;
  for (int64_t e = 0; e < args.num_experts; ++e) {
    is_spoilt |= scores[e] != scores[e];
    most = scores[e] > most ? scores[e] : most;
  }
  is_spoilt |= !args.is_sigmoid && (most == INFINITY || most == -INFINITY);
  for (int64_t e = 0; is_spoilt && e < args.num_experts; ++e)
    if (!args.is_sigmoid || scores[e] != scores[e]) likely[e] = NAN;
}

void sigmoids(const float* scores, int64_t size, float* likely) {
  const Vec one = set1(1.0f);
  each_register(size, [&](int64_t i, int count) {
    const Vec x = load_up_to(scores + i, count);
    store_up_to(likely + i, count, div(one, add(one, exp(sub(zero(), x)))));
  });
}

// The first of the largest values; -1 where none is a number.
int64_t first_of_largest(const float* values, int64_t size) {
  Vec most = set1(-INFINITY);
  each_register(size, [&](int64_t i, int count) {
    most = max(count == kLanes ? load(values + i) : load_some(values + i, count, -INFINITY), most);
  });
  const float top = largest(most);
  for (int64_t i = 0; i < size; ++i)
    if (values[i] == top) return i;
  return -1;
}

// A group's score.
float score_of(const float* values, int64_t size, bool adds_two) {
  float best = -INFINITY, second = -INFINITY;
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] > best) second = best, best = values[i];
    else if (values[i] > second) second = values[i];
  }
  return adds_two && size > 1 ? best + second : best;
}

// Makes the values of groups that are not kept -inf; `scores` has room for one a group.
void keep_groups(const RouteArgs& args, float* values, float* scores) {
  const int64_t size = args.num_experts / args.num_groups;
  for (int64_t g = 0; g < args.num_groups; ++g) scores[g] = score_of(values + g * size, size, args.adds_two);
  for (int64_t g = 0; g < args.num_groups; ++g) {
    int64_t before = 0;
    for (int64_t other = 0; other < args.num_groups; ++other)
      before += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
    if (before < args.num_kept_groups) continue;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) values[i] = -INFINITY;
  }
}

bool holds(const int64_t* experts, int64_t count, int64_t expert) {
  for (int64_t a = 0; a < count; ++a)
    if (experts[a] == expert) return true;
  return false;
}

// Writes the experts of the largest values, which become -inf. Where no number is left, those not yet
// picked come in their order: a token's experts are always different ones.
void pick(const RouteArgs& args, float* values, int64_t* experts) {
  for (int64_t a = 0; a < args.picked; ++a) {
    int64_t found = first_of_largest(values, args.num_experts);
    if (found < 0 || values[found] == -INFINITY)
      for (found = 0; holds(experts, a, found);) ++found;
    experts[a] = found;
    values[found] = -INFINITY;
  }
}

void weigh(const RouteArgs& args, const float* likely, const int64_t* experts, float* weights) {
  float total = 0.0f;
  for (int64_t a = 0; a < args.picked; ++a) total += weights[a] = likely[experts[a]];
  if (total < args.least_sum) total = args.least_sum;
  for (int64_t a = 0; a < args.picked; ++a)
    weights[a] = (args.renormalizes ? weights[a] / total : weights[a]) * args.factor;
}

// `likely` has room for 2 X + groups values.
void route(const RouteArgs& args, int64_t token, float* likely) {
  const float* scores = args.scores + token * args.scores_stride;
  float *values = likely + args.num_experts, *groups = values + args.num_experts;
  if (args.is_sigmoid) sigmoids(scores, args.num_experts, likely);
  else softmax(scores, args.num_experts, likely);
  spoil(args, scores, likely);
  memcpy(values, likely, args.num_experts * sizeof(float));
  if (args.bias) add_row(values, args.bias, args.num_experts);
  if (args.num_kept_groups < args.num_groups) keep_groups(args, values, groups);
  int64_t* experts = args.experts + token * args.picked;
  pick(args, values, experts);
  weigh(args, likely, experts, args.weights + token * args.picked);
}

}  // namespace

// Returns 0; 1 when there is no memory; 2 when more experts are to be picked than there are.
DT_KERNEL(route, RouteArgs) {
  if (args.picked > args.num_experts) return 2;
  int failed = 0;
  each_row(args.tokens, args.num_experts, [&](int64_t token) {
    auto* values = static_cast<float*>(scratch(0, (2 * args.num_experts + args.num_groups) * sizeof(float)));
    if (values) route(args, token, values);
    else __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
  }, kCost);
  return failed;
}
