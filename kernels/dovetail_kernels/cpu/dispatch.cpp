// What this library is and which instruction set this machine should use. Runs everywhere.

#include "isa.h"

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
  if (has_avx2 && has_avx512) return __builtin_cpu_supports("avx512bf16") ? "avx512bf16" : "avx512";
  if (has_avx2) return "avx2";  // every CPU with AVX2 and FMA has F16C
  return "base";
#elif defined(__aarch64__)
  return "neon";
#else
  return "base";
#endif
}
