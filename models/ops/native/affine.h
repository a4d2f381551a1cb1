// Affine maps on AMX's tiles: y = x·Wᵀ + b, with GELU or SiLU, or with another tensor added or multiplied. x and W are bfloat16,
// or 8-bit integers; y is bfloat16, or quantized after GELU. x may be quantized first, and y's rows normalised at last.
//
// Tiles compute a block of 32 x 32 sums, while vectors finish the block before it. So what is done with the sums takes
// (nearly) no time of its own, and they are rounded once. A row's sums are always added in the same order: its results
// are the same bits in any batch, on any number of threads.

#pragma once

#ifdef __AMX_BF16__

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "normalisation.h"
#include "products.h"
#include "quantization.h"
#include "scratch.h"
#include "softmax.h"
#include "vectors.h"

namespace {

constexpr long kBlock = 32;                // rows and columns of a block of sums
constexpr long kBlockSums = kBlock * kBlock;
constexpr long kStep = 64;                 // bytes of a row that one step of a block's products reads
constexpr long kStepWeights = 32 * kStep;  // bytes of the weights that it reads
constexpr long kPart = 24 * kStep;         // bytes of a row at a time: a block's rows then fit into L1
constexpr long kWeights = 768l << 10;      // bytes of weights at a time: with a block's rows, they fit into L2
constexpr long kRowBlocks = 4;             // the most blocks of rows of a panel or a task

// What is done with a sum. The numbers are those of models/ops/kernels.py. The last two round to 8 bits.
enum class Finish { kNothing, kGelu, kGeluTanh, kSilu, kAdd, kMultiply, kQuantizedGelu, kQuantizedGeluTanh };

// x / (1 + e^−x), within a hundredth of bfloat16's rounding.
inline Floats silu(Floats x) {
  const Floats power = power_of_two<5>((x < 0.f ? x : -x) * 1.44269504f);  // e^−|x|
  return x * (x < 0.f ? power : all(1.f)) / (power + 1.f);
}

constexpr bool quantizes(Finish finish) { return finish >= Finish::kQuantizedGelu; }

// Rows of numbers that are quantized before they are multiplied, as `quantize` does; x is null if there are none.
struct Source {
  const bfloat16* x;
  const float* multiplier;
  const float* shift;
  float middle;
};

// How the rows of the result are normalised (normalisation.h); weight is null if they are not.
struct Norm {
  const bfloat16* weight;
  const bfloat16* bias;
  float epsilon;
};

// What a map is computed from and into. Lists of numbers for each output are filled up to whole blocks.
// x: what is multiplied; null if `source` has it.
// start: where each output's sums begin, floats or 32-bit integers. scale, bias: of integer sums; null for floats.
// weights: in tiles, filled up with zeros (models/ops/kernels.py). other: like out, for kAdd and kMultiply.
// multiplier, shift: of the quantized results.
struct Map {
  const char* x;
  const char* weights;
  const char* start;
  const float* scale;
  const float* bias;
  const bfloat16* other;
  float multiplier, shift;
  void* out;
  Source source;
  Norm norm;
};

// The shape of a map's call, and how it is cut. If there are rows enough, each thread has a share of them from beginning
// to end, the same in every map, so that its cache holds what the map before made: `panels` of a few blocks of rows. If
// not, threads share the columns, too. wide: the blocks of columns whose weights fit into L2. Widths are in bytes.
struct Shape {
  long rows, row_bytes, outputs, width, row_blocks, column_blocks, wide, threads, panels;

  Shape(long rows, long row_bytes, long outputs, long threads)
      : rows(rows),
        row_bytes(row_bytes),
        outputs(outputs),
        width(up(row_bytes, kStep)),
        row_blocks(up(rows, kBlock) / kBlock),
        column_blocks(up(outputs, kBlock) / kBlock),
        wide(std::clamp(kWeights / (width * kBlock), 1l, column_blocks)),
        threads(threads),
        panels(0) {
    if (threads == 1 || row_blocks >= kRowBlocks * threads)
      panels = up(row_blocks, kRowBlocks * threads) / kRowBlocks;  // as many for each thread
    while (!panels && tasks() < 4 * threads && wide > 4) wide = up(wide, 2) / 2;
  }

  long top(long panel) const { return row_blocks * panel / panels; }
  long share() const { return panels / threads; }  // panels of a thread
  long together() const { return wide == column_blocks ? 1 : share(); }  // panels that the same weights are used for
  long tasks_down() const { return up(row_blocks, kRowBlocks) / kRowBlocks; }
  long tasks() const { return tasks_down() * (up(column_blocks, wide) / wide); }
  long sums_bytes() const { return std::max(2l, wide) * kBlockSums * long{sizeof(float)}; }
  long bytes() const { return up(sums_bytes() + kBlock * width, 4096); }
  long quantized_rows() const { return (panels ? together() * kRowBlocks : row_blocks) * kBlock; }
  long quantized_bytes() const { return up(quantized_rows() * (width + 1), 4096); }
};

// Rows of a map's input, `stride` bytes apart; data is row number `first`. whole: filled up to whole blocks with zeros.
struct Rows {
  const char* data;
  long first, stride;
  bool whole;
};

// A block whose sums are ready: rounds them into the result row by row.
template <bool kIntegers, Finish kFinish>
struct Ready {
  const Map* map;
  const char* sums;
  long first, column, stride, rows;
  long row = 0;

  void finish(long count) {
    const long end = std::min(rows, row + count);
    if (row >= end) return;
    const long exist = stride - column;
    const __mmask32 columns = exist < kBlock ? (1u << exist) - 1 : ~0u;
    for (; row < end; ++row) {
      const char* from = sums + row * kBlock * sizeof(float);
      const long place = (first + row) * stride + column;
      Floats low, high;
      if constexpr (kIntegers) {
        low = fused(__builtin_convertvector(load<Ints>(from), Floats), load<Floats>(map->scale + column),
                    load<Floats>(map->bias + column));
        high = fused(__builtin_convertvector(load<Ints>(from + kStep), Floats),
                     load<Floats>(map->scale + column + kLanes), load<Floats>(map->bias + column + kLanes));
      } else {
        low = load<Floats>(from), high = load<Floats>(from + kStep);
      }
      if constexpr (kFinish == Finish::kGelu || kFinish == Finish::kGeluTanh) {
        const Gelu& gelu = kFinish == Finish::kGelu ? kGelu : kGeluByTanh;
        low = gelu(low), high = gelu(high);
      } else if constexpr (kFinish == Finish::kSilu) {
        low = silu(low), high = silu(high);
      } else if constexpr (kFinish == Finish::kAdd || kFinish == Finish::kMultiply) {
        const bfloat16* other = map->other + place;
        const Floats left = widen((Halves)_mm256_maskz_loadu_epi16(columns, other));
        const Floats right = widen((Halves)_mm256_maskz_loadu_epi16(columns >> kLanes, other + kLanes));
        if constexpr (kFinish == Finish::kAdd)
          low += left, high += right;
        else
          low *= left, high *= right;
      }
      if constexpr (quantizes(kFinish)) {
        const Gelu& gelu = kFinish == Finish::kQuantizedGelu ? kGelu : kGeluByTanh;
        const Bytes left = to_bytes(gelu.scaled(low, map->multiplier, map->shift), 255.f);
        const Bytes right = to_bytes(gelu.scaled(high, map->multiplier, map->shift), 255.f);
        _mm256_mask_storeu_epi8(static_cast<uint8_t*>(map->out) + place, columns,
                                _mm256_set_m128i((__m128i)right, (__m128i)left));
      } else {
        const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        _mm512_mask_storeu_epi16(static_cast<bfloat16*>(map->out) + place, columns, rounded);
      }
    }
  }
};

// Tiles 0 to 3 += 32 rows of x, `stride` bytes apart, times 32 columns of W. After each step, `each` is called.
template <bool kIntegers, class Each>
void add_steps(const char* x, long stride, const char* weights, long steps, Each each) {
#define MULTIPLY(sums, left, right)       \
  if constexpr (kIntegers)                \
    _tile_dpbusd(sums, left, right);      \
  else                                    \
    _tile_dpbf16ps(sums, left, right);
  for (long step = 0; step < steps; ++step, x += kStep, weights += kStepWeights) {
    // Weights are read from L2 for each block; in L1 they would only evict the rows.
    _tile_loadd(4, x, stride);
    _tile_stream_loadd(6, weights, kStep);
    MULTIPLY(0, 4, 6)
    _tile_stream_loadd(7, weights + kStepWeights / 2, kStep);
    MULTIPLY(1, 4, 7)
    _tile_loadd(5, x + 16 * stride, stride);
    MULTIPLY(2, 5, 6)
    MULTIPLY(3, 5, 7)
    each();
  }
#undef MULTIPLY
}

// Sums of 32 columns lie beside each other, 128 bytes. stride: of the rows; 0 for the same row 16 times.
void load_sums(const char* from, long stride) {
  _tile_loadd(0, from, stride);
  _tile_loadd(1, from + kStep, stride);
  _tile_loadd(2, from + 16 * stride, stride);
  _tile_loadd(3, from + 16 * stride + kStep, stride);
}

void store_sums(char* to) {
  constexpr long kStride = 2 * kStep;
  _tile_stored(0, to, kStride);
  _tile_stored(1, to + kStep, kStride);
  _tile_stored(2, to + 16 * kStride, kStride);
  _tile_stored(3, to + 16 * kStride + kStep, kStride);
}

// Returns 32 rows from row `first` on, and their stride: where they lie, or a copy with zeros around it.
const char* whole_block(const Rows& x, long first, const Shape& shape, char* copy, long& stride) {
  const long rows = std::min(kBlock, shape.rows - first);
  const char* from = x.data + (first - x.first) * x.stride;
  stride = x.stride;
  if (x.whole || (rows == kBlock && shape.row_bytes == shape.width)) return from;
  for (long row = 0; row < kBlock; ++row) {
    const long count = row < rows ? shape.row_bytes : 0;
    std::memcpy(copy + row * shape.width, from + row * stride, count);
    std::memset(copy + row * shape.width + count, 0, shape.width - count);
  }
  stride = shape.width;
  return copy;
}

// Blocks of rows from `top` to `bottom`, of columns from `left` to `right`.
template <bool kIntegers, Finish kFinish>
void map_blocks(const Map& map, const Rows& x, const Shape& shape, long top, long bottom, long left, long right,
                char* memory) {
  constexpr long kSumsBytes = kBlockSums * sizeof(float);
  char* const copy = memory + shape.sums_bytes();
  const bool in_parts = shape.width > kPart;
  Ready<kIntegers, kFinish> ready{};
  for (long block = top; block < bottom; ++block) {
    const long first = block * kBlock, rows = std::min(kBlock, shape.rows - first);
    long stride;
    const char* from = whole_block(x, first, shape, copy, stride);
    asm volatile("" ::: "memory");  // as in multiply_tiles: the copy must be stored
    for (long input = 0; input < shape.width; input += kPart) {
      const long count = std::min(kPart, shape.width - input), steps = count / kStep;
      const long share = up(kBlock, steps) / steps;
      for (long column = left; column < right; ++column) {
        char* own = memory + (in_parts ? column - left : column % 2) * kSumsBytes;
        if (input == 0)
          load_sums(map.start + column * 2 * kStep, 0);
        else
          load_sums(own, 2 * kStep);
        const char* weights = map.weights + column * shape.width * kBlock + input * kBlock;
        add_steps<kIntegers>(from + input, stride, weights, steps, [&] { ready.finish(share); });
        ready.finish(kBlock);
        store_sums(own);
        if (input + count == shape.width) ready = {&map, own, first, column * kBlock, shape.outputs, rows};
      }
    }
  }
  ready.finish(kBlock);
}

// Quantizes blocks of rows of the source into `to`. broken: as in `quantize`, from row top · 32 on.
Rows quantize_blocks(const Source& source, const Shape& shape, long top, long bottom, char* to, uint8_t* broken) {
  const Rows result{to, top * kBlock, shape.width, true};
  for (long row = top * kBlock; row < bottom * kBlock; ++row, to += shape.width, ++broken) {
    const long count = row < shape.rows ? shape.row_bytes : 0;
    auto* bytes = reinterpret_cast<uint8_t*>(to);
    *broken = count && quantize_row(source.x + row * count, count, source.multiplier, source.shift, source.middle, 255.f,
                                    bytes);
    std::memset(to + count, 0, shape.width - count);
  }
  return result;
}

// What is done with whole rows of the result. Rows whose input was broken become NaN, which 8 bits cannot express.
// broken: that of row `first` and those after it.
template <Finish kFinish>
void finish_rows(const Map& map, const Shape& shape, long first, long end, const uint8_t* broken) {
  if constexpr (quantizes(kFinish)) return;
  auto* out = static_cast<bfloat16*>(map.out);
  if (map.source.x)
    for (long row = first; row < end; ++row)
      if (broken[row - first]) std::fill_n(out + row * shape.outputs, shape.outputs, bfloat16{0x7fc0});
  if (map.norm.weight)
    normalise_between(out, first, end, shape.outputs, map.norm.weight, map.norm.bias, map.norm.epsilon, out);
}

// A thread's share of the rows, panels from `first` to `end`. memory: for the sums; to: for what is quantized.
template <bool kIntegers, Finish kFinish>
void map_share(const Map& map, const Rows& x, const Shape& shape, long first, long end, char* memory, char* to) {
  auto* broken = reinterpret_cast<uint8_t*>(to + shape.quantized_rows() * shape.width);
  for (; first < end; first += shape.together()) {
    const long last = std::min(end, first + shape.together()), top = shape.top(first), bottom = shape.top(last);
    const Rows from = map.source.x ? quantize_blocks(map.source, shape, top, bottom, to, broken) : x;
    for (long left = 0; left < shape.column_blocks; left += shape.wide)
      for (long panel = first; panel < last; ++panel)
        map_blocks<kIntegers, kFinish>(map, from, shape, shape.top(panel), shape.top(panel + 1), left,
                                       std::min(shape.column_blocks, left + shape.wide), memory);
    finish_rows<kFinish>(map, shape, top * kBlock, std::min(shape.rows, bottom * kBlock), broken);
  }
}

// Computes `rows` rows of `row_bytes` bytes each. Returns 0, or 1 without having computed anything if there is not
// enough memory.
template <bool kIntegers, Finish kFinish>
int map_rows(const Map& map, long rows, long row_bytes, long outputs, int threads) {
  const Shape shape(rows, row_bytes, outputs, threads);
  const long sums = shape.bytes(), quantized = map.source.x ? shape.quantized_bytes() : 0;
  const long part = sums + (shape.panels ? quantized : 0);
  char* memory = scratch.at_least(part * threads + (shape.panels ? 0 : quantized));
  if (memory == nullptr) return 1;
  const Rows x{map.x, 0, row_bytes, false};
  const long busy = shape.panels ? threads : std::clamp<long>(shape.tasks(), 1, threads);
#pragma omp parallel num_threads(static_cast<int>(busy))
  {
    static const TileConfig config;
    _tile_loadconfig(&config);
    char* const own = memory + part * omp_get_thread_num();
    if (shape.panels) {
#pragma omp for schedule(static) nowait
      for (long share = 0; share < shape.threads; ++share)
        map_share<kIntegers, kFinish>(map, x, shape, share * shape.share(), (share + 1) * shape.share(), own, own + sums);
    } else {
      char* const to = memory + part * threads;
      auto* broken = reinterpret_cast<uint8_t*>(to + shape.quantized_rows() * shape.width);
      const Rows from = map.source.x ? Rows{to, 0, shape.width, true} : x;
      if (map.source.x) {
#pragma omp for
        for (long block = 0; block < shape.row_blocks; ++block)
          quantize_blocks(map.source, shape, block, block + 1, to + block * kBlock * shape.width,
                          broken + block * kBlock);
      }
#pragma omp for schedule(dynamic, 1)
      for (long task = 0; task < shape.tasks(); ++task) {
        const long top = task % shape.tasks_down() * kRowBlocks, left = task / shape.tasks_down() * shape.wide;
        map_blocks<kIntegers, kFinish>(map, from, shape, top, std::min(shape.row_blocks, top + kRowBlocks), left,
                                       std::min(shape.column_blocks, left + shape.wide), own);
      }
#pragma omp for nowait
      for (long block = 0; block < shape.row_blocks; ++block)
        finish_rows<kFinish>(map, shape, block * kBlock, std::min(rows, (block + 1) * kBlock), broken + block * kBlock);
    }
    _tile_release();
  }
  return 0;
}

template <bool kIntegers>
int map_rows(const Map& map, long rows, long row_bytes, long outputs, Finish finish, int threads) {
#define FINISH(name) \
  case Finish::name: \
    return map_rows<kIntegers, Finish::name>(map, rows, row_bytes, outputs, threads);
  switch (finish) {
    FINISH(kNothing) FINISH(kGelu) FINISH(kGeluTanh) FINISH(kSilu) FINISH(kAdd) FINISH(kMultiply)
    FINISH(kQuantizedGelu) FINISH(kQuantizedGeluTanh)
  }
#undef FINISH
  return 1;
}

}  // namespace

#endif
