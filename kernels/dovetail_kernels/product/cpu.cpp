// product: x * act(gate) * factors, where a layer gates or scales what no matrix product makes.
//
// Bytes: C or 2 C floats read and C written a row; the factors stay in the cache. Work: about 25
// operations per output where there is an exponential. Rows are cut into pieces, so one wide row can
// be shared out as well.

#include "activations.h"
#include "product/args.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kPiece = 2048;  // outputs; a multiple of kLanes

template <int32_t activation>
int multiply(const ProductArgs& args) {
  const int64_t pieces = (args.size + kPiece - 1) / kPiece;
  const int64_t cost = activation == kNone ? 2 : 4;  // an output's work, in values moved
  each_row(args.rows * pieces, args.size < kPiece ? args.size : kPiece, [&](int64_t task) {
    const int64_t row = task / pieces, first = task % pieces * kPiece;
    const float* x = args.x + row * args.x_stride + first;
    const float* gate = args.gate ? args.gate + row * args.gate_stride + first : nullptr;
    const float* factors = args.factors ? args.factors + first : nullptr;
    float* out = args.out + row * args.size + first;
    const int64_t left = args.size - first;
    each_register(left < kPiece ? left : kPiece, [&](int64_t i, int count) {
      Vec made = load_up_to(x + i, count);
      if (gate) made = mul(made, activate(load_up_to(gate + i, count), activation));
      if (factors) made = mul(made, load_up_to(factors + i, count));
      store_up_to(out + i, count, made);
    });
  }, cost);
  return 0;
}

}  // namespace

// Returns 0, or 2 for an activation not known here.
DT_KERNEL(product, ProductArgs) {
  switch (args.activation) {
    case kNone: return multiply<kNone>(args);
    case kSilu: return multiply<kSilu>(args);
    case kGelu: return multiply<kGelu>(args);
    case kGeluTanh: return multiply<kGeluTanh>(args);
    case kQuickGelu: return multiply<kQuickGelu>(args);
    case kRelu: return multiply<kRelu>(args);
    case kRelu2: return multiply<kRelu2>(args);
    default: return 2;
  }
}
