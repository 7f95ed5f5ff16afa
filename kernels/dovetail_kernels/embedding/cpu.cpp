// embedding: rows of a table as floats, times a factor.
//
// Bytes: E table entries read and E floats written a row. Work: a conversion and a product per
// entry. Rows lie anywhere in a large table, so a single row costs a few misses of the cache.

#include "embedding/args.h"
#include "entries.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

template <class Entry>
int look_up(const EmbeddingArgs& args) {
  each_row(args.rows, args.size, [&](int64_t row) {
    const int64_t at = args.ids[row] - args.first;
    float* out = args.out + row * args.size;
    if (at < 0 || at >= args.table_rows) {
      memset(out, 0, static_cast<size_t>(args.size) * sizeof(float));
      return;
    }
    const Entry* from = static_cast<const Entry*>(args.table) + at * args.size;
    const float factor = args.scales ? args.scales[at] * args.factor : args.factor;
    int64_t i = 0;
    for (; i + kLanes <= args.size; i += kLanes)
      store(out + i, mul(load_of(from + i), set1(factor)));
    for (; i < args.size; ++i) out[i] = one_of(from[i]) * factor;
  });
  return 0;
}

}  // namespace

// Returns 0, or 2 for a format not known here.
DT_KERNEL(embedding, EmbeddingArgs) {
  switch (args.format) {
    case kFloat32: return look_up<float>(args);
    case kBfloat16: return look_up<Bf16>(args);
    case kFloat16: return look_up<F16>(args);
    case kInt8: return look_up<int8_t>(args);
    default: return 2;
  }
}
