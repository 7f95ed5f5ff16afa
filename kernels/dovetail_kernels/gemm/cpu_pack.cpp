// Weights become panels (see tiles.h). The layouts are those that the products of this instruction
// set read; nobody else looks inside.

#include <string.h>

#include <type_traits>

#include "bit_fields/unpack.h"
#include "gemm/bfloat16_weights.h"
#include "gemm/planes.h"

using namespace dt;
using namespace dt::DT_ISA;

// What gemm_pack_fields is told: the values are fields of blocks, of which each row has a whole
// number. The pointers and the count of `fields` are not read.
struct FieldsPackArgs {
  PackArgs pack;  // its weight: [N, K / block_values, block_bytes]
  BitFieldsArgs fields;
};

// What gemm_spread is told: scales or the like of every output and group.
struct SpreadArgs {
  const void* from;  // number (output, group) is output * row_bytes + group * group_bytes from here
  void* to;
  int64_t out_size, groups;
  int64_t row_bytes, group_bytes;
  int32_t number_bytes;  // 1, 2 or 4
  int32_t is_gated;
};

namespace {

// The rows of a matrix, one byte or more for a value.
struct PlainRows {
  const PackArgs& args;
  bool has_memory() const { return true; }
  template <class T> const T* row(int64_t row, int) const {
    if (args.rows) return static_cast<const T*>(args.rows[row]);
    return static_cast<const T*>(args.weight) + row * args.in_size;
  }
};

// Those of blocks, unpacked into this thread's own memory, which has places for a panel's.
struct FieldRows {
  const PackArgs& args;
  const BitFieldsArgs& fields;
  uint8_t* memory() const { return static_cast<uint8_t*>(scratch(0, kPanel * args.in_size)); }
  bool has_memory() const { return memory(); }
  int64_t num_blocks() const { return args.in_size / fields.block_values; }
  const uint8_t* blocks(int64_t row) const {
    return static_cast<const uint8_t*>(args.weight) + row * num_blocks() * fields.block_bytes;
  }
  template <class T> const T* row(int64_t row, int place) const {
    BitFieldsArgs own = fields;
    own.blocks = blocks(row);
    own.values = memory() + place * args.in_size;
    unpack_blocks(own, 0, num_blocks());
    return reinterpret_cast<const T*>(own.values);
  }
};

// Where input k of a panel's column lies, in elements of the format (nibbles for 4 bits).
struct Place {
  int64_t step;        // inputs that lie together in one 32-bit lane
  bool is_bfloat16 = false;
  int64_t stride = 1;  // of panels that are interleaved
  DT_INLINE int64_t operator()(int64_t k, int column) const {
    const int at = is_bfloat16 ? bfloat16_place(column) : column;
    return (k / step * stride * kPanel + at) * step + k % step;
  }
};

DT_INLINE bool is_interleaved(int32_t format) {
  return format == kFloat16 || format == kBfloat16 || format == kBfloat16Bfloat16;
}

DT_INLINE int64_t step_of(int32_t format) {
  switch (format) {
    case kBfloat16: return kBfloat16Step;
    case kBfloat16Bfloat16: return 2;
    case kInt8:
    case kInt8Int8: return kInt8Step;
    case kInt4:
    case kInt4Int8:
    case kTable4: return 8;
    default: return 1;
  }
}
// Inputs of a panel, padding included: products read so many at a time.
DT_INLINE int64_t padded_inputs(int32_t format, int64_t in_size) {
  const int64_t step = format == kFloat8 || format == kInt8Float32 ? 8 : step_of(format);
  return divide_up(in_size, step) * step;
}

// The rows of a panel that there are, and the column of each. Returns their number.
template <class T, class Rows>
DT_INLINE int source_rows(const PackArgs& args, const Rows& from, int64_t panel, const T** rows, int* columns) {
  int count = 0;
  for (int column = 0; column < kPanel; ++column) {
    const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
    if (row < 0) continue;
    if (!(rows[count] = from.template row<T>(row, count))) continue;
    columns[count++] = column;
  }
  return count;
}

// Registers of words, for rows that become columns.
constexpr int kWords = kLanes;
typedef uint32_t Words __attribute__((vector_size(4 * kWords), aligned(1), may_alias));

// For each j, word where[j] of `a` followed by `b`.
DT_INLINE Words picked(Words a, Words b, Words where) {
#if defined(__clang__)
  Words found;
  for (int j = 0; j < kWords; ++j) found[j] = where[j] < kWords ? a[where[j]] : b[where[j] - kWords];
  return found;
#else
  return __builtin_shuffle(a, b, where);
#endif
}
// Writes words that are not read soon, past the caches where there is an instruction for it.
DT_INLINE void stream(uint32_t* to, Words words) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)words);
#else
  *reinterpret_cast<Words*>(to) = words;
#endif
}

// Swaps the bit `step` of the numbers of rows and of columns.
template <int step> DT_INLINE void swap_numbers(Words (&rows)[kWords]) {
  Words low, high;
  for (int j = 0; j < kWords; ++j) {
    low[j] = static_cast<uint32_t>(j & step ? kWords + j - step : j);
    high[j] = static_cast<uint32_t>(j & step ? kWords + j : j + step);
  }
  for (int i = 0; i < kWords; ++i) {
    if (i & step) continue;
    const Words a = rows[i], b = rows[i + step];
    rows[i] = picked(a, b, low);
    rows[i + step] = picked(a, b, high);
  }
  if constexpr (2 * step < kWords) swap_numbers<2 * step>(rows);
}

// Writes the first `bytes` of a word of a panel's rows, the other bytes as zeros.
DT_INLINE void put_unit_of_words(const uint8_t* const (&rows)[kPanel], int64_t lane, int bytes, uint32_t flip,
                                 uint32_t* to) {
  for (int column = 0; column < kPanel; ++column) {
    uint32_t word = 0;
    if (rows[column]) {
      memcpy(&word, &flip, static_cast<size_t>(bytes));
      uint32_t own = 0;
      memcpy(&own, rows[column] + 4 * lane, static_cast<size_t>(bytes));
      word ^= own;
    }
    to[column] = word;
  }
}
// Writes the words of a panel's rows as columns, so that a unit is a word of every row and units are `apart` words
// apart. Bits of `flip` are exchanged; a row that is null is zeros.
void put_columns(const uint8_t* const (&rows)[kPanel], int64_t lanes, uint32_t flip, uint32_t* to, int64_t apart) {
  constexpr int64_t kAhead = 512;
  const int64_t whole = lanes / kWords * kWords;
  for (int64_t first = 0; first < whole; first += kWords)
    for (int half = 0; half < kPanel; half += kWords) {
      Words block[kWords];
      for (int i = 0; i < kWords; ++i) {
        const uint8_t* row = rows[half + i];
        if (row) __builtin_prefetch(row + 4 * first + kAhead);
        block[i] = row ? *reinterpret_cast<const Words*>(row + 4 * first) ^ flip : Words{};
      }
      swap_numbers<1>(block);
      for (int i = 0; i < kWords; ++i) stream(to + (first + i) * apart + half, block[i]);
    }
  for (int64_t lane = whole; lane < lanes; ++lane) put_unit_of_words(rows, lane, 4, flip, to + lane * apart);
#if defined(__AVX512F__)
  _mm_sfence();  // such writes are not ordered before those by which other threads know that this one is done
#endif
}

// Inputs are taken a cache line of every row at a time: rows that lie a power of two apart share few
// places of the cache.
//
// `to` is where the panel begins, or where the packed weight does if panels are interleaved.
template <class T, class Rows>
void pack_panel(const PackArgs& args, const Rows& from, int64_t panel, T* to, T offset = 0) {
  const int64_t step = step_of(args.format), padded = padded_inputs(args.format, args.in_size);
  Place place{step, args.format == kBfloat16};
  if (is_interleaved(args.format)) {
    const Interleaved lies(panel, num_panels(args.out_size, args.is_gated), padded / step);
    to += lies.first * kPanel * step;
    place.stride = lies.stride;
  }
  const int64_t apart = place.stride * kPanel * step;
  const T* rows[kPanel];
  int columns[kPanel];
  const int num_rows = source_rows(args, from, panel, rows, columns);
  const int64_t whole = args.in_size / step * step;
  if (step * sizeof(T) == 4) {
    const uint8_t* sources[kPanel] = {};
    for (int i = 0; i < num_rows; ++i) sources[columns[i]] = reinterpret_cast<const uint8_t*>(rows[i]);
    auto* words = reinterpret_cast<uint32_t*>(to);
    const uint32_t flip = 0x01010101u * static_cast<uint32_t>(offset);
    put_columns(sources, whole / step, flip, words, apart / step);
    const int rest = static_cast<int>((args.in_size - whole) * sizeof(T));
    if (rest) put_unit_of_words(sources, whole / step, rest, flip, words + whole / step * (apart / step));
    return;
  }
  for (int64_t unit = 0; unit < padded; unit += step)
    memset(static_cast<void*>(to + place(unit, 0)), 0, kPanel * step * sizeof(T));
  if (place.is_bfloat16)
    for (int i = 0; i < num_rows; ++i) columns[i] = bfloat16_place(columns[i]);
  const auto copy = [&](auto count) __attribute__((always_inline)) {
    constexpr int64_t kStep = decltype(count)::value;
    constexpr int64_t kSome = kLineBytes / sizeof(T);
    for (int64_t first = 0; first < whole; first += kSome)
      for (int i = 0; i < num_rows; ++i) {
        T* unit = to + first / kStep * apart + columns[i] * kStep;
        const int64_t stop = first + kSome < whole ? first + kSome : whole;
        for (int64_t k = first; k < stop; k += kStep, unit += apart)
          for (int64_t s = 0; s < kStep; ++s) unit[s] = static_cast<T>(rows[i][k + s] + offset);
      }
  };
  switch (step) {
    case 1: copy(std::integral_constant<int64_t, 1>{}); break;
    default: copy(std::integral_constant<int64_t, 2>{}); break;
  }
  for (int i = 0; i < num_rows; ++i)
    for (int64_t k = whole; k < args.in_size; ++k)
      to[whole / step * apart + columns[i] * step + k % step] = static_cast<T>(rows[i][k] + offset);
}

// Eight values below 16, a byte each, as the nibbles of a word: in order, or inputs 0 .. 3 in the low
// nibbles of its bytes and 4 .. 7 in the high ones (kNibbleOfInput).
template <bool in_order> DT_INLINE uint32_t nibbles(uint64_t bytes) {
  if constexpr (!in_order) return static_cast<uint32_t>(bytes) | static_cast<uint32_t>(bytes >> 32) << 4;
  bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ffull;
  bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffffull;
  return static_cast<uint32_t>(bytes | bytes >> 16);
}

// The words of a row, in the order in which a panel has words of all columns.
template <bool in_order> void words_of_bytes(const uint8_t* values, int64_t count, uint32_t* words) {
  for (int64_t lane = 0; lane < count / 8; ++lane) {
    uint64_t bytes;
    memcpy(&bytes, values + lane * 8, 8);
    words[lane] = nibbles<in_order>(bytes);
  }
  if (count % 8) {
    uint64_t bytes = 0;
    memcpy(&bytes, values + count / 8 * 8, static_cast<size_t>(count % 8));
    words[count / 8] = nibbles<in_order>(bytes);
  }
}

// Whether values are nibbles of one plane, which words_of_blocks takes as they are.
bool are_nibbles(const BitFieldsArgs& fields) {
  const PlaneArgs& plane = fields.planes[0];
  return fields.num_planes == 1 && plane.bits == 4 && plane.run % 8 == 0 && !plane.shift;
}

template <bool in_order>
void words_of_blocks(const BitFieldsArgs& fields, const uint8_t* blocks, int64_t count, uint32_t* words) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  const PlaneArgs plane = fields.planes[0];
  const int lanes = plane.run / 8;
  const int64_t size = fields.block_bytes;
  for (int64_t block = 0; block < count; ++block) {
    const uint8_t* raw = blocks + block * size + plane.start;
    for (int done = 0; done < plane.bytes; done += plane.run, raw += plane.run, words += 2 * lanes)
      for (int lane = 0; lane < lanes; ++lane) {
        uint64_t bytes;
        memcpy(&bytes, raw + lane * 8, 8);
        words[lane] = nibbles<in_order>(bytes & kLow);
        words[lanes + lane] = nibbles<in_order>(bytes >> 4 & kLow);
      }
  }
}

// Values of 2 or 6 bits, whose planes are whole words (planes.h).
template <int bits> void words_of_units(const uint8_t* values, int64_t count, uint32_t* words) {
  for (int64_t k = 0; k < count; k += 16, words += bits / 2) {
    uint32_t four[4] = {};
    if (count - k >= 16) memcpy(four, values + k, 16);
    else memcpy(four, values + k, static_cast<size_t>(count - k));
    uint32_t pairs = 0;
    for (int q = 0; q < 4; ++q) pairs |= (four[q] >> (bits - 2) & 0x03030303u) << (2 * q);
    if constexpr (bits == 6)
      for (int q = 0; q < 4; q += 2)
        words[q / 2] = (four[q] & 0x0f0f0f0fu) | (four[q + 1] & 0x0f0f0f0fu) << 4;
    words[bits / 2 - 1] = pairs;
  }
}

// Writes the words of a panel's rows, `fill(row, words)` of each, as columns. False without memory.
template <class Fill>
bool pack_panel_words(const PackArgs& args, int64_t panel, int64_t lanes, uint8_t* to, const Fill& fill) {
  auto* all = static_cast<uint32_t*>(scratch(1, static_cast<size_t>(kPanel * lanes * 4)));
  if (!all) return false;
  for (int column = 0; column < kPanel; ++column) {
    const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
    if (row >= 0) fill(row, all + column * lanes);
    else memset(all + column * lanes, 0, static_cast<size_t>(lanes * 4));
  }
  auto* words = reinterpret_cast<uint32_t*>(to);
  const int64_t whole = lanes / kWords * kWords;
  for (int64_t first = 0; first < whole; first += kWords)
    for (int half = 0; half < kPanel; half += kWords) {
      Words rows[kWords];
      for (int i = 0; i < kWords; ++i)
        rows[i] = *reinterpret_cast<const Words*>(all + (half + i) * lanes + first);
      swap_numbers<1>(rows);
      for (int i = 0; i < kWords; ++i)
        *reinterpret_cast<Words*>(words + (first + i) * kPanel + half) = rows[i];
    }
  for (int64_t lane = whole; lane < lanes; ++lane)
    for (int column = 0; column < kPanel; ++column) words[lane * kPanel + column] = all[column * lanes + lane];
  return true;
}

// One byte a value, 0 .. 15, or a nibble of a block becomes a nibble.
template <bool in_order, class Rows>
bool pack_panel_int4(const PackArgs& args, const Rows& from, int64_t panel, uint8_t* to) {
  const int64_t lanes = divide_up(args.in_size, 8);
  return pack_panel_words(args, panel, lanes, to, [&](int64_t row, uint32_t* words) {
    if constexpr (std::is_same_v<Rows, FieldRows>)
      if (are_nibbles(from.fields))
        return words_of_blocks<in_order>(from.fields, from.blocks(row), from.num_blocks(), words);
    words_of_bytes<in_order>(from.template row<uint8_t>(row, 0), args.in_size, words);
  });
}

// One byte a value becomes bits of planes, sixteen inputs at a time (planes.h).
template <class Rows>
bool pack_panel_planes(const PackArgs& args, const Rows& from, int64_t panel, uint8_t* to, int64_t bytes) {
  const int bits = plane_bits(args.format);
  if (bits % 2 == 0)
    return pack_panel_words(args, panel, bytes / (4 * kPanel), to, [&](int64_t row, uint32_t* words) {
      const uint8_t* values = from.template row<uint8_t>(row, 0);
      if (bits == 6) words_of_units<6>(values, args.in_size, words);
      else words_of_units<2>(values, args.in_size, words);
    });
  memset(to, 0, bytes);
  const int64_t units = divide_up(args.in_size, 16), unit_bytes = 2 * bits * kPanel;
  const uint8_t* rows[kPanel];
  int columns[kPanel];
  const int num_rows = source_rows(args, from, panel, rows, columns);
  for (int64_t first = 0; first < units; first += kLineBytes / 16)
    for (int i = 0; i < num_rows; ++i)
      for (int64_t unit = first; unit < units && unit < first + kLineBytes / 16; ++unit) {
        uint32_t values[4] = {};
        const int64_t left = args.in_size - unit * 16;
        if (left >= 16) memcpy(values, rows[i] + unit * 16, 16);
        else memcpy(values, rows[i] + unit * 16, static_cast<size_t>(left));
        put_unit(bits, to + unit * unit_bytes, columns[i], values);
      }
  return true;
}

int64_t panel_bytes(int32_t format, int64_t in_size) {
  if (const int bits = plane_bits(format)) return divide_up(in_size, 16) * 2 * bits * kPanel;
  const int64_t values = padded_inputs(format, in_size) * kPanel;
  switch (format) {
    case kFloat32: return values * 4;
    case kBfloat16:
    case kBfloat16Bfloat16:
    case kFloat16: return values * 2;
    case kInt8:
    case kInt8Int8:
    case kInt8Float32:
    case kFloat8: return values;
    default: return values / 2;
  }
}

template <class Rows> int pack(const PackArgs& args, const Rows& from) {
  const int64_t panels = num_panels(args.out_size, args.is_gated), bytes = panel_bytes(args.format, args.in_size);
  if (panels * bytes != args.packed_bytes) return 1;
  int status = 0;
  parallel(panels, [&](int64_t panel) {
    uint8_t* to = static_cast<uint8_t*>(args.packed) + panel * bytes;
    const auto note = [&](bool has_memory) {
      if (!has_memory) __atomic_store_n(&status, 2, __ATOMIC_RELAXED);
    };
    if (!from.has_memory()) return note(false);
    switch (args.format) {
      case kInt8:
      case kInt8Int8: return pack_panel(args, from, panel, to, static_cast<uint8_t>(kInt8Offset));
      case kInt8Float32:
      case kFloat8: return pack_panel(args, from, panel, to);
      case kInt4:
      case kTable4: return note(pack_panel_int4<true>(args, from, panel, to));
      case kInt2:
      case kInt3:
      case kInt5:
      case kInt6:
      case kInt2Int8:
      case kInt3Int8:
      case kInt5Int8:
      case kInt6Int8: return note(pack_panel_planes(args, from, panel, to, bytes));
      case kInt4Int8: return note(pack_panel_int4<false>(args, from, panel, to));
      default: break;
    }
    if constexpr (std::is_same_v<Rows, PlainRows>) {  // wider values are never fields
      if (args.format == kFloat32) return pack_panel(args, from, panel, reinterpret_cast<uint32_t*>(to));
      return pack_panel(args, from, panel, static_cast<uint16_t*>(args.packed));
    }
  });
  return status;
}

// Transposes eight rows of eight bytes: row i of the result has byte i of each. Source: Warren,
// Hacker's Delight, 7-3, with bytes in place of bits.
void transpose_bytes(uint64_t rows[8]) {
  constexpr uint64_t kMasks[] = {0x00000000FFFFFFFF, 0x0000FFFF0000FFFF, 0x00FF00FF00FF00FF};
  for (int half = 4, round = 0; half; half /= 2, ++round)
    for (int i = 0; i < 8; ++i) {
      if (i & half) continue;
      const uint64_t exchanged = (rows[i] >> 8 * half ^ rows[i + half]) & kMasks[round];
      rows[i] ^= exchanged << 8 * half;
      rows[i + half] ^= exchanged;
    }
}

// Codes that lie row by row, of a whole number of eights.
void spread_codes(const SpreadArgs& args, int64_t panel) {
  uint8_t* to = static_cast<uint8_t*>(args.to) + panel * args.groups * kPanel;
  const uint8_t* columns[kPanel];
  for (int i = 0; i < kPanel; ++i) {
    const int64_t row = source_row(panel, i, args.out_size, args.is_gated);
    columns[i] = row < 0 ? nullptr : static_cast<const uint8_t*>(args.from) + row * args.row_bytes;
  }
  for (int64_t group = 0; group < args.groups; group += 8)
    for (int first = 0; first < kPanel; first += 8) {
      uint64_t rows[8] = {};
      for (int i = 0; i < 8; ++i)
        if (const uint8_t* column = columns[first + i]) memcpy(rows + i, column + group, 8);
      transpose_bytes(rows);
      for (int i = 0; i < 8; ++i) memcpy(to + (group + i) * kPanel + first, rows + i, 8);
    }
}

// A cache line of every row at a time, as in pack_panel.
template <class T> void spread_panel(const SpreadArgs& args, int64_t panel) {
  T* to = static_cast<T*>(args.to) + panel * args.groups * kPanel;
  for (int64_t first = 0; first < args.groups; first += kLineBytes) {
    const int64_t stop = first + kLineBytes < args.groups ? first + kLineBytes : args.groups;
    for (int column = 0; column < kPanel; ++column) {
      const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
      const char* number = static_cast<const char*>(args.from) + row * args.row_bytes + first * args.group_bytes;
      for (int64_t group = first; group < stop; ++group, number += args.group_bytes) {
        T value = 0;
        if (row >= 0) memcpy(&value, number, sizeof(T));
        to[group * kPanel + column] = value;
      }
    }
  }
}

}  // namespace

// Both say how a packed weight will lie: the columns of a panel, and its bytes.
DT_KERNEL(gemm_panel_columns, PackArgs) { return args.out_size > 0 ? kPanel : 0; }
DT_KERNEL(gemm_panel_bytes, PackArgs) { return static_cast<int>(panel_bytes(args.format, args.in_size)); }

// Numbers of every output and group in the order of the panels: [panels, groups, kPanel], zeros for padding.
DT_KERNEL(gemm_spread, SpreadArgs) {
  const bool is_whole = args.number_bytes == 1 && args.group_bytes == 1 && args.groups % 8 == 0;
  parallel(num_panels(args.out_size, args.is_gated), [&](int64_t panel) {
    if (is_whole) return spread_codes(args, panel);
    switch (args.number_bytes) {
      case 1: return spread_panel<uint8_t>(args, panel);
      case 2: return spread_panel<uint16_t>(args, panel);
      default: return spread_panel<uint32_t>(args, panel);
    }
  });
  return 0;
}

// Both return 0, or 1 when packed_bytes is not what the panels take, or 2 without memory.
DT_KERNEL(gemm_pack, PackArgs) { return pack(args, PlainRows{args}); }
DT_KERNEL(gemm_pack_fields, FieldsPackArgs) { return pack(args.pack, FieldRows{args.pack, args.fields}); }

// Inputs k .. stop of one column of a panel; k is a multiple of the place's step.
template <class T, class Value>
DT_INLINE void read_column(const uint8_t* panel, const Place& place, int column, int64_t k, int64_t stop,
                           float* out, const Value& value) {
  const T* from = reinterpret_cast<const T*>(panel) + place(k, column);
  const int64_t apart = place.stride * kPanel * place.step;
  for (; k < stop; from += apart)
    for (int64_t s = 0; s < place.step && k < stop; ++s, ++k) out[k] = value(from[s]);
}

// Reads a matrix back, row by row: an embedding that shares its table with the logits.
DT_KERNEL(gemm_rows, RowsArgs) {
  const int64_t bytes = panel_bytes(args.format, args.in_size);
  const int64_t step = step_of(args.format), units = padded_inputs(args.format, args.in_size) / step;
  const int bits = plane_bits(args.format);
  parallel(args.count, [&](int64_t i) {
    const int64_t row = args.row(i);
    if (row < 0) return;
    const int64_t panel = row / kPanel;
    const int column = static_cast<int>(row % kPanel);
    const uint8_t* at = static_cast<const uint8_t*>(args.weight) + panel * bytes;
    Place place{step, args.format == kBfloat16};
    if (is_interleaved(args.format)) {
      const Interleaved lies(panel, num_panels(args.out_size, false), units);
      at = static_cast<const uint8_t*>(args.weight) + lies.first * (bytes / units);
      place.stride = lies.stride;
    }
    const Factors scales(args, args.scales, args.steps, panel), zeros(args, args.zeros, nullptr, panel);
    const Factors offsets(args, args.offsets, args.offset_steps, panel, true);
    const float outer = args.outer ? args.outer[panel * kPanel + column] : 1.0f;
    float* out = args.out + i * args.in_size;
    const auto read = [&](auto like, const auto& value) __attribute__((always_inline)) {
      read_column<decltype(like)>(at, place, column, 0, args.in_size, out, value);
    };
    switch (args.format) {
      case kFloat32: return read(float{}, [](float x) { return x; });
      case kBfloat16:
      case kBfloat16Bfloat16: return read(bf16{}, [](bf16 x) { return bf16_to_float(x); });
      case kFloat16: return read(f16{}, [](f16 x) { return f16_to_float(x); });
      case kInt8: {
        const float scale = scales.one(0, column);
        return read(uint8_t{}, [scale](uint8_t x) {
          return static_cast<float>(static_cast<int8_t>(x - kInt8Offset)) * scale;
        });
      }
      case kInt8Int8:
        for (int64_t g = 0, k = 0; k < args.in_size; ++g) {
          const int64_t end = k + args.group, stop = end < args.in_size ? end : args.in_size;
          const float scale = scales.one(g, column);
          const float added = args.offsets ? offsets.one(g, column) : 0.0f;
          const float zero = args.zeros && !args.offsets ? zeros.one(g, column) : 0.0f;
          read_column<uint8_t>(at, place, column, k, stop, out, [&](uint8_t x) __attribute__((always_inline)) {
            const auto value = static_cast<float>(static_cast<int8_t>(x - kInt8Offset));
            return args.offsets ? value * scale + added : (value - zero) * scale;
          });
          k = stop;
        }
        return;
      default: break;
    }
    for (int64_t k = 0; k < args.in_size; ++k) {
      const int64_t here = place(k, column);
      switch (args.format) {
        case kFloat8: out[k] = e4m3_to_float(at[here]) * scales.one(k / args.group, column); break;
        default: {
          const int64_t g = k / args.group;
          const float scale = scales.one(g, column);
          const int nibble = args.format != kInt4Int8 ? static_cast<int>(k % 8) : kNibbleOfInput[k % 8];
          int value, usual = 0;
          if (bits) {
            value = Plane{bits, at}.get(k, column);
            usual = 1 << (bits - 1);
          } else if (args.format == kInt8Float32) {
            value = static_cast<int8_t>(at[here]);
          } else {
            value = at[(k / 8 * kPanel + column) * 4 + nibble / 2] >> (nibble % 2 * 4) & 15;
            usual = 8;
          }
          if (args.format == kTable4) {
            out[k] = args.table[value] * (scale * outer);
          } else if (args.offsets) {
            out[k] = static_cast<float>(value) * scale + offsets.one(g, column);
          } else {
            const float zero = args.zeros ? zeros.one(g, column) : static_cast<float>(usual);
            out[k] = (static_cast<float>(value) - zero) * scale;
          }
        }
      }
    }
  });
  return 0;
}
