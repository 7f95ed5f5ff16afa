// A chain: one program after the other, each drawing a token for some rows and reading what the one
// before drew; fewer and fewer rows go on. chain.py says the same in Python. Runs everywhere.

#include <string.h>

#include "program.h"

namespace {

constexpr int64_t kMostRows = 64;

// A program, how many rows it computes, and where it leaves their states.
struct Link {
  const ProgramStep* steps;
  int64_t count, rows;
  const char* states;
};

// Where a program reads a line for each row, and how far apart what it reads of them lies.
struct Lines {
  int64_t *tokens, *positions, *slots;
  int32_t *lens, *blocks;
  char* states;
  int64_t block_stride, state_bytes;
};

struct ChainArgs {
  const Link* first;
  const Link* later;      // [depths][rows + 1]: of the depth, the last one for all that follow, by rows
  const int64_t* tokens;  // what every program draws, and how likely that is
  const double* logprobs;
  Lines lines;            // where all but the first one read
  const int64_t *wants, *positions, *skipped;  // by row: tokens wanted, the first one's position, and how
                                               // many before it are not seen
  const int64_t* slots;                        // [most][most_rows]
  const int32_t* blocks;                       // [most_rows], block_stride apart
  int64_t *drafts, *made, *likely;             // the result: [most_rows][most], [most_rows] twice
  const Link** failed;                         // the link with a call that failed
  double least;
  int64_t rows, depths, width, most_rows, most;
};

// Lets row `row` go on as line `line`, from the token drawn at `depth` by line `from` of the last link.
void place(const ChainArgs& args, const Link& last, int64_t line, int64_t row, int64_t from, int64_t depth) {
  const Lines& to = args.lines;
  const int64_t position = args.positions[row] + depth;
  to.tokens[line] = args.tokens[from];
  to.positions[line] = position;
  to.lens[line] = static_cast<int32_t>(position + 1 - args.skipped[row]);
  to.slots[line] = args.slots[depth * args.most_rows + row];
  memcpy(to.blocks + line * to.block_stride, args.blocks + row * to.block_stride, args.width * sizeof(int32_t));
  if (to.state_bytes)  // a program may leave its states where it read them
    memmove(to.states + line * to.state_bytes, last.states + from * to.state_bytes, to.state_bytes);
}

// A line of the null block.
void pad(const Lines& to, int64_t line) {
  to.tokens[line] = to.positions[line] = to.slots[line] = 0;
  to.lens[line] = 1;
  to.blocks[line * to.block_stride] = 0;
}

}  // namespace

// Returns 0, or the number (from 1) of a call that failed.
DT_C int64_t dt_chain_run(const ChainArgs* given) {
  const ChainArgs& args = *given;
  int64_t live[kMostRows], count = args.rows;
  double chance[kMostRows];
  for (int64_t row = 0; row < args.rows; ++row) {
    live[row] = row;
    chance[row] = 0;
    args.made[row] = args.likely[row] = 0;
  }
  const Link* link = args.first;
  for (int64_t depth = 0; count; ++depth) {
    if (const int64_t failed = dt_program_run(link->steps, link->count)) {
      *args.failed = link;
      return failed;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = live[i];
      args.drafts[row * args.most + depth] = args.tokens[i];
      args.made[row] = depth + 1;
      chance[row] += args.logprobs[i];
      if (!(chance[row] >= args.least)) continue;
      args.likely[row] = depth + 1;
      if (depth + 1 >= args.wants[row]) continue;
      place(args, *link, kept, row, i, depth);
      live[kept++] = row;
    }
    count = kept;
    const int64_t next = depth < args.depths ? depth : args.depths - 1;
    link = args.later + next * (args.rows + 1) + count;
    for (int64_t line = count; count && line < link->rows; ++line) pad(args.lines, line);
  }
  return 0;
}
