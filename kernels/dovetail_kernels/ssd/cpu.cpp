// ssd: a task is some lines of the state of one head of one row, a line being the S numbers of one
// number of x. Tokens go one after the other, in chunks: a tile of the state stays in registers while
// the chunk's tokens pass.
//
// Bytes: a row's state read and written once a chunk of kChunk tokens (from the second on in a cache);
// x and the result once, b and c once a task. Work: 5 operations for each number of a state and token,
// three instructions a register. A result is one chain over the registers of a line, whose lanes are
// added by one tree: neither tiles nor chunks change a bit, so a row is its own however it is cut into
// steps. A state of 16 bits is rounded after every token for the same reason.

#include "narrow.h"
#include "pool.h"
#include "rows.h"
#include "selective_scan/vectors.h"
#include "ssd/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kChunk = 32;       // tokens
constexpr int64_t kMostLines = 64;   // of a task; multiples of kLanes both
constexpr int64_t kLeastLines = 16;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kLines = 4, kVectors = 4;  // of a tile: what registers hold beside b, c and the sums
#else
constexpr int kLines = 2, kVectors = 4;
#endif

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(Constant<n>) for the n that equals count, 1 .. most.
template <int most, class Body>
DT_INLINE void with_count(int64_t count, const Body& body) {
  if (count >= most) return body(Constant<most>{});
  if constexpr (most > 1) with_count<most - 1>(count, body);
}

// A chunk of one head's tokens.
struct Chunk {
  const float *x, *b, *c;  // of the first token, of the head and its group
  float* out;
  int64_t tokens;
  alignas(64) float deltas[kChunk], decays[kChunk];
  alignas(64) float driven[kChunk][kMostLines];  // delta x
  alignas(64) Vec totals[kChunk * kLines];       // [tokens, lines of a tile] before lanes are added
};

template <class Entry>
class Head {
 public:
  Head(const SsdArgs& args, int64_t head, int64_t line, int64_t lines)
      : args_(args), head_(head), line_(line), lines_(lines) {}

  void run_row(const StateRow& row) {
    Entry* states = static_cast<Entry*>(args_.state) + (head_ * args_.head_size + line_) * args_.state_size;
    const int64_t initial = row.initial_block();
    const Entry* from = initial < 0 ? nullptr : states + initial * args_.state_stride;
    row.each_block([&](int64_t token, int64_t last, int64_t block) {
      Entry* to = states + block * args_.state_stride;
      for (; token < last; token += kChunk, from = to) {
        begin(token, least(kChunk, last - token));
        for (int64_t p = 0; p < lines_; p += kLines)
          with_count<kLines>(lines_ - p, [&](auto n) { this->template pass_lines<n.value>(p, from, to); });
        add_skipped();
      }
    });
  }

 private:
  const SsdArgs& args_;
  const int64_t head_, line_, lines_;
  Chunk chunk_;

  void begin(int64_t token, int64_t tokens) {
    const int64_t x_at = head_ * args_.head_size + line_;
    const int64_t group = head_ / (args_.num_heads / args_.num_groups) * args_.state_size;
    chunk_.x = args_.x + token * args_.x_stride + x_at;
    chunk_.b = args_.b + token * args_.b_stride + group;
    chunk_.c = args_.c + token * args_.c_stride + group;
    chunk_.out = args_.out + token * args_.num_heads * args_.head_size + x_at;
    chunk_.tokens = tokens;
    make_deltas(token);
    for (int64_t t = 0; t < tokens; ++t) {
      const Vec delta = set1(chunk_.deltas[t]);
      each_register(lines_, [&](int64_t p, int count) {
        store_up_to(chunk_.driven[t] + p, count, mul(delta, load_up_to(chunk_.x + t * args_.x_stride + p, count)));
      });
    }
  }

  void make_deltas(int64_t token) {
    const Vec a = set1(args_.a[head_]), bias = set1(args_.dt_bias ? args_.dt_bias[head_] : 0.0f);
    for (int64_t t = 0; args_.dt && t < chunk_.tokens; ++t)
      chunk_.deltas[t] = args_.dt[(token + t) * args_.dt_stride + head_];
    for (int64_t t = 0; t < chunk_.tokens; t += kLanes) {
      Vec delta = set1(1.0f);
      if (args_.dt) {
        delta = softplus(add(load_up_to(chunk_.deltas + t, least(kLanes, chunk_.tokens - t)), bias));
        delta = min(max(delta, set1(args_.low)), set1(args_.high));
      }
      store(chunk_.deltas + t, delta);
      store(chunk_.decays + t, exp(mul(delta, a)));
    }
  }

  // All of `n` lines of the state, and their results.
  template <int n>
  void pass_lines(int64_t p, const Entry* from, Entry* to) {
    const int64_t size = args_.state_size, at = p * size;
    int64_t s = 0;
    for (; s + kVectors * kLanes <= size; s += kVectors * kLanes)
      pass_tile<n, kVectors, false>(p, s, kLanes, from ? from + at + s : nullptr, to + at + s);
    for (; s + kLanes <= size; s += kLanes)
      pass_tile<n, 1, false>(p, s, kLanes, from ? from + at + s : nullptr, to + at + s);
    if (s < size)
      pass_tile<n, 1, true>(p, s, static_cast<int>(size - s), from ? from + at + s : nullptr, to + at + s);
    write_sums<n>(p);
  }

  template <bool is_part>
  static DT_INLINE Vec number(const float* p, int count) {
    return is_part ? load_some(p, count, 0.0f) : load(p);
  }

  // `n` lines by `w` registers of the state; the one register has `count` numbers where it is a part of one.
  template <int n, int w, bool is_part>
  void pass_tile(int64_t p, int64_t s, int count, const Entry* from, Entry* to) {
    const int64_t size = args_.state_size;
    Vec h[n][w];
    repeat<n>([&](auto i) __attribute__((always_inline)) {
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        const int64_t at = i.value * size + j.value * kLanes;
        h[i.value][j.value] = !from ? zero() : is_part ? load_first(from + at, count) : load_of(from + at);
      });
    });
    Vec* totals = chunk_.totals;
    const float *b = chunk_.b + s, *c = chunk_.c + s;
    for (int64_t t = 0; t < chunk_.tokens; ++t, b += args_.b_stride, c += args_.c_stride, totals += n) {
      const Vec decay = set1(chunk_.decays[t]);
      Vec total[n], driven[n];
      repeat<n>([&](auto i) __attribute__((always_inline)) {
        total[i.value] = s ? totals[i.value] : zero();
        driven[i.value] = set1(chunk_.driven[t][p + i.value]);
      });
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        const Vec own_b = number<is_part>(b + j.value * kLanes, count);
        const Vec own_c = number<is_part>(c + j.value * kLanes, count);
        repeat<n>([&](auto i) __attribute__((always_inline)) {
          Vec& own = h[i.value][j.value];
          own = fma(driven[i.value], own_b, mul(decay, own));
          total[i.value] = fma(own, own_c, total[i.value]);
          own = rounded<Entry>(own);
        });
      });
      repeat<n>([&](auto i) __attribute__((always_inline)) { totals[i.value] = total[i.value]; });
    }
    repeat<n>([&](auto i) __attribute__((always_inline)) {
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        Entry* at = to + i.value * size + j.value * kLanes;
        if (is_part) store_first(at, count, h[i.value][j.value]);
        else store_of(at, h[i.value][j.value]);
      });
    });
  }

  // out[t, p .. p + n - 1] = the sums of totals [tokens, n]
  template <int n>
  void write_sums(int64_t p) {
    const int64_t all = chunk_.tokens * n, width = args_.num_heads * args_.head_size;
    alignas(64) float made[kChunk * kLines + kLanes];
    for (int64_t i = 0; i < all; i += kLanes) {
      for (int64_t j = all; j < i + kLanes && j < kChunk * kLines; ++j) chunk_.totals[j] = zero();
      store(made + i, sums(chunk_.totals + i));
    }
    for (int64_t t = 0; t < chunk_.tokens; ++t)
      memcpy(chunk_.out + t * width + p, made + t * n, n * sizeof(float));
  }

  // out += d x
  void add_skipped() {
    if (!args_.d) return;
    const Vec d = set1(args_.d[head_]);
    for (int64_t t = 0; t < chunk_.tokens; ++t) {
      const float* x = chunk_.x + t * args_.x_stride;
      float* out = chunk_.out + t * args_.num_heads * args_.head_size;
      each_register(lines_, [&](int64_t p, int count) {
        store_up_to(out + p, count, fma(d, load_up_to(x + p, count), load_up_to(out + p, count)));
      });
    }
  }
};

template <class Entry>
int run_all(const SsdArgs& args) {
  const int64_t wanted = 4 * num_threads(), heads = args.rows.rows * args.num_heads;
  int64_t some = kMostLines;
  while (some > kLeastLines && heads * divide_up(args.head_size, some) < wanted) some /= 2;
  const int64_t slices = divide_up(args.head_size, some);
  parallel(heads * slices, [&](int64_t task) {
    const int64_t line = task % slices * some, head = task / slices % args.num_heads;
    const StateRow row(args.rows, task / slices / args.num_heads);
    if (row.count > 0) Head<Entry>(args, head, line, least(some, args.head_size - line)).run_row(row);
  });
  return 0;
}

}  // namespace

// Returns 0; 2 for a format not known here.
DT_KERNEL(ssd, SsdArgs) {
  static_assert(kChunk % kLanes == 0, "deltas are made a register at a time");
  switch (args.format) {
    case kStateFloat32: return run_all<float>(args);
    case kStateBfloat16: return run_all<Bf16>(args);
    case kStateFloat16: return run_all<F16>(args);
    default: return 2;
  }
}
