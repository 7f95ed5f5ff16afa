// The tile registers of AMX: what they hold, and the instructions that every product by tiles needs.
//
// Source: Intel, Architecture Instruction Set Extensions Programming Reference, chapter 3
#pragma once

#include "gemm/tiles.h"

namespace dt {
namespace DT_ISA {
namespace amx_tiles {

constexpr int64_t kRows = 16;              // of a tile of activations, of sums; columns of sums
constexpr int64_t kTileBytes = 1024;       // 16 rows of 64 bytes
constexpr int64_t kStride = kPanel * 4;    // bytes from a row of weights in a panel, or of sums, to the next
constexpr int64_t kManyRows = 64;          // that share what is read of kPanelsBeside panels
constexpr int64_t kPanelsBeside = 4;

// What the eight tile registers hold: 0 to 3 sums, 4 and 5 activations, 6 and 7 weights. All are full, but
// that 0, 1 and 4 have no more rows than there are, and that of activations and weights in bytes no more
// inputs are read than share a scale.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The tile registers are ours while this lives.
struct Registers {
  DT_INLINE explicit Registers(int64_t rows, int64_t input_bytes = 64) {
    Config config;
    const auto some = static_cast<uint8_t>(rows < kRows ? rows : kRows);
    config.rows[0] = config.rows[1] = config.rows[4] = some;
    config.row_bytes[4] = config.row_bytes[5] = static_cast<uint16_t>(input_bytes);
    config.rows[6] = config.rows[7] = static_cast<uint8_t>(input_bytes / 4);
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  DT_INLINE ~Registers() { asm volatile("tilerelease" ::); }
};

template <int t> DT_INLINE void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(t)); }
template <int t> DT_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(t) : "memory");
}
template <int t> DT_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(t) : "memory");
}

// Registers 0 to 3 are T tiles of rows, one above the other, of two tiles of columns.
template <int T> DT_INLINE void clear_sums() {
  clear_tile<0>(), clear_tile<1>();
  if (T == 2) clear_tile<2>(), clear_tile<3>();
}
template <int T> DT_INLINE void load_sums(const void* from, int64_t stride) {
  const char *at = static_cast<const char*>(from), *low = at + kRows * stride;
  load_tile<0>(at, stride), load_tile<1>(at + 64, stride);
  if (T == 2) load_tile<2>(low, stride), load_tile<3>(low + 64, stride);
}
template <int T> DT_INLINE void store_sums(void* to, int64_t stride) {
  char *at = static_cast<char*>(to), *low = at + kRows * stride;
  store_tile<0>(at, stride), store_tile<1>(at + 64, stride);
  if (T == 2) store_tile<2>(low, stride), store_tile<3>(low + 64, stride);
}

template <int sums, int x, int w> DT_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(w));
}

// The sums += T tiles of bfloat16 rows, `apart` bytes from one another, times two of columns.
template <int T>
DT_INLINE void multiply_tiles(const char* rows, int64_t row_stride, int64_t apart, const char* low,
                              const char* high, int64_t stride) {
  load_tile<4>(rows, row_stride);
  load_tile<6>(low, stride);
  add_products<0, 4, 6>();
  if (T == 2) load_tile<5>(rows + apart, row_stride), add_products<2, 5, 6>();
  load_tile<7>(high, stride);
  add_products<1, 4, 7>();
  if (T == 2) add_products<3, 5, 7>();
}

}  // namespace amx_tiles
}  // namespace DT_ISA
}  // namespace dt
