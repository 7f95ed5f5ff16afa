// Fields of bits become values of a byte each (see the op bit_fields).
#pragma once

#include <cstring>

#include "bit_fields/args.h"

namespace {

// Moves a field of each of some bytes, which are one word: compilers widen shifts of bytes to four
// times their size.
template <class Word, bool is_first>
inline void add_word(const uint8_t* raw, uint8_t* values, int from, uint8_t mask, int to) {
  constexpr Word kEach = static_cast<Word>(0x0101010101010101);
  Word word, old = 0;
  std::memcpy(&word, raw, sizeof(Word));
  if constexpr (!is_first) std::memcpy(&old, values, sizeof(Word));
  word = static_cast<Word>((word >> from & kEach * mask) << to | old);
  std::memcpy(values, &word, sizeof(Word));
}

// Moves a field of each of `count` bytes to its place.
template <bool is_first>
inline void add_fields(const uint8_t* raw, uint8_t* values, int count, int from, uint8_t mask,
                       int to) {
  int i = 0;
  for (; i + 8 <= count; i += 8) add_word<uint64_t, is_first>(raw + i, values + i, from, mask, to);
  for (; i + 4 <= count; i += 4) add_word<uint32_t, is_first>(raw + i, values + i, from, mask, to);
  for (; i < count; ++i) {
    const auto field = static_cast<uint8_t>((raw[i] >> from & mask) << to);
    values[i] = is_first ? field : static_cast<uint8_t>(values[i] | field);
  }
}

// Fields of `bits` from one plane: the first plane of some values writes them, the others add to them.
// kRun: the plane's run, known to the compiler, or 0. has_all: all fields of a byte are taken.
template <int bits, int kRun, bool is_first, bool has_all>
void add_run(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  constexpr uint8_t kMask = (1 << bits) - 1;
  const int parts = has_all ? 8 / bits : plane.parts, low = has_all ? 0 : plane.low;
  const int run = kRun ? kRun : plane.run, shift = plane.shift;
  for (int64_t block = from; block < to; ++block) {
    const uint8_t* raw = args.blocks + block * args.block_bytes + plane.start;
    uint8_t* values = args.values + block * args.block_values + plane.first;
    for (int64_t done = 0; done < plane.bytes; done += run, raw += run)
      for (int part = 0; part < parts; ++part, values += run)
        add_fields<is_first>(raw, values, run, low + part * bits, kMask, shift);
  }
}

template <int bits, bool is_first>
void add_plane(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  if (plane.parts != 8 / bits || plane.low) {
    if (plane.run == 4) return add_run<bits, 4, is_first, false>(args, plane, from, to);
    return add_run<bits, 0, is_first, false>(args, plane, from, to);
  }
  switch (plane.run) {
    case 1: return add_run<bits, 1, is_first, true>(args, plane, from, to);
    case 4: return add_run<bits, 4, is_first, true>(args, plane, from, to);
    case 16: return add_run<bits, 16, is_first, true>(args, plane, from, to);
    case 32: return add_run<bits, 32, is_first, true>(args, plane, from, to);
    case 64: return add_run<bits, 64, is_first, true>(args, plane, from, to);
    default: return add_run<bits, 0, is_first, true>(args, plane, from, to);
  }
}

template <bool is_first>
void add_plane_of(const BitFieldsArgs& args, const PlaneArgs& plane, int64_t from, int64_t to) {
  switch (plane.bits) {
    case 1: return add_plane<1, is_first>(args, plane, from, to);
    case 2: return add_plane<2, is_first>(args, plane, from, to);
    case 4: return add_plane<4, is_first>(args, plane, from, to);
    case 6: return add_plane<6, is_first>(args, plane, from, to);
    default: return add_plane<8, is_first>(args, plane, from, to);
  }
}

// Unpacks blocks `from` .. `to`.
inline void unpack_blocks(const BitFieldsArgs& args, int64_t from, int64_t to) {
  for (int64_t i = 0; i < args.num_planes; ++i) {
    const PlaneArgs& plane = args.planes[i];
    if (plane.adds) add_plane_of<false>(args, plane, from, to);
    else add_plane_of<true>(args, plane, from, to);
  }
}

}  // namespace
