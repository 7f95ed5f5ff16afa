// What a recorded program is made of. Runs everywhere.
#pragma once

#include "isa.h"

struct ProgramStep {
  int (*kernel)(const void* args);
  const void* args;
};

// Runs the calls in order. Returns 0, or the number (from 1) of the first that failed.
DT_C int64_t dt_program_run(const ProgramStep* steps, int64_t count);
