// bit_fields, some blocks at a time.
//
// Bytes: the blocks once, the values once, which stay in the cache between planes.

#include "bit_fields/unpack.h"
#include "pool.h"
#include "vector.h"

using namespace dt;

namespace {

constexpr int64_t kBlocks = 256;  // of one piece of work

}  // namespace

DT_KERNEL(bit_fields, BitFieldsArgs) {
  parallel((args.count + kBlocks - 1) / kBlocks, [&](int64_t piece) {
    const int64_t from = piece * kBlocks, to = from + kBlocks < args.count ? from + kBlocks : args.count;
    unpack_blocks(args, from, to);
  });
  return 0;
}
