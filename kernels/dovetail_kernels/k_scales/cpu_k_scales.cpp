// k_scales, four codes of a block in a word.
//
// Bytes: the first sixteen of each block, and twenty that are written.

#include <string.h>

#include "k_scales/args.h"
#include "pool.h"
#include "vector.h"

using namespace dt;

namespace {

constexpr int64_t kBlocks = 1024;  // of one piece of work
constexpr uint32_t kSixBits = 0x3F3F3F3F, kFourBits = 0x0F0F0F0F, kHighBits = 0x30303030;
constexpr uint16_t kSign = 0x8000;

void read_block(const KScalesArgs& args, int64_t block) {
  uint16_t steps[2];
  uint32_t scales, offsets, rest;
  const uint8_t* from = args.blocks + block * args.block_bytes;
  memcpy(steps, from, 4);
  memcpy(&scales, from + 4, 4);
  memcpy(&offsets, from + 8, 4);
  memcpy(&rest, from + 12, 4);
  const uint32_t codes[2] = {scales & kSixBits, (rest & kFourBits) | (scales >> 2 & kHighBits)};
  const uint32_t offset_codes[2] = {offsets & kSixBits, (rest >> 4 & kFourBits) | (offsets >> 2 & kHighBits)};
  memcpy(args.codes + block * 8, codes, 8);
  memcpy(args.offset_codes + block * 8, offset_codes, 8);
  args.steps[block] = steps[0];
  args.offset_steps[block] = steps[1] ^ kSign;
}

}  // namespace

DT_KERNEL(k_scales, KScalesArgs) {
  parallel((args.count + kBlocks - 1) / kBlocks, [&](int64_t piece) {
    const int64_t from = piece * kBlocks, to = from + kBlocks < args.count ? from + kBlocks : args.count;
    for (int64_t block = from; block < to; ++block) read_block(args, block);
  });
  return 0;
}
