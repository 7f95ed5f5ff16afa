// A chunk of tokens through the gated delta rule by matrix products, and what its tokens bring to a head.
//
// With S before the chunk, l_i the product of the decays up to token i and b_ij that of those between j
// and i (products of numbers below 1: nothing overflows, and no logarithm is taken):
//
//   u_i = beta_i (v_i - l_i k_i S) - sum over j < i of beta_i b_ij (k_i k_j) u_j
//   out_i = l_i q_i S + sum over j <= i of b_ij (q_i k_j) u_j
//   S = l_n S + sum over j of b_nj k_j (outer) u_j
//
// so each number of S is read for kChunk tokens at once: three instructions a register and token, and
// what tokens do with each other, where token by token takes four, a load and a store. Source: Yang et
// al., "Gated Delta Networks", 2024, section 3.3. Where channels decay by themselves, l, b and k are
// vectors, and keys carry b: see decay_keys.
#pragma once

#include "rows.h"
#include "selective_scan/vectors.h"

namespace dt {
namespace DT_ISA {

constexpr int64_t kChunk = 16;  // tokens whose keys and queries are normed together
constexpr int kBlockVectors = 2;
constexpr int64_t kBlock = kBlockVectors * kLanes;  // columns of the state that lie side by side
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 8;  // lines of a product whose sums registers hold
#else
constexpr int kTile = 4;
#endif

// What a chunk's tokens bring to one head.
struct Chunk {
  int64_t first, tokens;
  float *keys, *queries;            // [kChunk, D]
  float *read_keys, *read_queries;  // [kChunk, D]: what S is read with; the same where a head decays as one
  float* channel_decays;            // [kChunk, D], or null
  float* columns;                   // [D, kColumns]: the state between two tokens
  alignas(64) float decays[kChunk], betas[kChunk];
  float products[kChunk];  // q k
};

// How a whole chunk's tokens bear on each other.
struct Pairs {
  alignas(64) float known[kChunk][kChunk];    // beta_i b_ij (k_i k_j), j < i
  alignas(64) float weights[kChunk][kChunk];  // b_ij (q_i k_j), j <= i
  float reads[kChunk];   // l_i; 1 where channels decay by themselves
  float enters[kChunk];  // b_nj; likewise
};

// The products of a line with `count` others, D apart.
DT_INLINE void line_products(const float* line, const float* others, int64_t count, int64_t size, float* out) {
  for (int64_t j = 0; j < count; j += kLanes) {
    Vec parts[kLanes];
    for (int64_t n = 0; n < kLanes; ++n) {
      Vec total = zero();
      if (j + n < count)
        each_register(size, [&](int64_t i, int some) {
          total = fma(load_up_to(line + i, some), load_up_to(others + (j + n) * size + i, some), total);
        });
      parts[n] = total;
    }
    store(out + j, sums(parts));
  }
}

// Where a head decays as one: pairs of a whole chunk, whose keys, queries, decays and betas are made.
inline void pair_tokens(const Chunk& chunk, int64_t size, Pairs& pairs) {
  alignas(64) float between[kChunk] = {};  // b_ij of the token i
  float whole = 1.0f;
  for (int64_t i = 0; i < kChunk; ++i) {
    const float decay = chunk.decays[i];
    whole *= decay;
    pairs.reads[i] = whole;
    for (int64_t j = 0; j < i; ++j) between[j] *= decay;
    between[i] = 1.0f;
    line_products(chunk.keys + i * size, chunk.keys, i, size, pairs.known[i]);
    line_products(chunk.queries + i * size, chunk.keys, i + 1, size, pairs.weights[i]);
    for (int64_t j = 0; j <= i; ++j) {
      pairs.known[i][j] *= chunk.betas[i] * between[j];
      pairs.weights[i][j] *= between[j];
    }
  }
  for (int64_t j = 0; j < kChunk; ++j) pairs.enters[j] = between[j];
}

// Where channels decay by themselves: the same. Keys become b_nj k_j, read_keys and read_queries l_i k_i
// and l_i q_i; whole [D] becomes l_n.
inline void decay_keys(Chunk& chunk, int64_t size, Pairs& pairs, float* whole) {
  for (int64_t d = 0; d < size; ++d) whole[d] = 1.0f;
  for (int64_t i = 0; i < kChunk; ++i) {
    const float *decays = chunk.channel_decays + i * size, *queries = chunk.queries + i * size;
    float *own = chunk.keys + i * size, *read_k = chunk.read_keys + i * size, *read_q = chunk.read_queries + i * size;
    for (int64_t j = 0; j < i; ++j) {
      float* key = chunk.keys + j * size;
      Vec of_k = zero(), of_q = zero();
      each_register(size, [&](int64_t d, int some) {
        const Vec decayed = mul(load_up_to(key + d, some), load_up_to(decays + d, some));
        store_up_to(key + d, some, decayed);
        of_k = fma(decayed, load_up_to(own + d, some), of_k);
        of_q = fma(decayed, load_up_to(queries + d, some), of_q);
      });
      pairs.known[i][j] = chunk.betas[i] * sum(of_k);
      pairs.weights[i][j] = sum(of_q);
    }
    pairs.weights[i][i] = chunk.products[i];
    pairs.reads[i] = pairs.enters[i] = 1.0f;
    each_register(size, [&](int64_t d, int some) {
      const Vec all = mul(load_up_to(whole + d, some), load_up_to(decays + d, some));
      store_up_to(whole + d, some, all);
      store_up_to(read_k + d, some, mul(load_up_to(own + d, some), all));
      store_up_to(read_q + d, some, mul(load_up_to(queries + d, some), all));
    });
  }
}

// out[i] = line i of `lines` times S, kTile lines of it. Shapes: lines [kTile, D], s [D, kBlock], out
// [kTile, kBlock]
DT_INLINE void read_block(const float* lines, const float* s, int64_t size, float* out) {
  Vec totals[kTile * kBlockVectors];
  repeat<kTile * kBlockVectors>([&](auto n) __attribute__((always_inline)) { totals[n.value] = zero(); });
  for (int64_t d = 0; d < size; ++d, s += kBlock) {
    const Vec first = load(s), second = load(s + kLanes);
    repeat<kTile>([&](auto i) __attribute__((always_inline)) {
      const Vec own = set1(lines[i.value * size + d]);
      totals[2 * i.value] = fma(own, first, totals[2 * i.value]);
      totals[2 * i.value + 1] = fma(own, second, totals[2 * i.value + 1]);
    });
  }
  repeat<kTile * kBlockVectors>([&](auto n) __attribute__((always_inline)) { store(out + n.value * kLanes, totals[n.value]); });
}

// S = l_n S + sum over j of keys_j (outer) u_j, `lines` <= kTile lines of it. Shapes: keys [kChunk, D], s
// [D, kBlock], u [kChunk, kBlock]
template <int lines>
DT_INLINE void enter_block(const float* keys, const float* u, int64_t size, const float* whole, int64_t whole_step,
                           float* s) {
  Vec totals[lines * kBlockVectors];
  repeat<lines>([&](auto i) __attribute__((always_inline)) {
    const Vec decay = set1(whole[i.value * whole_step]);
    totals[2 * i.value] = mul(decay, load(s + i.value * kBlock));
    totals[2 * i.value + 1] = mul(decay, load(s + i.value * kBlock + kLanes));
  });
  for (int64_t j = 0; j < kChunk; ++j, keys += size, u += kBlock) {
    const Vec first = load(u), second = load(u + kLanes);
    repeat<lines>([&](auto i) __attribute__((always_inline)) {
      const Vec own = set1(keys[i.value]);
      totals[2 * i.value] = fma(own, first, totals[2 * i.value]);
      totals[2 * i.value + 1] = fma(own, second, totals[2 * i.value + 1]);
    });
  }
  repeat<lines * kBlockVectors>([&](auto n) __attribute__((always_inline)) { store(s + n.value * kLanes, totals[n.value]); });
}

// A chunk through the columns of one block, `count` of them. Shapes: s [D, kBlock], v and out [kChunk, count],
// tokens v_stride and out_stride apart
inline void pass_block(const Chunk& chunk, const Pairs& pairs, int64_t size, const float* whole, int64_t whole_step,
                       const float* v, int64_t v_stride, float* out, int64_t out_stride, int64_t count, float* s) {
  alignas(64) float of_k[kChunk * kBlock], of_q[kChunk * kBlock];
  for (int64_t i = 0; i < kChunk; i += kTile) {
    read_block(chunk.read_keys + i * size, s, size, of_k + i * kBlock);
    read_block(chunk.read_queries + i * size, s, size, of_q + i * kBlock);
  }
  for (int part = 0; part < kBlockVectors; ++part) {
    const int64_t at = part * kLanes;
    const int some = static_cast<int>(count - at < kLanes ? count - at : kLanes);
    if (some <= 0) break;
    for (int64_t i = 0; i < kChunk; ++i) {
      const Vec own = load_up_to(v + i * v_stride + at, some);
      Vec u = mul(set1(chunk.betas[i]), sub(own, mul(set1(pairs.reads[i]), load(of_k + i * kBlock + at))));
      Vec even = zero(), odd = zero();
      int64_t j = 0;
      for (; j + 2 <= i; j += 2) {
        even = fma(set1(pairs.known[i][j]), load(of_k + j * kBlock + at), even);
        odd = fma(set1(pairs.known[i][j + 1]), load(of_k + (j + 1) * kBlock + at), odd);
      }
      if (j < i) even = fma(set1(pairs.known[i][j]), load(of_k + j * kBlock + at), even);
      u = sub(u, add(even, odd));
      store(of_k + i * kBlock + at, u);
      Vec made = mul(set1(pairs.reads[i]), load(of_q + i * kBlock + at));
      for (j = 0; j < i; ++j) made = fma(set1(pairs.weights[i][j]), load(of_k + j * kBlock + at), made);
      made = fma(set1(pairs.weights[i][i]), u, made);
      store_up_to(out + i * out_stride + at, some, made);
    }
    for (int64_t i = 0; i < kChunk; ++i)
      store(of_k + i * kBlock + at, mul(set1(pairs.enters[i]), load(of_k + i * kBlock + at)));
  }
  int64_t d = 0;
  for (; d + kTile <= size; d += kTile)
    enter_block<kTile>(chunk.keys + d, of_k, size, whole + d * whole_step, whole_step, s + d * kBlock);
  for (; d < size; ++d) enter_block<1>(chunk.keys + d, of_k, size, whole + d * whole_step, whole_step, s + d * kBlock);
}

}  // namespace DT_ISA
}  // namespace dt
