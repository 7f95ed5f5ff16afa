// gated_delta: a task is some columns of the state of one head of one row; tokens go one after the
// other. With S before a token, e its decay and delta = beta (v - e k S):
//
//   S' = e S + k (outer) delta,   q S' = e q S + (q k) delta
//
// so k S and q S are made in one pass over S, in which the token before is entered as well: 7
// operations for each number of a state and token, four instructions a register. Of one token the
// state is read twice, the second time from a cache, and written once; of several, columns that the
// nearest cache holds lie side by side in memory of the thread's own. Where each channel of a key decays by
// itself, e is a vector over d: keys and queries times e are what S is read with.
//
// A result is one chain over d for each column, whatever is done beside it or before it in the step. A
// state of 16 bits is rounded after every token, so that it does not matter how a row is cut.

#include "activations.h"
#include "gated_delta/args.h"
#include "narrow.h"
#include "pool.h"
#include "rows.h"
#include "selective_scan/vectors.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kChunk = 16;  // tokens whose keys and queries are normed together
constexpr int kVectors = 4;     // registers of columns
constexpr int64_t kColumns = kVectors * kLanes;
constexpr float kEps = 1e-6f;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Calls body(Constant<n>) for the n that equals count, 1 .. most.
template <int most, class Body>
DT_INLINE void with_count(int64_t count, const Body& body) {
  if (count >= most) return body(Constant<most>{});
  if constexpr (most > 1) with_count<most - 1>(count, body);
}

// Asks for `tokens` pieces of memory, `stride` apart: each lies on a page of its own, which the processor
// does not foresee.
void ask_for(const float* p, int64_t stride, int64_t tokens, int64_t floats) {
  for (int64_t t = 0; t < tokens; ++t, p += stride)
    for (int64_t i = 0; i < floats; i += 64 / sizeof(float)) __builtin_prefetch(p + i);
}

// What a chunk's tokens bring to one head.
struct Chunk {
  int64_t first, tokens;
  float *keys, *queries;  // [kChunk, D]
  float *read_keys, *read_queries;  // [kChunk, D]: what S is read with; the same where a head decays as one
  float* channel_decays;  // [kChunk, D], or null
  float* columns;         // [D, kColumns]: the state between two tokens
  alignas(64) float decays[kChunk], betas[kChunk];
  float products[kChunk];  // q k
};

// Columns of a state: D rows `stride` numbers apart. No numbers: zeros.
template <class Entry>
struct Columns {
  Entry* numbers;
  int64_t stride;
};

template <class Entry, bool by_channel>
class Head {
 public:
  Head(const GatedDeltaArgs& args, int64_t head, float* memory) : args_(args), head_(head) {
    chunk_.columns = memory;
    chunk_.keys = chunk_.columns + kColumns * args.key_size;
    chunk_.queries = chunk_.keys + kChunk * args.key_size;
    chunk_.read_keys = by_channel ? chunk_.queries + kChunk * args.key_size : chunk_.keys;
    chunk_.read_queries = by_channel ? chunk_.read_keys + kChunk * args.key_size : chunk_.queries;
    chunk_.channel_decays = by_channel ? chunk_.read_queries + kChunk * args.key_size : nullptr;
  }

  static int64_t floats(const GatedDeltaArgs& args) {
    return args.key_size * ((by_channel ? 5 : 2) * kChunk + kColumns);
  }

  // The columns begin .. end - 1 of a row.
  void run_row(const StateRow& row, int64_t begin, int64_t end) {
    Entry* states = static_cast<Entry*>(args_.state) + head_ * args_.key_size * args_.value_size;
    const int64_t initial = row.initial_block();
    const Entry* from = initial < 0 ? nullptr : states + initial * args_.state_stride;
    row.each_block([&](int64_t token, int64_t last, int64_t block) {
      Entry* to = states + block * args_.state_stride;
      for (; token < last; token += kChunk, from = to) {
        make(token, least(kChunk, last - token), last);
        int64_t v = begin;
        for (; v + kLanes <= end; v += least(kVectors, (end - v) / kLanes) * kLanes)
          with_count<kVectors>((end - v) / kLanes, [&](auto w) {
            this->template pass<w.value, false>(v, kLanes, from, to);
          });
        if (v < end) pass<1, true>(v, static_cast<int>(end - v), from, to);
      }
    });
  }

 private:
  const GatedDeltaArgs& args_;
  const int64_t head_;
  Chunk chunk_;

  void make(int64_t token, int64_t tokens, int64_t last) {
    chunk_.first = token, chunk_.tokens = tokens;
    const int64_t size = args_.key_size, key_head = head_ / (args_.num_heads / args_.num_key_heads);
    const int64_t next = token + tokens, ahead = least(kChunk, last - next);
    ask_for(args_.v + token * args_.v_stride + head_ * args_.value_size, args_.v_stride, tokens, args_.value_size);
    ask_for(args_.k + next * args_.k_stride + key_head * size, args_.k_stride, ahead, size);
    ask_for(args_.q + next * args_.q_stride + key_head * size, args_.q_stride, ahead, size);
    for (int64_t t = 0; t < tokens; ++t) {
      float *k = chunk_.keys + t * size, *q = chunk_.queries + t * size;
      norm(args_.k + (token + t) * args_.k_stride + key_head * size, 1.0f, k);
      norm(args_.q + (token + t) * args_.q_stride + key_head * size, args_.scale, q);
      chunk_.products[t] = ordered_sum(size, [&](Vec s, int64_t i, int count) {
        return fma(load_up_to(k + i, count), load_up_to(q + i, count), s);
      });
      if (by_channel) decay_channels(token + t, t);
      else chunk_.decays[t] = args_.decay[(token + t) * args_.decay_stride + head_];
      chunk_.betas[t] = args_.beta[(token + t) * args_.beta_stride + head_];
    }
    for (int64_t t = 0; t < tokens; t += kLanes) {
      const int count = static_cast<int>(least(kLanes, tokens - t));
      if (!by_channel)
        store(chunk_.decays + t, decay_of(load_up_to(chunk_.decays + t, count), set1(args_.dt_bias[head_])));
      store(chunk_.betas + t, mul(sigmoid(load_up_to(chunk_.betas + t, count)), set1(args_.beta_scale)));
    }
  }

  // e of what it is made of.
  Vec decay_of(Vec raw, Vec bias) const {
    const Vec rate = exp(set1(args_.a_log[head_])), x = add(raw, bias);
    if (args_.least_log != 0.0f) return exp(mul(set1(args_.least_log), sigmoid(mul(rate, x))));
    return exp(sub(zero(), mul(rate, softplus(x))));
  }

  // The decays of a token's channels, and its key and query times them.
  void decay_channels(int64_t token, int64_t t) {
    const int64_t size = args_.key_size, at = t * size;
    const float* raw = args_.decay + token * args_.decay_stride + head_ * size;
    const float* bias = args_.dt_bias + head_ * size;
    each_register(size, [&](int64_t i, int count) {
      const Vec decay = decay_of(load_up_to(raw + i, count), load_up_to(bias + i, count));
      store_up_to(chunk_.channel_decays + at + i, count, decay);
      store_up_to(chunk_.read_keys + at + i, count, mul(load_up_to(chunk_.keys + at + i, count), decay));
      store_up_to(chunk_.read_queries + at + i, count, mul(load_up_to(chunk_.queries + at + i, count), decay));
    });
  }
  // What channel d's line of the state is multiplied with as token t enters; `whole` is the head's.
  DT_INLINE Vec line_decay(int64_t t, int64_t d, Vec whole) const {
    return by_channel ? set1(chunk_.channel_decays[t * args_.key_size + d]) : whole;
  }

  void norm(const float* x, float scale, float* out) const {
    const float squares = ordered_sum(args_.key_size, [&](Vec s, int64_t i, int count) {
      const Vec v = load_up_to(x + i, count);
      return fma(v, v, s);
    });
    const Vec inverse = set1(1.0f / sqrtf(squares + kEps)), factor = set1(scale);
    each_register(args_.key_size, [&](int64_t i, int count) {
      store_up_to(out + i, count, mul(mul(load_up_to(x + i, count), inverse), factor));
    });
  }

  // All tokens of the chunk in `w` registers of columns; the one register has `count` of them where it is
  // a part of one.
  template <int w, bool is_part>
  void pass(int64_t v, int count, const Entry* from, Entry* to) {
    const Columns<const Entry> before{from ? from + v : nullptr, args_.value_size};
    const Columns<Entry> after{to + v, args_.value_size};
    const Columns<float> between{chunk_.columns, kColumns};
    const Columns<const float> known{chunk_.columns, kColumns};
    Vec delta[w], of_k[w], of_q[w];
    read<w, is_part>(0, before, count, of_k, of_q);
    finish<w, is_part>(0, v, count, of_k, of_q, delta);
    for (int64_t t = 1; t < chunk_.tokens; ++t) {
      if (t == 1) enter_and_read<w, is_part>(t, before, between, count, delta, of_k, of_q);
      else enter_and_read<w, false>(t, known, between, count, delta, of_k, of_q);
      finish<w, is_part>(t, v, count, of_k, of_q, delta);
    }
    if (chunk_.tokens == 1) enter<w, is_part>(before, after, count, delta);
    else enter<w, is_part>(known, after, count, delta);
  }

  template <bool is_part, class Number>
  static DT_INLINE Vec number(const Columns<Number>& columns, int64_t d, int64_t at, int count) {
    if (!columns.numbers) return zero();
    const Number* p = columns.numbers + d * columns.stride + at;
    return is_part ? load_first(p, count) : load_of(p);
  }

  // of_k = k S, of_q = q S of the chunk's token t.
  template <int w, bool is_part, class Number>
  void read(int64_t t, const Columns<Number>& state, int count, Vec* of_k, Vec* of_q) const {
    const float *k = chunk_.read_keys + t * args_.key_size, *q = chunk_.read_queries + t * args_.key_size;
    Vec sums_k[w], sums_q[w];
    repeat<w>([&](auto j) __attribute__((always_inline)) { sums_k[j.value] = sums_q[j.value] = zero(); });
    for (int64_t d = 0; d < args_.key_size; ++d) {
      const Vec own_k = set1(k[d]), own_q = set1(q[d]);
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        const Vec s = number<is_part>(state, d, j.value * kLanes, count);
        sums_k[j.value] = fma(own_k, s, sums_k[j.value]);
        sums_q[j.value] = fma(own_q, s, sums_q[j.value]);
      });
    }
    repeat<w>([&](auto j) __attribute__((always_inline)) {
      of_k[j.value] = sums_k[j.value];
      of_q[j.value] = sums_q[j.value];
    });
  }

  // Enters token t - 1, whose delta is given, and reads for token t.
  template <int w, bool is_part, class Number>
  void enter_and_read(int64_t t, const Columns<Number>& state, const Columns<float>& to, int count,
                      const Vec* delta, Vec* of_k, Vec* of_q) const {
    const float *k = chunk_.read_keys + t * args_.key_size, *q = chunk_.read_queries + t * args_.key_size;
    const float* last = chunk_.keys + (t - 1) * args_.key_size;
    const Vec whole = set1(by_channel ? 1.0f : chunk_.decays[t - 1]);
    Vec sums_k[w], sums_q[w], own[w];
    repeat<w>([&](auto j) __attribute__((always_inline)) {
      sums_k[j.value] = sums_q[j.value] = zero();
      own[j.value] = delta[j.value];
    });
    float* line = to.numbers;
    for (int64_t d = 0; d < args_.key_size; ++d, line += kColumns) {
      const Vec own_k = set1(k[d]), own_q = set1(q[d]), entered = set1(last[d]);
      const Vec decay = line_decay(t - 1, d, whole);
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        Vec s = number<is_part>(state, d, j.value * kLanes, count);
        s = rounded<Entry>(fma(entered, own[j.value], mul(decay, s)));
        store(line + j.value * kLanes, s);
        sums_k[j.value] = fma(own_k, s, sums_k[j.value]);
        sums_q[j.value] = fma(own_q, s, sums_q[j.value]);
      });
    }
    repeat<w>([&](auto j) __attribute__((always_inline)) {
      of_k[j.value] = sums_k[j.value];
      of_q[j.value] = sums_q[j.value];
    });
  }

  // Enters the chunk's last token.
  template <int w, bool is_part, class Number>
  void enter(const Columns<Number>& state, const Columns<Entry>& to, int count, const Vec* delta) const {
    const int64_t t = chunk_.tokens - 1;
    const float* k = chunk_.keys + t * args_.key_size;
    const Vec whole = set1(by_channel ? 1.0f : chunk_.decays[t]);
    for (int64_t d = 0; d < args_.key_size; ++d) {
      const Vec entered = set1(k[d]), decay = line_decay(t, d, whole);
      repeat<w>([&](auto j) __attribute__((always_inline)) {
        const Vec s = number<is_part>(state, d, j.value * kLanes, count);
        Entry* at = to.numbers + d * to.stride + j.value * kLanes;
        const Vec made = fma(entered, delta[j.value], mul(decay, s));
        if (is_part) store_first(at, count, made);
        else store_of(at, made);
      });
    }
  }

  // The delta and the result of token t.
  template <int w, bool is_part>
  void finish(int64_t t, int64_t v, int count, const Vec* of_k, const Vec* of_q, Vec* delta) const {
    const int64_t token = chunk_.first + t, at = head_ * args_.value_size + v;
    const float* values = args_.v + token * args_.v_stride + at;
    float* out = args_.out + token * args_.num_heads * args_.value_size + at;
    const Vec whole = set1(by_channel ? 1.0f : chunk_.decays[t]);
    const Vec beta = set1(chunk_.betas[t]), product = set1(chunk_.products[t]);
    const auto decayed = [&](Vec sum) __attribute__((always_inline)) { return by_channel ? sum : mul(whole, sum); };
    repeat<w>([&](auto j) __attribute__((always_inline)) {
      const Vec own = load_up_to(values + j.value * kLanes, count);
      delta[j.value] = mul(beta, sub(own, decayed(of_k[j.value])));
      const Vec made = fma(product, delta[j.value], decayed(of_q[j.value]));
      store_up_to(out + j.value * kLanes, count, made);
    });
  }
};

template <class Entry, bool by_channel>
int run_heads(const GatedDeltaArgs& args) {
  const int64_t heads = args.rows.rows * args.num_heads;
  const bool is_split = heads < 4 * num_threads();
  const int64_t some = is_split ? kColumns : args.value_size, slices = divide_up(args.value_size, some);
  int32_t failed = 0;
  parallel(heads * slices, [&](int64_t task) {
    const int64_t begin = task % slices * some, head = task / slices % args.num_heads;
    const StateRow row(args.rows, task / slices / args.num_heads);
    if (row.count <= 0) return;
    auto* memory = static_cast<float*>(scratch(0, Head<Entry, by_channel>::floats(args) * sizeof(float)));
    if (!memory) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
    Head<Entry, by_channel>(args, head, memory).run_row(row, begin, least(begin + some, args.value_size));
  });
  return failed;
}

template <class Entry>
int run_all(const GatedDeltaArgs& args) {
  return args.decays_by_channel ? run_heads<Entry, true>(args) : run_heads<Entry, false>(args);
}

}  // namespace

// Returns 0; 1 when memory cannot be had; 2 for a format not known here.
DT_KERNEL(gated_delta, GatedDeltaArgs) {
  static_assert(kChunk % kLanes == 0, "decays are made a register at a time");
  switch (args.format) {
    case kStateFloat32: return run_all<float>(args);
    case kStateBfloat16: return run_all<Bf16>(args);
    case kStateFloat16: return run_all<F16>(args);
    default: return 2;
  }
}
