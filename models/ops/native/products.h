// Matrix products of small blocks: by vectors, and by AMX's tiles where the compiler may use them.

#pragma once

#include "vectors.h"

namespace {

Floats multiply_add(float left, Floats right, Floats sum) { return fused(all(left), right, sum); }
[[maybe_unused]] Floats multiply_add(Pair left, Floats right, Floats sum) {
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left.bits), (__m512bh)right);
#else
  Words pairs = (Words)right;
  Words first = Words{} + (left.bits << 16), second = Words{} + (left.bits & 0xffff0000u);
  sum = fused((Floats)first, (Floats)(pairs << 16), sum);
  return fused((Floats)second, (Floats)(pairs & 0xffff0000u), sum);
#endif
}

// sums (R x N vectors of floats) = left (R x steps units) times right (steps x N vectors of units). Strides are in
// units or floats.
template <int R, int N, class U>
void multiply_rows(const U* left, long left_stride, const U* right, long right_stride, long steps, float* sums,
                   long sums_stride) {
  Floats sum[R][N] = {};
  for (long step = 0; step < steps; ++step) {
    Floats vector[N];
    for (int n = 0; n < N; ++n) vector[n] = load<Floats>(right + step * right_stride + n * kLanes);
    for (int r = 0; r < R; ++r)
      for (int n = 0; n < N; ++n) sum[r][n] = multiply_add(left[r * left_stride + step], vector[n], sum[r][n]);
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(sums + r * sums_stride + n * kLanes, sum[r][n]);
}

template <int N, class U>
void multiply_few_rows(int rows, const U* left, long left_stride, const U* right, long right_stride, long steps,
                       float* sums, long sums_stride) {
  switch (rows) {
#define ROWS(R) \
  case R:       \
    return multiply_rows<R, N>(left, left_stride, right, right_stride, steps, sums, sums_stride);
    ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if defined(__AVX512F__) || defined(__aarch64__)
    ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
#undef ROWS
  }
}

// The same product for any number of rows; `columns` is a multiple of a vector.
template <class U>
void multiply(long rows, const U* left, long left_stride, const U* right, long right_stride, long columns, long steps,
              float* sums, long sums_stride) {
  long parts = (rows + kRows - 1) / kRows;
  for (long part = 0; part < parts; ++part) {
    long first = rows * part / parts, count = rows * (part + 1) / parts - first;
    const U* from = left + first * left_stride;
    float* to = sums + first * sums_stride;
    long column = 0;
    for (; column + 2 * kLanes <= columns; column += 2 * kLanes)
      multiply_few_rows<2>(count, from, left_stride, right + column, right_stride, steps, to + column, sums_stride);
    if (column < columns)
      multiply_few_rows<1>(count, from, left_stride, right + column, right_stride, steps, to + column, sums_stride);
  }
}

#ifdef __AMX_BF16__
// Eight tiles of 16 rows of 64 bytes: four of sums, two of each factor.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The same product on tiles: rows, columns and steps are multiples of 16.
void multiply_tiles(long rows, const Pair* left, long left_stride, const Pair* right, long right_stride, long columns,
                    long steps, float* sums, long sums_stride) {
  asm volatile("" ::: "memory");  // what the tiles load must be stored: GCC 12's _tile_loadd does not say that it reads
  const long left_bytes = left_stride * 4, right_bytes = right_stride * 4, sum_bytes = sums_stride * 4;
  for (long row = 0; row < rows; row += 32)
    for (long column = 0; column < columns; column += 32) {
      const bool lower = row + 16 < rows, further = column + 16 < columns;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (long step = 0; step < steps; step += 16) {
        const Pair* from = left + row * left_stride + step;
        const Pair* with = right + step * right_stride + column;
        _tile_loadd(4, from, left_bytes);
        _tile_loadd(6, with, right_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (further) {
          _tile_loadd(7, with + 16, right_bytes);
          _tile_dpbf16ps(1, 4, 7);
        }
        if (lower) {
          _tile_loadd(5, from + 16 * left_stride, left_bytes);
          _tile_dpbf16ps(2, 5, 6);
          if (further) _tile_dpbf16ps(3, 5, 7);
        }
      }
      float* to = sums + row * sums_stride + column;
      _tile_stored(0, to, sum_bytes);
      if (further) _tile_stored(1, to + 16, sum_bytes);
      if (lower) _tile_stored(2, to + 16 * sums_stride, sum_bytes);
      if (lower && further) _tile_stored(3, to + 16 * sums_stride + 16, sum_bytes);
    }
}
#endif

}  // namespace
