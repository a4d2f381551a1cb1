// Layer normalisation of narrow rows.

#pragma once

#include "vectors.h"

namespace {

// Normalises R rows together, so that the sums of one do not wait for those of another.
template <int R, class T>
void normalise_rows(const T* x, long width, const T* weight, const T* bias, float epsilon, T* out) {
  Floats sum[R] = {}, squares[R] = {};
  float mean[R], inverse[R];
  for (long at = 0; at < width; at += kLanes)
    for (int r = 0; r < R; ++r) sum[r] += widen(x + r * width + at);
  for (int r = 0; r < R; ++r) mean[r] = total(sum[r]) / width;
  for (long at = 0; at < width; at += kLanes)
    for (int r = 0; r < R; ++r) {
      const Floats distance = widen(x + r * width + at) - mean[r];
      squares[r] += distance * distance;
    }
  for (int r = 0; r < R; ++r) inverse[r] = 1.f / __builtin_sqrtf(total(squares[r]) / width + epsilon);
  for (long at = 0; at < width; at += kLanes) {
    const Floats factor = widen(weight + at), summand = widen(bias + at);
    for (int r = 0; r < R; ++r)
      narrow(out + r * width + at, (widen(x + r * width + at) - mean[r]) * inverse[r] * factor + summand);
  }
}

template <class T>
void normalise(const T* x, long rows, long width, const T* weight, const T* bias, float epsilon, T* out, int threads) {
  constexpr long kTogether = 4;
#pragma omp parallel for num_threads(threads)
  for (long part = 0; part < (rows + kTogether - 1) / kTogether; ++part) {
    long row = part * kTogether;
    if (row + kTogether <= rows)
      normalise_rows<kTogether>(x + row * width, width, weight, bias, epsilon, out + row * width);
    else
      for (; row < rows; ++row) normalise_rows<1>(x + row * width, width, weight, bias, epsilon, out + row * width);
  }
}

}  // namespace
