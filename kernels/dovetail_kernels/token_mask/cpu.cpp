// token_mask, one row at a time.
//
// Bytes: a mask once; of the logits only what a mask touches, read and written. Words that allow
// or forbid all of their 32 tokens, nearly all words are, cost a comparison or two to four adds.

#include "rows.h"
#include "token_mask/args.h"

using namespace dt;
using namespace dt::DT_ISA;

namespace {

constexpr int kBits = 32;

DT_INLINE void forbid_all(float* logits) {
  const Vec never = set1(-INFINITY);
  for (int i = 0; i < kBits; i += kLanes) store(logits + i, add(load(logits + i), never));
}

DT_INLINE void forbid_some(float* logits, uint32_t word, int count) {
  for (int i = 0; i < count; ++i) logits[i] += (word >> i & 1) ? 0.0f : -INFINITY;
}

}  // namespace

DT_KERNEL(token_mask, TokenMaskArgs) {
  each_row(args.count, args.size, [&](int64_t a) {
    const uint32_t* mask = args.masks + a * args.words;
    float* logits = args.logits + args.indices[a] * args.stride;
    const int64_t whole = args.size / kBits;
    for (int64_t w = 0; w < whole; ++w, logits += kBits) {
      if (mask[w] == 0) forbid_all(logits);
      else if (mask[w] != ~uint32_t{0}) forbid_some(logits, mask[w], kBits);
    }
    if (args.size % kBits) forbid_some(logits, mask[whole], static_cast<int>(args.size % kBits));
  });
  return 0;
}
