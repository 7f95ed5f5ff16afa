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
    return static_cast<const T*>(args.weight) + row * args.in_size;
  }
};

// Those of blocks, unpacked into this thread's own memory, which has places for a panel's.
struct FieldRows {
  const PackArgs& args;
  const BitFieldsArgs& fields;
  uint8_t* memory() const { return static_cast<uint8_t*>(scratch(0, kPanel * args.in_size)); }
  bool has_memory() const { return memory(); }
  template <class T> const T* row(int64_t row, int place) const {
    BitFieldsArgs own = fields;
    const int64_t blocks = args.in_size / own.block_values;
    own.blocks = static_cast<const uint8_t*>(args.weight) + row * blocks * own.block_bytes;
    own.values = memory() + place * args.in_size;
    unpack_blocks(own, 0, blocks);
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

// The rows of a panel that the matrix has, and the column of each. Returns their number.
template <class T, class Rows>
DT_INLINE int source_rows(const PackArgs& args, const Rows& from, int64_t panel, const T** rows, int* columns) {
  int count = 0;
  for (int column = 0; column < kPanel; ++column) {
    const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
    if (row < 0) continue;
    rows[count] = from.template row<T>(row, count);
    columns[count++] = column;
  }
  return count;
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
  for (int64_t unit = 0; unit < padded; unit += step)
    memset(static_cast<void*>(to + place(unit, 0)), 0, kPanel * step * sizeof(T));
  const T* rows[kPanel];
  int columns[kPanel];
  const int num_rows = source_rows(args, from, panel, rows, columns);
  if (place.is_bfloat16)
    for (int i = 0; i < num_rows; ++i) columns[i] = bfloat16_place(columns[i]);
  const int64_t whole = args.in_size / step * step;
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
    case 2: copy(std::integral_constant<int64_t, 2>{}); break;
    default: copy(std::integral_constant<int64_t, 4>{}); break;
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

// One byte a value, 0 .. 15, becomes a nibble.
template <bool in_order, class Rows>
void pack_panel_int4(const PackArgs& args, const Rows& from, int64_t panel, uint8_t* to) {
  const int64_t lanes = divide_up(args.in_size, 8), whole = args.in_size / 8;
  const uint8_t* rows[kPanel];
  int columns[kPanel];
  const int num_rows = source_rows(args, from, panel, rows, columns);
  if (num_rows < kPanel) memset(to, 0, lanes * kPanel * 4);
  uint32_t* words = reinterpret_cast<uint32_t*>(to);
  for (int64_t first = 0; first < lanes; first += kLineBytes / 8)
    for (int i = 0; i < num_rows; ++i)
      for (int64_t lane = first; lane < lanes && lane < first + kLineBytes / 8; ++lane) {
        uint64_t bytes = 0;
        if (lane < whole) memcpy(&bytes, rows[i] + lane * 8, 8);
        else memcpy(&bytes, rows[i] + lane * 8, static_cast<size_t>(args.in_size % 8));
        words[lane * kPanel + columns[i]] = nibbles<in_order>(bytes);
      }
}

// Whether values are nibbles of one plane, which pack_panel_nibbles takes as they are.
bool are_nibbles(const BitFieldsArgs& fields) {
  const PlaneArgs& plane = fields.planes[0];
  return fields.num_planes == 1 && plane.bits == 4 && plane.run % 8 == 0 && !plane.shift;
}

// Nibbles of blocks become those of a panel, a block of every row at a time.
template <bool in_order>
void pack_panel_nibbles(const FieldRows& from, int64_t panel, uint8_t* to) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  const PackArgs& args = from.args;
  const PlaneArgs& plane = from.fields.planes[0];
  const int64_t size = from.fields.block_bytes, lanes = from.fields.block_values / 8;
  const int64_t blocks = args.in_size / from.fields.block_values;
  const uint8_t* rows[kPanel];
  int columns[kPanel], num_rows = 0;
  for (int column = 0; column < kPanel; ++column) {
    const int64_t row = source_row(panel, column, args.out_size, args.is_gated);
    if (row < 0) continue;
    rows[num_rows] = static_cast<const uint8_t*>(args.weight) + row * blocks * size + plane.start;
    columns[num_rows++] = column;
  }
  if (num_rows < kPanel) memset(to, 0, blocks * lanes * kPanel * 4);
  for (int64_t block = 0; block < blocks; ++block)
    for (int i = 0; i < num_rows; ++i) {
      const uint8_t* raw = rows[i] + block * size;
      uint32_t* low = reinterpret_cast<uint32_t*>(to) + block * lanes * kPanel + columns[i];
      for (int done = 0; done < plane.bytes; done += plane.run, low += plane.run / 4 * kPanel) {
        uint32_t* high = low + plane.run / 8 * kPanel;
        for (int k = 0; k < plane.run; k += 8) {
          uint64_t bytes;
          memcpy(&bytes, raw + done + k, 8);
          low[k / 8 * kPanel] = nibbles<in_order>(bytes & kLow);
          high[k / 8 * kPanel] = nibbles<in_order>(bytes >> 4 & kLow);
        }
      }
    }
}

// One byte a value becomes bits of planes, sixteen inputs at a time (planes.h).
template <class Rows>
void pack_panel_planes(const PackArgs& args, const Rows& from, int64_t panel, uint8_t* to, int64_t bytes) {
  memset(to, 0, bytes);
  const int bits = plane_bits(args.format);
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
    if constexpr (std::is_same_v<Rows, FieldRows>)
      if (are_nibbles(from.fields)) {
        if (args.format == kInt4Int8) return pack_panel_nibbles<false>(from, panel, to);
        if (args.format == kInt4 || args.format == kTable4) return pack_panel_nibbles<true>(from, panel, to);
      }
    if (!from.has_memory()) return __atomic_store_n(&status, 2, __ATOMIC_RELAXED);
    switch (args.format) {
      case kInt8:
      case kInt8Int8: return pack_panel(args, from, panel, to, static_cast<uint8_t>(kInt8Offset));
      case kInt8Float32:
      case kFloat8: return pack_panel(args, from, panel, to);
      case kInt4:
      case kTable4: return pack_panel_int4<true>(args, from, panel, to);
      case kInt2:
      case kInt3:
      case kInt5:
      case kInt6:
      case kInt2Int8:
      case kInt3Int8:
      case kInt5Int8:
      case kInt6Int8: return pack_panel_planes(args, from, panel, to, bytes);
      case kInt4Int8: return pack_panel_int4<false>(args, from, panel, to);
      default: break;
    }
    if constexpr (std::is_same_v<Rows, PlainRows>) {  // wider values are never fields
      if (args.format == kFloat32) return pack_panel(args, from, panel, reinterpret_cast<uint32_t*>(to));
      return pack_panel(args, from, panel, static_cast<uint16_t*>(args.packed));
    }
  });
  return status;
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
  parallel(num_panels(args.out_size, args.is_gated), [&](int64_t panel) {
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
