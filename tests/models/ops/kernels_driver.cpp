// Tries the kernels against sums in double precision, on processors for which there is no torch here: compiled for
// another processor it runs under an emulator. Prints what disagrees; the exit status is 1 then.

#include "../../../models/ops/native/kernels.cpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

int mistakes = 0;

void expect(bool right, const char* what) {
  if (!right) std::printf("wrong: %s\n", what), ++mistakes;
}

float number(float value) { return value; }
float number(bfloat16 value) { return load<float>(std::array<uint32_t, 1>{uint32_t(value.bits) << 16}.data()); }

template <class T>
T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  const uint32_t bits = load<uint32_t>(&value);
  return T{uint16_t(value != value ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
template <>
float rounded<float>(float value) {
  return value;
}

template <class T>
std::vector<T> numbers(std::mt19937& random, long count, float scale) {
  std::normal_distribution<float> normal;
  std::vector<T> result;
  for (long i = 0; i < count; ++i) result.push_back(rounded<T>(normal(random) * scale));
  return result;
}

template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 1e-5 : 2e-2;

template <class T>
bool near(T ours, double exact, double scale) {
  return std::fabs(number(ours) - exact) <= kTolerance<T> * scale;
}

constexpr long kPositions = 70;  // of the rotation

int call(const float* a, long b, const int32_t* c, long d, long e, long f, const float* g, long h, int i,
         const float* j, long k, float* l, int m) {
  return headroom_attend_float32(a, b, c, d, e, f, g, h, i, j, kPositions, k, nullptr, l, m);
}
int call(const bfloat16* a, long b, const int32_t* c, long d, long e, long f, const float* g, long h, int i,
         const float* j, long k, bfloat16* l, int m) {
  return headroom_attend_bfloat16(a, b, c, d, e, f, g, h, i, j, kPositions, k, nullptr, l, m);
}

// One head's numbers of a token (part 0: query, 1: key, 2: value), rotated as the kernel does it.
template <class T>
std::vector<double> part_of(const std::vector<T>& projected, long token, long position, int part, long head, long heads,
                            long size, const float* rotation) {
  const T* from = projected.data() + (token * 3 + part) * heads * size + head * size;
  std::vector<double> result(size);
  for (long i = 0; i < size; ++i) result[i] = number(from[i]);
  if (rotation && part < 2)
    for (long i = 0; i < size / 2; ++i) {
      const double cosine = rotation[position * size + i], sine = rotation[position * size + size / 2 + i];
      const double one = number(from[i]), other = number(from[i + size / 2]);
      result[i] = number(rounded<T>(one * cosine - other * sine));
      result[i + size / 2] = number(rounded<T>(other * cosine + one * sine));
    }
  return result;
}

template <class T>
void try_attention(long heads, long size, bool weighted, bool rotated, long window) {
  std::mt19937 random(1);
  const std::vector<long> lengths{1, 3, 0, 16, 33, 70};
  std::vector<int32_t> offsets{0};
  for (long length : lengths) offsets.push_back(offsets.back() + length);
  const long tokens = offsets.back() + 2, width = heads * size, sequences = lengths.size();
  const auto projected = numbers<T>(random, tokens * 3 * width, 1.5f);
  const auto weights = numbers<float>(random, sequences * heads, 1);
  std::vector<float> rotation;
  for (long position = 0; position < kPositions; ++position)
    for (long i = 0; i < size; ++i)
      rotation.push_back(i < size / 2 ? std::cos(position * 0.3f / (i + 1)) : std::sin(position * 0.3f / (i + 1 - size / 2)));
  const float* turn = rotated ? rotation.data() : nullptr;
  std::vector<T> whole(tokens * width), first(sequences * width);
  for (int first_only : {0, 1})
    expect(call(projected.data(), tokens, offsets.data(), sequences, heads, size, weighted ? weights.data() : nullptr,
                sequences, first_only, turn, window, first_only ? first.data() : whole.data(), 2) == 0,
           "memory for attention");

  bool right = true;
  for (long sequence = 0; sequence < sequences; ++sequence)
    for (long head = 0; head < heads; ++head) {
      const long begin = offsets[sequence], length = lengths[sequence];
      for (long i = 0; i < length; ++i) {
        const auto query = part_of(projected, begin + i, i, 0, head, heads, size, turn);
        std::vector<double> sums(size);
        double sum = 0;
        for (long j = 0; j < length; ++j) {
          if (window >= 0 && std::labs(i - j) > window) continue;
          const auto key = part_of(projected, begin + j, j, 1, head, heads, size, turn);
          const auto value = part_of(projected, begin + j, j, 2, head, heads, size, turn);
          double score = 0;
          for (long k = 0; k < size; ++k) score += query[k] * key[k];
          const double power = std::exp(score / std::sqrt(double(size)));
          sum += power;
          for (long k = 0; k < size; ++k) sums[k] += power * value[k];
        }
        const double weight = weighted ? weights[sequence * heads + head] : 1;
        for (long k = 0; k < size; ++k) {
          const T ours = whole[(begin + i) * width + head * size + k];
          right &= near(ours, sums[k] / sum * weight, 8);
          if (i == 0) right &= number(first[sequence * width + head * size + k]) == number(ours);
        }
      }
      for (long k = 0; length == 0 && k < size; ++k) right &= number(first[sequence * width + head * size + k]) == 0;
    }
  for (long i = offsets.back() * width; i < tokens * width; ++i) right &= number(whole[i]) == 0;
  expect(right, rotated ? "attention, rotated within a window" : "attention");

  auto spoilt = projected;
  spoilt[3 * width * 2] = rounded<T>(load<float>(std::array<uint32_t, 1>{0x7fffffff}.data()));  // a query of sequence 1
  std::vector<T> found(tokens * width);
  call(spoilt.data(), tokens, offsets.data(), sequences, heads, size, weighted ? weights.data() : nullptr, sequences, 0,
       turn,
       window, found.data(), 2);
  right = true;
  for (long i = 0; i < tokens * width; ++i) {
    const bool reached = i / width == 2 && i % width < size;
    right &= reached ? std::isnan(number(found[i])) : number(found[i]) == number(whole[i]);
  }
  expect(right, "attention with NaN");
}

// One key's score is twice the others', so either it or they are all that a query sees; beyond 2^31 it is NaN.
template <class T>
void try_large_scores() {
  const long size = 16, tokens = 5;
  const std::vector<int32_t> offsets{0, tokens};
  for (float power : {30.f, 31.5f, 40.f})
    for (float sign : {1.f, -1.f}) {
      const float whole = std::exp2(power / 2) * 0.4163f;  // 16·whole²·log2(e)/√16 is 2^power
      std::vector<T> projected(tokens * 3 * size), out(tokens * size);
      for (long i = 0; i < tokens * 3 * size; ++i) {
        const long token = i / (3 * size), part = i / size % 3;
        projected[i] = rounded<T>(part == 0 ? sign * whole : part == 1 ? (token ? whole / 2 : whole) : token);
      }
      expect(call(projected.data(), tokens, offsets.data(), 1, 1, size, nullptr, 0, 0, nullptr, -1, out.data(), 2) == 0,
             "memory for large scores");
      const bool finite = (sign > 0 ? power : power - 1) < 31;
      for (const T value : out)
        expect(finite ? near(value, sign > 0 ? 0 : 2.5, 1) : std::isnan(number(value)), "attention with large scores");
    }
}

template <class T>
void try_rows() {
  std::mt19937 random(2);
  const long rows = 7, width = 48;
  auto x = numbers<T>(random, rows * width, 90);
  const auto weight = numbers<T>(random, width, 1), bias = numbers<T>(random, width, 1);
  const auto multiplier = numbers<float>(random, width, 1), shift = numbers<float>(random, width, 40);
  for (bool spoilt : {false, true}) {
    if (spoilt) x[3 * width + 5] = rounded<T>(std::nanf("")), x[6 * width + 47] = rounded<T>(INFINITY);
    std::vector<T> out(rows * width);
    std::vector<uint8_t> plain(rows * width), scaled(rows * width), broken(rows), broken_too(rows);
    long count, count_too;
    if constexpr (std::is_same_v<T, float>) {
      headroom_normalise_float32(x.data(), rows, width, weight.data(), bias.data(), 1e-12f, out.data(), 2);
      count = headroom_quantize_float32(x.data(), rows, width, nullptr, nullptr, 128.5f, 255, plain.data(), broken.data(), 2);
      count_too = headroom_quantize_float32(x.data(), rows, width, multiplier.data(), shift.data(), 128.5f, 127,
                                            scaled.data(), broken_too.data(), 2);
    } else {
      headroom_normalise_bfloat16(x.data(), rows, width, weight.data(), bias.data(), 1e-12f, out.data(), 2);
      count = headroom_quantize_bfloat16(x.data(), rows, width, nullptr, nullptr, 128.5f, 255, plain.data(), broken.data(), 2);
      count_too = headroom_quantize_bfloat16(x.data(), rows, width, multiplier.data(), shift.data(), 128.5f, 127,
                                             scaled.data(), broken_too.data(), 2);
    }
    expect(count == (spoilt ? 2 : 0) && count_too == count && broken == broken_too, "rows with NaN are counted");
    bool normed = true, quantized = true;
    for (long row = 0; row < rows; ++row) {
      const bool bad = spoilt && (row == 3 || row == 6);
      expect(broken[row] == bad, "rows with NaN are reported");
      double mean = 0, squares = 0;
      for (long i = 0; i < width; ++i) mean += number(x[row * width + i]) / double(width);
      for (long i = 0; i < width; ++i) squares += std::pow(number(x[row * width + i]) - mean, 2) / width;
      for (long i = 0; i < width; ++i) {
        const double value = number(x[row * width + i]);
        const T ours = out[row * width + i];
        const double exact = (value - mean) / std::sqrt(squares + 1e-12) * number(weight[i]) + number(bias[i]);
        normed &= bad ? std::isnan(number(ours)) : near(ours, exact, 8);
        if (bad) continue;
        const auto fits = [](uint8_t step, double y, double largest) {
          return std::fabs(step + 0.5 - std::clamp(y, 0., largest + 0.5)) <= 0.501;
        };
        quantized &= fits(plain[row * width + i], value + 128.5, 255);
        quantized &= fits(scaled[row * width + i], value * multiplier[i] + shift[i], 127);
      }
    }
    expect(normed, "layer normalisation");
    expect(quantized, "quantized values");
  }
}

void try_gelu() {
  constexpr long count = 10007;  // more than a thread's part, and no whole vector at the end
  std::vector<float> x(count);
  std::vector<uint8_t> erf(count), tanh(count);
  for (long i = 0; i < count; ++i) x[i] = i * 18.f / count - 9;
  x[1] = -1e6f;
  headroom_quantize_gelu(x.data(), count, 0, 25, 9.5f, 127, erf.data(), 2);
  headroom_quantize_gelu(x.data(), count, 1, 25, 9.5f, 127, tanh.data(), 2);
  bool right = true;
  for (long i = 0; i < count; ++i) {
    const double value = x[i], bent = std::sqrt(2 / M_PI) * (value + 0.044715 * value * value * value);
    const auto fits = [](uint8_t step, double gelu) {
      return std::fabs(step + 0.5 - std::clamp(gelu * 25 + 9.5, 0., 127.5)) <= 0.505;
    };
    right &= fits(erf[i], value / 2 * (1 + std::erf(value / std::sqrt(2)))) && fits(tanh[i], value / 2 * (1 + std::tanh(bent)));
  }
  expect(right, "quantized GELU");
}

template <class T>
void try_all() {
  for (long size : {16, 48, 64})
    for (bool weighted : {false, true})
      for (bool rotated : {false, true}) try_attention<T>(2, size, weighted, rotated, rotated ? 9 : -1);
  try_large_scores<T>();
  try_rows<T>();
}

}  // namespace

int main() {
  expect(headroom_prepare() == 0, "the system allows the processor's features");
  try_all<float>();
  try_all<bfloat16>();
  try_gelu();
  std::printf(mistakes ? "%d mistakes\n" : "the kernels agree\n", mistakes);
  return mistakes ? 1 : 0;
}
