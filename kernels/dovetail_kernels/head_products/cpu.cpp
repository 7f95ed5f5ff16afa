// head_products: each head's numbers times a matrix of its own.
//
// Bytes: every matrix once, H I O numbers (9/8 bytes each under scales); work 2 T H I O. A task is a panel of 64 outputs of one
// head, whose I rows stay in the cache for all tokens. A token's sums run over I in order, alone as
// among others.

#include "head_products/args.h"
#include "entries.h"
#include "rows.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int64_t kPanel = 64;
constexpr int kVecs = 4, kGroup = kVecs * kLanes;  // outputs that are summed up together
constexpr int kTokens = kLanes == 16 ? 4 : 2;

// A panel's numbers as floats: `load` gives kLanes of input n, from output `at` on.
template <class Number>
struct Plain {
  using Entry = Number;
  static constexpr int64_t item = kPanel * sizeof(Entry);  // bytes an input
  const Entry* weight;
  DT_INLINE Plain(const char* panel, int64_t) : weight(reinterpret_cast<const Entry*>(panel)) {}
  DT_INLINE Vec load(int64_t n, int64_t at) const { return load_of(weight + n * kPanel + at); }
};

constexpr int64_t kScaled = 32;  // numbers under one scale
template <bool by_outputs>
struct Bytes {
  static constexpr int64_t item = kPanel + kPanel / kScaled * sizeof(float);
  const int8_t* codes;
  const float* scales;
  DT_INLINE Bytes(const char* panel, int64_t in_size)
      : codes(reinterpret_cast<const int8_t*>(panel)),
        scales(reinterpret_cast<const float*>(panel + in_size * kPanel)) {}
  DT_INLINE Vec load(int64_t n, int64_t at) const {
    const Vec scale = by_outputs ? set1(scales[n * (kPanel / kScaled) + at / kScaled])
                                 : DT_ISA::load(scales + n / kScaled * kPanel + at);
    return mul(load_s8(codes + n * kPanel + at), scale);
  }
};

// `outputs` of the kGroup from `group` on are stored.
template <class Numbers, int tokens>
DT_INLINE void multiply(const float* x, int64_t x_stride, const Numbers& weight, int64_t group,
                        int64_t in_size, float* out, int64_t out_stride, int64_t outputs) {
  Vec sums[tokens * kVecs];
  repeat<tokens * kVecs>([&](auto i) { sums[i.value] = zero(); });
  for (int64_t n = 0; n < in_size; ++n) {
    Vec w[kVecs];
    repeat<kVecs>([&](auto i) { w[i.value] = weight.load(n, group + i.value * kLanes); });
    repeat<tokens>([&](auto t) {
      const Vec one = set1(x[t.value * x_stride + n]);
      repeat<kVecs>([&](auto i) {
        constexpr int at = t.value * kVecs + i.value;
        sums[at] = fma(one, w[i.value], sums[at]);
      });
    });
  }
  repeat<tokens>([&](auto t) {
    repeat<kVecs>([&](auto i) {
      const int64_t left = outputs - i.value * kLanes;
      if (left <= 0) return;
      const int count = left < kLanes ? static_cast<int>(left) : kLanes;
      store_up_to(out + t.value * out_stride + i.value * kLanes, count,
                  sums[t.value * kVecs + i.value]);
    });
  });
}

template <class Numbers>
void run_panel(const HeadProductsArgs& args, int64_t head, int64_t panel) {
  const int64_t panels = divide_up(args.out_size, kPanel), out_head = args.out_size + args.rest;
  const int64_t out_stride = args.num_heads * out_head;
  const Numbers weight(static_cast<const char*>(args.weight) +
                           (head * panels + panel) * args.in_size * Numbers::item,
                       args.in_size);
  const float* x = args.x + head * (args.in_size + args.rest);
  for (int64_t group = 0; group < kPanel; group += kGroup) {
    const int64_t first = panel * kPanel + group, outputs = args.out_size - first;
    if (outputs <= 0) break;
    float* out = args.out + head * out_head + first;
    int64_t t = 0;
    for (; t + kTokens <= args.tokens; t += kTokens)
      multiply<Numbers, kTokens>(x + t * args.x_stride, args.x_stride, weight, group, args.in_size,
                                 out + t * out_stride, out_stride, outputs);
    for (; t < args.tokens; ++t)
      multiply<Numbers, 1>(x + t * args.x_stride, args.x_stride, weight, group, args.in_size,
                           out + t * out_stride, out_stride, outputs);
  }
  if (panel > 0 || !args.rest) return;
  for (int64_t t = 0; t < args.tokens; ++t)
    memcpy(args.out + t * out_stride + head * out_head + args.out_size,
           x + t * args.x_stride + args.in_size, static_cast<size_t>(args.rest) * sizeof(float));
}

template <class Numbers>
int run_all(const HeadProductsArgs& args) {
  const int64_t panels = divide_up(args.out_size, kPanel);
  parallel(args.num_heads * panels,
           [&](int64_t task) { run_panel<Numbers>(args, task / panels, task % panels); });
  return 0;
}

}  // namespace

// Returns 0; 2 for a format not known here.
DT_KERNEL(head_products, HeadProductsArgs) {
  switch (args.format) {
    case kHeadFloat32: return run_all<Plain<float>>(args);
    case kHeadBfloat16: return run_all<Plain<Bf16>>(args);
    case kHeadFloat16: return run_all<Plain<F16>>(args);
    case kHeadByOutputs: return run_all<Bytes<true>>(args);
    case kHeadByInputs: return run_all<Bytes<false>>(args);
    default: return 2;
  }
}
