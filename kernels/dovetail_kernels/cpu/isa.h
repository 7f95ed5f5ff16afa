// The instruction set a file is compiled for, and how its functions are named.
//
// Every kernel source is compiled once per instruction set, with that set's flags and with
// DT_ISA naming it; DT_EXPORT(op) gives each copy a name of its own, so the loader picks one by
// name. Nothing here runs.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifndef DT_ISA
#define DT_ISA base
#endif

#define DT_JOIN_(a, b, c) a##b##c
#define DT_JOIN(a, b, c) DT_JOIN_(a, b, c)
#define DT_NAME(op) DT_JOIN(op, _, DT_ISA)

#define DT_C extern "C" __attribute__((visibility("default")))

// DT_KERNEL(op, Args) { ... } defines dt_<op>_<isa>(const Args& args) and tells the size of Args,
// so that the Python side can prove that it has the same struct in mind.
#define DT_KERNEL(op, Args)                                                    \
  DT_C const int64_t DT_JOIN(dt_, op##_bytes_, DT_ISA);                        \
  const int64_t DT_JOIN(dt_, op##_bytes_, DT_ISA) = sizeof(Args);              \
  DT_C int DT_JOIN(dt_, op##_, DT_ISA)(const Args* given);                     \
  static int DT_JOIN(run_, op##_, DT_ISA)(const Args& args);                   \
  int DT_JOIN(dt_, op##_, DT_ISA)(const Args* given) {                         \
    return DT_JOIN(run_, op##_, DT_ISA)(*given);                               \
  }                                                                            \
  static int DT_JOIN(run_, op##_, DT_ISA)(const Args& args)

#define DT_INLINE inline __attribute__((always_inline))
