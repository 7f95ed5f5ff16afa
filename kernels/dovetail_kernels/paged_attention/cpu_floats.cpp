// Attention over keys in float32 and in 16-bit floats.

#include "paged_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace attention {

int attend_float32(const AttentionArgs& args) { return attend<Float32>(args); }

int attend_half(const AttentionArgs& args) {
  return args.format == kKvBfloat16 ? attend<Bfloat16>(args) : attend<Float16>(args);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
