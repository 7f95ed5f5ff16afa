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

// One token of up to kLanes channels, the state of each in `registers` registers (0: as many as it
// takes, the last one not full).
template <class Entry, int registers>
struct Scan {
  const SelectiveScanArgs& args;

  DT_INLINE Vec advance(int64_t i, int count, const float* b, const float* c, const float* a, Vec delta,
                        Vec driven, const Entry* from, Entry* to, Vec total) const {
    const Vec decay = exp(mul(delta, load_up_to(a + i, count)));
    Vec h = mul(driven, load_up_to(b + i, count));
    if (from) h = fma(decay, load_first(from + i, count), h);
    store_first(to + i, count, h);
    return fma(h, load_up_to(c + i, count), total);
  }

  DT_INLINE Vec channel(int64_t token, int64_t channel, float delta, float driven, const Entry* from,
                        Entry* to) const {
    const float* b = args.b + token * args.b_stride;
    const float* c = args.c + token * args.c_stride;
    const int64_t size = registers ? registers * kLanes : args.state_size, at = channel * size;
    const Entry* before = from ? from + at : nullptr;
    Vec total = zero();
    const Vec step = set1(delta), input = set1(driven);
    if constexpr (registers > 0) {
      repeat<registers>([&](auto i) __attribute__((always_inline)) {
        total = advance(i.value * kLanes, kLanes, b, c, args.a + at, step, input, before, to + at, total);
      });
    } else {
      each_register(size, [&](int64_t i, int count) {
        total = advance(i, count, b, c, args.a + at, step, input, before, to + at, total);
      });
    }
    return total;
  }

  void operator()(int64_t token, int64_t first, int count, const Entry* from, Entry* to) const {
    const Vec x = load_up_to(args.x + token * args.x_stride + first, count);
    Vec raw = load_up_to(args.dt + token * args.dt_stride + first, count);
    if (args.dt_bias) raw = add(raw, load_up_to(args.dt_bias + first, count));
    const Vec delta = softplus(raw);
    float deltas[kLanes], driven[kLanes];
    store(deltas, delta);
    store(driven, mul(delta, x));
    Vec made[kLanes];
    for (int j = 0; j < kLanes; ++j)
      made[j] = j < count ? channel(token, first + j, deltas[j], driven[j], from, to) : zero();
    Vec y = fma(load_up_to(args.d + first, count), x, sums(made));
    if (args.z) y = mul(y, activate(load_up_to(args.z + token * args.z_stride + first, count), kSilu));
    store_up_to(args.out + token * args.channels + first, count, y);
  }
};

template <class Entry, int registers>
void scan_channels(const SelectiveScanArgs& args, int64_t begin, int64_t end) {
  const Scan<Entry, registers> scan{args};
  Entry* states = static_cast<Entry*>(args.state);
  for (int64_t r = 0; r < args.rows.rows; ++r) {
    const StateRow row(args.rows, r);
    if (row.count <= 0) continue;
    const int64_t initial = row.initial_block();
    const Entry* from = initial < 0 ? nullptr : states + initial * args.state_stride;
    row.each_block([&](int64_t token, int64_t last, int64_t block) {
      Entry* to = states + block * args.state_stride;
      for (; token < last; ++token, from = to)
        each_register(end - begin, [&](int64_t i, int count) { scan(token, begin + i, count, from, to); });
    });
  }
}

template <class Entry>
int scan_all(const SelectiveScanArgs& args) {
  const bool is_wide = args.channels >= 2 * kMostChannels * num_threads();
  const int64_t some = is_wide ? kMostChannels : kLeastChannels;
  parallel(divide_up(args.channels, some), [&](int64_t task) {
    const int64_t first = task * some, left = args.channels - first, end = left < some ? args.channels : first + some;
    if (args.state_size == 16) scan_channels<Entry, 16 / kLanes>(args, first, end);
    else scan_channels<Entry, 0>(args, first, end);
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
