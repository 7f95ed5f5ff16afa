// Attention by products of tiles (AMX) over keys in bfloat16; queries, and the softmax's weights, are
// rounded to it, as for products of pairs.
//
// A cell's keys already lie as AMX reads them: 16 pairs of 16 keys are a tile. A tile of values takes two
// cells, so a unit copies those of a partition, once for all of its rows. Groups of 32 rows go through
// three stages, each one group after the one before: scores, weights, weighted values. Products of tiles
// run beside vectors, so the rows of one group are weighed between the products of two others.
//
// Every number has one order of sums: a score's over D and a value's over the keys of a partition in steps
// of 32, with weights of 0 for keys that a row does not see. So a row's numbers are its own.

#include "paged_attention/attend.h"

#if defined(__AMX_TILE__)

#include "gemm/amx_tiles.h"

namespace dt {
namespace DT_ISA {
namespace attention {
namespace {

using namespace amx_tiles;

constexpr int64_t kUnitRowsByTiles = 256;  // share the copy of the values
constexpr int64_t kGroupRows = 2 * kRows;
constexpr int kAtWork = 3;                 // groups, one in each stage
constexpr int64_t kStep = 32;              // inputs of a product of tiles
constexpr int64_t kBlocks = kPartition / kStep;
constexpr int64_t kScoreRow = kPartition * 4 + 64;  // bytes: rows do not share cache sets
constexpr int64_t kLinesAProduct = 4;     // of the next partition, asked for meanwhile
constexpr int64_t kHalfTile = kTileBytes / 2;
constexpr float kLog2E = 1.44269504f;

// 2^x of a weight, relative error below 3e-6, 0 for what is far below 0; a NaN stays one.
DT_INLINE Vec power_of_two(Vec x) {
  const Vec r = _mm512_reduce_ps(x, 9);  // x - floor(x)
  Vec p = set1(1.353417e-2f);
  p = fma(p, r, set1(5.201146e-2f));
  p = fma(p, r, set1(2.4144275e-1f));
  p = fma(p, r, set1(6.9300383e-1f));
  p = fma(p, r, set1(1.00000259f));
  return _mm512_scalef_ps(p, x);
}

template <int sums, int x, int w> DT_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(w));
}

// Registers 0 to 3 += one or two tiles of rows times two of columns.
template <int T>
DT_INLINE void multiply_tiles(const char* a, int64_t stride, int64_t apart, const char* w0, const char* w1) {
  load_tile<4>(a, stride);
  load_tile<6>(w0, 64);
  add_products<0, 4, 6>();
  if (T == 2) load_tile<5>(a + apart, stride), add_products<2, 5, 6>();
  load_tile<7>(w1, 64);
  add_products<1, 4, 7>();
  if (T == 2) add_products<3, 5, 7>();
}
template <int T> DT_INLINE void clear_sums() {
  clear_tile<0>(), clear_tile<1>();
  if (T == 2) clear_tile<2>(), clear_tile<3>();
}
template <int T> DT_INLINE void store_sums(char* to, int64_t stride) {
  store_tile<0>(to, stride), store_tile<1>(to + 64, stride);
  if (T == 2) store_tile<2>(to + kRows * stride, stride), store_tile<3>(to + kRows * stride + 64, stride);
}

// A thread's memory for one piece.
struct TileRoom {
  int64_t *first, *last;  // [rows]
  Added* added;           // [rows]
  char* q;                // [rows / 16][D / 32] tiles
  float *state, *values;  // that of the unit; [kGroupRows][D in whole steps]
  char *scores, *tiles;   // of three groups; [D / 16][kBlocks] tiles of values
  char* last_keys;        // [kCells] tiles of keys, where the last step has half its inputs
};

inline bool get_tile_room(const Plan& plan, TileRoom* room) {
  const int64_t size = plan.args->head_size, rows = divide_up(plan.unit_rows, kGroupRows) * kGroupRows;
  const int64_t wide = divide_up(size, kStep) * kStep;
  const int64_t counts[] = {rows * 8, rows * 8, rows * static_cast<int64_t>(sizeof(Added)), rows * wide * 2,
                            rows * (size + 2) * 4, kGroupRows * wide * 4, kAtWork * kGroupRows * kScoreRow,
                            wide / kCell * kBlocks * kTileBytes, kCells * kTileBytes};
  constexpr int kParts = sizeof counts / sizeof *counts;
  int64_t bytes = 0;
  for (const int64_t count : counts) bytes += divide_up(count, 64) * 64;
  char* at = static_cast<char*>(scratch(0, bytes));
  if (!at) return false;
  char* places[kParts];
  for (int i = 0; i < kParts; at += divide_up(counts[i], 64) * 64, ++i) places[i] = at;
  *room = {reinterpret_cast<int64_t*>(places[0]), reinterpret_cast<int64_t*>(places[1]),
           reinterpret_cast<Added*>(places[2]), places[3], reinterpret_cast<float*>(places[4]),
           reinterpret_cast<float*>(places[5]), places[6], places[7], places[8]};
  return true;
}

// Some rows of a unit in a partition, on their way through the stages.
struct Group {
  int64_t partition, start, rows;
  int64_t first_block, last_block;  // of kStep keys, that some row sees
  bool is_whole;                    // all rows see all keys of the partition
  char* scores;                     // [kGroupRows][kScoreRow], then weights where a row begins
  const char* cells[kCells];
  float top[kGroupRows], total[kGroupRows];
  DT_INLINE int64_t blocks() const { return last_block - first_block; }
  DT_INLINE char* row(int64_t i) const { return scores + i * kScoreRow; }
};

// One piece: its groups of rows, partition by partition.
class Work {
 public:
  Work(const Plan& plan, const Piece& piece, const Piece* after, const TileRoom& room)
      : plan_(plan), args_(*plan.args), unit_(plan.units[piece.unit]), piece_(piece), after_(after), room_(room),
        size_(args_.head_size), rows_(unit_.queries * plan.group), steps_(divide_up(size_, kStep)),
        state_(state_at(room.state, rows_, size_)), number_(piece.unit * args_.num_kv_heads + piece.head) {
    for (int i = 0; i < kAtWork; ++i) groups_[i].scores = room.scores + i * kGroupRows * kScoreRow;
  }

  void run() {
    const Registers registers(rows_);
    for (int64_t i = 0; i < rows_; ++i) state_.total[i] = 0;
    pack_rows();
    int64_t count = 0;
    for (int64_t p = piece_.first; p < piece_.first + piece_.count; ++p) {
      begin(p);
      for (int64_t start = 0; start < rows_; start += kGroupRows) {
        Group* const fresh = &groups_[count % kAtWork];
        if (!see_group(p, start, fresh)) continue;
        advance(fresh);
        ++count;
      }
    }
    advance(nullptr);
    advance(nullptr);
    if (unit_.pieces == 1) return finish(plan_, unit_, piece_.head, state_);
    if (__atomic_sub_fetch(&plan_.left[number_], 1, __ATOMIC_ACQ_REL) == 0)
      merge_parts(plan_, unit_, piece_.head, plan_.parts + plan_.parts_at[number_], state_);
  }

 private:
  const Plan& plan_;
  const AttentionArgs& args_;
  const Unit& unit_;
  const Piece& piece_;
  const Piece* after_;
  const TileRoom& room_;
  const int64_t size_, rows_, steps_;
  const State state_;
  const int64_t number_;
  int64_t most_first_ = 0, least_last_ = INT64_MAX;  // all rows see what lies between
  Group groups_[kAtWork];
  Group *scored_ = nullptr, *weighed_ = nullptr;
  const char *cells_[kCells], *next_[kCells];
  int64_t asked_ = 0, lines_ = 0;  // of the next partition, asked for and in all
  int64_t copied_ = -1;            // the partition whose values are in tiles
  bool is_spoiled_ = false;        // some of them are no finite numbers, and not for all rows

  DT_INLINE bool has_half_step() const { return size_ % kStep; }

  void pack_rows() {
    const float* token = args_.q + (args_.query_start[unit_.row] + unit_.query) * args_.q_stride;
    const Vec scale = set1(plan_.score_scale);
    const int64_t heads = piece_.head * plan_.group, padded = divide_up(rows_, kRows) * kRows;
    float rotated[kMaxHeadSize];
    for (int64_t i = 0; i < padded; ++i) {
      char* to = room_.q + (i / kRows * steps_ * kRows + i % kRows) * 64;
      const auto at = [&](int64_t d) { return to + d / kStep * kTileBytes + d % kStep * 2; };
      if (i >= rows_) {
        for (int64_t s = 0; s < steps_; ++s) memset(at(s * kStep), 0, 64);
        continue;
      }
      const int64_t query = i / plan_.group, head = heads + i % plan_.group, position = unit_.position + query;
      const float* q = token + query * args_.q_stride + head * size_;
      if (args_.rotates) {
        rotate(q, size_, query_rotation(size_), rotated);
        q = rotated;
      }
      for (int64_t d = 0; d < size_; d += kLanes)
        store_bf16(reinterpret_cast<bf16*>(at(d)), mul(load(q + d), scale));
      if (has_half_step()) memset(at(size_), 0, 32);
      see(args_, args_.seq_lens[unit_.row], position, room_.first + i, room_.last + i);
      most_first_ = room_.first[i] > most_first_ ? room_.first[i] : most_first_;
      least_last_ = room_.last[i] < least_last_ ? room_.last[i] : least_last_;
      if (args_.bias || args_.slopes) room_.added[i] = added_to(args_, head, position);
    }
  }

  // The cells of a partition; in the place of those that the unit does not see, one that it does.
  void find_all(const Unit& unit, int64_t head, int64_t partition, const char** found) const {
    const int64_t base = partition * kPartition;
    const int64_t first = unit.first_key > base ? (unit.first_key - base) / kCell : 0;
    find_cells(plan_, unit, head, base, found);
    for (int64_t c = 0; c < first; ++c) found[c] = found[first];
    for (int64_t c = divide_up(unit.end_key - base, kCell); c < kCells; ++c) found[c] = found[first];
  }

  void begin(int64_t partition) {
    if (partition == piece_.first) find_all(unit_, piece_.head, partition, next_);
    memcpy(cells_, next_, sizeof next_);
    asked_ = 0;
    lines_ = kCells * (plan_.layout.cell_bytes / kLineBytes);
    if (partition + 1 < piece_.first + piece_.count) find_all(unit_, piece_.head, partition + 1, next_);
    else if (after_) find_all(plan_.units[after_->unit], after_->head, after_->first, next_);
    else lines_ = 0;
    if (!has_half_step()) return;
    for (int64_t c = 0; c < kCells; ++c) {
      char* to = room_.last_keys + c * kTileBytes;
      memcpy(to, cells_[c] + (steps_ - 1) * kTileBytes, kHalfTile);
      memset(to + kHalfTile, 0, kHalfTile);
    }
  }

  // Says what some of the rows see of a partition; returns whether that is anything.
  bool see_group(int64_t partition, int64_t start, Group* group) const {
    const int64_t left = rows_ - start;
    group->partition = partition;
    group->start = start;
    group->rows = left < kGroupRows ? left : kGroupRows;
    group->first_block = kBlocks;
    group->last_block = 0;
    group->is_whole = true;
    memcpy(group->cells, cells_, sizeof cells_);
    for (int64_t i = 0; i < group->rows; ++i) {
      const Span own = span(*group, i);
      group->is_whole &= own.first == 0 && own.last == kPartition;
      group->total[i] = 0;
      if (own.empty()) continue;
      const int64_t first = own.first / kStep, last = divide_up(own.last, kStep);
      group->first_block = first < group->first_block ? first : group->first_block;
      group->last_block = last > group->last_block ? last : group->last_block;
    }
    if (group->last_block > group->first_block) return true;
    if (unit_.pieces > 1) memset(part(partition).total + start, 0, group->rows * sizeof(float));
    return false;
  }
  DT_INLINE Span span(const Group& group, int64_t i) const {
    const int64_t base = group.partition * kPartition;
    const int64_t a = room_.first[group.start + i] - base, b = room_.last[group.start + i] - base;
    return {static_cast<int>(a > 0 ? a : 0), static_cast<int>(b < kPartition ? b : kPartition)};
  }
  DT_INLINE State part(int64_t partition) const {
    float* parts = plan_.parts + plan_.parts_at[number_];
    return state_at(parts + (partition - unit_.first) * rows_ * (size_ + 2), rows_, size_);
  }

  // Scores of a fresh group, or of none; weights of the one before it; values of the one before that.
  void advance(Group* fresh) {
    Group *const weighed = scored_, *const valued = weighed_;
    const int64_t products = (fresh ? fresh->blocks() * steps_ : 0) + (valued ? valued->blocks() * steps_ : 0);
    const int64_t rows = weighed ? weighed->rows : 0;
    const int64_t share = products ? (rows << 16) / products : 0;
    int64_t due = 0, done = 0;
    const auto beside = [&] {
      due += share;
      for (; done < due >> 16; ++done) weigh_row(weighed, done);
      ask(kLinesAProduct);
    };
    if (fresh) {
      if (fresh->rows > kRows) score<2>(*fresh, beside);
      else score<1>(*fresh, beside);
    }
    if (valued) value(valued, beside);
    for (; done < rows; ++done) weigh_row(weighed, done);
    scored_ = fresh;
    weighed_ = weighed;
  }

  // Asks for lines of the next partition.
  DT_INLINE void ask(int64_t count) {
    if (asked_ >= lines_) return;
    const int64_t in_cell = plan_.layout.cell_bytes / kLineBytes, c = asked_ / in_cell;
    const char* at = next_[c] + (asked_ - c * in_cell) * kLineBytes;
    for (int64_t i = 0; i < count; ++i) __builtin_prefetch(at + i * kLineBytes, 0, 2);
    asked_ += count;
  }

  template <int T, class Beside> void score(const Group& group, const Beside& beside) const {
    const char* a = room_.q + group.start / kRows * steps_ * kTileBytes;
    for (int64_t block = group.first_block; block < group.last_block; ++block) {
      clear_sums<T>();
      const char *const *pair = cells_ + 2 * block;
      for (int64_t s = 0; s < steps_; ++s) {
        const bool is_half = has_half_step() && s + 1 == steps_;
        const char* w0 = is_half ? room_.last_keys + 2 * block * kTileBytes : pair[0] + s * kTileBytes;
        const char* w1 = is_half ? room_.last_keys + (2 * block + 1) * kTileBytes : pair[1] + s * kTileBytes;
        multiply_tiles<T>(a + s * kTileBytes, 64, steps_ * kTileBytes, w0, w1);
        beside();
      }
      store_sums<T>(group.scores + block * kStep * 4, kScoreRow);
    }
  }

  // A row's scores become the weights e^(s - top), rounded; those of keys that it does not see become 0.
  void weigh_row(Group* group, int64_t i) const {
    char* const row = group->row(i);
    float* const s = reinterpret_cast<float*>(row);
    const int64_t first = group->first_block, last = group->last_block;
    if (!group->is_whole || args_.soft_cap > 0 || args_.bias || args_.slopes) {
      if (!shape_row(*group, i, s)) return;
    }
    Vec most[2] = {set1(kHidden), set1(kHidden)};
    for (int64_t b = first; b < last; ++b)
      for (int j = 0; j < 2; ++j) most[j] = max(most[j], load(s + b * kStep + j * kLanes));
    const float top = largest(max(most[0], most[1]));
    const Vec by = set1(kLog2E), less = set1(-top * kLog2E);
    const IVec ones = iset1(0x3f803f80);
    Vec sums = zero();
    for (int64_t b = first; b < last; ++b) {
      const Vec low = power_of_two(fma(load(s + b * kStep), by, less));
      const Vec high = power_of_two(fma(load(s + b * kStep + kLanes), by, less));
      const __m512bh pairs = _mm512_cvtne2ps_pbh(high, low);
      istore(row + b * 64, (IVec)pairs);
      sums = _mm512_dpbf16_ps(sums, pairs, (__m512bh)ones);
    }
    group->top[i] = top;
    group->total[i] = sum(sums);
  }

  // Adds biases to a row's scores, caps them and hides those of keys that it does not see. Returns false
  // where it sees none: its weights are 0 then.
  bool shape_row(const Group& group, int64_t i, float* s) const {
    const Span own = span(group, i);
    const int64_t begin = group.first_block * kStep, end = group.last_block * kStep;
    if (own.empty()) {
      memset(group.row(i) + begin * 2, 0, (end - begin) * 2);
      return false;
    }
    if (args_.bias || args_.slopes)
      add_positions(s, own.first, own.last, group.partition * kPartition, room_.added[group.start + i]);
    if (args_.soft_cap > 0)
      for (int64_t k = begin; k < end; k += kLanes) store(s + k, capped(load(s + k), args_.soft_cap));
    for (int64_t k = begin; k < own.first; ++k) s[k] = kHidden;
    for (int64_t k = own.last; k < end; ++k) s[k] = kHidden;
    return true;
  }

  template <class Beside> void value(Group* group, const Beside& beside) {
    const int64_t base = group->partition * kPartition;
    if (copied_ != group->partition) {
      is_spoiled_ = copy_values(*group, unit_.first_key - base, unit_.end_key - base) &&
                    (base < most_first_ || base + kPartition > least_last_);
      copied_ = group->partition;
    }
    if (!is_spoiled_ || group->is_whole) {
      add_values(*group, beside);
      for (int64_t i = 0; i < group->rows; ++i) merge(*group, i);
      return;
    }
    for (int64_t i = 0; i < group->rows; ++i) {  // each meets the values that it sees
      const Span own = span(*group, i);
      copy_values(*group, own.first, own.last);
      add_values(*group, [] {});
      merge(*group, i);
    }
    copied_ = -1;
    for (int64_t n = group->blocks() * steps_; n-- > 0;) beside();
  }

  template <class Beside> void add_values(const Group& group, const Beside& beside) const {
    if (group.rows > kRows) weigh_values<2>(group, beside);
    else weigh_values<1>(group, beside);
  }
  template <int T, class Beside> void weigh_values(const Group& group, const Beside& beside) const {
    const int64_t row_bytes = steps_ * kStep * 4;
    for (int64_t d = 0; d < steps_; ++d) {
      clear_sums<T>();
      const char* w = room_.tiles + 2 * d * kBlocks * kTileBytes;
      for (int64_t b = group.first_block; b < group.last_block; ++b) {
        multiply_tiles<T>(group.scores + b * 64, kScoreRow, kRows * kScoreRow, w + b * kTileBytes,
                          w + (kBlocks + b) * kTileBytes);
        beside();
      }
      store_sums<T>(reinterpret_cast<char*>(room_.values) + d * kStep * 4, row_bytes);
    }
  }

  // Tiles of the values of a partition's keys first .. last - 1, zeros for others. Returns whether some are
  // no finite numbers.
  bool copy_values(const Group& group, int64_t first, int64_t last) const {
    const IVec exponents = iset1(0x7f807f80);
    __mmask32 spoiled = 0;
    for (int64_t c = 0; c < kCells; ++c) {
      const char* from = group.cells[c] + plan_.layout.values_at;
      char* to = room_.tiles + c / 2 * kTileBytes + c % 2 * kHalfTile;
      for (int64_t k = 0; k < kCell; k += 2) {
        const int64_t key = c * kCell + k;
        const uint32_t seen = (key >= first && key < last ? 0xffff : 0) |
                              (key + 1 >= first && key + 1 < last ? 0xffff0000 : 0);
        const IVec mask = iset1(static_cast<int32_t>(seen));
        for (int64_t d = 0; d < size_ / kCell; ++d) {
          const IVec x = iand(mask, iload(from + d * kCell * kCell * 2 + k * 32));
          spoiled |= _mm512_cmpeq_epi16_mask(iand(x, exponents), exponents);
          istore(to + d * kBlocks * kTileBytes + k * 32, x);
        }
      }
    }
    return spoiled;
  }

  DT_INLINE void merge(const Group& group, int64_t i) const {
    const float* values = room_.values + i * steps_ * kStep;
    const int64_t row = group.start + i;
    if (unit_.pieces == 1)
      return merge_row(state_, row, values, group.top[i], group.total[i], size_);
    const State own = part(group.partition);
    memcpy(own.values + row * size_, values, size_ * sizeof(float));
    own.top[row] = group.top[i];
    own.total[row] = group.total[i];
  }
};

}  // namespace

int attend_tiles(const AttentionArgs& args) {
  const auto run = [](const Plan& plan, const Piece& piece, const Piece* after) {
    TileRoom room;
    const bool has_room = get_tile_room(plan, &room);
    if (has_room) Work(plan, piece, after, room).run();
    return has_room;
  };
  return attend_in_pieces(args, 1.0f, kUnitRowsByTiles, run);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt

#endif
