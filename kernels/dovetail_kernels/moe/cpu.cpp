// moe: tokens sorted by expert, two products of all picked experts each, a weighted sum.
//
// A pair is a token and one of its experts. An expert's pairs are rows of one product, and the products of
// all experts one call (gemm/products.h): threads share out panels of all of them, so one token by eight
// experts occupies as many threads as eight tokens by one. A token's sum runs over its experts in their
// order, whatever tokens are beside it.
// Bytes: the matrices of the experts that are picked once; of a pair F values and E are written and read.

#include "activations.h"
#include "moe/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kHeldBytes = 1 << 26;  // of a chunk's values
constexpr int64_t kPiece = 512;          // outputs of a token that are added up by one task

// Whether halves come out of the first product side by side, to be joined behind it.
bool joins(const MoeArgs& args) { return args.is_gated && !args.gate_up[0].is_gated; }

// Tokens [first, first + tokens) and their pairs.
struct Chunk {
  const MoeArgs& args;
  int64_t first, tokens;
  int64_t rows = 0, used = 0;  // pairs whose expert is here; experts that have some
  int32_t* token_of = nullptr; // [rows]: which of x's rows, in the order of experts
  int32_t* row_of = nullptr;   // [tokens, A]: -1 where the expert is not here
  GemmArgs *gate_up = nullptr, *down = nullptr;  // [used]
  int64_t width;                                 // F; 2 F where halves are joined behind the product
  float *inner = nullptr, *made = nullptr;       // [rows, width], [rows, E]
  Chunk(const MoeArgs& args, int64_t first, int64_t tokens)
      : args(args), first(first), tokens(tokens), width(joins(args) ? 2 * args.inner : args.inner) {}
  int64_t expert(int64_t pair) const {
    const int64_t found = args.experts[first * args.picked + pair];
    return found < args.num_experts ? found : -1;
  }
};

// Numbers the pairs in the order of experts, counts[e] of each expert.
bool sort(Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  const int64_t pairs = chunk.tokens * args.picked;
  const int64_t most = pairs < args.num_experts ? pairs : args.num_experts;
  auto* memory = static_cast<char*>(
      scratch(7, 2 * most * sizeof(GemmArgs) + (2 * pairs + 2 * args.num_experts) * sizeof(int32_t)));
  if (!memory) return false;
  chunk.gate_up = reinterpret_cast<GemmArgs*>(memory);
  chunk.down = chunk.gate_up + most;
  chunk.token_of = reinterpret_cast<int32_t*>(chunk.down + most);
  chunk.row_of = chunk.token_of + pairs;
  int32_t *counts = chunk.row_of + pairs, *next = counts + args.num_experts;
  memset(counts, 0, args.num_experts * sizeof(int32_t));
  for (int64_t pair = 0; pair < pairs; ++pair)
    if (const int64_t e = chunk.expert(pair); e >= 0) ++counts[e];
  for (int64_t e = 0; e < args.num_experts; ++e) {
    next[e] = static_cast<int32_t>(chunk.rows);
    if (!counts[e]) continue;
    GemmArgs &gate_up = chunk.gate_up[chunk.used], &down = chunk.down[chunk.used++];
    gate_up = args.gate_up[e];
    down = args.down[e];
    gate_up.rows = down.rows = counts[e];
    gate_up.picks = chunk.token_of + chunk.rows;
    chunk.rows += counts[e];
  }
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t e = chunk.expert(pair);
    chunk.row_of[pair] = e < 0 ? -1 : next[e]++;
    if (e >= 0) chunk.token_of[chunk.row_of[pair]] = static_cast<int32_t>(pair / args.picked);
  }
  return true;
}

// Writes what each pair's expert reads: its token times its weight.
void weigh_inputs(const Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  each_row(chunk.tokens * args.picked, args.size, [&](int64_t pair) {
    const int64_t row = chunk.row_of[pair], token = chunk.first + pair / args.picked;
    if (row < 0) return;
    const float* x = args.x + token * args.x_stride;
    float* to = chunk.made + row * args.size;
    const Vec weight = set1(args.weights[chunk.first * args.picked + pair]);
    each_register(args.size, [&](int64_t i, int count) {
      store_up_to(to + i, count, mul(load_up_to(x + i, count), weight));
    });
  });
}

// Points the products at their rows. What experts read weighed lies where they write.
void place(Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  int64_t row = 0;
  for (int64_t i = 0; i < chunk.used; ++i) {
    GemmArgs &gate_up = chunk.gate_up[i], &down = chunk.down[i];
    gate_up.x = args.x + chunk.first * args.x_stride, gate_up.x_stride = args.x_stride;
    if (args.weighs_inputs) {
      gate_up.x = chunk.made + row * args.size, gate_up.x_stride = args.size;
      gate_up.picks = nullptr;
    }
    gate_up.out = chunk.inner + row * chunk.width, gate_up.out_stride = chunk.width;
    gate_up.activation = joins(args) ? int32_t{kNone} : args.activation;
    gate_up.limit = args.limit;
    down.x = chunk.inner + row * chunk.width, down.x_stride = chunk.width;
    down.out = chunk.made + row * args.size, down.out_stride = args.size;
    row += gate_up.rows;
  }
}

// Joins the halves that lie side by side, in place of the first ones.
void join_halves(const Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  each_row(chunk.rows, args.inner, [&](int64_t row) {
    float* at = chunk.inner + row * chunk.width;
    each_register(args.inner, [&](int64_t i, int count) {
      const Vec up = load_up_to(at + args.inner + i, count);
      store_up_to(at + i, count, gate(load_up_to(at + i, count), up, args.activation, args.limit));
    });
  }, 4);
}

// Adds up what a token's experts made, in their order.
void add_up(const Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  const int64_t pieces = divide_up(args.size, kPiece);
  const auto one = [&](int64_t task) {
    const int64_t token = task / pieces, start = task % pieces * kPiece, left = args.size - start;
    const float* weights = args.weights + (chunk.first + token) * args.picked;
    const int32_t* rows = chunk.row_of + token * args.picked;
    const int64_t at = (chunk.first + token) * args.size + start;
    Vec shared_weight = set1(1.0f);
    if (args.shared_scores) shared_weight = sigmoid(set1(args.shared_scores[chunk.first + token]));
    each_register(left < kPiece ? left : kPiece, [&](int64_t i, int count) {
      Vec sum = zero();
      for (int64_t a = 0; a < args.picked; ++a) {
        if (rows[a] < 0) continue;
        const Vec made = load_up_to(chunk.made + rows[a] * args.size + start + i, count);
        sum = fma(made, set1(args.weighs_inputs ? 1.0f : weights[a]), sum);
      }
      if (args.shared) sum = fma(load_up_to(args.shared + at + i, count), shared_weight, sum);
      if (args.residual) sum = add(load_up_to(args.residual + at + i, count), sum);
      store_up_to(args.out + at + i, count, sum);
    });
  };
  each_row(chunk.tokens * pieces, args.size < kPiece ? args.size : kPiece, one, args.picked);
}

int multiply(Chunk& chunk) {
  const MoeArgs& args = chunk.args;
  if (!sort(chunk)) return 1;
  chunk.inner = static_cast<float*>(scratch(6, (chunk.rows * (chunk.width + args.size) + 1) * sizeof(float)));
  if (!chunk.inner) return 1;
  chunk.made = chunk.inner + chunk.rows * chunk.width;
  if (args.weighs_inputs) weigh_inputs(chunk);
  place(chunk);
  const GroupArgs gate_up{chunk.gate_up, chunk.used}, down{chunk.down, chunk.used};
  if (args.multiply_gate_up(&gate_up)) return 1;
  if (chunk.width > args.inner) join_halves(chunk);
  if (args.multiply_down(&down)) return 1;
  add_up(chunk);
  return 0;
}

}  // namespace

// Returns 0, or 1 when there is no memory for what the experts make.
DT_KERNEL(moe, MoeArgs) {
  const int64_t bytes = args.tokens * args.picked * (args.inner + args.size) * static_cast<int64_t>(sizeof(float));
  const int64_t chunks = divide_up(bytes, kHeldBytes);
  const int64_t some = chunks > 1 ? divide_up(args.tokens, chunks) : args.tokens;
  int failed = 0;
  for (int64_t first = 0; first < args.tokens && !failed; first += some) {
    Chunk chunk(args, first, args.tokens - first < some ? args.tokens - first : some);
    failed = multiply(chunk);
  }
  return failed;
}
