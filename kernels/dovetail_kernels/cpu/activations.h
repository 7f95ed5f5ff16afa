// Activation functions on registers, and the codes by which kernels are told which one.
#pragma once

#include "vector.h"

enum Activation : int32_t {
  kNone = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kQuickGelu = 4, kRelu = 5, kRelu2 = 6,
  kSwigluOai = 7, kSiluClamped = 8,  // of gates only
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
// x P(x^2) / Q(x^2), fitted for the least relative error up to kEnd, where erf becomes 1 in a float:
// absolute error below 4e-7. Exactly 1 and -1 from kEnd on: kEnd - kBelow is 1, and before kEnd erf is
// larger than x - kBelow.
DT_INLINE Vec erf(Vec x) {
  constexpr float kEnd = 3.90625f, kBelow = 2.90625f;
  const Vec one = set1(1.0f), minus_one = set1(-1.0f);
  const Vec a = min(max(x, set1(-kEnd)), set1(kEnd)), t = mul(a, a);
  Vec p = fma(set1(2.06131381e-6f), t, set1(2.84985435e-4f));
  p = fma(p, t, set1(3.74633633e-3f));
  p = fma(p, t, set1(5.26915677e-2f));
  p = fma(p, t, set1(1.89886719e-1f));
  p = fma(p, t, set1(1.12837911f));
  Vec q = fma(set1(3.82128455e-5f), t, set1(1.15884433e-3f));
  q = fma(q, t, set1(1.49303712e-2f));
  q = fma(q, t, set1(1.13904782e-1f));
  q = fma(q, t, set1(5.01615524e-1f));
  q = fma(q, t, one);
  const Vec y = div(mul(a, p), q);
  const Vec low = min(max(y, sub(a, set1(kBelow))), one);
  return max(min(low, add(a, set1(kBelow))), minus_one);
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

// What a gate does to the other half: act(gate) * up, both clamped by two of them. Source of kSwigluOai:
// OpenAI, gpt-oss model card, 2025.
DT_INLINE Vec gate(Vec gate, Vec up, int32_t activation, float limit) {
  if (activation < kSwigluOai) return mul(activate(gate, activation), up);
  const Vec low = min(set1(limit), gate);  // the second operand where one is NaN
  const Vec near = max(set1(-limit), min(set1(limit), up));
  if (activation == kSiluClamped) return mul(near, activate(low, kSilu));
  return mul(add(near, set1(1.0f)), mul(low, sigmoid(mul(low, set1(1.702f)))));
}

}  // namespace DT_ISA
}  // namespace dt
