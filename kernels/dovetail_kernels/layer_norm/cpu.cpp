// layer_norm, one row at a time, optionally with an addition before it.
//
// Bytes: x, weight and bias once, out once (with a delta: delta read and x written as well). Work:
// 7 E operations a row. The mean is taken first and the variance from the differences, so large
// means cost no digits; the three passes find the row in the first-level cache.

#include "layer_norm/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

DT_INLINE float mean_of(const float* x, int64_t size) {
  const float total = ordered_sum(
      size, [&](Vec s, int64_t i, int count) { return add(s, load_up_to(x + i, count)); });
  return total / static_cast<float>(size);
}

DT_INLINE float inverse_deviation(const float* x, int64_t size, float mean, float eps) {
  const Vec middle = set1(mean);
  const float squares = ordered_sum(size, [&](Vec s, int64_t i, int count) {
    // Lanes beyond the row hold the mean: they differ from it by nothing.
    const Vec v = count == kLanes ? load(x + i) : load_some(x + i, count, mean);
    const Vec difference = sub(v, middle);
    return fma(difference, difference, s);
  });
  return 1.0f / sqrtf(squares / static_cast<float>(size) + eps);
}

template <bool has_weight, bool has_bias>
DT_INLINE void scale_row(const LayerNormArgs& args, const float* x, float* out, float mean,
                         float inverse) {
  const Vec middle = set1(mean), scale = set1(inverse), offset = set1(args.offset);
  each_register(args.size, [&](int64_t i, int count) {
    Vec v = mul(sub(load_up_to(x + i, count), middle), scale);
    if (has_weight) v = mul(v, add(load_up_to(args.weight + i, count), offset));
    if (has_bias) v = add(v, load_up_to(args.bias + i, count));
    store_up_to(out + i, count, v);
  });
}

}  // namespace

DT_KERNEL(layer_norm, LayerNormArgs) {
  each_row(args.rows, args.size, [&](int64_t row) {
    float* x = args.x + row * args.x_stride;
    float* out = args.out + row * args.size;
    if (args.delta) add_row(x, args.delta + row * args.delta_stride, args.size);
    const float mean = mean_of(x, args.size);
    const float inverse = inverse_deviation(x, args.size, mean, args.eps);
    if (args.weight && args.bias) scale_row<true, true>(args, x, out, mean, inverse);
    else if (args.weight) scale_row<true, false>(args, x, out, mean, inverse);
    else if (args.bias) scale_row<false, true>(args, x, out, mean, inverse);
    else scale_row<false, false>(args, x, out, mean, inverse);
  });
  return 0;
}
