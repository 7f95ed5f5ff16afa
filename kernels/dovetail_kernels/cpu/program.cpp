// A program: kernel calls recorded once and run again in one call. Runs everywhere.

#include "isa.h"

struct ProgramStep {
  int (*kernel)(const void* args);
  const void* args;
};

// Runs the calls in order. Returns 0, or the number (from 1) of the first that failed.
DT_C int64_t dt_program_run(const ProgramStep* steps, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (steps[i].kernel(steps[i].args)) return i + 1;
  return 0;
}
