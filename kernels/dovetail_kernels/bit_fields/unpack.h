// Fields of bits become values of a byte each (see the op bit_fields).
#pragma once

#include <cstring>

#include "bit_fields/args.h"

namespace {

// Moves a field of each of `count` bytes to its place. Eight bytes are one word: compilers widen
// shifts of bytes to four times their size.
template <bool is_first>
inline void add_fields(const uint8_t* raw, uint8_t* values, int count, int from, uint8_t mask,
                       int to) {
  constexpr uint64_t kEach = 0x0101010101010101;
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word, old = 0;
    std::memcpy(&word, raw + i, 8);
    if constexpr (!is_first) std::memcpy(&old, values + i, 8);
    word = (word >> from & kEach * mask) << to | old;
    std::memcpy(values + i, &word, 8);
  }
  for (; i < count; ++i) {
    const auto field = static_cast<uint8_t>((raw[i] >> from & mask) << to);
    values[i] = is_first ? field : static_cast<uint8_t>(values[i] | field);
  }
}

// Fields of `bits` from one plane: the first plane writes the values, the others add to them.
// kRun: the plane's run, known to the compiler, or 0.
template <int bits, int kRun, bool is_first>
void add_run(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  constexpr int kPerByte = 8 / bits;
  constexpr uint8_t kMask = (1 << bits) - 1;
  const int run = kRun ? kRun : plane.run, shift = plane.shift;
  for (int64_t block = from; block < to; ++block) {
    const uint8_t* raw = args.blocks + block * args.block_bytes + plane.start;
    uint8_t* values = args.values + block * args.block_values;
    for (int64_t done = 0; done < plane.bytes; done += run, raw += run)
      for (int part = 0; part < kPerByte; ++part, values += run)
        add_fields<is_first>(raw, values, run, part * bits, kMask, shift);
  }
}

template <int bits, bool is_first>
void add_plane(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  switch (plane.run) {
    case 1: return add_run<bits, 1, is_first>(args, plane, from, to);
    case 16: return add_run<bits, 16, is_first>(args, plane, from, to);
    case 32: return add_run<bits, 32, is_first>(args, plane, from, to);
    case 64: return add_run<bits, 64, is_first>(args, plane, from, to);
    default: return add_run<bits, 0, is_first>(args, plane, from, to);
  }
}

template <bool is_first>
void add_plane_of(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  switch (plane.bits) {
    case 1: return add_plane<1, is_first>(args, plane, from, to);
    case 2: return add_plane<2, is_first>(args, plane, from, to);
    case 4: return add_plane<4, is_first>(args, plane, from, to);
    default: return add_plane<8, is_first>(args, plane, from, to);
  }
}

// Unpacks blocks `from` .. `to`.
inline void unpack_blocks(const BitFieldsArgs& args, int64_t from, int64_t to) {
  add_plane_of<true>(args, args.planes[0], from, to);
  for (int64_t i = 1; i < args.num_planes; ++i) add_plane_of<false>(args, args.planes[i], from, to);
}

}  // namespace
