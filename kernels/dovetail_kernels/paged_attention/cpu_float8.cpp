// Attention over keys in 8-bit floats.

#include "paged_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace attention {

int attend_float8(const AttentionArgs& args) {
  return args.format == kKvE4m3 ? attend<E4m3>(args) : attend<E5m2>(args);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
