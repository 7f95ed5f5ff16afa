// checksum, a piece at a time.
//
// Bytes: the data once; two additions a word.

#include <string.h>

#include "checksum/args.h"
#include "pool.h"
#include "vector.h"

using namespace dt;

namespace {

constexpr int64_t kSumLanes = 16, kUnit = kSumLanes * 4;

}  // namespace

DT_KERNEL(checksum, ChecksumArgs) {
  parallel((args.size + args.piece - 1) / args.piece, [&](int64_t piece) {
    const uint8_t* from = args.data + piece * args.piece;
    const int64_t left = args.size - piece * args.piece, bytes = left < args.piece ? left : args.piece;
    uint32_t plain[kSumLanes] = {}, weighted[kSumLanes] = {};
    const auto add = [&](const uint8_t* unit) __attribute__((always_inline)) {
      uint32_t words[kSumLanes];
      memcpy(words, unit, kUnit);
      for (int64_t i = 0; i < kSumLanes; ++i) {
        plain[i] += words[i];
        weighted[i] += plain[i];
      }
    };
    int64_t done = 0;
    for (; done + kUnit <= bytes; done += kUnit) add(from + done);
    if (done < bytes) {
      uint8_t last[kUnit] = {};
      memcpy(last, from + done, static_cast<size_t>(bytes - done));
      add(last);
      done += kUnit;
    }
    const auto zeros = static_cast<uint32_t>((args.piece - done) / kUnit);  // of the piece filled up
    uint32_t* sums = args.sums + piece * 2 * kSumLanes;
    for (int64_t i = 0; i < kSumLanes; ++i) {
      sums[i] = plain[i];
      sums[kSumLanes + i] = weighted[i] + zeros * plain[i];
    }
  });
  return 0;
}
