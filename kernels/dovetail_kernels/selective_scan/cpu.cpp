// selective_scan: a task is some channels of all rows, token after token.
//
// Bytes: a row's state read once and written once a block; x, dt, z and the result once, b and c once
// a task. Work: an exponential and 6 operations for each number of a state and token, about 25
// operations. A channel's state is a register or a few; kLanes channels give a register of results.
// The state lies where it is kept: a token reads what the token before it wrote, so a state of 16 bits
// is rounded after every token, however a row is cut into steps.

#include "activations.h"
#include "narrow.h"
#include "pool.h"
#include "rows.h"
#include "selective_scan/args.h"
#include "selective_scan/vectors.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kMostChannels = 64;  // of a task; a multiple of kLanes, as is the least
constexpr int64_t kLeastChannels = 16;
constexpr int64_t kAhead = 2;           // tokens
constexpr float kLog2E = 1.44269504f;

// A row of b or of c: in `registers` registers, or (0) in memory, as long as it is.
template <int registers>
struct Numbers {
  Vec kept[registers];
  DT_INLINE explicit Numbers(const float* p) {
    repeat<registers>([&](auto i) __attribute__((always_inline)) { kept[i.value] = load(p + i.value * kLanes); });
  }
};
template <>
struct Numbers<0> {
  const float* p;
  DT_INLINE explicit Numbers(const float* numbers) : p(numbers) {}
};

// A task's channels, the state of each in `registers` registers (0: as many as it takes, the last one
// not full).
template <class Entry, int registers>
struct Scan {
  const SelectiveScanArgs& args;
  const int64_t begin, size;
  float steps[kMostChannels];   // delta log2(e) of a token
  float driven[kMostChannels];  // delta x

  DT_INLINE Scan(const SelectiveScanArgs& given, int64_t first, int64_t count)
      : args(given), begin(first), size(count) {}

  DT_INLINE int64_t state_size() const { return registers ? registers * kLanes : args.state_size; }

  // Returns the new numbers of a state; what was before is null where it is all zeros.
  template <bool has_past>
  static DT_INLINE Vec advance(Vec step, Vec input, Vec b, const float* a, const Entry* from, Entry* to, int count) {
    Vec h = mul(input, b);
    if constexpr (has_past) h = fma(power_of_two(mul(step, load_up_to(a, count))), load_first(from, count), h);
    store_first(to, count, h);
    return h;
  }

  // Returns the products of c and h of one channel, whose sum is its result.
  template <bool has_past>
  DT_INLINE Vec channel(const Numbers<registers>& b, const Numbers<registers>& c, int64_t i, const float* a,
                        const Entry* from, Entry* to) const {
    const Vec step = set1(steps[i]), input = set1(driven[i]);
    Vec total = zero();
    if constexpr (registers > 0) {
      repeat<registers>([&](auto j) __attribute__((always_inline)) {
        constexpr int at = j.value * kLanes;
        const Vec h = advance<has_past>(step, input, b.kept[j.value], a + at, from + at, to + at, kLanes);
        total = fma(h, c.kept[j.value], total);
      });
    } else {
      each_register(args.state_size, [&](int64_t at, int count) {
        const Vec own = load_up_to(b.p + at, count);
        const Vec h = advance<has_past>(step, input, own, a + at, from + at, to + at, count);
        total = fma(h, load_up_to(c.p + at, count), total);
      });
    }
    return total;
  }

  void prepare(int64_t token) {
    const float* x = args.x + token * args.x_stride + begin;
    const float* dt = args.dt + token * args.dt_stride + begin;
    each_register(size, [&](int64_t i, int count) {
      Vec raw = load_up_to(dt + i, count);
      if (args.dt_bias) raw = add(raw, load_up_to(args.dt_bias + begin + i, count));
      const Vec delta = softplus(raw);
      store(steps + i, mul(delta, set1(kLog2E)));
      store(driven + i, mul(delta, load_up_to(x + i, count)));
    });
  }

  void finish(int64_t token, int64_t i, int count, Vec made) const {
    const Vec x = load_up_to(args.x + token * args.x_stride + begin + i, count);
    Vec y = fma(load_up_to(args.d + begin + i, count), x, made);
    if (args.z)
      y = mul(y, activate(load_up_to(args.z + token * args.z_stride + begin + i, count), kSilu));
    store_up_to(args.out + token * args.channels + begin + i, count, y);
  }

  // One token: `before` are its row's states before it (not read where they are zeros), `after` after it.
  template <bool has_past>
  void take(int64_t token, const Entry* before, Entry* after) {
    prepare(token);
    const Numbers<registers> b(args.b + token * args.b_stride), c(args.c + token * args.c_stride);
    const int64_t numbers = state_size();
    const float* a = args.a + begin * numbers;
    const Entry* from = before + begin * numbers;
    Entry* to = after + begin * numbers;
    each_register(size, [&](int64_t i, int count) {
      Vec made[kLanes];
      if (registers > 0 && count == kLanes) {
        repeat<kLanes>([&](auto j) __attribute__((always_inline)) {
          const int64_t at = (i + j.value) * numbers;
          made[j.value] = channel<has_past>(b, c, i + j.value, a + at, from + at, to + at);
        });
      } else {
        for (int j = 0; j < kLanes; ++j) {
          const int64_t at = (i + j) * numbers;
          made[j] = j < count ? channel<has_past>(b, c, i + j, a + at, from + at, to + at) : zero();
        }
      }
      finish(token, i, count, sums(made));
    });
  }

  // Asks for what a later token reads: its rows lie a page or more apart, where the processor does not
  // look ahead by itself.
  DT_INLINE void prefetch(int64_t token) const {
    for (int64_t i = begin; i < begin + size; i += 16) {
      __builtin_prefetch(args.x + token * args.x_stride + i);
      __builtin_prefetch(args.dt + token * args.dt_stride + i);
      if (args.z) __builtin_prefetch(args.z + token * args.z_stride + i);
      __builtin_prefetch(args.out + token * args.channels + i, 1);
    }
  }

  void take_row(const StateRow& row) {
    Entry* states = static_cast<Entry*>(args.state);
    const int64_t initial = row.initial_block(), end = row.first + row.count;
    const Entry* from = initial < 0 ? nullptr : states + initial * args.state_stride;
    row.each_block([&](int64_t token, int64_t last, int64_t block) {
      Entry* to = states + block * args.state_stride;
      for (; token < last; ++token, from = to) {
        if (token + kAhead < end) prefetch(token + kAhead);
        if (from) take<true>(token, from, to);
        else take<false>(token, to, to);
      }
    });
  }
};

template <class Entry, int registers>
void scan_channels(const SelectiveScanArgs& args, int64_t first, int64_t size) {
  Scan<Entry, registers> scan(args, first, size);
  for (int64_t r = 0; r < args.rows.rows; ++r) {
    const StateRow row(args.rows, r);
    if (row.count > 0) scan.take_row(row);
  }
}

template <class Entry>
int scan_all(const SelectiveScanArgs& args) {
  const int64_t some = channels_of_task(args.channels, kLeastChannels, kMostChannels);
  parallel(divide_up(args.channels, some), [&](int64_t task) {
    const int64_t first = task * some, left = args.channels - first, size = left < some ? left : some;
    if (args.state_size == 16) scan_channels<Entry, 16 / kLanes>(args, first, size);
    else scan_channels<Entry, 0>(args, first, size);
  });
  return 0;
}

}  // namespace

// Returns 0; 2 for a format not known here.
DT_KERNEL(selective_scan, SelectiveScanArgs) {
  switch (args.format) {
    case kStateFloat32: return scan_all<float>(args);
    case kStateBfloat16: return scan_all<Bf16>(args);
    case kStateFloat16: return scan_all<F16>(args);
    default: return 2;
  }
}
