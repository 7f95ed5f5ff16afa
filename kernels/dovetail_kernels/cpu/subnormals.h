// Floats too small to be normal are zero for a while: a processor takes a hundred times as long over them.
// What decays by products of numbers below 1 passes through them on its way to zero.
#pragma once

#include "isa.h"

namespace dt {
namespace DT_ISA {

// While one of these lives, its thread's float arithmetic takes and gives zeros for subnormal numbers.
class SubnormalsAreZero {
 public:
#if defined(__x86_64__)
  SubnormalsAreZero() : before_(__builtin_ia32_stmxcsr()) {
    __builtin_ia32_ldmxcsr(before_ | 0x8040);  // results, and what is read
  }
  ~SubnormalsAreZero() { __builtin_ia32_ldmxcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  SubnormalsAreZero() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)) : "memory");
  }
  ~SubnormalsAreZero() { asm volatile("msr fpcr, %0" ::"r"(before_) : "memory"); }

 private:
  uint64_t before_;
#else
  SubnormalsAreZero() {}
  ~SubnormalsAreZero() {}
#endif
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;
};

}  // namespace DT_ISA
}  // namespace dt
