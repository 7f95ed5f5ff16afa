// gated_norm, one group of one row at a time.
//
// Bytes: x, the gate and the weight once, out once. Work: about 25 operations a number, most of them
// the exponential's. A group stays in the first-level cache between the two passes over it.

#include "activations.h"
#include "gated_norm/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kCost = 4;  // a number's work, in values moved

// out = x silu(gate), the values whose norm is taken.
void gate_row(const float* x, const float* gate, float* out, int64_t size) {
  each_register(size, [&](int64_t i, int count) {
    store_up_to(out + i, count, mul(load_up_to(x + i, count), activate(load_up_to(gate + i, count), kSilu)));
  });
}

}  // namespace

DT_KERNEL(gated_norm, GatedNormArgs) {
  const int64_t size = args.group_size;
  each_row(args.rows * args.groups, size, [&](int64_t task) {
    const int64_t row = task / args.groups, group = task % args.groups, first = group * size;
    const float* x = args.x + row * args.x_stride + first;
    const float* gate = args.gate + row * args.gate_stride + first;
    const float* weight = args.weight + group * args.weight_stride;
    float* out = args.out + (row * args.groups + group) * size;
    if (args.gate_first) gate_row(x, gate, out, size);
    const float* normed = args.gate_first ? out : x;
    const Vec scale = set1(inverse_rms(normed, size, args.eps));
    each_register(size, [&](int64_t i, int count) {
      Vec v = mul(mul(load_up_to(normed + i, count), scale), load_up_to(weight + i, count));
      if (!args.gate_first) v = mul(v, activate(load_up_to(gate + i, count), kSilu));
      store_up_to(out + i, count, v);
    });
  }, kCost);
  return 0;
}
