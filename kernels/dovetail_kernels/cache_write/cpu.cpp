// Stores keys and values into their slots of the blocks that paged_attention/layout.h describes.
//
// Bytes: 8 T K D read, 2 T K D items written. Tokens of one cell are stored together, so that a
// cell's line is filled at once; numbers are rounded to nearest even, those beyond the range of an
// 8-bit float become its largest. Kind::narrow(x, by) is x / by in an 8-bit float, x * by in int8
// and x in any other.

#include "paged_attention/packed.h"
#include "paged_attention/rotate.h"
#include "pool.h"
#include "vector.h"

namespace dt {
namespace DT_ISA {
namespace attention {
namespace {

constexpr int64_t kAloneFloats = 1 << 14;  // so few numbers are stored by the caller alone

constexpr float from_power(int n) {
  float x = 1.0f;
  for (; n > 0; --n) x *= 2.0f;
  for (; n < 0; ++n) x *= 0.5f;
  return x;
}

// A number in 8 bits, `mantissa` of them the mantissa; the least normal one is 2^(1 - bias).
template <int mantissa, int bias>
DT_INLINE uint8_t to_float8(float x, float largest) {
  const uint32_t bits = to_bits(x), sign = (bits >> 24) & 0x80, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  float size = from_bits(rest);
  size = size > largest ? largest : size;
  constexpr float least = from_power(1 - bias);
  if (size < least) {
    // Adding 2^23 times the smallest step lets the adder round.
    constexpr float magic = from_power(1 - bias - mantissa + 23);
    return static_cast<uint8_t>(sign | (to_bits(size + magic) - to_bits(magic)));
  }
  const uint32_t n = to_bits(size), odd = (n >> (23 - mantissa)) & 1;
  const uint32_t rounded = (n + (1u << (22 - mantissa)) - 1 + odd) >> (23 - mantissa);
  return static_cast<uint8_t>(sign | (rounded - (uint32_t{127 - bias} << mantissa)));
}

struct Float32 {
  using Item = float;
  static DT_INLINE Item narrow(float x, float) { return x; }
};
struct Bfloat16 {
  using Item = bf16;
  static DT_INLINE Item narrow(float x, float) { return float_to_bf16(x); }
};
struct Float16 {
  using Item = f16;
  static DT_INLINE Item narrow(float x, float) { return float_to_f16(x); }
};
struct E4m3 {
  using Item = uint8_t;
  static DT_INLINE Item narrow(float x, float by) { return to_float8<3, 7>(x / by, 448.0f); }
};
struct E5m2 {
  using Item = uint8_t;
  static DT_INLINE Item narrow(float x, float by) { return to_float8<2, 15>(x / by, 57344.0f); }
};
struct Int8 {
  using Item = int8_t;
  static DT_INLINE Item narrow(float x, float by) {
    return static_cast<int8_t>(lrintf(x * by));  // which brings it into range
  }
};

// The step's tokens first .. first + count - 1, which lie in one cell from `key` on.
struct Run {
  int64_t first, count, block, offset;
};

// to[i * gap] = from[i * stride], narrowed by factors[i]
template <class Kind>
DT_INLINE void store_key(const float* from, int64_t stride, const float* factors, int64_t count,
                         int64_t gap, typename Kind::Item* to) {
  for (int64_t i = 0; i < count; ++i) to[i * gap] = Kind::narrow(from[i * stride], factors[i]);
}

// The factor that brings a token's numbers into -127 .. 127, and the scale that undoes it: NaN, over
// zeros, where a number is not finite.
DT_INLINE float int8_factor(const float* x, int64_t size, float* scale) {
  Vec most = zero(), broken = zero();
  for (int64_t d = 0; d < size; d += kLanes) {
    const Vec v = load(x + d);
    most = max(most, max(v, sub(zero(), v)));
    broken = fma(v, zero(), broken);
  }
  const float peak = largest(most), wrong = sum(broken);
  *scale = peak / 127.0f + wrong;
  return peak > 0 && wrong == 0 ? 127.0f / peak : 0.0f;
}

template <class Kind, bool is_in_pairs>
void store_run(const AttentionArgs& args, const Layout& layout, const Run& run, int64_t head) {
  using Item = typename Kind::Item;
  const int64_t size = args.head_size, key = run.offset % kCell;
  char* cell = layout.cell(args.cache, run.block, head, run.offset);
  const float* k = args.k + run.first * args.k_stride + head * size;
  const float* v = args.v + run.first * args.v_stride + head * size;
  int64_t k_stride = args.k_stride;
  float rotated[kCell * kMaxHeadSize];
  if (args.rotates) {
    for (int64_t i = 0; i < run.count; ++i) rotate(k + i * k_stride, size, 1.0f, rotated + i * size);
    k = rotated;
    k_stride = size;
  }
  float k_factors[kCell], v_factors[kCell];
  for (int64_t i = 0; i < run.count; ++i) {
    k_factors[i] = args.k_scale;
    v_factors[i] = args.v_scale;
  }
  if (args.format == kKvInt8) {
    float* scales = reinterpret_cast<float*>(cell + layout.scales_at) + key;
    for (int64_t i = 0; i < run.count; ++i) {
      k_factors[i] = int8_factor(k + i * k_stride, size, scales + i);
      v_factors[i] = int8_factor(v + i * args.v_stride, size, scales + kCell + i);
    }
  }
  Item* keys = reinterpret_cast<Item*>(cell);
  Item* values = reinterpret_cast<Item*>(cell + layout.values_at);
  constexpr int64_t pair = is_in_pairs ? 2 : 1;
  for (int64_t d = 0; d < size; ++d)
    store_key<Kind>(k + d, k_stride, k_factors, run.count, pair,
                    keys + d / pair * pair * kCell + d % pair + key * pair);
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t at = key + i;
    Item* to = values + at / pair * pair * kCell + at % pair;
    const float* from = v + i * args.v_stride;
    for (int64_t d = 0; d < size; d += kCell, to += kCell * kCell, from += kCell)
      for (int64_t c = 0; c < kCell; ++c) to[c * pair] = Kind::narrow(from[c], v_factors[i]);
  }
}

// A key becomes its difference from the first of its cell if that is smaller; returns the scale as it
// is stored, which then has its sign bit set, and the factor that brings x into -127 .. 127.
DT_INLINE float make_difference(const float* first, int64_t size, float* x, float* factor) {
  float scale, other, difference[kMaxHeadSize];
  *factor = int8_factor(x, size, &scale);
  for (int64_t d = 0; d < size; d += kLanes) store(difference + d, sub(load(x + d), load(first + d)));
  const float its = int8_factor(difference, size, &other);
  if (!(other < scale)) return scale;  // NaN where a number is not finite
  memcpy(x, difference, size * sizeof(float));
  *factor = its;
  return from_bits(to_bits(other) | 0x80000000);
}

// What is stored of the cell's first key, as a float. Its numbers are `gap` pairs of bytes apart.
DT_INLINE void widen_first(const int8_t* pairs, int64_t gap, float scale, int64_t size, float* to) {
  for (int64_t d = 0; d < size; ++d)
    to[d] = static_cast<float>(pairs[d / 2 * 2 * gap + d % 2]) * scale;
}

// The key in place `at` of a cell. Mutates: x
void store_packed_key(const PackedCell& parts, char* cell, float* x, int64_t size, int64_t at,
                      float* first) {
  float* scale = reinterpret_cast<float*>(cell + parts.scales_at) + at;
  float factor;
  if (at > 0) *scale = make_difference(first, size, x, &factor);
  else factor = int8_factor(x, size, scale);
  const bool is_whole = at == 0 || parts.has_whole_keys;
  const int64_t gap = parts.has_whole_keys ? kCell : 1;
  int8_t* whole = reinterpret_cast<int8_t*>(cell + (parts.has_whole_keys ? at * 2 : parts.first_at));
  if (is_whole)
    for (int64_t d = 0; d < size; ++d)
      whole[d / 2 * 2 * gap + d % 2] = Int8::narrow(x[d], factor);
  if (at == 0) widen_first(whole, gap, *scale, size, first);
  if (is_whole) return;
  uint8_t* groups = reinterpret_cast<uint8_t*>(cell + parts.key_groups_at) + at;
  uint8_t q[kGroup];
  for (int64_t g = 0; g < size / kGroup; ++g, groups += 2 * kCell) {
    narrow_group(x + g * kGroup, factor, groups, groups + kCell, q);
    char* to = cell + g * kPackedGroup + at * 2;
    for (int d = 0; d < kCell; ++d)
      to[d / 2 * kRowBytes + d % 2] = static_cast<char>(q[d] | q[d + kCell] << 4);
  }
}

void store_packed_value(const PackedCell& parts, char* cell, const float* x, int64_t size, int64_t at) {
  const float factor =
      int8_factor(x, size, reinterpret_cast<float*>(cell + parts.scales_at) + kCell + at);
  uint8_t* groups = reinterpret_cast<uint8_t*>(cell + parts.value_groups_at) + at;
  uint8_t q[kGroup];
  for (int64_t g = 0; g < size / kGroup; ++g, groups += 2 * kCell) {
    narrow_group(x + g * kGroup, factor, groups, groups + kCell, q);
    char* to = cell + parts.values_at + g * kPackedGroup + at / 2 * kRowBytes + at % 2;
    for (int c = 0; c < kCell; ++c) to[2 * c] = static_cast<char>(q[c] | q[c + kCell] << 4);
  }
}

void store_packed(const AttentionArgs& args, const Layout& layout, const Run& run, int64_t head) {
  const int64_t size = args.head_size, key = run.offset % kCell;
  const PackedCell parts(args.format, size);
  char* cell = layout.cell(args.cache, run.block, head, run.offset);
  const float scale = *reinterpret_cast<float*>(cell + parts.scales_at);
  const bool is_whole = parts.has_whole_keys;
  float x[kMaxHeadSize], first[kMaxHeadSize];
  if (key > 0)
    widen_first(reinterpret_cast<int8_t*>(cell + (is_whole ? 0 : parts.first_at)),
                is_whole ? kCell : 1, scale, size, first);
  for (int64_t i = 0; i < run.count; ++i) {
    const float* k = args.k + (run.first + i) * args.k_stride + head * size;
    if (args.rotates) rotate(k, size, 1.0f, x);
    else memcpy(x, k, size * sizeof(float));
    store_packed_key(parts, cell, x, size, key + i, first);
    store_packed_value(parts, cell, args.v + (run.first + i) * args.v_stride + head * size, size,
                       key + i);
  }
}

void store_run_of(const AttentionArgs& args, const Layout& layout, const Run& run, int64_t head) {
  switch (args.format) {
    case kKvFloat32: return store_run<Float32, false>(args, layout, run, head);
    case kKvBfloat16: return store_run<Bfloat16, true>(args, layout, run, head);
    case kKvFloat16: return store_run<Float16, false>(args, layout, run, head);
    case kKvE4m3: return store_run<E4m3, true>(args, layout, run, head);
    case kKvE5m2: return store_run<E5m2, true>(args, layout, run, head);
    case kKvInt8: return store_run<Int8, true>(args, layout, run, head);
    case kKvK8V4:
    case kKvInt4: return store_packed(args, layout, run, head);
  }
}

// The first token from `token` on that does not go behind the one before it into the same cell: keys
// that may differ from one first key are stored by one thread, in order.
int64_t next_run(const AttentionArgs& args, int64_t token, int64_t tokens) {
  while (token > 0 && token < tokens && args.slots[token] % kCell != 0 &&
         args.slots[token] == args.slots[token - 1] + 1)
    ++token;
  return token < tokens ? token : tokens;
}

// Tokens first .. last - 1, those of one cell together.
void store_tokens(const AttentionArgs& args, const Layout& layout, int64_t first, int64_t last) {
  while (first < last) {
    const int64_t slot = args.slots[first];
    Run run{first, 1, slot / args.block_tokens, slot % args.block_tokens};
    const int64_t most = kCell - run.offset % kCell;
    while (run.count < most && first + run.count < last &&
           args.slots[first + run.count] == slot + run.count)
      ++run.count;
    for (int64_t head = 0; head < args.num_kv_heads; ++head) store_run_of(args, layout, run, head);
    first += run.count;
  }
}

}  // namespace

void write_cache(const AttentionArgs& args) {
  const Layout layout(args);
  const int64_t tokens = args.written;
  if (tokens * args.num_kv_heads * args.head_size < kAloneFloats)
    return store_tokens(args, layout, 0, tokens);
  parallel((tokens + kCell - 1) / kCell, [&](int64_t task) {
    store_tokens(args, layout, next_run(args, task * kCell, tokens),
                 next_run(args, (task + 1) * kCell, tokens));
  });
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
