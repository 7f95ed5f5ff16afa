// What this library is and which instruction set this machine should use. Runs everywhere.

#include "isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Whether AMX is here with products of bfloat16 and bytes, and the system lets this process use its registers: it
// must be asked once, before threads use them. Source: Linux, Documentation/arch/x86/xstate.rst
bool has_amx() {
#if defined(__linux__)
  constexpr unsigned kTilesAndProducts = 1u << 25 | 1u << 24 | 1u << 22;  // leaf 7, edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTilesAndProducts) != kTilesAndProducts) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Whether products of bytes are added up in registers of AVX. Source: Intel SDM volume 2, CPUID leaf 7.
bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

}  // namespace
#endif

// Rises when an argument struct or the meaning of a kernel changes; the loader asks for equality.
DT_C int dt_abi() { return 1; }

// The best instruction set that is both compiled in and present.
DT_C const char* dt_best_isa() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  const bool has_pairs = has_avx512 && __builtin_cpu_supports("avx512bf16");
  if (has_avx2 && has_pairs) return has_amx() ? "amx" : "avx512bf16";
  if (has_avx2 && has_avx512) return "avx512";
  if (has_avx2 && has_avx_vnni()) return "avxvnni";
  if (has_avx2) return "avx2";  // every CPU with AVX2 and FMA has F16C
  return "base";
#elif defined(__aarch64__)
  return "neon";
#else
  return "base";
#endif
}

// The set to use where none is asked for: the best, but that Intel's processors multiply pairs of bfloat16
// without AMX no faster than floats, and read them slower.
DT_C const char* dt_usual_isa() {
  const char* best = dt_best_isa();
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel") && __builtin_strcmp(best, "avx512bf16") == 0) return "avx512";
#endif
  return best;
}
