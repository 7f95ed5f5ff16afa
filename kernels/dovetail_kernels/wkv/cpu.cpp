// wkv: a task is some channels of all rows, token after token.
//
// Bytes: a row's three numbers a channel read once and written once a block, k, v, r and the result once.
// Work: three exponentials a channel and token, the gate's among them, about 70 operations: a decode is
// bound by its bytes, a long prompt by its operations. Of two weights under the larger of their logarithms
// one is 1, so each pair takes one exponential.

#include "activations.h"
#include "narrow.h"
#include "pool.h"
#include "rows.h"
#include "wkv/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kMostChannels = 64;  // of a task; a multiple of kLanes, as is the least
constexpr int64_t kLeastChannels = 16;
constexpr float kNone = -1e38f;  // the largest logarithm of no weight

// a / e^top, b / e^top and top of kLanes channels.
struct Sums {
  Vec above, below, top;
};

// What two logarithms are under the larger of them.
struct Weights {
  Vec old, fresh, top;
  DT_INLINE Weights(Vec own, Vec key) {
    top = max(own, key);
    const Vec less = exp(sub(min(own, key), top)), one = set1(1.0f);
    const Vec is_old = min(max(sub(own, key), zero()), one);  // only its being 0 counts
    old = select_positive(is_old, one, less);
    fresh = select_positive(is_old, less, one);
  }
  // a where x > 0, else b.
  static DT_INLINE Vec select_positive(Vec x, Vec a, Vec b) {
#if defined(__AVX512F__)
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), b, a);
#elif defined(__AVX2__)
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_GT_OQ));
#else
    return x > zero() ? a : b;
#endif
  }
};

template <class Entry>
struct Channels {
  const WkvArgs& args;
  const int64_t begin, size;

  // Where numbers of a block are: those of the `part`th of the three.
  DT_INLINE Entry* part(int64_t block, int part) const {
    return static_cast<Entry*>(args.state) + block * args.state_stride + part * args.channels + begin;
  }

  void start(int64_t block, Sums* sums) const {
    each_register(size, [&](int64_t i, int count) {
      Sums& own = sums[i / kLanes];
      if (block < 0) {
        own = {zero(), zero(), set1(kNone)};
      } else {
        own = {load_first(part(block, 0) + i, count), load_first(part(block, 1) + i, count),
               load_first(part(block, 2) + i, count)};
      }
    });
  }

  void keep(int64_t block, const Sums* sums) const {
    each_register(size, [&](int64_t i, int count) {
      const Sums& own = sums[i / kLanes];
      store_first(part(block, 0) + i, count, own.above);
      store_first(part(block, 1) + i, count, own.below);
      store_first(part(block, 2) + i, count, own.top);
    });
  }

  void take(int64_t token, Sums* sums) const {
    const float* k = args.k + token * args.k_stride + begin;
    const float* v = args.v + token * args.v_stride + begin;
    const float* r = args.r + token * args.r_stride + begin;
    float* out = args.out + token * args.channels + begin;
    each_register(size, [&](int64_t i, int count) {
      Sums& own = sums[i / kLanes];
      const Vec key = load_up_to(k + i, count), value = load_up_to(v + i, count);
      const Weights now(own.top, add(key, load_up_to(args.first + begin + i, count)));
      const Vec above = fma(now.old, own.above, mul(now.fresh, value));
      const Vec below = fma(now.old, own.below, now.fresh);
      store_up_to(out + i, count, mul(sigmoid(load_up_to(r + i, count)), div(above, below)));
      const Weights next(add(own.top, load_up_to(args.decay + begin + i, count)), key);
      own.above = rounded<Entry>(fma(next.old, own.above, mul(next.fresh, value)));
      own.below = rounded<Entry>(fma(next.old, own.below, next.fresh));
      own.top = rounded<Entry>(next.top);
    });
  }
};

template <class Entry>
int average(const WkvArgs& args) {
  const int64_t some = channels_of_task(args.channels, kLeastChannels, kMostChannels);
  parallel(divide_up(args.channels, some), [&](int64_t task) {
    const int64_t first = task * some, left = args.channels - first;
    const Channels<Entry> channels{args, first, left < some ? left : some};
    Sums sums[kMostChannels / kLanes];
    for (int64_t r = 0; r < args.rows.rows; ++r) {
      const StateRow row(args.rows, r);
      if (row.count == 0) continue;
      channels.start(row.initial_block(), sums);
      row.each_block([&](int64_t token, int64_t last, int64_t block) {
        for (; token < last; ++token) channels.take(token, sums);
        channels.keep(block, sums);
      });
    }
  });
  return 0;
}

}  // namespace

// Returns 0; 2 for a format not known here.
DT_KERNEL(wkv, WkvArgs) {
  switch (args.format) {
    case kStateFloat32: return average<float>(args);
    case kStateBfloat16: return average<Bf16>(args);
    case kStateFloat16: return average<F16>(args);
    default: return 2;
  }
}
