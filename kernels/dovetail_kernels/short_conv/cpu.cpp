// short_conv: a task is some channels of all rows, token after token.
//
// Bytes: x read and the result written once, each row's state read once and written once a block.
// Work: 2 W operations an output. The last W - 1 inputs of a task's channels stay in the first-level
// cache, a register's width of channels side by side.

#include "activations.h"
#include "narrow.h"
#include "pool.h"
#include "rows.h"
#include "short_conv/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kMostChannels = 128;  // of a task; a multiple of kLanes, as is the least
constexpr int64_t kLeastChannels = 16;

template <class Entry, int W>
struct Conv {
  static constexpr int kPast = W - 1;
  const ShortConvArgs& args;
  int64_t first, size;  // this task's channels
  float weight[W][kMostChannels] = {};
  float past[kPast][kMostChannels] = {};
  int oldest = 0;  // of `past`

  Conv(const ShortConvArgs& given, int64_t from, int64_t count) : args(given), first(from), size(count) {
    for (int64_t c = 0; c < size; ++c)
      for (int i = 0; i < W; ++i) weight[i][c] = args.weight[(first + c) * W + i];
  }

  Entry* state_of(int64_t block) const {
    return static_cast<Entry*>(args.state) + block * args.state_stride + first * kPast;
  }

  void begin(int64_t block) {
    oldest = 0;
    if (block < 0) {
      memset(past, 0, sizeof past);
      return;
    }
    const Entry* state = state_of(block);
    for (int64_t c = 0; c < size; ++c)
      for (int i = 0; i < kPast; ++i) past[i][c] = one_of(state[c * kPast + i]);
  }

  void keep(int64_t block) const {
    Entry* state = state_of(block);
    const float* in_order[kPast];
    for (int i = 0; i < kPast; ++i) in_order[i] = past[(oldest + i) % kPast];
    for (int64_t c = 0; c < size; ++c)
      for (int i = 0; i < kPast; ++i) set_one(state + c * kPast + i, in_order[i][c]);
  }

  void take(int64_t token) {
    const float* x = args.x + token * args.x_stride + first;
    float* out = args.out + token * args.channels + first;
    float* taps[kPast];
    for (int i = 0; i < kPast; ++i) taps[i] = past[(oldest + i) % kPast];
    const bool is_silu = args.activation == kSilu;
    each_register(size, [&](int64_t c, int count) {
      Vec made = args.bias ? load_up_to(args.bias + first + c, count) : zero();
      for (int i = 0; i < kPast; ++i) made = fma(load(weight[i] + c), load(taps[i] + c), made);
      const Vec now = load_up_to(x + c, count);
      made = fma(load(weight[kPast] + c), now, made);
      store(taps[0] + c, rounded<Entry>(now));
      store_up_to(out + c, count, is_silu ? activate(made, kSilu) : made);
    });
    oldest = (oldest + 1) % kPast;
  }

  void operator()() {
    for (int64_t r = 0; r < args.rows.rows; ++r) {
      const StateRow row(args.rows, r);
      if (row.count <= 0) continue;
      begin(row.initial_block());
      row.each_block([&](int64_t from, int64_t last, int64_t block) {
        for (int64_t token = from; token < last; ++token) take(token);
        keep(block);
      });
    }
  }
};

template <class Entry, int W>
int convolve(const ShortConvArgs& args) {
  const int64_t some = channels_of_task(args.channels, kLeastChannels, kMostChannels);
  parallel(divide_up(args.channels, some), [&](int64_t task) {
    const int64_t first = task * some, left = args.channels - first;
    Conv<Entry, W>(args, first, left < some ? left : some)();
  });
  return 0;
}

template <class Entry>
int with_width(const ShortConvArgs& args) {
  switch (args.width) {
    case 2: return convolve<Entry, 2>(args);
    case 3: return convolve<Entry, 3>(args);
    case 4: return convolve<Entry, 4>(args);
    case 5: return convolve<Entry, 5>(args);
    case 6: return convolve<Entry, 6>(args);
    case 7: return convolve<Entry, 7>(args);
    case 8: return convolve<Entry, 8>(args);
    default: return 2;
  }
}

}  // namespace

// Returns 0; 2 for a width or a format not known here.
DT_KERNEL(short_conv, ShortConvArgs) {
  switch (args.format) {
    case kStateFloat32: return with_width<float>(args);
    case kStateBfloat16: return with_width<Bf16>(args);
    case kStateFloat16: return with_width<F16>(args);
    default: return 2;
  }
}
