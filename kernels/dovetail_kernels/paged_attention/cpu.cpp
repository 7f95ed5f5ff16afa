// Attention over keys in blocks: the entry, which picks the format's code.
//
// Work of a row with n queries that see S keys on average: 4 n S H D floating-point operations and
// about 25 n S H for the softmax. Bytes: every visible key and value once, 2 S K D items, for each
// kUnitRows query rows; q and out 8 n H D. Decode of one query with G = H / K = 2 does 1 operation
// a byte of float32, 2 of bfloat16, 4 of 8 bits: the floor is the read bandwidth for floats; for
// int8 16-bit products at twice the float rate keep it near. 8-bit floats become floats on the way,
// and their scales join the softmax's and its denominator's: those cost nothing. Prefill's floor is
// the multiply-adds.

#include "paged_attention/layout.h"

// The sets with products of bfloat16, in pairs and by tiles, differ from the one below them in nothing else.
#if defined(__AVX512BF16__)
#define DT_OTHERS avx512
#else
#define DT_OTHERS DT_ISA
#endif
#if defined(__AMX_TILE__)
#define DT_PAIRS avx512bf16
#else
#define DT_PAIRS DT_ISA
#endif

namespace dt {
namespace DT_ISA {
namespace attention {

int attend_tiles(const AttentionArgs& args);

}  // namespace attention
}  // namespace DT_ISA

namespace DT_PAIRS {
namespace attention {

int attend_pairs(const AttentionArgs& args);

}  // namespace attention
}  // namespace DT_PAIRS

namespace DT_OTHERS {
namespace attention {

void write_cache(const AttentionArgs& args);
int attend_float32(const AttentionArgs& args);
int attend_half(const AttentionArgs& args);
int attend_float8(const AttentionArgs& args);
int attend_int8(const AttentionArgs& args);

}  // namespace attention
}  // namespace DT_OTHERS
}  // namespace dt

// Returns 0; 1 when memory cannot be had; 2 for a format not known here.
DT_KERNEL(paged_attention, AttentionArgs) {
  using namespace dt::DT_OTHERS::attention;
  if (args.k) dt::DT_OTHERS::attention::write_cache(args);
#if defined(__AMX_TILE__)
  // Not by how many rows there are, since a row's bits must not depend on its neighbours. One row of a model
  // with one query head to a kv head would take 1.15 times as long.
  if (args.may_round && args.format == kKvBfloat16 && args.num_heads > args.num_kv_heads)
    return dt::DT_ISA::attention::attend_tiles(args);
#endif
#if defined(__AVX512BF16__)
  const bool is_bfloat16 = args.format == kKvBfloat16;  // or exactly one, as 8-bit floats are
  if (args.may_round && (is_bfloat16 || args.format == kKvE4m3 || args.format == kKvE5m2))
    return dt::DT_PAIRS::attention::attend_pairs(args);
#endif
  switch (args.format) {
    case kKvFloat32: return attend_float32(args);
    case kKvBfloat16:
    case kKvFloat16: return attend_half(args);
    case kKvE4m3:
    case kKvE5m2: return attend_float8(args);
    case kKvInt8:
    case kKvK8V4:
    case kKvInt4: return attend_int8(args);
    default: return 2;
  }
}
