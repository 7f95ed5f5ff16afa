// qk_rotary: the norm of each q and k head and its rotation, in place, in one pass over the row.
//
// Bytes: q and k read and written once, 2 * half table entries a row. Work: about 6 operations per
// feature with a norm, 3 without. A head stays in the first-level cache between sum and turn.

#include "qk_rotary/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

// A head's features as the turn sees them: times the norm's scale, or as they are.
struct Plain {
  const float* x;
  DT_INLINE Vec load(int64_t i, int count) const { return load_up_to(x + i, count); }
};
struct Normed {
  const float *x, *weight;
  Vec scale, offset;
  DT_INLINE Vec load(int64_t i, int count) const {
    return mul(mul(load_up_to(x + i, count), scale), add(load_up_to(weight + i, count), offset));
  }
};

// (a, b) -> (a c - b s, b c + a s), a and b half features apart.
template <class Head>
DT_INLINE void turn_halves(const Head& head, float* out, int64_t half, const float* cos,
                           const float* sin) {
  each_register(half, [&](int64_t i, int count) {
    const Vec a = head.load(i, count), b = head.load(half + i, count);
    const Vec c = load_up_to(cos + i, count), s = load_up_to(sin + i, count);
    store_up_to(out + i, count, sub(mul(a, c), mul(b, s)));
    store_up_to(out + half + i, count, add(mul(b, c), mul(a, s)));
  });
}

// The same for neighbours: x c + (-1, 1, -1, ...) * neighbour * s.
template <class Head>
DT_INLINE void turn_pairs(const Head& head, float* out, int64_t half, const float* cos,
                          const float* sin) {
  float signs[kLanes];
  for (int i = 0; i < kLanes; ++i) signs[i] = i % 2 ? 1.0f : -1.0f;
  const Vec sign = load(signs);
  each_register(2 * half, [&](int64_t i, int count) {
    float few[2][kLanes / 2] = {};  // the table ends where the row's angles end
    if (count < kLanes) {
      for (int j = 0; j < count / 2; ++j) few[0][j] = cos[i / 2 + j], few[1][j] = sin[i / 2 + j];
    }
    const Vec c = load_twice(count == kLanes ? cos + i / 2 : few[0]);
    const Vec s = load_twice(count == kLanes ? sin + i / 2 : few[1]);
    const Vec x = head.load(i, count);
    store_up_to(out + i, count, add(mul(x, c), mul(mul(swap_pairs(x), sign), s)));
  });
}

template <class Head>
DT_INLINE void turn(const QkRotaryArgs& args, const Head& head, float* out, const float* cos,
                    const float* sin) {
  if (args.is_interleaved) turn_pairs(head, out, args.half, cos, sin);
  else turn_halves(head, out, args.half, cos, sin);
}

// A head as the norm leaves it, turned where it is turned.
DT_INLINE void norm_and_turn(const QkRotaryArgs& args, float* at, const float* weight,
                             float inverse, const float* cos, const float* sin) {
  const Normed head{at, weight, set1(inverse), set1(args.offset)};
  turn(args, head, at, cos, sin);
  for (int64_t i = 2 * args.half; i < args.head_size; i += kLanes) {
    const int64_t left = args.head_size - i;
    const int count = left < kLanes ? static_cast<int>(left) : kLanes;
    store_up_to(at + i, count, head.load(i, count));
  }
}

void turn_heads(const QkRotaryArgs& args, float* at, int64_t heads, const float* weight,
                const float* cos, const float* sin) {
  const int64_t size = args.head_size;
  if (!weight) {
    for (int64_t h = 0; h < heads; ++h) turn(args, Plain{at + h * size}, at + h * size, cos, sin);
    return;
  }
  // A root and a division wait for a whole sum: several heads wait together.
  constexpr int64_t kTogether = 8;
  float inverse[kTogether];
  for (int64_t h = 0; h < heads; h += kTogether, at += kTogether * size) {
    const int64_t some = heads - h < kTogether ? heads - h : kTogether;
    for (int64_t i = 0; i < some; ++i) inverse[i] = inverse_rms(at + i * size, size, args.eps);
    for (int64_t i = 0; i < some; ++i)
      norm_and_turn(args, at + i * size, weight, inverse[i], cos, sin);
  }
}

}  // namespace

DT_KERNEL(qk_rotary, QkRotaryArgs) {
  const int64_t values = (args.num_heads + args.num_kv_heads) * args.head_size;
  each_row(args.rows, values, [&](int64_t row) {
    float* q = args.qkv + row * args.qkv_stride;
    const float* cos = args.cos + args.positions[row] * args.half;
    const float* sin = args.sin + args.positions[row] * args.half;
    turn_heads(args, q, args.num_heads, args.q_weight, cos, sin);
    float* k = q + args.num_heads * args.head_size;
    turn_heads(args, k, args.num_kv_heads, args.k_weight, cos, sin);
  });
  return 0;
}
