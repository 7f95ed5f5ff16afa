// Attention over keys in float32.

#include "paged_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace attention {

int attend_float32(const AttentionArgs& args) { return attend<Float32>(args); }

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
