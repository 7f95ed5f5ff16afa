// output_gate, one row at a time.
//
// Bytes: x and the gate once, out once. Work: about 20 operations a number, most of them the
// exponential's.

#include "activations.h"
#include "output_gate/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kCost = 4;  // a number's work, in values moved

}  // namespace

DT_KERNEL(output_gate, OutputGateArgs) {
  each_row(args.rows, args.size, [&](int64_t row) {
    const float* x = args.x + row * args.x_stride;
    const float* gate = args.gate + row * args.gate_stride;
    float* out = args.out + row * args.size;
    each_register(args.size, [&](int64_t i, int count) {
      store_up_to(out + i, count, mul(load_up_to(x + i, count), sigmoid(load_up_to(gate + i, count))));
    });
  }, kCost);
  return 0;
}
