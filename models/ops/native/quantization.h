// Quantization to 8 bits, after GELU too.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gelu.h"
#include "vectors.h"

namespace {

// Returns the values clamped to 0 … largest and truncated. NaN becomes 0.
Bytes to_bytes(Floats values, float largest) {
  values = values > 0.f ? values : Floats{};
  values = values < largest ? values : all(largest);
  return to_bytes(__builtin_convertvector(values, Ints));
}

// out = x·multiplier + shift (x + middle without a multiplier), clamped to 0 … largest and truncated. Returns whether
// the row holds NaN or an infinity, which 8 bits cannot express.
template <class T>
bool quantize_row(const T* x, long width, const float* multiplier, const float* shift, float middle, float largest,
                  uint8_t* out) {
  Floats zeros = {};  // a number times 0 is 0, but NaN times 0 and an infinity times 0 are NaN
  for (long at = 0; at < width; at += kLanes) {
    Floats values = widen(x + at);
    zeros = fused(values, Floats{}, zeros);
    if (multiplier)
      values = fused(values, load<Floats>(multiplier + at), load<Floats>(shift + at));
    else
      values += middle;
    store(out + at, to_bytes(values, largest));
  }
  const float sum = total(zeros);
  return sum != sum;
}

// The same for many rows. broken[row] is 1 for rows with NaN or an infinity, else 0; returns how many there are.
template <class T>
long quantize(const T* x, long rows, long width, const float* multiplier, const float* shift, float middle,
              float largest, uint8_t* out, uint8_t* broken, int threads) {
  long count = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : count)
  for (long row = 0; row < rows; ++row) {
    const long at = row * width;
    broken[row] = quantize_row(x + at, width, multiplier, shift, middle, largest, out + at);
    count += broken[row];
  }
  return count;
}

// out = GELU(x)·multiplier + shift, clamped to 0 … largest and truncated.
void quantize_gelu(const float* x, long count, bool by_tanh, float multiplier, float shift, float largest,
                   uint8_t* out, int threads) {
  constexpr long kPart = 4096;
  const Gelu& gelu = by_tanh ? kGeluByTanh : kGelu;
#pragma omp parallel for num_threads(threads)
  for (long part = 0; part < (count + kPart - 1) / kPart; ++part) {
    long at = part * kPart;
    const long end = std::min(count, at + kPart);
    for (; at + kLanes <= end; at += kLanes)
      store(out + at, to_bytes(gelu.scaled(load<Floats>(x + at), multiplier, shift), largest));
    if (at < end) {
      float few[kLanes] = {};
      std::copy(x + at, x + end, few);
      const Bytes quantized = to_bytes(gelu.scaled(load<Floats>(few), multiplier, shift), largest);
      std::memcpy(out + at, &quantized, end - at);
    }
  }
}

}  // namespace
