// Softmax of one row of scores, but for its division by the sum.

#pragma once

#include <limits>

#include "vectors.h"

namespace {

// Returns 2 to the power of each value (all are at most 0), by Terms terms of the series about the nearest integer.
// 7 terms are exact to 2 units of a float's last place, 5 terms to 4e-5, a hundredth of bfloat16's rounding. It is
// not meant for results below 2^-126.
template <int Terms>
Floats power_of_two(Floats x) {
#ifdef __AVX512F__
  const __m512 whole = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats rest = x - (Floats)whole;
#else
  const Floats magic = all(12582912.f);  // 1.5·2^23: adding it rounds to an integer, which its low bits then hold
  x = x < -126.f ? all(-126.f) : x;
  const Floats shifted = x + magic;
  const Floats rest = x - (shifted - magic);
#endif
  constexpr float kTerms[] = {1.f,           6.93147181e-1f, 2.40226507e-1f, 5.55041087e-2f,
                              9.61812911e-3f, 1.33335581e-3f, 1.54035304e-4f};
  Floats power = all(kTerms[Terms - 1]);
  for (int term = Terms - 2; term >= 0; --term) power = power * rest + kTerms[term];
#ifdef __AVX512F__
  return (Floats)_mm512_scalef_ps((__m512)power, whole);
#else
  return power * (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
#endif
}

// out = exp(scale·(score − largest)) of one query's first `keys` scores, and 0 from there to the end of the last of
// `vectors` vectors. `scale` is in powers of two. Returns 1 / sum. `out` may be `scores`.
template <class T>
float exponentials(const float* scores, long keys, long vectors, float scale, T* out) {
  constexpr int kTerms = std::is_same_v<T, float> ? 7 : 5;
  const long last = (vectors - 1) * kLanes;
  const Ints exists = lanes() < (int32_t)(keys - last);
  const Floats ending = exists ? load<Floats>(scores + last) : all(-std::numeric_limits<float>::infinity());
  Floats peak = ending;
  for (long at = 0; at < last; at += kLanes) {
    const Floats values = load<Floats>(scores + at);
    peak = values > peak ? values : peak;
  }
  const Floats shift = all(-scale * largest(peak));
  Floats sum = {};
  for (long at = 0; at < last; at += kLanes) {
    const Floats values = power_of_two<kTerms>(load<Floats>(scores + at) * scale + shift);
    narrow(out + at, values);
    sum += values;
  }
  Floats values = power_of_two<kTerms>(ending * scale + shift);
  values = exists ? values : Floats{};
  narrow(out + last, values);
  return 1.f / total(sum + values);
}

}  // namespace
