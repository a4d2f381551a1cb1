// Scores of how far apart two tokens are: disentangled attention, and ALiBi's slopes (models/ops/relative.py).

#pragma once

#include <algorithm>

#include "products.h"
#include "vectors.h"

namespace {

// As models/ops/kernels.py passes it; tables are null if there are none.
struct Relative {
  const void* keys;      // (heads, steps, width) of units: K of each head, as `transpose_rows` lays out keys
  const void* queries;   // (heads, width, steps) of units: Q of each head
  const int32_t* order;  // (2·reach + 1): the row for each distance, ascending
  const float* slopes;   // (heads)
  int64_t width;         // rows of a table, with at least 32 of zeros after the last one; a multiple of 16
  int64_t steps;         // units of a row, as many as Room::steps
  int64_t reach;         // at least the longest sequence less 1
  int64_t straight;      // up to this distance, neighbouring distances have neighbouring rows
  int64_t terms;         // kinds of scores that are summed up
};

constexpr long kKeys = 32;  // keys whose products with rows of Q are computed together

// Bytes of scratch memory that a thread needs for the products of `queries` queries and of a block of keys.
long room_of(const Relative* relative, long queries) {
  return relative && relative->order ? 4 * relative->width * (queries + kKeys) : 0;
}

// Returns from[rows[i]·stride + i·step] for each lane.
Floats gather(const float* from, const int32_t* rows, long first_row, long stride, long step) {
#ifdef __AVX512F__
  const __m512i places = _mm512_add_epi32(
      _mm512_mullo_epi32(_mm512_sub_epi32(load<__m512i>(rows), _mm512_set1_epi32((int)first_row)), _mm512_set1_epi32((int)stride)),
      _mm512_mullo_epi32((__m512i)lanes(), _mm512_set1_epi32((int)step)));
  return (Floats)_mm512_i32gather_ps(places, from, 4);
#else
  Floats result;
  for (long i = 0; i < kLanes; ++i) result[i] = from[(rows[i] - first_row) * stride + i * step];
  return result;
#endif
}

// Adds what a head's distances score to scores[row][column] of queries `first` + row and keys `low` + column, before
// they are scaled. Strides are in units or floats; query: the first of `rows` rows, which for tiles are whole tiles;
// keys: (steps, columns), the first column that of key `low`; memory: as much as `room_of` says.
template <bool tiles, class U>
void add_relative(const Relative& relative, long head, long size, const U* query, long query_stride, const U* keys,
                  long columns, long first, long rows, long low, long count, float* memory, float* scores) {
  const auto product = [&](long lines, const U* left, long left_stride, const U* right, long right_stride, long width,
                           float* out, long out_stride) {
#ifdef __AMX_BF16__
    if constexpr (tiles)
      return multiply_tiles(up(lines, 16), left, left_stride, right, right_stride, up(width, 16), relative.steps, out,
                            out_stride);
#endif
    multiply(lines, left, left_stride, right, right_stride, up(width, kLanes), relative.steps, out, out_stride);
  };
  if (relative.slopes) {
    const float slope = relative.slopes[head] * __builtin_sqrtf(static_cast<float>(size * relative.terms));
    for (long row = 0; row < rows; ++row)
      for (long column = 0; column < count; ++column)
        scores[row * columns + column] -= slope * static_cast<float>(std::abs(low + column - first - row));
  }
  if (!relative.order) return;
  const int32_t* order = relative.order + relative.reach + low - first;  // of key `low` and query `first`
  if (relative.keys) {
    const U* table = static_cast<const U*>(relative.keys) + head * relative.steps * relative.width;
    const long least = order[1 - rows], most = order[count - 1];
    product(rows, query, query_stride, table + least, relative.width, most - least + 1, memory, relative.width);
    for (long row = 0; row < rows; ++row) {
      const float* from = memory + row * relative.width;
      const int32_t* places = order - row;
      float* to = scores + row * columns;
      long column = 0;
      for (; column + kLanes <= count; column += kLanes) {
        const long nearest = low - first - row + column;
        const bool straight = nearest >= -relative.straight && nearest + kLanes - 1 <= relative.straight;
        const Floats added = straight ? load<Floats>(from + places[column] - least)
                                      : gather(from, places + column, least, 1, 0);
        store(to + column, load<Floats>(to + column) + added);
      }
      for (; column < count; ++column) to[column] += from[places[column] - least];
    }
  }
  if (relative.queries) {
    const U* table = static_cast<const U*>(relative.queries) + head * relative.steps * relative.width;
    float* products = memory + 32 * relative.width;
    for (long begin = 0; begin < count; begin += kKeys) {
      const long width = std::min(kKeys, count - begin);
      const long least = order[begin + 1 - rows], most = order[begin + width - 1];
      product(most - least + 1, table + least * relative.steps, relative.steps, keys + begin, columns, width, products,
              kKeys);
      for (long row = 0; row < rows; ++row) {
        const int32_t* places = order + begin - row;
        float* to = scores + row * columns + begin;
        long column = 0;
        for (; column + kLanes <= width; column += kLanes)
          store(to + column,
                load<Floats>(to + column) + gather(products + column, places + column, least, kKeys, 1));
        for (; column < width; ++column) to[column] += products[(places[column] - least) * kKeys + column];
      }
    }
  }
}

}  // namespace
