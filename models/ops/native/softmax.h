// Softmax of rows of scores, without the division by the sum.

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
  x = x < -126.f ? all(-126.f) : x;
  const Floats shifted = x + kToInteger;
  const Floats rest = x - (shifted - kToInteger);
#endif
  constexpr float kTerms[] = {1.f,           6.93147181e-1f, 2.40226507e-1f, 5.55041087e-2f,
                              9.61812911e-3f, 1.33335581e-3f, 1.54035304e-4f};
  Floats power = all(kTerms[Terms - 1]);
  for (int term = Terms - 2; term >= 0; --term) power = fused(power, rest, all(kTerms[term]));
#ifdef __AVX512F__
  return (Floats)_mm512_scalef_ps((__m512)power, whole);
#else
  return power * (Floats)(((Ints)shifted - (Ints)all(kToInteger) + 127) << 23);
#endif
}

// out = exp(scale·(score − largest)) of each of R queries' first `keys` scores, and 0 from there to the end of the last
// of `vectors` vectors; inverse = 1 / sum. `scale` is in powers of two. Strides are those between queries. `out` may
// be `scores`. Queries are computed together, so that the sums of one do not wait for those of another.
//
// If |scale·largest| is not below 2^31, the result is NaN: its rounding would overflow the powers. (To subtract before
// scaling costs attention up to 3 %, and no model has such scores.)
template <int R, class T>
void exponentials(const float* scores, long stride, long keys, long vectors, float scale, T* out, long out_stride,
                  float* inverse) {
  constexpr int kTerms = std::is_same_v<T, float> ? 7 : 5;
  const long last = (vectors - 1) * kLanes;
  const Ints exists = lanes() < (int32_t)(keys - last);
  Floats ending[R], peak[R], shift[R], sum[R] = {};
  for (int r = 0; r < R; ++r) {
    const Floats values = load<Floats>(scores + r * stride + last);
    peak[r] = ending[r] = exists ? values : all(-std::numeric_limits<float>::infinity());
  }
  for (long at = 0; at < last; at += kLanes)
    for (int r = 0; r < R; ++r) {
      const Floats values = load<Floats>(scores + r * stride + at);
      peak[r] = values > peak[r] ? values : peak[r];
    }
  for (int r = 0; r < R; ++r) {
    const float down = -scale * largest(peak[r]);
    shift[r] = all(__builtin_fabsf(down) < 0x1p31f ? down : std::numeric_limits<float>::quiet_NaN());
  }
  for (long at = 0; at < last; at += kLanes)
    for (int r = 0; r < R; ++r) {
      const Floats values = power_of_two<kTerms>(fused(load<Floats>(scores + r * stride + at), all(scale), shift[r]));
      narrow(out + r * out_stride + at, values);
      sum[r] += values;
    }
  for (int r = 0; r < R; ++r) {
    Floats values = power_of_two<kTerms>(fused(ending[r], all(scale), shift[r]));
    values = exists ? values : Floats{};
    narrow(out + r * out_stride + last, values);
    inverse[r] = 1.f / total(sum[r] + values);
  }
}

}  // namespace
