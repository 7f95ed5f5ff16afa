// A program: kernel calls recorded once and run again in one call. Runs everywhere.

#include "program.h"

int64_t dt_program_run(const ProgramStep* steps, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (steps[i].kernel(steps[i].args)) return i + 1;
  return 0;
}
