// embedding: rows of a table as floats, times a factor, and added to what there is.
//
// Bytes: E table entries read and E floats written a row (and read, where it is added to). Work: a
// conversion, a product and an addition per entry. Rows lie anywhere in a large table, so a single row costs a few misses of the cache.

#include "embedding/args.h"
#include "entries.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

template <class Entry>
int look_up(const EmbeddingArgs& args) {
  each_row(args.rows, args.size, [&](int64_t row) {
    const int64_t at = args.ids ? args.ids[row] - args.first : 0;
    float* out = args.out + row * args.size;
    const float* onto = args.onto ? args.onto + row * args.size : nullptr;
    if (at < 0 || at >= args.table_rows) {
      for (int64_t i = 0; i < args.size; ++i) out[i] = onto ? onto[i] : 0.0f;
      return;
    }
    const Entry* from = static_cast<const Entry*>(args.table) + at * args.size;
    const float factor = args.scales ? args.scales[at] * args.factor : args.factor;
    int64_t i = 0;
    for (; i + kLanes <= args.size; i += kLanes) {
      const Vec found = mul(load_of(from + i), set1(factor));
      store(out + i, onto ? add(load(onto + i), found) : found);
    }
    for (; i < args.size; ++i) {
      const float found = one_of(from[i]) * factor;
      out[i] = onto ? onto[i] + found : found;
    }
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
