// Attention by products of tiles (AMX) over keys in bfloat16; queries, and the softmax's weights, are
// rounded to it, as for products of pairs.
//
// A cell's keys already lie as AMX reads them: 16 pairs of 16 keys are a tile. A tile of values has pairs of
// keys from two cells, so a unit copies the values of a partition, once for all of its rows. A group of 32
// rows meets a partition in blocks of keys: their scores become weights, and the weights of some blocks
// together multiply values. All that a group needs fits a core's first cache. Tiles and vectors take turns, since they
// share a port; instructions that round to bfloat16 or multiply its pairs wait for tiles, so none are used.
//
// A row's weights are e^(s - top), where its top is the largest score of its first block, or of a later one
// whose weights would be large. Every number has one order of sums: a score's over D and a value's over
// keys in steps of 32, from the partition's first, with weights of 0 for keys that the row does not see. So
// a row's numbers are its own.

#include "paged_attention/attend.h"

#if defined(__AMX_TILE__)

#include "gemm/amx_tiles.h"

namespace dt {
namespace DT_ISA {
namespace attention {
namespace {

using namespace amx_tiles;

constexpr int64_t kUnitRowsByTiles = 512;  // share the copy of the values
constexpr int64_t kTilePartition = 2 * kPartition;
constexpr int64_t kTileCells = kTilePartition / kCell;
constexpr int64_t kGroupRows = 2 * kRows;
constexpr int64_t kStep = 32;        // inputs of a product of tiles
constexpr int64_t kBlockKeys = 64;
constexpr int64_t kBlockSteps = kBlockKeys / kStep, kPartitionSteps = kTilePartition / kStep;
constexpr int64_t kChunkSteps = 8;   // whose values are weighed together
constexpr int64_t kScoreRow = kBlockKeys * 4;            // bytes
constexpr int64_t kWeightRow = kChunkSteps * 64 + 64;    // rows do not share cache sets
constexpr int64_t kHalfTile = kTileBytes / 2;
constexpr float kLog2E = 1.44269504f;
constexpr float kMost = 512.0f;      // four weights that add up to more raise their row's top

// 2^x of a weight, rounded to bfloat16; before that its relative error is below 5e-6. 0 for what is far below
// 0; a NaN stays one.
DT_INLINE Vec rounded_power(Vec x) {
  constexpr float kUnitsOfBfloat16 = 65536.0f;  // floats from here on have 7 bits after the point
  const Vec r = _mm512_reduce_ps(x, 9);         // x - floor(x)
  Vec p = set1(1.353417e-2f);
  p = fma(p, r, set1(5.201146e-2f));
  p = fma(p, r, set1(2.4144275e-1f));
  p = fma(p, r, set1(6.9300383e-1f));
  p = fma(p, r, set1(1.0f + kUnitsOfBfloat16));
  return _mm512_scalef_ps(sub(p, set1(kUnitsOfBfloat16)), x);
}

// The power of 2^(1/8), below 2, that a query is best multiplied by before it is rounded to bfloat16: the
// scores' errors are then a tenth smaller, which makes up for weights that are seldom exactly 1.
inline float best_factor(const float* q, int64_t size) {
  float best = 1.0f, least = INFINITY, factor = 1.0f;
  for (int n = 0; n < 8; ++n, factor *= 1.09050773f) {
    Vec squares = zero();
    for (int64_t d = 0; d < size; d += kLanes) {
      const Vec x = mul(load(q + d), set1(factor)), wide = mul(x, set1(65537.0f));
      const Vec lost = sub(x, sub(wide, sub(wide, x)));
      squares = fma(lost, lost, squares);
    }
    const float error = sum(squares) / (factor * factor);
    if (error < least) least = error, best = factor;
  }
  return best;
}

// A register's upper halves in the lower ones of another's, whose upper ones stay.
DT_INLINE IVec paired(IVec low, IVec high) {
  return _mm512_ternarylogic_epi32(shift_right<16>(low), high, iset1(static_cast<int32_t>(0xffff0000)), 0xf8);
}

// A thread's memory for one piece.
struct TileRoom {
  int64_t *first, *last;  // [rows]
  Added* added;           // [rows]
  float* log2e;           // [rows] in units of a row's scores
  char* q;                // [rows / 16][D / 32] tiles
  float *state, *values;  // of the unit; of a group, [kGroupRows, D in whole steps, a line]
  float* spare;           // as `values`, twice
  char *scores, *weights;  // [kGroupRows][kScoreRow] of a block, [kGroupRows][kWeightRow] of a chunk
  char* tiles;            // [D / 16][kPartitionSteps] of values
  char* last_keys;        // [kTileCells] tiles of keys, where the last step has half its inputs
};

DT_INLINE int64_t value_row(int64_t size) { return divide_up(size, kStep) * kStep + kCell; }

inline bool get_tile_room(const Plan& plan, TileRoom* room) {
  const int64_t size = plan.args->head_size, rows = divide_up(plan.unit_rows, kGroupRows) * kGroupRows;
  const int64_t wide = divide_up(size, kStep) * kStep, values = kGroupRows * value_row(size) * 4;
  const int64_t counts[] = {rows * 8, rows * 8, rows * static_cast<int64_t>(sizeof(Added)), rows * 4, rows * wide * 2,
                            rows * (size + 2) * 4, values, 2 * values, kGroupRows * kScoreRow, kGroupRows * kWeightRow,
                            wide / kCell * kPartitionSteps * kTileBytes, kTileCells * kTileBytes};
  constexpr int kParts = sizeof counts / sizeof *counts;
  int64_t bytes = 0;
  for (const int64_t count : counts) bytes += divide_up(count, 64) * 64;
  char* at = static_cast<char*>(scratch(0, bytes));
  if (!at) return false;
  char* places[kParts];
  for (int i = 0; i < kParts; at += divide_up(counts[i], 64) * 64, ++i) places[i] = at;
  const auto floats = [&](int i) { return reinterpret_cast<float*>(places[i]); };
  *room = {reinterpret_cast<int64_t*>(places[0]), reinterpret_cast<int64_t*>(places[1]),
           reinterpret_cast<Added*>(places[2]), floats(3), places[4], floats(5), floats(6), floats(7), places[8],
           places[9], places[10], places[11]};
  return true;
}

// A group of rows and a block of keys.
struct Block {
  int64_t start, rows;      // of the unit
  int64_t step, steps;      // of kStep keys, counted in the partition
  bool is_first;            // of the group's in the partition
  bool is_whole;            // all rows see all of these keys
};

// One piece: partition by partition, group by group, block by block.
class Work {
 public:
  Work(const Plan& plan, const Piece& piece, const Piece* after, const TileRoom& room)
      : plan_(plan), args_(*plan.args), unit_(plan.units[piece.unit]), piece_(piece), after_(after), room_(room),
        size_(args_.head_size), rows_(unit_.queries * plan.group), steps_(divide_up(size_, kStep)),
        value_row_(value_row(size_)), is_shaped_(args_.soft_cap > 0 || args_.bias || args_.slopes),
        state_(state_at(room.state, rows_, size_)), number_(piece.unit * args_.num_kv_heads + piece.head) {}

  void run() {
    const Registers registers(rows_);
    for (int64_t i = 0; i < rows_; ++i) state_.total[i] = 0;
    pack_rows();
    find_all(unit_, piece_.head, piece_.first, next_);
    for (partition_ = piece_.first; partition_ < piece_.first + piece_.count; ++partition_) {
      begin();
      for (int64_t start = 0; start < rows_; start += kGroupRows) meet(start);
    }
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
  const int64_t size_, rows_, steps_, value_row_;
  const bool is_shaped_;
  const State state_;
  const int64_t number_;
  int64_t most_first_ = 0, least_last_ = INT64_MAX;  // all rows see what lies between
  int64_t partition_ = 0;
  const char *cells_[kTileCells], *next_[kTileCells];  // of this partition, and of the one after it
  int64_t asked_ = 0, lines_ = 0, share_ = 0;  // of the next one's: asked for so far, in all, at a time
  bool is_copied_ = false;   // the partition's values are in tiles
  bool is_spoiled_ = false;  // some of them are no finite numbers, and not for all rows
  int64_t group_first_ = 0, weighed_ = 0;  // of the partition's steps: where a group begins, and has come to
  alignas(64) float sums_[kGroupRows][kLanes], top_[kGroupRows], less_[kGroupRows], total_[kGroupRows];

  DT_INLINE bool has_half_step() const { return size_ % kStep; }
  void pack_rows() {
    const float* token = args_.q + (args_.query_start[unit_.row] + unit_.query) * args_.q_stride;
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
      alignas(64) float scaled[kMaxHeadSize];
      for (int64_t d = 0; d < size_; d += kLanes) store(scaled + d, mul(load(q + d), set1(plan_.score_scale)));
      const float factor = is_shaped_ ? 1.0f : best_factor(scaled, size_);
      room_.log2e[i] = kLog2E / factor;
      for (int64_t d = 0; d < size_; d += kLanes)
        store_bf16(reinterpret_cast<bf16*>(at(d)), mul(load(scaled + d), set1(factor)));
      if (has_half_step()) memset(at(size_), 0, 32);
      see(args_, args_.seq_lens[unit_.row], position, room_.first + i, room_.last + i);
      most_first_ = room_.first[i] > most_first_ ? room_.first[i] : most_first_;
      least_last_ = room_.last[i] < least_last_ ? room_.last[i] : least_last_;
      if (args_.bias || args_.slopes) room_.added[i] = added_to(args_, head, position);
    }
  }

  // The cells of a partition; in the place of those that the unit does not see, one that it does.
  void find_all(const Unit& unit, int64_t head, int64_t partition, const char** found) const {
    const int64_t base = partition * kTilePartition;
    const int64_t first = unit.first_key > base ? (unit.first_key - base) / kCell : 0;
    find_cells(plan_, unit, head, base, found);
    for (int64_t c = 0; c < first; ++c) found[c] = found[first];
    for (int64_t c = divide_up(unit.end_key - base, kCell); c < kTileCells; ++c) found[c] = found[first];
  }

  void begin() {
    memcpy(cells_, next_, sizeof next_);
    is_copied_ = false;
    asked_ = 0;
    lines_ = kTileCells * (plan_.layout.cell_bytes / kLineBytes);
    const int64_t works = 2 * steps_ * kPartitionSteps;  // of a group, and of the copy
    share_ = divide_up(lines_, works * (divide_up(rows_, kGroupRows) + 1));
    if (partition_ + 1 < piece_.first + piece_.count) find_all(unit_, piece_.head, partition_ + 1, next_);
    else if (after_) find_all(plan_.units[after_->unit], after_->head, after_->first, next_);
    else lines_ = 0;
    if (!has_half_step()) return;
    for (int64_t c = 0; c < kTileCells; ++c) {
      char* to = room_.last_keys + c * kTileBytes;
      memcpy(to, cells_[c] + (steps_ - 1) * kTileBytes, kHalfTile);
      memset(to + kHalfTile, 0, kHalfTile);
    }
  }

  // The keys of a block, or of the partition, that a row sees.
  DT_INLINE Span span(int64_t row, int64_t base, int64_t keys) const {
    return cut_to(room_.first[row] - base, room_.last[row] - base, keys);
  }
  static DT_INLINE Span cut_to(int64_t first, int64_t last, int64_t keys) {
    return {static_cast<int>(first > 0 ? first : 0), static_cast<int>(last < keys ? last : keys)};
  }
  DT_INLINE int64_t tile_of(int64_t step) const {
    return (rows_ > kGroupRows ? step : step % kChunkSteps) * kTileBytes;
  }
  DT_INLINE int64_t base() const { return partition_ * kTilePartition; }
  DT_INLINE State part() const {
    float* parts = plan_.parts + plan_.parts_at[number_];
    return state_at(parts + (partition_ - unit_.first) * rows_ * (size_ + 2), rows_, size_);
  }

  // A group of rows meets the partition.
  void meet(int64_t start) {
    const int64_t left = rows_ - start, rows = left < kGroupRows ? left : kGroupRows;
    Span any{static_cast<int>(kTilePartition), 0}, all{0, static_cast<int>(kTilePartition)};
    for (int64_t i = start; i < start + rows; ++i) {
      const Span own = span(i, base(), kTilePartition);
      all.first = own.first > all.first ? own.first : all.first;
      all.last = own.last < all.last ? own.last : all.last;
      if (own.empty()) continue;
      any.first = own.first < any.first ? own.first : any.first;
      any.last = own.last > any.last ? own.last : any.last;
    }
    if (any.empty()) {
      if (unit_.pieces > 1) memset(part().total + start, 0, rows * sizeof(float));
      return;
    }
    const int64_t first = any.first / kStep, last = divide_up(any.last, kStep);
    weighed_ = group_first_ = first;
    for (int64_t step = first; step < last;) {
      const int64_t after = (step / kBlockSteps + 1) * kBlockSteps, end = after < last ? after : last;
      const Block block{start, rows, step, end - step, step == first,
                        all.first <= step * kStep && all.last >= end * kStep};
      rows > kRows ? score<2>(block) : score<1>(block);
      for (int64_t i = 0; i < rows; ++i) weigh_row(block, i);
      step = end;
      if (step == last || step % kChunkSteps == 0) add_values(block, step);
    }
    for (int64_t i = 0; i < rows; ++i) total_[i] = sum(load(sums_[i]));
    for (int64_t i = 0; i < rows; i += kLanes) merge(start, rows, i);
  }

  // Asks for lines of the next partition.
  DT_INLINE void ask() {
    if (asked_ >= lines_) return;
    const int64_t in_cell = plan_.layout.cell_bytes / kLineBytes, c = asked_ / in_cell;
    const char* at = next_[c] + (asked_ - c * in_cell) * kLineBytes;
    for (int64_t i = 0; i < share_; ++i) __builtin_prefetch(at + i * kLineBytes, 0, 2);
    asked_ += share_;
  }

  template <int T> void score(const Block& block) {
    const char* a = room_.q + block.start / kRows * steps_ * kTileBytes;
    for (int64_t i = 0; i < block.steps; ++i) {
      clear_sums<T>();
      const int64_t c = 2 * (block.step + i);
      for (int64_t s = 0; s < steps_; ++s) {
        const bool is_half = has_half_step() && s + 1 == steps_;
        const char* w0 = is_half ? room_.last_keys + c * kTileBytes : cells_[c] + s * kTileBytes;
        const char* w1 = is_half ? room_.last_keys + (c + 1) * kTileBytes : cells_[c + 1] + s * kTileBytes;
        multiply_tiles<T>(a + s * kTileBytes, 64, steps_ * kTileBytes, w0, w1, 64);
        ask();
      }
      store_sums<T>(room_.scores + i * kStep * 4, kScoreRow);
    }
  }

  DT_INLINE float* scores(int64_t i) const { return reinterpret_cast<float*>(room_.scores + i * kScoreRow); }

  // A row's weights, rounded; 0 for keys that it does not see.
  DT_INLINE void weigh_row(const Block& block, int64_t i) {
    if (!block.is_whole || is_shaped_) shape_row(block, i);
    if (block.is_first) {
      top_[i] = kHidden;
      less_[i] = -kHidden;
      store(sums_[i], zero());
      raise_top(block, i);
    }
    Vec sums = powers(block, i);
    if (_mm512_cmp_ps_mask(sums, set1(kMost), _CMP_GT_OQ)) {
      raise_top(block, i);
      sums = powers(block, i);
    }
    store(sums_[i], add(sums, load(sums_[i])));
  }
  // Returns what they add up to, lane by lane. A pair is of keys 16 apart.
  DT_INLINE Vec powers(const Block& block, int64_t i) const {
    const float* const s = scores(i);
    char* const to = room_.weights + i * kWeightRow + block.step % kChunkSteps * 64;
    const Vec by = set1(room_.log2e[block.start + i]), less = set1(less_[i]);
    Vec sums = zero();
    const auto step = [&](int64_t b) {
      const Vec low = rounded_power(fma(load(s + b * kStep), by, less));
      const Vec high = rounded_power(fma(load(s + b * kStep + kLanes), by, less));
      istore(to + b * 64, paired(as_int(low), as_int(high)));
      sums = add(add(sums, low), high);
    };
    for (int64_t b = 0; b < block.steps; ++b) step(b);
    return sums;
  }

  // A row's top becomes the block's largest score, if that is more; what was added up is scaled.
  __attribute__((noinline)) void raise_top(const Block& block, int64_t i) {
    const float* s = scores(i);
    Vec most = load(s);
    for (int64_t k = kLanes; k < block.steps * kStep; k += kLanes) most = max(most, load(s + k));
    const float power = largest(most) * room_.log2e[block.start + i], top = power / kLog2E, old = top_[i];
    if (!(top > old)) return;
    top_[i] = top;
    less_[i] = -power;
    if (block.is_first) return;
    add_values(block, block.step);
    const Vec factor = exp(set1(old - top));
    store(sums_[i], mul(load(sums_[i]), factor));
    float* row = room_.values + i * value_row_;
    for (int64_t d = 0; d < size_; d += kLanes) store(row + d, mul(load(row + d), factor));
  }

  // Adds biases to a row's scores, caps them and hides keys that it does not see.
  void shape_row(const Block& block, int64_t i) const {
    float* const s = scores(i);
    const int64_t first = base() + block.step * kStep, keys = block.steps * kStep;
    const Span own = span(block.start + i, first, keys);
    if (!own.empty()) {
      if (args_.bias || args_.slopes)
        add_positions(s, own.first, own.last, first, room_.added[block.start + i]);
      if (args_.soft_cap > 0)
        for (int64_t k = 0; k < keys; k += kLanes) store(s + k, capped(load(s + k), args_.soft_cap));
    }
    for (int64_t k = 0; k < keys; k += kLanes) {
      const auto before = [&](int64_t key) { return (1u << (key < k ? 0 : key > k + kLanes ? kLanes : key - k)) - 1; };
      const auto seen = static_cast<__mmask16>(before(own.last) & ~before(own.first));
      _mm512_mask_storeu_ps(s + k, static_cast<__mmask16>(~seen), set1(-INFINITY));
    }
  }

  // Adds values of steps weighed_ .. end - 1, which are of one chunk.
  void add_values(const Block& block, int64_t end) {
    if (weighed_ == end) return;
    const Span own = cut_to(unit_.first_key - base(), unit_.end_key - base(), kTilePartition);
    const bool is_alone = rows_ <= kGroupRows;  // its values come chunk by chunk, to the same tiles
    if (!is_copied_ || is_alone) {
      const int64_t first = is_alone ? weighed_ : own.first / kStep, last = is_alone ? end : divide_up(own.last, kStep);
      const bool is_whole = base() >= most_first_ && base() + kTilePartition <= least_last_;
      if (is_whole) copy_values<false>(own, first, last);
      else is_spoiled_ = copy_values<true>(own, first, last);
      is_spoiled_ &= !is_whole;
      is_copied_ = true;
    }
    const auto add = [&] { block.rows > kRows ? add_products<2>(end) : add_products<1>(end); };
    if (is_spoiled_) {  // each row meets no values but those that it sees
      const int64_t count = kGroupRows * value_row_;
      float *const before = room_.spare, *const after = before + count;
      memcpy(before, room_.values, count * sizeof(float));
      for (int64_t i = 0; i < block.rows; ++i) {
        copy_values<true>(span(block.start + i, base(), kTilePartition), weighed_, end);
        memcpy(room_.values, before, count * sizeof(float));
        add();
        memcpy(after + i * value_row_, room_.values + i * value_row_, value_row_ * sizeof(float));
      }
      memcpy(room_.values, after, count * sizeof(float));
    } else {
      add();
    }
    weighed_ = end;
  }
  template <int T> void add_products(int64_t end) {
    for (int64_t d = 0; d < steps_; ++d) {
      char* const sums = reinterpret_cast<char*>(room_.values + d * kStep);
      if (weighed_ == group_first_) clear_sums<T>();
      else load_sums<T>(sums, value_row_ * 4);
      const char* w = room_.tiles + 2 * d * kPartitionSteps * kTileBytes;
      for (int64_t b = weighed_; b < end; ++b) {
        multiply_tiles<T>(room_.weights + b % kChunkSteps * 64, kWeightRow, kRows * kWeightRow,
                          w + tile_of(b), w + kPartitionSteps * kTileBytes + tile_of(b), 64);
        ask();
      }
      store_sums<T>(sums, value_row_ * 4);
    }
  }

  // Tiles of the values of steps step .. end - 1 of a partition, zeros in the place of keys that are not seen. Returns whether some are
  // no finite numbers, where that is asked.
  template <bool is_cut> bool copy_values(Span keys, int64_t step, int64_t end) {
    const IVec exponents = iset1(0x7f807f80), low = iset1(0xffff);
    IVec seen[2][kCell / 2], least = exponents;
    for (int64_t c = 2 * step; c < 2 * end; c += 2) {
      const char *from[] = {cells_[c] + plan_.layout.values_at, cells_[c + 1] + plan_.layout.values_at};
      char* to = room_.tiles + tile_of(c / 2);
      if (is_cut)
        for (int64_t k = 0; k < 2 * kCell; k += 2) {
          const int64_t key = c * kCell + k;
          const uint32_t pair = (keys.has(key) ? 0xffff : 0) | (keys.has(key + 1) ? 0xffff0000 : 0);
          seen[k / kCell][k % kCell / 2] = iset1(static_cast<int32_t>(pair));
        }
      for (int64_t d = 0; d < size_ / kCell; ++d, to += kPartitionSteps * kTileBytes) {
        ask();
        for (int k = 0; k < kCell / 2; ++k) {
          IVec x[2];
          for (int j = 0; j < 2; ++j) {
            x[j] = iload(from[j] + d * kHalfTile + k * 64);
            if (!is_cut) continue;
            x[j] = iand(x[j], seen[j][k]);
            least = _mm512_min_epu16(least, _mm512_andnot_si512(x[j], exponents));
          }
          istore(to + k * 128, _mm512_ternarylogic_epi32(shift_left<16>(x[1]), x[0], low, 0xf8));
          istore(to + k * 128 + 64, paired(x[0], x[1]));
        }
      }
    }
    return is_cut && _mm512_cmpeq_epi16_mask(least, iset1(0));
  }

  // Adds up to sixteen rows of a partition's results to the unit's, as merge_row does; or stores them apart.
  void merge(int64_t start, int64_t rows, int64_t i) const {
    const int64_t at = start + i, left = rows - i;
    const int count = static_cast<int>(left < kLanes ? left : kLanes);
    const auto values = [&](int64_t r) { return room_.values + (i + r) * value_row_; };
    if (unit_.pieces > 1) {
      const State own = part();
      for (int64_t r = 0; r < count; ++r)
        memcpy(own.values + (at + r) * size_, values(r), size_ * sizeof(float));
      memcpy(own.top + at, top_ + i, count * sizeof(float));
      memcpy(own.total + at, total_ + i, count * sizeof(float));
      return;
    }
    const auto all = static_cast<__mmask16>((1u << count) - 1);
    const Vec top = load(top_ + i), total = load(total_ + i);
    const Vec old_top = _mm512_maskz_loadu_ps(all, state_.top + at);
    const Vec old_total = _mm512_maskz_loadu_ps(all, state_.total + at);
    const __mmask16 adds = all & ~_mm512_cmp_ps_mask(total, zero(), _CMP_EQ_OQ);
    const __mmask16 is_new = adds & _mm512_cmp_ps_mask(old_total, zero(), _CMP_EQ_OQ);
    const Vec peak = _mm512_mask_mov_ps(max(top, old_top), is_new, top);
    const Vec old = _mm512_mask_mov_ps(exp(sub(old_top, peak)), is_new, zero()), fresh = exp(sub(top, peak));
    alignas(64) float factors[2][kLanes];
    store(factors[0], old);
    store(factors[1], fresh);
    _mm512_mask_storeu_ps(state_.top + at, adds, peak);
    _mm512_mask_storeu_ps(state_.total + at, adds, add(mul(total, fresh), mul(old_total, old)));
    for (int64_t r = 0; r < count; ++r) {
      float* const to = state_.values + (at + r) * size_;
      if (!(adds >> r & 1)) continue;
      if (is_new >> r & 1) {
        memcpy(to, values(r), size_ * sizeof(float));
        continue;
      }
      for (int64_t d = 0; d < size_; d += kLanes)
        store(to + d, fma(load(values(r) + d), set1(factors[1][r]), mul(load(to + d), set1(factors[0][r]))));
    }
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
  return attend_in_pieces(args, 1.0f, kUnitRowsByTiles, kTilePartition, run);
}

}  // namespace attention
}  // namespace DT_ISA
}  // namespace dt

#endif
