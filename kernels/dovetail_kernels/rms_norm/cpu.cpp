// rms_norm, one row at a time, optionally with the addition before it or after it.
//
// Bytes: x and the weight once, out once (with a delta: delta read and x written as well; with a
// residual: that read). Work: 4 E operations a row. A row stays in the first-level cache between
// the two passes over it, so memory sees one.

#include "rms_norm/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

template <bool has_weight, bool has_residual>
DT_INLINE void scale_row(const RmsNormArgs& args, const float* x, int64_t row, float inverse) {
  float* out = args.out + row * args.size;
  const float* residual = args.residual + (has_residual ? row * args.size : 0);
  const Vec scale = set1(inverse), offset = set1(args.offset);
  each_register(args.size, [&](int64_t i, int count) {
    Vec v = mul(load_up_to(x + i, count), scale);
    if (has_weight) v = mul(v, add(load_up_to(args.weight + i, count), offset));
    if (has_residual) v = add(v, load_up_to(residual + i, count));
    store_up_to(out + i, count, v);
  });
}

}  // namespace

DT_KERNEL(rms_norm, RmsNormArgs) {
  each_row(args.rows, args.size, [&](int64_t row) {
    float* x = args.x + row * args.x_stride;
    if (args.delta) add_row(x, args.delta + row * args.delta_stride, args.size);
    const float inverse = inverse_rms(x, args.size, args.eps);
    if (args.weight && args.residual) scale_row<true, true>(args, x, row, inverse);
    else if (args.weight) scale_row<true, false>(args, x, row, inverse);
    else if (args.residual) scale_row<false, true>(args, x, row, inverse);
    else scale_row<false, false>(args, x, row, inverse);
  });
  return 0;
}
