// Attention over keys in int8, one scale a token and kv head.

#include "paged_attention/attend.h"

namespace dt {
namespace DT_ISA {
namespace attention {

int attend_int8(const AttentionArgs& args) { return attend<Int8>(args); }

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt
