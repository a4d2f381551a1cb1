// Quantization to 8 bits, after GELU too.

#pragma once

#include <algorithm>
#include <cstdint>

#include "vectors.h"

namespace {

// Writes the values clamped to 0 … largest and truncated. NaN becomes 0.
void narrow(uint8_t* to, Floats values, float largest) {
  values = values > 0.f ? values : Floats{};
  values = values < largest ? values : all(largest);
  store(to, __builtin_convertvector(__builtin_convertvector(values, Ints), Bytes));
}

// out = x·multiplier + shift (x + middle without a multiplier), clamped to 0 … largest and truncated. Returns how many
// rows hold NaN or an infinity, which 8 bits cannot express; broken[row] is 1 for these rows, else 0.
template <class T>
long quantize(const T* x, long rows, long width, const float* multiplier, const float* shift, float middle,
              float largest, uint8_t* out, uint8_t* broken, int threads) {
  long count = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : count)
  for (long row = 0; row < rows; ++row) {
    Floats zeros = {};  // a number times 0 is 0, but NaN times 0 and an infinity times 0 are NaN
    for (long at = 0; at < width; at += kLanes) {
      Floats values = widen(x + row * width + at);
      zeros += values * 0.f;
      if (multiplier)
        values = values * load<Floats>(multiplier + at) + load<Floats>(shift + at);
      else
        values += middle;
      narrow(out + row * width + at, values, largest);
    }
    const float sum = total(zeros);
    broken[row] = sum != sum;
    count += broken[row];
  }
  return count;
}

// GELU's factor 2·Φ(x) - 1, by Φ itself or by tanh as in BERT's first code, is x times a polynomial in x² up to
// kGeluEnd, and 1 from there on. These have the least error of the product, 6e-5.
constexpr float kGeluEnd = 4.5f;
constexpr float kGelu[] = {7.977755070e-01f, -1.326754242e-01f, 1.966655441e-02f, -2.245375654e-03f, 1.957439090e-04f,
                           -1.273054295e-05f, 5.917783028e-07f, -1.838734676e-08f, 3.394557135e-10f, -2.800073107e-12f};
constexpr float kGeluTanh[] = {7.977411747e-01f,  -1.332713366e-01f, 2.009394020e-02f, -2.365669701e-03f,
                               2.142807498e-04f,  -1.447574596e-05f, 6.952950002e-07f, -2.217393025e-08f,
                               4.176076984e-10f, -3.497001516e-12f};

// Returns GELU(x)·2·half + shift.
Floats scaled_gelu(const float (&terms)[10], Floats x, float half, float shift) {
  Floats near = x < kGeluEnd ? x : all(kGeluEnd);
  near = near > -kGeluEnd ? near : all(-kGeluEnd);
  const Floats square = near * near;
  Floats factor = all(terms[9]);
  for (int term = 8; term >= 0; --term) factor = factor * square + terms[term];
  x *= half;
  return x * (near * factor) + (x + shift);
}

// out = GELU(x)·multiplier + shift, clamped to 0 … largest and truncated.
void quantize_gelu(const float* x, long count, bool by_tanh, float multiplier, float shift, float largest,
                   uint8_t* out, int threads) {
  constexpr long kPart = 4096;
  const auto& terms = by_tanh ? kGeluTanh : kGelu;
#pragma omp parallel for num_threads(threads)
  for (long part = 0; part < (count + kPart - 1) / kPart; ++part) {
    long at = part * kPart;
    const long end = std::min(count, at + kPart);
    for (; at + kLanes <= end; at += kLanes)
      narrow(out + at, scaled_gelu(terms, load<Floats>(x + at), multiplier / 2, shift), largest);
    if (at < end) {
      float few[kLanes] = {};
      uint8_t quantized[kLanes];
      std::copy(x + at, x + end, few);
      narrow(quantized, scaled_gelu(terms, load<Floats>(few), multiplier / 2, shift), largest);
      std::copy(quantized, quantized + (end - at), out + at);
    }
  }
}

}  // namespace
