// Rows of activations as integers, in the order in which integer products read them, and the product of
// four bytes.
//
// Bytes share a scale in segments of a few inputs, because a channel tens of times larger than the rest,
// as trained models have them, would leave the others of its row no levels. Words have levels enough for
// a whole row. A row has one scale of bytes only where the checkpoint says so.
#pragma once

#include "gemm/products.h"

#if defined(__x86_64__) && !defined(__AVX2__)
#include <emmintrin.h>
#endif

namespace dt {
namespace DT_ISA {

constexpr int64_t kMostSegment = 256;      // inputs; a piece of a panel has some segments
constexpr int kInputs = 16;                // rows are padded with zeros to a multiple of it
constexpr int64_t kInlineInputs = 1 << 13;  // fewer inputs than this are not worth sharing out

// acc[lane] += sum of four products of weight bytes and activation bytes.
DT_INLINE IVec dot4(IVec acc, IVec weight, IVec x) {
#if defined(__AVX512F__)
  // Of the intrinsic GCC 12 makes copies of every sum, in each turn of a loop.
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weight), "v"(x));
  return acc;
#elif defined(__AVXVNNI__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(weight), "x"(x));
  return acc;
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(weight, x);  // weights below 16: no saturation
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (IVec)vdotq_s32((int32x4_t)acc, (int8x16_t)weight, (int8x16_t)x);
#else
  const __m128i w = (__m128i)weight, a = (__m128i)x;
  const auto low = [](__m128i v) { return _mm_srai_epi16(_mm_unpacklo_epi8(v, v), 8); };
  const auto high = [](__m128i v) { return _mm_srai_epi16(_mm_unpackhi_epi8(v, v), 8); };
  const __m128 first = _mm_castsi128_ps(_mm_madd_epi16(low(w), low(a)));  // two halves a lane
  const __m128 second = _mm_castsi128_ps(_mm_madd_epi16(high(w), high(a)));
  const __m128i even = _mm_castps_si128(_mm_shuffle_ps(first, second, 0x88));
  const __m128i odd = _mm_castps_si128(_mm_shuffle_ps(first, second, 0xdd));
  return acc + (IVec)even + (IVec)odd;
#endif
}

// Holds the compiler to the order in which sums are written: another one needs more registers than there
// are.
DT_INLINE void keep_here(IVec& sum) {
#if defined(__x86_64__)
  asm("" : "+x"(sum));
#else
  (void)sum;
#endif
}

// How activations lie: [inputs / step][R][step] elements of T in a tile of R rows. A register of weight
// bytes becomes what is multiplied by them, and their products are added to lanes of 32 bits.
struct Bytes {
  using T = int8_t;
  static constexpr int step = 4;
  static constexpr bool is_wide = false;
  static DT_INLINE IVec weights(const void* w) { return iload(w); }
  static DT_INLINE IVec dot(IVec acc, IVec weight, IVec x) { return dot4(acc, weight, x); }
};
#if defined(DT_ADDS_PAIRS)
struct Words {  // two 16-bit halves a lane: products of full bytes would saturate otherwise
  using T = int16_t;
  static constexpr int step = 2;
  static constexpr bool is_wide = true;
  static DT_INLINE IVec weights(const void* w) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(w)));
  }
  static DT_INLINE IVec dot(IVec acc, IVec weight, IVec x) {
    return iadd(acc, _mm256_madd_epi16(weight, x));
  }
};
using Int8Rows = Words;
#else
using Int8Rows = Bytes;
#endif

// The rounded rows of a block. A segment is a run of inputs whose products are summed as integers; a
// group is what shares a scale of the weight, some segments.
struct Rows {
  void* values;     // tiles, one after the other
  float* scales;    // [segments, R] for a tile, as the values lie: what a segment's integers stand for
  int32_t* starts;  // likewise: what the sums of products begin at, minus the zero point times the inputs
  float* sums;      // [groups, R] for a tile: sums of the rounded inputs
  int64_t inputs;   // K padded
  int64_t chunk;    // in tiles of AMX: inputs of one; [inputs / chunk][16][chunk] is a tile of rows there
  int64_t segment, segments;
  int64_t group, groups;
  bool has_row_scales;  // all segments of a row have one scale
  float largest;        // the magnitude that a scale's largest input becomes
};

struct RowScale {
  float scale, inverse;
};

DT_INLINE Vec load_up_to(const float* x, int64_t left) {
  return left >= kLanes ? load(x) : left > 0 ? load_some(x, static_cast<int>(left), 0.0f) : zero();
}

// The scale that maps the largest magnitude of some inputs to `largest`; NaN when one is not finite, so
// that it shows in every output.
DT_INLINE RowScale row_scale(const float* x, int64_t size, float largest) {
  Vec most[4], finite[4];
  for (int j = 0; j < 4; ++j) most[j] = finite[j] = zero();
  for (int64_t k = 0; k < size; k += 4 * kLanes)
    for (int j = 0; j < 4 && k + j * kLanes < size; ++j) {
      const Vec v = load_up_to(x + k + j * kLanes, size - k - j * kLanes);
      most[j] = max(most[j], max(v, sub(zero(), v)));
      finite[j] = fma(v, zero(), finite[j]);
    }
  const float peak = DT_ISA::largest(max(max(most[0], most[1]), max(most[2], most[3])));
  const float broken = sum(add(add(finite[0], finite[1]), add(finite[2], finite[3])));
  return {peak / largest + broken, peak > 0 ? largest / peak : 0.0f};
}

// kLanes integers as bytes or 16-bit words, which hold them.
DT_INLINE void narrow(IVec x, int8_t* to) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
#elif defined(__AVX2__)
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(x[i]);
#endif
}
#if defined(__AVX2__) && !defined(__AVX512F__)
DT_INLINE void narrow(IVec x, int16_t* to) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
}
#endif

DT_INLINE int32_t isum(IVec x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32(x);
#else
  int32_t lanes[kLanes], total = 0;
  istore(lanes, x);
  for (int i = 0; i < kLanes; ++i) total += lanes[i];
  return total;
#endif
}

// Where a row of a tile of `rows` rows goes: what Rows has, from the tile's own on.
struct RowPlace {
  void* values;
  float* scales;
  int32_t* starts;
  float* sums;
  int rows, row;
  int64_t step;  // inputs of a row that lie together
};

// Inputs k .. stop of a row become integers, those from `end` on zeros; returns their sum.
template <class Kind>
DT_INLINE int32_t round_inputs(const float* x, int64_t k, int64_t end, int64_t stop, float inverse,
                               const RowPlace& to) {
  auto* values = static_cast<typename Kind::T*>(to.values);
  IVec total = iset1(0);
  for (; k < stop; k += kLanes) {
    const IVec q = to_int(mul(load_up_to(x + k, end - k), set1(inverse)));
    total = iadd(total, q);
    typename Kind::T narrowed[kLanes];
    narrow(q, narrowed);
    if (to.step > Kind::step) {  // a multiple of kLanes
      memcpy(values + (k / to.step * to.rows + to.row) * to.step + k % to.step, narrowed, sizeof narrowed);
      continue;
    }
    for (int i = 0; i < kLanes && k + i < stop; i += Kind::step)
      memcpy(values + ((k + i) / Kind::step * to.rows + to.row) * Kind::step, narrowed + i,
             Kind::step * sizeof(typename Kind::T));
  }
  return isum(total);
}

// One row of x; `zero` is the weights' zero point.
template <class Kind>
DT_INLINE void round_row(const float* x, int64_t size, int32_t zero, const Rows& rows, const RowPlace& to) {
  const RowScale whole = rows.has_row_scales ? row_scale(x, size, rows.largest) : RowScale{};
  int64_t s = 0;
  for (int64_t g = 0; g < rows.groups; ++g) {
    float sum = 0.0f;
    const int64_t last = (g + 1) * rows.group < rows.inputs ? (g + 1) * rows.group : rows.inputs;
    for (int64_t k = g * rows.group; k < last; k += rows.segment, ++s) {
      const int64_t stop = k + rows.segment < last ? k + rows.segment : last;
      const int64_t end = stop < size ? stop : size;  // a register may reach beyond
      const RowScale own = rows.has_row_scales ? whole : row_scale(x + k, end - k, rows.largest);
      const int32_t total = round_inputs<Kind>(x, k, end, stop, own.inverse, to);
      to.scales[s * to.rows + to.row] = own.scale;
      to.starts[s * to.rows + to.row] = -zero * total;
      sum += own.scale * static_cast<float>(total);
    }
    to.sums[g * to.rows + to.row] = sum;
  }
  if (to.step > Kind::step && rows.inputs % to.step) {
    auto* last = static_cast<typename Kind::T*>(to.values) + (rows.inputs / to.step * to.rows + to.row) * to.step;
    memset(last + rows.inputs % to.step, 0, to.step - rows.inputs % to.step);
  }
}

// How the rows of a product are rounded.
template <class Kind>
Rows rows_of(const GemmArgs& args) {
  Rows to{};
  to.inputs = divide_up(args.in_size, kInputs) * kInputs;
  to.group = args.group && args.group < to.inputs ? args.group : to.inputs;
  to.groups = divide_up(to.inputs, to.group);
  to.has_row_scales = Kind::is_wide || !args.rounded_inputs;
  to.segment = to.has_row_scales || args.rounded_inputs > to.group ? to.group : args.rounded_inputs;
  if (args.format != kInt8 && to.segment > kMostSegment && to.group % kMostSegment == 0)
    to.segment = kMostSegment;
  to.segments = (to.groups - 1) * divide_up(to.group, to.segment) +
                divide_up(to.inputs - (to.groups - 1) * to.group, to.segment);
  to.largest = 127.0f;
  if (Kind::is_wide && args.rounded_inputs) {  // sums of products with bytes fit into 32 bits
    const int64_t most = ((int64_t{1} << 31) - 1) / (128 * to.segment);
    to.largest = static_cast<float>(most < 32767 ? most : 32767);
  }
  return to;
}

constexpr int kAmxRows = 16;       // of a tile
constexpr int64_t kLeastAmxRows = 96;  // fewer are sooner done without tiles

// How many inputs a tile of AMX has: a segment, or 64 of one; 0 where tiles do not divide segments.
inline int64_t chunk_of(const Rows& rows) {
  if (rows.segments == 1 || rows.segment % 64 == 0) return 64;
  return rows.segment == 16 || rows.segment == 32 ? rows.segment : 0;
}

// The rounded rows of a batch, in tiles of at most `most` rows; where AMX multiplies them, of kAmxRows.
template <class Kind, int most, bool may_use_amx = false>
class RoundedRows {
 public:
  // `zero` is the weights' zero point.
  RoundedRows(const GemmArgs& args, int32_t zero)
      : size_(args.in_size), zero_(zero), rows_(rows_of<Kind>(args)) {
    rows_.chunk = may_use_amx ? chunk_of(rows_) : 0;
  }
  bool uses_amx(const Block& block) const { return may_use_amx && rows_.chunk && block.rows >= kLeastAmxRows; }
  Tiling tiling(const Block& block) const {
    return uses_amx(block) ? Tiling::whole(block.rows, kAmxRows) : Tiling(block.rows, most);
  }
  bool reserve(const Batch& batch) {
    start_ = batch.blocks;
    int64_t places = 0;
    for (int64_t b = 0; b < batch.count; places += places_of(batch.blocks[b++])) before_[b] = places;
    rows_.values = scratch(3, places * room() * sizeof(typename Kind::T));
    rows_.scales = static_cast<float*>(scratch(4, places * num_scales() * 4));
    return rows_.values && rows_.scales;
  }
  Rows of(const Block& block) const {
    Rows own = rows_;
    const int64_t before = before_[&block - start_], places = places_of(block);
    own.inputs = uses_amx(block) ? room() : own.inputs;
    own.values = static_cast<typename Kind::T*>(own.values) + before * room();
    own.scales += before * num_scales();
    own.starts = reinterpret_cast<int32_t*>(own.scales + places * own.segments);
    own.sums = own.scales + 2 * places * own.segments;
    return own;
  }
  void prepare(const Batch& batch) const {
    if (batch.rows * size_ < kInlineInputs) {
      for (int64_t b = 0; b < batch.count; ++b)
        for (int64_t t = 0; t < tiling(batch.blocks[b]).count; ++t) round_tile(batch.blocks[b], t);
    } else if (batch.rows <= 4 * most) {
      each_task(batch, [](const Block& block) { return block.rows; }, [&](const Block& block, int64_t row) {
        const Tiling tiles = tiling(block);
        int64_t t = 0;
        while (t + 1 < tiles.count && tiles.first_row(t + 1) <= row) ++t;
        round(block, tiles, t, static_cast<int>(row - tiles.first_row(t)));
      });
    } else {
      each_task(batch, [&](const Block& block) { return tiling(block).count; },
                [&](const Block& block, int64_t t) { round_tile(block, t); });
    }
  }

 private:
  int64_t size_;
  int32_t zero_;
  Rows rows_;
  const Block* start_ = nullptr;
  int64_t before_[kBlockRows];  // places of earlier blocks
  int64_t num_scales() const { return 2 * rows_.segments + rows_.groups; }  // of a row, and starts and sums
  // Values of a row, and rows of a block, with the padding of tiles.
  int64_t room() const {
    return rows_.chunk ? divide_up(rows_.inputs, rows_.chunk) * rows_.chunk : rows_.inputs;
  }
  int64_t places_of(const Block& block) const {
    return uses_amx(block) ? divide_up(block.rows, kAmxRows) * kAmxRows : block.rows;
  }
  void round_tile(const Block& block, int64_t t) const {
    const Tiling tiles = tiling(block);
    const int64_t left = block.rows - tiles.first_row(t);
    for (int i = 0; i < tiles.rows(t) && i < left; ++i) round(block, tiles, t, i);
  }
  void round(const Block& block, const Tiling& tiles, int64_t t, int i) const {
    const Rows to = of(block);
    const int64_t first = tiles.first_row(t), step = uses_amx(block) ? to.chunk : Kind::step;
    auto* values = static_cast<typename Kind::T*>(to.values) + first * to.inputs;
    round_row<Kind>(block.row(first + i), size_, zero_, rows_,
                    {values, to.scales + first * to.segments, to.starts + first * to.segments,
                     to.sums + first * to.groups, tiles.rows(t), i, step});
  }
};

DT_INLINE IVec broadcast(const void* four_bytes) {
  int32_t x;
  memcpy(&x, four_bytes, 4);
  return iset1(x);
}

}  // namespace DT_ISA
}  // namespace dt
