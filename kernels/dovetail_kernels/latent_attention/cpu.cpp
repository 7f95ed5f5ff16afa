// Latent attention: queries of all heads against one latent a token, which is key and value.
//
// Work of a query that sees S latents: 2 H S (2 L + R) floating-point operations. Bytes: each latent
// once for all heads of a query, S (L + R) numbers; so with H = 16 heads and bfloat16 30 operations a
// byte, with 128 heads 240. The floor is the multiply-adds, with pairs of bfloat16 (cpu_bf16.cpp) half of
// that of floats; what is read is made floats once, a few latents at a time, and stays in the
// second-level cache for all heads.
//
// A row's bits do not depend on others: latents are summed up in partitions that begin at multiples
// of kPartition, each for itself, and merged in order, whoever computed them.

#include "latent_attention/args.h"

// The set with products of bfloat16 pairs differs from the one below it in nothing else.
#if defined(__AVX512BF16__)
#define DT_OTHERS avx512
#else
#define DT_OTHERS DT_ISA
#endif

namespace dt {
namespace DT_ISA {
namespace latent {

int attend_pairs(const LatentArgs& args);

}  // namespace latent
}  // namespace DT_ISA

namespace DT_OTHERS {
namespace latent {

void write_latents(const LatentArgs& args);
int attend_floats(const LatentArgs& args);

}  // namespace latent
}  // namespace DT_OTHERS
}  // namespace dt

// Returns 0; 1 when memory cannot be had; 2 for a format not known here, or too many heads.
DT_KERNEL(latent_attention, LatentArgs) {
  constexpr int32_t kMaxHeads = 512;
  if (args.num_heads > kMaxHeads) return 2;
  if (args.latent) dt::DT_OTHERS::latent::write_latents(args);
#if defined(__AVX512BF16__)
  if (args.may_round && args.format == kLatentBfloat16) return dt::DT_ISA::latent::attend_pairs(args);
#endif
  return dt::DT_OTHERS::latent::attend_floats(args);
}
