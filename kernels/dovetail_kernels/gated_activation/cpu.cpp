// gated_activation: act(gate) * up, for products that do not end in it themselves.
//
// Bytes: 2 F floats read and F written a row. Work: about 25 operations per output where there is
// an exponential. Rows are cut into pieces, so one wide row can be shared out as well.

#include "activations.h"
#include "gated_activation/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kPiece = 2048;  // outputs; a multiple of kLanes
constexpr int64_t kCost = 4;      // an output's work, in values moved

template <int32_t activation>
int gate(const GateArgs& args) {
  const int64_t pieces = (args.size + kPiece - 1) / kPiece;
  each_row(args.rows * pieces, args.size < kPiece ? args.size : kPiece, [&](int64_t task) {
    const int64_t row = task / pieces, first = task % pieces * kPiece;
    const float* x = args.x + row * args.x_stride + first;
    float* out = args.out + row * args.size + first;
    const int64_t left = args.size - first;
    each_register(left < kPiece ? left : kPiece, [&](int64_t i, int count) {
      const Vec up = load_up_to(x + args.size + i, count);
      store_up_to(out + i, count, mul(activate(load_up_to(x + i, count), activation), up));
    });
  }, kCost);
  return 0;
}

}  // namespace

// Returns 0, or 2 for an activation not known here.
DT_KERNEL(gated_activation, GateArgs) {
  switch (args.activation) {
    case kNone: return gate<kNone>(args);
    case kSilu: return gate<kSilu>(args);
    case kGelu: return gate<kGelu>(args);
    case kGeluTanh: return gate<kGeluTanh>(args);
    case kQuickGelu: return gate<kQuickGelu>(args);
    case kRelu: return gate<kRelu>(args);
    case kRelu2: return gate<kRelu2>(args);
    default: return 2;
  }
}
