// GELU, x·Φ(x), with Φ itself or by tanh as in BERT's first code: within 6e-5, or 2e-5 with AVX-512. Without AVX-512,
// a number above 18 may lose 3.3e-6 of itself.

#pragma once

#include <cmath>

#include "vectors.h"

namespace {

constexpr float kGeluEnd = 4.5f;  // from here on, GELU(x) is x, and GELU(-x) is 0

#ifdef __AVX512F__
// GELU(x) = max(x, 0) - a·Φ(-a), where a = |x|. The latter is a parabola on each of 32 pieces of a, because two
// registers hold 32 numbers, of which one instruction picks 16.
class Gelu {
 public:
  explicit Gelu(bool by_tanh) {
    constexpr double kWidth = kGeluEnd / (kPieces - 1.);
    constexpr double kNode = 0.43301270189221932;  // √3/4: the outer Chebyshev nodes of a piece
    for (int piece = 0; piece < kPieces; ++piece) {
      double at[3], value[3];
      for (int i = 0; i < 3; ++i) {
        const double a = at[i] = (piece + (i - 1) * kNode) * kWidth;
        const double twice = by_tanh ? 1 - std::tanh(0.79788456080286536 * (a + 0.044715 * a * a * a))
                                     : std::erfc(a * 0.70710678118654752);
        value[i] = -a * twice / 2;
      }
      const double slope = (value[1] - value[0]) / (at[1] - at[0]);
      const double next = (value[2] - value[1]) / (at[2] - at[1]);
      const double bend = (next - slope) / (at[2] - at[0]);
      const double linear = slope - bend * (at[0] + at[1]);
      terms_[0][piece] = static_cast<float>(value[0] - at[0] * (linear + bend * at[0]));
      terms_[1][piece] = static_cast<float>(linear);
      terms_[2][piece] = static_cast<float>(bend);
    }
  }

  Floats operator()(Floats x) const { return positive(x) + rest(x); }

  // Returns GELU(x)·multiplier + shift.
  Floats scaled(Floats x, float multiplier, float shift) const {
    return fused(positive(x), all(multiplier), fused(rest(x), all(multiplier), all(shift)));
  }

 private:
  static constexpr int kPieces = 32;

  static Floats positive(Floats x) { return (Floats)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x); }  // NaN stays

  Floats rest(Floats x) const {
    constexpr int kLesserMagnitude = 2, kPositive = 2 << 2;
    const __m512 a = _mm512_range_ps((__m512)x, (__m512)all(kGeluEnd), kLesserMagnitude | kPositive);
    const Floats piece = fused((Floats)a, all((kPieces - 1) / kGeluEnd), all(kToInteger));
    const auto term = [&](int power) {
      const float* of = terms_[power];
      return (Floats)_mm512_permutex2var_ps(_mm512_load_ps(of), (__m512i)piece, _mm512_load_ps(of + kPieces / 2));
    };
    return fused(fused(term(2), (Floats)a, term(1)), (Floats)a, term(0));
  }

  alignas(64) float terms_[3][kPieces];
};
#else
// 2·Φ(x) - 1 is x times a polynomial in x², whose product has the least error.
class Gelu {
 public:
  explicit Gelu(bool by_tanh) : terms_(by_tanh ? kOfTanh : kOfErf) {}

  // Returns GELU(x)·multiplier + shift.
  Floats scaled(Floats x, float multiplier, float shift) const {
    x = x < -kGeluEnd ? all(-kGeluEnd) : x;  // NaN stays
    const Floats near = x < kGeluEnd ? x : all(kGeluEnd);
    const Floats square = near * near;
    Floats factor = all(terms_[9]);
    for (int term = 8; term >= 0; --term) factor = fused(factor, square, all(terms_[term]));
    x *= multiplier / 2;
    return fused(x, near * factor, x + shift);
  }

 private:
  static constexpr float kOfErf[] = {7.977755070e-01f, -1.326754242e-01f, 1.966655441e-02f,  -2.245375654e-03f,
                                     1.957439090e-04f, -1.273054295e-05f, 5.917783028e-07f,  -1.838734676e-08f,
                                     3.394557135e-10f, -2.800073107e-12f};
  static constexpr float kOfTanh[] = {7.977411747e-01f, -1.332713366e-01f, 2.009394020e-02f,  -2.365669701e-03f,
                                      2.142807498e-04f, -1.447574596e-05f, 6.952950002e-07f,  -2.217393025e-08f,
                                      4.176076984e-10f, -3.497001516e-12f};
  const float* terms_;
};
#endif

const Gelu kGelu(false), kGeluByTanh(true);

}  // namespace
