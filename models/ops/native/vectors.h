// Vectors of the processor's width: how numbers of each format get into and out of them, their sum and maximum.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#ifdef __AVX512F__
constexpr long kLanes = 16;  // floats (or units) of a vector
constexpr int kRows = 8;     // rows of a product whose sums are kept in registers
#elif defined(__aarch64__)
constexpr long kLanes = 4;
constexpr int kRows = 8;
#else
constexpr long kLanes = 8;
constexpr int kRows = 4;
#endif

// 1.5·2^23: adding it to a small number rounds that to an integer, which the low bits of the sum hold.
constexpr float kToInteger = 12582912.f;

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

struct bfloat16 {
  uint16_t bits;
};

// Two neighbouring bfloat16, the first one in the low half.
struct Pair {
  uint32_t bits;
};

template <class T>
using Unit = std::conditional_t<std::is_same_v<T, float>, float, Pair>;

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

Floats all(float value) { return value - Floats{}; }

// Returns left · right + sum, rounded once. What is written with * and + is rounded twice: with -ffp-contract=fast the
// compiler chooses, and GCC 14 fuses a row among four but not a row alone, so that a score depends on its neighbours.
Floats fused(Floats left, Floats right, Floats sum) {
#ifdef __AVX512F__
  return (Floats)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)sum);
#elif defined(__AVX2__)
  return (Floats)_mm256_fmadd_ps((__m256)left, (__m256)right, (__m256)sum);
#else
  return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)left, (float32x4_t)right);
#endif
}

Ints lanes() {
  Ints result;
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = lane;
  return result;
}

long up(long count, long step) { return (count + step - 1) / step * step; }

Floats widen(const float* from) { return load<Floats>(from); }

// Returns the bits of each bfloat16 in the lower half of a word.
Words to_words(Halves numbers) {
#ifdef __AVX512F__  // GCC 12 makes six instructions of the line below
  return (Words)_mm512_cvtepu16_epi32((__m256i)numbers);
#else
  return __builtin_convertvector(numbers, Words);
#endif
}

Floats widen(Halves numbers) { return (Floats)(to_words(numbers) << 16); }
Floats widen(const bfloat16* from) { return widen(load<Halves>(from)); }

void narrow(float* to, Floats values) { store(to, values); }

// Rounds to the nearest, ties to even. NaN stays NaN.
void narrow(bfloat16* to, Floats values) {
#ifdef __AVX512BF16__
  store(to, _mm512_cvtneps_pbh((__m512)values));
#else
  Words bits = (Words)values;
  Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  rounded = values != values ? (bits >> 16) | 0x40 : rounded;
  store(to, __builtin_convertvector(rounded, Halves));
#endif
}

// Returns numbers of 0 … 255 as bytes.
Bytes to_bytes(Ints values) {
#ifdef __AVX512F__
  return (Bytes)_mm512_cvtepi32_epi8((__m512i)values);
#elif defined(__AVX2__)  // GCC 12 takes the numbers out of the vector one by one
  const __m256i halves = _mm256_packus_epi32((__m256i)values, (__m256i)values);
  const __m256i quarters = _mm256_packus_epi16(halves, halves);
  const __m128i low = _mm256_castsi256_si128(quarters), high = _mm256_extracti128_si256(quarters, 1);
  return (Bytes)_mm_cvtsi128_si64(_mm_unpacklo_epi32(low, high));
#else
  return __builtin_convertvector(values, Bytes);
#endif
}

float largest(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#else
  float result = v[0];
  for (int lane = 1; lane < kLanes; ++lane) result = std::max(result, v[lane]);
  return result;
#endif
}

float total(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__aarch64__)
  return (v[0] + v[2]) + (v[1] + v[3]);
#else
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

}  // namespace
