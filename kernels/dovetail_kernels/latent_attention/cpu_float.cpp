// Latents written in the cache's numbers, and attention by products of floats.

#include "latent_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace latent {
namespace {

// What attention is computed with. `Entry` is in the cache, `Number` in queries and latents at hand, a
// `Register` of which holds kStep; kKeys latents are taken at a time, kFold of them share a product with
// the values.
template <class CacheEntry>
struct Floats {
  using Entry = CacheEntry;
  using Number = float;
  using Register = Vec;
  static constexpr int kKeys = 32, kStep = kLanes, kFold = 1;
  static constexpr bool is_kept_so = sizeof(Entry) == sizeof(float);

  static DT_INLINE void put(float* to, Vec x) { store(to, x); }
  static DT_INLINE void copy(const Entry* from, int64_t size, float* to, int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(to + i, load_of(from + i));
    if (i < size) {
      store(to + i, load_first(from + i, static_cast<int>(size - i)));
      i += kLanes;
    }
    for (; i < width; i += kLanes) store(to + i, zero());
  }
  static DT_INLINE Vec load(const float* p) { return DT_ISA::load(p); }
  static DT_INLINE Vec add_product(Vec x, Vec y, Vec sum) { return fma(x, y, sum); }
  static DT_INLINE Vec keep_weights(float* scores, int64_t k, Vec weights) {
    store(scores + k, weights);
    return weights;
  }
  static DT_INLINE void fold(Room*, int64_t) {}
  static DT_INLINE Vec values(const Room& room, int64_t k, int64_t d, int64_t) {
    return DT_ISA::load(static_cast<const float*>(room.keys[k]) + d);
  }
  static DT_INLINE Vec spread(const float* weights, int64_t k) { return set1(weights[k]); }
};

DT_INLINE void narrow(float* to, Vec x) { store(to, x); }
DT_INLINE void narrow(Bf16* to, Vec x) { store_bf16(&to->bits, x); }
DT_INLINE void narrow(F16* to, Vec x) { store_f16(&to->bits, x); }

// Stores the step's latents.
template <class Entry>
void write_as(const LatentArgs& args) {
  const int64_t size = args.latent_size + args.rope_size;
  each_row(args.query_start[args.rows], size, [&](int64_t token) {
    const float* from = args.latent + token * args.latent_stride;
    const int64_t block = args.slots[token] / args.block_tokens;
    const int64_t offset = args.slots[token] % args.block_tokens;
    Entry* to = static_cast<Entry*>(args.cache) + block * args.block_stride + offset * size;
    each_register(size, [&](int64_t i, int count) {
      const Vec x = load_up_to(from + i, count);
      if (count == kLanes) return narrow(to + i, x);
      Entry last[kLanes];
      narrow(last, x);
      memcpy(to + i, last, static_cast<size_t>(count) * sizeof(Entry));
    });
  });
}

}  // namespace

void write_latents(const LatentArgs& args) {
  switch (args.format) {
    case kLatentFloat32: return write_as<float>(args);
    case kLatentBfloat16: return write_as<Bf16>(args);
    case kLatentFloat16: return write_as<F16>(args);
  }
}

// Returns what the kernel does.
int attend_floats(const LatentArgs& args) {
  switch (args.format) {
    case kLatentFloat32: return attend<Floats<float>>(args);
    case kLatentBfloat16: return attend<Floats<Bf16>>(args);
    case kLatentFloat16: return attend<Floats<F16>>(args);
    default: return 2;
  }
}

}  // namespace latent
}  // namespace DT_ISA
}  // namespace dt
