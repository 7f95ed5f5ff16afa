// nan_check, a piece at a time.
//
// Bytes: the values once; an AND and a maximum a value.

#include <string.h>

#include "nan_check/args.h"
#include "pool.h"
#include "vector.h"

using namespace dt;

namespace {

constexpr int64_t kPieceBytes = 1 << 18;

// The greatest value without its sign, as an integer.
template <class T> T greatest(const uint8_t* at, int64_t bytes) {
  constexpr int64_t kUnit = 256, kSome = kUnit / sizeof(T), kAhead = 2048;
  constexpr T kNoSign = static_cast<T>(~T{0}) >> 1;
  T most[kSome] = {};
  const auto take = [&](const uint8_t* unit) __attribute__((always_inline)) {
    T some[kSome];
    memcpy(some, unit, kUnit);
    for (int64_t i = 0; i < kSome; ++i) {
      const T value = some[i] & kNoSign;
      most[i] = value > most[i] ? value : most[i];
    }
  };
  int64_t done = 0;
  for (; done + kUnit <= bytes; done += kUnit) {
    for (int64_t line = 0; line < kUnit; line += 64) __builtin_prefetch(at + done + kAhead + line);
    take(at + done);
  }
  if (done < bytes) {
    uint8_t last[kUnit] = {};
    memcpy(last, at + done, static_cast<size_t>(bytes - done));
    take(last);
  }
  T all = 0;
  for (T one : most) all = one > all ? one : all;
  return all;
}

}  // namespace

// Returns 1 if a value is not a number, else 0.
DT_KERNEL(nan_check, NanCheckArgs) {
  const int64_t bytes = args.size * args.value_bytes;
  int found = 0;
  parallel((bytes + kPieceBytes - 1) / kPieceBytes, [&](int64_t piece) {
    const uint8_t* at = static_cast<const uint8_t*>(args.bits) + piece * kPieceBytes;
    const int64_t left = bytes - piece * kPieceBytes, some = left < kPieceBytes ? left : kPieceBytes;
    const uint32_t most = args.value_bytes == 2 ? greatest<uint16_t>(at, some) : greatest<uint32_t>(at, some);
    if (most > args.infinity) __atomic_store_n(&found, 1, __ATOMIC_RELAXED);
  });
  return found;
}
