// Layer normalisation of narrow rows, and that by the root of the mean square.

#pragma once

#include <algorithm>

#include "vectors.h"

namespace {

constexpr long kNormsTogether = 4;  // rows that are normalised together

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
      squares[r] = fused(distance, distance, squares[r]);
    }
  for (int r = 0; r < R; ++r) inverse[r] = 1.f / __builtin_sqrtf(total(squares[r]) / width + epsilon);
  for (long at = 0; at < width; at += kLanes) {
    const Floats factor = widen(weight + at), summand = widen(bias + at);
    for (int r = 0; r < R; ++r)
      narrow(out + r * width + at, fused((widen(x + r * width + at) - mean[r]) * inverse[r], factor, summand));
  }
}

// Normalises rows `first` to `end`. `out` may be `x`.
template <class T>
void normalise_between(const T* x, long first, long end, long width, const T* weight, const T* bias, float epsilon,
                       T* out) {
  for (; first + kNormsTogether <= end; first += kNormsTogether)
    normalise_rows<kNormsTogether>(x + first * width, width, weight, bias, epsilon, out + first * width);
  for (; first < end; ++first) normalise_rows<1>(x + first * width, width, weight, bias, epsilon, out + first * width);
}

template <class T>
void normalise(const T* x, long rows, long width, const T* weight, const T* bias, float epsilon, T* out, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long first = 0; first < rows; first += kNormsTogether)
    normalise_between(x, first, std::min(rows, first + kNormsTogether), width, weight, bias, epsilon, out);
}

// x / √(mean(x²) + ε)·weight of each row.
template <class T>
void root_normalise(const T* x, long rows, long width, const float* weight, float epsilon, T* out, int threads) {
#pragma omp parallel for num_threads(threads)
  for (long row = 0; row < rows; ++row) {
    const T* from = x + row * width;
    Floats squares[2] = {};
    for (long at = 0, turn = 0; at < width; at += kLanes, turn ^= 1) {
      const Floats values = widen(from + at);
      squares[turn] = fused(values, values, squares[turn]);
    }
    const float inverse = 1.f / __builtin_sqrtf(total(squares[0] + squares[1]) / width + epsilon);
    for (long at = 0; at < width; at += kLanes)
      narrow(out + row * width + at, widen(from + at) * inverse * load<Floats>(weight + at));
  }
}

}  // namespace
