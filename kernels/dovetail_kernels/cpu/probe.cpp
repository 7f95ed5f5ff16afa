// What the machine can do at most, measured by the threads that kernels run on: reads of memory,
// float multiply-adds, multiply-adds of bfloat16 by tiles. The floor that a kernel's time is compared with.

#include "pool.h"
#include "vector.h"
#if defined(__AMX_TILE__)
#include "gemm/amx_tiles.h"
#endif

using namespace dt;
using namespace dt::DT_ISA;

struct ProbeArgs {
  void* memory;  // read once a pass by all threads together
  int64_t bytes;
  int64_t rounds;  // of the arithmetic loops
  float* out;      // [1] keeps the compiler honest
};

// Prepares memory that nobody has touched as weights are prepared, and fills it.
DT_KERNEL(probe_fill, ProbeArgs) {
  prefer_large_pages(args.memory, args.bytes);
  float* p = static_cast<float*>(args.memory);
  for (int64_t i = 0; i < args.bytes / 4; ++i) p[i] = 1.0f;
  return 0;
}

// Adds up the memory: moved_bytes = bytes.
DT_KERNEL(probe_read, ProbeArgs) {
  constexpr int64_t kPiece = 1 << 18;
  parallel(args.bytes / kPiece, [&](int64_t task) {
    const float* p = static_cast<const float*>(args.memory) + task * (kPiece / 4);
    Vec sums[8];
    for (auto& s : sums) s = zero();
    for (int64_t i = 0; i < kPiece / 4; i += 8 * kLanes)
      for (int j = 0; j < 8; ++j) sums[j] = add(sums[j], load(p + i + j * kLanes));
    for (int j = 1; j < 8; ++j) sums[0] = add(sums[0], sums[j]);
    args.out[thread_index() * 16] = sum(sums[0]);
  });
  return 0;
}

// 12 independent chains of multiply-adds: flops = threads * rounds * 12 * kLanes * 2.
DT_KERNEL(probe_fma, ProbeArgs) {
  parallel(num_threads() * 8, [&](int64_t) {
    Vec chain[12];
    for (int j = 0; j < 12; ++j) chain[j] = set1(1.0f + static_cast<float>(j));
    const Vec a = set1(0.999f), b = set1(1e-3f);
    for (int64_t i = 0; i < args.rounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) chain[j] = fma(chain[j], a, b);
    }
    for (int j = 1; j < 12; ++j) chain[0] = add(chain[0], chain[j]);
    args.out[thread_index() * 16] = sum(chain[0]);
  });
  return kLanes;
}

// Four chains of products of tiles: flops = threads * 8 * rounds * what is returned, 0 where there are no tiles.
DT_KERNEL(probe_tiles, ProbeArgs) {
#if defined(__AMX_TILE__)
  parallel(num_threads() * 8, [&](int64_t) {
    using namespace amx_tiles;
    const Registers registers(kRows);
    alignas(64) uint16_t ones[kTileBytes / 2];  // zeros take less power, and so less time
    for (uint16_t& one : ones) one = 0x3f80;
    clear_tile<0>(), clear_tile<1>(), clear_tile<2>(), clear_tile<3>();
    load_tile<4>(ones, 64), load_tile<5>(ones, 64), load_tile<6>(ones, 64), load_tile<7>(ones, 64);
    for (int64_t i = 0; i < args.rounds; ++i)
      asm volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0; tdpbf16ps %tmm7, %tmm4, %tmm1;"
          "tdpbf16ps %tmm6, %tmm5, %tmm2; tdpbf16ps %tmm7, %tmm5, %tmm3");
  });
  return 4 * 16 * 16 * 32 * 2;
#else
  (void)args;
  return 0;
#endif
}
