// How wide panels are, for who counts the bytes of weights that nobody has loaded.

#include "gemm/tiles.h"

DT_C const int64_t DT_JOIN(dt_, panel_outputs_, DT_ISA);
const int64_t DT_JOIN(dt_, panel_outputs_, DT_ISA) = dt::DT_ISA::kPanel;
