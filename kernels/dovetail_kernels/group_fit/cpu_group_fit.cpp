// group_fit, some rows at a time; a lane has a group.
//
// Bytes: the matrix once, the results once. Operations: 11 for a weight and candidate, which are the floor.
// Nothing is contracted and sums go in order: every instruction set has the same bits, torch too.

#include <math.h>
#include <string.h>

#include "gemm/args.h"
#include "group_fit/args.h"
#include "pool.h"
#include "vector.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr float kHighestCode = 127.0f;
constexpr float kSingular = 1e-6f;  // share of its terms below which a determinant is only rounding
constexpr float kSmallestHalf = 1.0f / (1 << 20), kLargestHalf = 60000.0f;
constexpr int64_t kTaskRows = 4;

struct Lanes {
  alignas(64) float at[kLanes];
  DT_INLINE float& operator[](int i) { return at[i]; }
  DT_INLINE float operator[](int i) const { return at[i]; }
  DT_INLINE Vec vec() const { return load(at); }
  DT_INLINE void set(Vec x) { store(at, x); }
};

DT_INLINE float inverse(float x) { return x != 0.0f ? 1.0f / x : 0.0f; }

// The step of codes up to kHighestCode: a half where halves are fine enough.
DT_INLINE float step_of(float largest) {
  const float step = largest / kHighestCode;
  return step >= kSmallestHalf && step <= kLargestHalf ? f16_to_float(float_to_f16(step)) : step;
}
DT_INLINE float code_of(float x, float step) {
  const float code = nearbyintf(x * inverse(step));
  return code < -kHighestCode ? -kHighestCode : code > kHighestCode ? kHighestCode : code;
}

// kLanes groups of a row: input i of each is x[i * kLanes ..].
struct Columns {
  const float *x, *w;
  int64_t size;
  template <class Body> DT_INLINE void each(const Body& body) const {
    for (int64_t i = 0; i < size; ++i) body(load(x + i * kLanes), load(w + i * kLanes));
  }
};

// The levels that a weight may become.
struct Levels {
  Vec low, high;
  DT_INLINE Vec operator()(Vec x) const { return min(max(nearest(x), low), high); }
};

struct Row {
  const GroupFitArgs& args;
  int64_t groups, runs, chunks;
  float *plain, *x, *w, *scale, *offset;
  Levels levels;
  bool has_offsets;

  DT_INLINE explicit Row(const GroupFitArgs& args)
      : args(args), groups(divide_up(args.inputs, args.group)), runs(divide_up(groups, args.run)),
        chunks(divide_up(groups, kLanes)), has_offsets(args.offsets) {
    const float half = static_cast<float>(1 << (args.bits - 1));
    levels = has_offsets ? Levels{zero(), set1(2 * half - 1)} : Levels{set1(-half), set1(half - 1)};
    const int64_t padded = chunks * kLanes * args.group;
    plain = static_cast<float*>(scratch(0, (3 * padded + 2 * chunks * kLanes) * sizeof(float)));
    if (!plain) return;
    x = plain + padded, w = x + padded, scale = w + padded, offset = scale + chunks * kLanes;
    memset(plain, 0, padded * sizeof(float));
    memset(w, 0, padded * sizeof(float));
    turn_ones();
  }

  DT_INLINE Columns columns(int64_t chunk) const {
    const int64_t at = chunk * kLanes * args.group;
    return {x + at, w + at, args.group};
  }

  // Where input k of the row is in x and in w.
  DT_INLINE int64_t place(int64_t k) const {
    const int64_t group = k / args.group, i = k % args.group;
    return (group / kLanes * args.group + i) * kLanes + group % kLanes;
  }
  void turn_ones() const {
    for (int64_t k = 0; k < args.inputs; ++k) w[place(k)] = args.importances ? args.importances[k] : 1.0f;
  }

  void read(int64_t row) const {
    const int64_t first = row * args.inputs;
    const auto copy = [&](const auto* from, const auto& wide) __attribute__((always_inline)) {
      for (int64_t k = 0; k < args.inputs; ++k) plain[k] = wide(from[first + k]);
    };
    if (args.format == kBfloat16) copy(static_cast<const bf16*>(args.weight), bf16_to_float);
    else if (args.format == kFloat16) read_halves(static_cast<const f16*>(args.weight) + first);
    else copy(static_cast<const float*>(args.weight), [](float value) { return value; });
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int lane = 0; lane < kLanes; ++lane) {
        const float* from = plain + (chunk * kLanes + lane) * args.group;
        float* to = x + chunk * kLanes * args.group + lane;
        for (int64_t i = 0; i < args.group; ++i) to[i * kLanes] = from[i];
      }
  }
  DT_INLINE void read_halves(const f16* from) const {
    int64_t k = 0;
    for (; k + kLanes <= args.inputs; k += kLanes) store(plain + k, load_f16(from + k));
    for (; k < args.inputs; ++k) plain[k] = f16_to_float(from[k]);
  }

  // The best scale and offset of every group, in floats.
  void search() const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      if (has_offsets) search_ranges(columns(chunk), scale + chunk * kLanes, offset + chunk * kLanes);
      else search_scales(columns(chunk), scale + chunk * kLanes);
    }
  }
  DT_INLINE static void ends_of(const Columns& group, Lanes& low, Lanes& high) {
    Vec least = load(group.x), most = least;
    group.each([&](Vec value, Vec) __attribute__((always_inline)) {
      least = min(least, value), most = max(most, value);
    });
    low.set(least), high.set(most);
  }
  DT_INLINE void search_scales(const Columns& group, float* best) const {
    Lanes low, high, score, dots, norms;
    ends_of(group, low, high);
    Lanes peak;
    for (int i = 0; i < kLanes; ++i) {
      peak[i] = inverse(high[i] > -low[i] ? high[i] : low[i]);
      best[i] = score[i] = 0.0f;
    }
    for (int64_t end = 0; end < args.num_ends; ++end) {
      const Vec factor = mul(peak.vec(), set1(args.ends[end]));
      Vec dot = zero(), norm = zero();
      group.each([&](Vec value, Vec weight) __attribute__((always_inline)) {
        const Vec level = levels(mul(value, factor)), weighted = mul(weight, level);
        dot = add(dot, mul(weighted, value)), norm = add(norm, mul(weighted, level));
      });
      dots.set(dot), norms.set(norm);
      for (int i = 0; i < kLanes; ++i) {
        const float found = dots[i] * inverse(norms[i]), gain = dots[i] * found;
        const bool is_better = gain > score[i];
        best[i] = is_better ? found : best[i];
        score[i] = is_better ? gain : score[i];
      }
    }
  }
  DT_INLINE void search_ranges(const Columns& group, float* best, float* best_offset) const {
    Lanes low, high, span, totals, sums, score, dots, firsts, seconds;
    ends_of(group, low, high);
    Vec total = zero(), sum = zero();
    group.each([&](Vec value, Vec weight) __attribute__((always_inline)) {
      total = add(total, weight), sum = add(sum, mul(weight, value));
    });
    totals.set(total), sums.set(sum);
    for (int i = 0; i < kLanes; ++i) {
      span[i] = inverse(high[i] - low[i]);
      score[i] = -INFINITY, best[i] = best_offset[i] = 0.0f;
    }
    const Vec least = low.vec();
    for (int64_t end = 0; end < args.num_ends; ++end) {
      const Vec factor = mul(span.vec(), set1(args.ends[end]));
      Vec dot = zero(), first = zero(), second = zero();
      group.each([&](Vec value, Vec weight) __attribute__((always_inline)) {
        const Vec level = levels(mul(sub(value, least), factor)), weighted = mul(weight, level);
        dot = add(dot, mul(weighted, value)), first = add(first, weighted);
        second = add(second, mul(weighted, level));
      });
      dots.set(dot), firsts.set(first), seconds.set(second);
      for (int i = 0; i < kLanes; ++i) {
        const float area = totals[i] * seconds[i], det = area - firsts[i] * firsts[i];
        const float turned = det > kSingular * area ? 1.0f / det : 0.0f;
        const float found = (totals[i] * dots[i] - firsts[i] * sums[i]) * turned;
        const float added = turned != 0.0f ? (seconds[i] * sums[i] - firsts[i] * dots[i]) * turned
                                           : sums[i] * inverse(totals[i]);
        const float gain = found * dots[i] + added * sums[i];
        const bool is_better = gain > score[i];
        best[i] = is_better ? found : best[i];
        best_offset[i] = is_better ? added : best_offset[i];
        score[i] = is_better ? gain : score[i];
      }
    }
  }

  // Steps of runs; scales and offsets become codes.
  void code(int64_t row) const {
    to_codes(scale, args.steps + row * runs);
    if (has_offsets) to_codes(offset, args.offset_steps + row * runs);
  }
  DT_INLINE void to_codes(float* found, float* steps) const {
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t first = run * args.run, end = first + args.run, stop = end < groups ? end : groups;
      float largest = 0.0f;
      for (int64_t g = first; g < stop; ++g) largest = fabsf(found[g]) > largest ? fabsf(found[g]) : largest;
      steps[run] = step_of(largest);
      for (int64_t g = first; g < stop; ++g) found[g] = code_of(found[g], steps[run]);
    }
    for (int64_t g = groups; g < chunks * kLanes; ++g) found[g] = 0.0f;
  }

  // The code, or one of its neighbours, whichever has the least error, and the offset's that goes with it.
  void refine(int64_t row) const {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      Lanes steps, offset_steps, smallest, codes, offsets, tried, factor, other, error;
      const int64_t at = chunk * kLanes;
      for (int i = 0; i < kLanes; ++i) {
        const int64_t g = at + i < groups ? at + i : groups - 1, run = row * runs + g / args.run;
        steps[i] = args.steps[run], offset_steps[i] = has_offsets ? args.offset_steps[run] : 0.0f;
        smallest[i] = INFINITY;
        codes[i] = scale[at + i], offsets[i] = has_offsets ? offset[at + i] : 0.0f;
      }
      const Columns group = columns(chunk);
      for (int turn = 0; turn < 3; ++turn) {
        const float change = turn == 0 ? 0.0f : turn == 1 ? -1.0f : 1.0f;
        for (int i = 0; i < kLanes; ++i) {
          const float moved = codes[i] + change;
          tried[i] = moved < -kHighestCode ? -kHighestCode : moved > kHighestCode ? kHighestCode : moved;
          other[i] = offsets[i];
        }
        const Vec own_scale = mul(steps.vec(), tried.vec());
        factor.set(own_scale);
        for (int i = 0; i < kLanes; ++i) factor[i] = inverse(factor[i]);
        if (has_offsets) near_offsets(group, own_scale, factor.vec(), offset_steps, other);
        const Vec added = mul(offset_steps.vec(), other.vec());
        Vec wrong = zero();
        group.each([&](Vec value, Vec weight) __attribute__((always_inline)) {
          const Vec rest = sub(value, added), left = sub(rest, mul(own_scale, levels(mul(rest, factor.vec()))));
          wrong = add(wrong, mul(mul(weight, left), left));
        });
        error.set(wrong);
        for (int i = 0; i < kLanes; ++i) {
          const bool is_better = error[i] < smallest[i];
          smallest[i] = is_better ? error[i] : smallest[i];
          scale[at + i] = is_better ? tried[i] : scale[at + i];
          if (has_offsets) offset[at + i] = is_better ? other[i] : offset[at + i];
        }
      }
    }
  }
  // The codes of the offsets that are best for the levels which these offsets give. Mutates: codes
  DT_INLINE void near_offsets(const Columns& group, Vec own_scale, Vec factor, const Lanes& steps, Lanes& codes) const {
    const Vec added = mul(steps.vec(), codes.vec());
    Vec total = zero(), rest = zero();
    group.each([&](Vec value, Vec weight) __attribute__((always_inline)) {
      const Vec level = levels(mul(sub(value, added), factor));
      total = add(total, weight), rest = add(rest, mul(weight, sub(value, mul(own_scale, level))));
    });
    Lanes totals, rests;
    totals.set(total), rests.set(rest);
    for (int i = 0; i < kLanes; ++i) codes[i] = code_of(rests[i] * inverse(totals[i]), steps[i]);
  }

  void write(int64_t row) const {
    int8_t* scales = args.scales + row * groups;
    int8_t* offsets = has_offsets ? args.offsets + row * groups : nullptr;
    uint8_t* values = args.values + row * args.inputs;
    const float low = has_offsets ? 0.0f : -static_cast<float>(1 << (args.bits - 1));
    const float high = low + static_cast<float>((1 << args.bits) - 1);
    for (int64_t g = 0; g < groups; ++g) {
      scales[g] = static_cast<int8_t>(scale[g]);
      if (has_offsets) offsets[g] = static_cast<int8_t>(offset[g]);
      const int64_t run = row * runs + g / args.run, first = g * args.group;
      const int64_t end = first + args.group, stop = end < args.inputs ? end : args.inputs;
      const float factor = inverse(args.steps[run] * scale[g]);
      const float added = has_offsets ? args.offset_steps[run] * offset[g] : 0.0f;
      for (int64_t k = first; k < stop; ++k) {
        float level = nearbyintf((plain[k] - added) * factor);
        level = level < low ? low : level > high ? high : level;
        values[k] = static_cast<uint8_t>(static_cast<int32_t>(level - low));
      }
    }
  }
};

}  // namespace

// Returns 2 without memory.
DT_KERNEL(group_fit, GroupFitArgs) {
  int status = 0;
  parallel(divide_up(args.outputs, kTaskRows), [&](int64_t task) {
    const Row fit(args);
    if (!fit.plain) return __atomic_store_n(&status, 2, __ATOMIC_RELAXED);
    const int64_t end = (task + 1) * kTaskRows, stop = end < args.outputs ? end : args.outputs;
    for (int64_t row = task * kTaskRows; row < stop; ++row) {
      fit.read(row);
      fit.search();
      fit.code(row);
      fit.refine(row);
      fit.write(row);
    }
  });
  return status;
}
