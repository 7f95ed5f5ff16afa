// Activation functions on registers, and the codes by which kernels are told which one.
#pragma once

#include "vector.h"

enum Activation : int32_t {
  kNone = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kQuickGelu = 4, kRelu = 5, kRelu2 = 6,
};

namespace dt {
namespace DT_ISA {

// tanh(x) = 1 - 2 / (e^2x + 1)
DT_INLINE Vec tanh(Vec x) {
  const Vec one = set1(1.0f);
  return sub(one, div(set1(2.0f), add(exp(add(x, x)), one)));
}
DT_INLINE Vec sigmoid(Vec x) {
  const Vec one = set1(1.0f);
  return div(one, add(one, exp(sub(zero(), x))));
}
// Abramowitz and Stegun 7.1.26: absolute error below 1.5e-7.
DT_INLINE Vec erf(Vec x) {
  const Vec a = max(x, sub(zero(), x)), one = set1(1.0f);
  const Vec t = div(one, fma(set1(0.3275911f), a, one));
  Vec p = fma(set1(1.061405429f), t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = mul(fma(p, t, set1(0.254829592f)), t);
  const Vec y = sub(one, mul(p, exp(sub(zero(), mul(a, a)))));
  return div(mul(y, x), max(a, set1(1e-30f)));
}

DT_INLINE Vec activate(Vec x, int32_t activation) {
  switch (activation) {
    case kSilu: return mul(x, sigmoid(x));
    case kGelu: return mul(mul(x, set1(0.5f)), add(set1(1.0f), erf(mul(x, set1(0.70710678f)))));
    case kGeluTanh: {
      const Vec inner = mul(fma(mul(mul(x, x), x), set1(0.044715f), x), set1(0.79788456f));
      return mul(mul(x, set1(0.5f)), add(set1(1.0f), tanh(inner)));
    }
    case kQuickGelu: return mul(x, sigmoid(mul(x, set1(1.702f))));
    case kRelu: return max(x, zero());
    case kRelu2: return mul(max(x, zero()), max(x, zero()));
    default: return x;
  }
}

}  // namespace DT_ISA
}  // namespace dt
