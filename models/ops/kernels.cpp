// Kernels for CPUs that torch has no single operator for: attention over sequences packed end to end, with a
// weight for every head of every sequence; layer normalisation of narrow rows; quantization to 8 bits, after GELU too.
// models/ops/kernel_build.py compiles them, models/ops/kernels.py calls them.
//
// One thread computes one head of one sequence at a time. Only vectors are padded, and only a head's keys and
// values are copied. No result depends on the rest of the pack or on the number of threads.
//
// Products work on units of 32 bits: one float, or two neighbouring bfloat16, which one instruction multiplies and
// adds in pairs. The vectors are GCC's, so one source serves every level. AVX-512's bfloat16 products and AMX's
// tiles are used if the compiler's flags allow them. NaN in the input is NaN in the output, whatever its bits.

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
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
constexpr long kQueries = 32;  // rows of scores at a time, so that they fit into the cache

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

Floats all(float value) { return Floats{} + value; }

Ints lanes() {
  Ints result;
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = lane;
  return result;
}

long up(long count, long step) { return (count + step - 1) / step * step; }

// ---- numbers in memory ----------------------------------------------------------------------------------

Floats widen(const float* from) { return load<Floats>(from); }
Floats widen(const bfloat16* from) {
  return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

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

// ---- products -------------------------------------------------------------------------------------------

Floats multiply_add(float left, Floats right, Floats sum) { return left * right + sum; }
[[maybe_unused]] Floats multiply_add(Pair left, Floats right, Floats sum) {
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(left.bits), (__m512bh)right);
#else
  Words pairs = (Words)right;
  Words first = Words{} + (left.bits << 16), second = Words{} + (left.bits & 0xffff0000u);
  sum = (Floats)first * (Floats)(pairs << 16) + sum;
  return (Floats)second * (Floats)(pairs & 0xffff0000u) + sum;
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

// ---- softmax --------------------------------------------------------------------------------------------

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

// ---- copies of a head ---------------------------------------------------------------------------------------

// out (steps x a vector of units): the transpose of that many rows. `count` rows exist; the last one stands for the
// missing ones. steps: a multiple of 8.
template <class U>
void transpose_rows(const U* rows, long stride, long count, long steps, U* out, long out_stride) {
#ifdef __AVX512F__
  for (long step = 0; step < steps; step += 8) {
    __m512i r[8];  // rows i and i + 8 beside each other
    for (long i = 0; i < 8; ++i) {
      const __m256i low = load<__m256i>(rows + std::min(i, count - 1) * stride + step);
      const __m256i high = load<__m256i>(rows + std::min(i + 8, count - 1) * stride + step);
      r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    __m512i t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // r[c] holds columns c and c + 4 of rows 0-3 and 8-11; r[c + 4] the same of rows 4-7 and 12-15.
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    const __m512i second = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for (int c = 0; c < 4; ++c) {
      store(out + (step + c) * out_stride, _mm512_permutex2var_epi64(r[c], first, r[c + 4]));
      store(out + (step + c + 4) * out_stride, _mm512_permutex2var_epi64(r[c], second, r[c + 4]));
    }
  }
#else
  for (long i = 0; i < kLanes; ++i) {
    const U* row = rows + std::min(i, count - 1) * stride;
    for (long step = 0; step < steps; ++step) out[step * out_stride + i] = row[step];
  }
#endif
}

// Memory of the calling thread, which its next call uses again.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  // Returns at least so many bytes, or null if there is not so much memory.
  char* at_least(long bytes) {
    if (bytes > bytes_) {
      std::free(memory_);
      bytes_ = up(bytes, 4096);
      memory_ = std::aligned_alloc(64, bytes_);
      if (memory_ == nullptr) bytes_ = 0;
    }
    return static_cast<char*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  long bytes_ = 0;
};

thread_local Scratch scratch;

// ---- attention ------------------------------------------------------------------------------------------

// Hides the scores of keys further than `window` from a query. scores[0] is that of key `low`, `count` of them follow.
void hide_beyond(long window, long query, long low, long count, float* scores) {
  constexpr float kNever = -1e30f;  // its exponential is 0
  const long begin = std::max(0l, query - window - low), end = std::min(count, query + window + 1 - low);
  std::fill(scores, scores + begin, kNever);
  std::fill(scores + end, scores + count, kNever);
}

// What one thread needs for one head of a sequence of so many tokens: numbers of units, and bytes of scratch memory.
template <class T>
struct Room {
  using U = Unit<T>;
  static constexpr bool paired = std::is_same_v<U, Pair>;
#ifdef __AMX_BF16__
  static constexpr bool tiles = paired;
#else
  static constexpr bool tiles = false;
#endif
  static constexpr long per_unit = sizeof(U) / sizeof(T);

  long columns, steps, value_steps, turned_rows, attended, bytes;

  Room(long tokens, long size, bool rotated)
      : columns(up(tokens, paired ? 32 : 16)),              // keys, rounded up
        steps(up(size / per_unit, tiles ? 16 : 1)),         // units of a key
        value_steps(tiles ? columns / 2 : (tokens + 1) / 2),  // pairs of values
        turned_rows(rotated ? up(tokens, 16) : 0),          // whole tiles of queries may be read
        attended(up(4 * (kQueries * (columns + columns / 2 + size + steps) + steps * columns +
                         (paired ? value_steps * size : 0)),
                    64)),
        bytes(attended + (rotated ? 4 * 2 * size + 2 * turned_rows * size * long{sizeof(T)} : 0)) {}
};

// out (queries x size) = weight · softmax(scale · q·kᵀ) · v of one head, scale in powers of two.
// query, key, value: the first token's `size` numbers; queries and keys are `stride` apart, values `further_stride`,
// results `out_stride`.
// following: how many queries may be read from the first one on; they include those of later sequences.
// window: a query sees this many keys to each side; negative: all keys. memory: as much as `room` says.
template <class T>
void attend_head(const T* query, const T* key, long stride, const T* value, long further_stride, long tokens,
                 [[maybe_unused]] long following, long queries, long size, float scale, float weight, long window,
                 const Room<T>& room, char* memory, T* out, long out_stride) {
  using U = Unit<T>;
  constexpr bool paired = Room<T>::paired, tiles = Room<T>::tiles;
  constexpr long per_unit = Room<T>::per_unit;
  const long columns = room.columns, steps = room.steps, value_steps = room.value_steps;
  const long unit_stride = stride / per_unit;

  float* scores = reinterpret_cast<float*>(memory);
  U* probabilities = reinterpret_cast<U*>(scores + kQueries * columns);  // (queries, columns / 2) of pairs
  float* sums = reinterpret_cast<float*>(probabilities) + kQueries * (columns / 2);
  U* filled_queries = reinterpret_cast<U*>(sums + kQueries * size);
  U* keys = filled_queries + kQueries * steps;  // (steps, columns)
  U* values = keys + steps * columns;           // (value_steps, size) of pairs

  const U* key_units = reinterpret_cast<const U*>(key);
  const long key_steps = size / per_unit;
  for (long column = 0; column < tokens; column += kLanes)
    transpose_rows(key_units + column * unit_stride, unit_stride, std::min(kLanes, tokens - column), key_steps,
                   keys + column, columns);
  for (long at = key_steps * columns; at < steps * columns; at += kLanes) store(keys + at, Floats{});

  const U* value_units = values;
  long value_stride = size;
  if constexpr (paired) {
    for (long step = 0; step < value_steps; ++step)
      for (long column = 0; column < size; column += kLanes) {
        Words pairs = {};
        if (2 * step < tokens)
          pairs = __builtin_convertvector(load<Halves>(value + 2 * step * further_stride + column), Words);
        if (2 * step + 1 < tokens)
          pairs |= __builtin_convertvector(load<Halves>(value + (2 * step + 1) * further_stride + column), Words) << 16;
        store(values + step * size + column, pairs);
      }
  } else {
    value_units = value;
    value_stride = further_stride;
  }

  for (long first = 0; first < queries; first += kQueries) {
    const long rows = std::min(kQueries, queries - first);
    const U* from = reinterpret_cast<const U*>(query + first * stride);
    // The keys that these queries see: `count` from `low` on, a multiple of every vector's and tile's width.
    const long low = window < 0 ? 0 : std::max(0l, first - window) / 32 * 32;
    const long count = (window < 0 ? tokens : std::min(tokens, first + rows + window)) - low;
    const long vectors = up(count, kLanes) / kLanes;
    const U* near_values = value_units + low / per_unit * value_stride;
    const long near_steps = paired ? (tiles ? up(count, 32) / 2 : (count + 1) / 2) : count;
#ifdef __AMX_BF16__
    if constexpr (tiles) {
      const long filled = up(rows, 16);  // rows beyond may be other sequences' tokens; their scores are not read
      long from_stride = unit_stride;
      if (first + filled > following) {
        for (long row = 0; row < rows; ++row)
          for (long step = 0; step < steps; step += kLanes)
            store(filled_queries + row * steps + step, load<Floats>(from + row * unit_stride + step));
        from = filled_queries;
        from_stride = steps;
      }
      multiply_tiles(filled, from, from_stride, keys + low, columns, vectors * kLanes, steps, scores, columns);
    } else
#endif
      multiply(rows, from, unit_stride, keys + low, columns, vectors * kLanes, steps, scores, columns);

    float inverse[kQueries];
    for (long row = 0; row < rows; ++row) {
      float* at = scores + row * columns;
      T* to = paired ? reinterpret_cast<T*>(probabilities + row * (columns / 2)) : reinterpret_cast<T*>(at);
      if (window >= 0) hide_beyond(window, first + row, low, count, at);
      inverse[row] = exponentials(at, count, vectors, scale, to) * weight;
      if (paired)
        for (long column = vectors * kLanes; column < up(count, 32); column += kLanes) narrow(to + column, Floats{});
    }
#ifdef __AMX_BF16__
    if constexpr (tiles) {
      multiply_tiles(up(rows, 16), probabilities, columns / 2, near_values, value_stride, size, near_steps, sums, size);
    } else
#endif
    {
      const U* left = paired ? probabilities : reinterpret_cast<const U*>(scores);
      multiply(rows, left, paired ? columns / 2 : columns, near_values, value_stride, size, near_steps, sums, size);
    }
    for (long row = 0; row < rows; ++row)
      for (long column = 0; column < size; column += kLanes)
        narrow(out + (first + row) * out_stride + column, load<Floats>(sums + row * size + column) * inverse[row]);
  }
}

// Rotates one head's numbers of tokens at positions 0 to count - 1 (Su et al. 2021, https://arxiv.org/abs/2104.09864):
// numbers i and i + size / 2 are turned by the angle whose cosine and sine are rotation[i] and rotation[i + size / 2] of
// the position's row. from: `stride` apart; out: (count, size); room: 2 · size floats.
template <class T>
void rotate(const T* from, long stride, long count, long size, const float* rotation, float* room, T* out) {
  const long half = size / 2;
  float* result = room + size;
  for (long token = 0; token < count; ++token) {
    const float *cosine = rotation + token * size, *sine = cosine + half;
    const T* row = from + token * stride;
    if (half % kLanes == 0) {
      for (long at = 0; at < half; at += kLanes) {
        const Floats one = widen(row + at), other = widen(row + half + at);
        const Floats c = load<Floats>(cosine + at), s = load<Floats>(sine + at);
        narrow(out + token * size + at, one * c - other * s);
        narrow(out + token * size + half + at, other * c + one * s);
      }
      continue;
    }
    for (long at = 0; at < size; at += kLanes) store(room + at, widen(row + at));
    for (long i = 0; i < half; ++i) {
      result[i] = room[i] * cosine[i] - room[i + half] * sine[i];
      result[i + half] = room[i + half] * cosine[i] + room[i] * sine[i];
    }
    for (long at = 0; at < size; at += kLanes) narrow(out + token * size + at, load<Floats>(result + at));
  }
}

// Prefetches a head's numbers while another one is computed: they lie too far apart for the processor to predict.
// (If it is not inlined, GCC removes the call, because the function has no visible effect.)
template <class T>
[[gnu::always_inline]] inline void fetch_head(const T* query, long width, long stride, long tokens, long size) {
  constexpr long kLine = 64 / sizeof(T);
  if (size < kLine) return;  // most came with the previous head
  for (long token = 0; token < tokens; ++token)
    for (const T* row = query + token * stride; row < query + token * stride + 3 * width; row += width)
      for (long at = 0; at < size; at += kLine) __builtin_prefetch(row + at);
}

// Returns 0, or 1 without having computed anything if there is not enough memory.
template <class T>
int attend(const T* projected, long tokens, const int32_t* offsets, long sequences, long heads, long size,
            const float* weights, long weight_stride, bool first_only, const float* rotation, long window, T* out,
            int threads) {
  const long width = heads * size, stride = 3 * width;
  const float scale = 1.44269504f / __builtin_sqrtf(size);
  const long end = sequences ? offsets[sequences] : 0;
  const long problems = sequences * heads;
  long longest = 0;
  for (long i = 0; i < sequences; ++i) longest = std::max<long>(longest, offsets[i + 1] - offsets[i]);
  const long part = up(Room<T>(longest, size, rotation).bytes, 4096);
  char* memory = scratch.at_least(part * threads);
  if (memory == nullptr) return 1;
#pragma omp parallel num_threads(threads)
  {
    char* own = memory + part * omp_get_thread_num();
#ifdef __AMX_BF16__
    static const TileConfig config;
    if (std::is_same_v<T, bfloat16>) _tile_loadconfig(&config);
#endif
#pragma omp for schedule(dynamic, 4) nowait
    for (long problem = 0; problem < problems; ++problem) {
      const long sequence = problem / heads, head = problem % heads;
      const long first = offsets[sequence], length = offsets[sequence + 1] - first;
      T* to = out + (first_only ? sequence : first) * width + head * size;
      if (length == 0) {
        if (first_only) std::memset(static_cast<void*>(to), 0, size * sizeof(T));
        continue;
      }
      const T* from = projected + first * stride + head * size;
      if (head + 1 < heads) fetch_head(from + size, width, stride, length, size);
      const float weight = weights ? weights[sequence * weight_stride + head] : 1.f;
      const long queries = first_only ? 1 : length;
      const T *query = from, *key = from + width;
      long query_stride = stride, following = tokens - first;
      const Room<T> room(length, size, rotation);
      if (rotation) {
        float* rows = reinterpret_cast<float*>(own + room.attended);
        T* turned_queries = reinterpret_cast<T*>(rows + 2 * size);
        T* turned_keys = turned_queries + room.turned_rows * size;
        rotate(query, stride, queries, size, rotation, rows, turned_queries);
        rotate(key, stride, length, size, rotation, rows, turned_keys);
        query = turned_queries, key = turned_keys, query_stride = size, following = room.turned_rows;
      }
      attend_head(query, key, query_stride, from + 2 * width, stride, length, following, queries, size, scale, weight,
                  window, room, own, to, width);
    }
#ifdef __AMX_BF16__
    if (std::is_same_v<T, bfloat16>) _tile_release();
#endif
  }
  if (!first_only) std::memset(static_cast<void*>(out + end * width), 0, (tokens - end) * width * sizeof(T));
  return 0;
}

// ---- layer normalisation --------------------------------------------------------------------------------

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

// ---- quantization ---------------------------------------------------------------------------------------

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

extern "C" {

// Returns 0 if this process may use the features that this was compiled for: Linux grants AMX's tiles on request.
int headroom_prepare() {
#ifdef __AMX_BF16__
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return static_cast<int>(syscall(SYS_arch_prctl, kRequest, kTileData));
#else
  return 0;
#endif
}

int headroom_attend_float32(const float* projected, long tokens, const int32_t* offsets, long sequences, long heads,
                             long size, const float* weights, long weight_stride, int first_only,
                             const float* rotation, long window, float* out, int threads) {
  return attend(projected, tokens, offsets, sequences, heads, size, weights, weight_stride, first_only, rotation,
                window, out, threads);
}

int headroom_attend_bfloat16(const bfloat16* projected, long tokens, const int32_t* offsets, long sequences,
                              long heads, long size, const float* weights, long weight_stride, int first_only,
                              const float* rotation, long window, bfloat16* out, int threads) {
  return attend(projected, tokens, offsets, sequences, heads, size, weights, weight_stride, first_only, rotation,
                window, out, threads);
}

void headroom_normalise_float32(const float* x, long rows, long width, const float* weight, const float* bias,
                                float epsilon, float* out, int threads) {
  normalise(x, rows, width, weight, bias, epsilon, out, threads);
}

void headroom_normalise_bfloat16(const bfloat16* x, long rows, long width, const bfloat16* weight,
                                 const bfloat16* bias, float epsilon, bfloat16* out, int threads) {
  normalise(x, rows, width, weight, bias, epsilon, out, threads);
}

long headroom_quantize_float32(const float* x, long rows, long width, const float* multiplier, const float* shift,
                               float middle, float largest, uint8_t* out, uint8_t* broken, int threads) {
  return quantize(x, rows, width, multiplier, shift, middle, largest, out, broken, threads);
}

long headroom_quantize_bfloat16(const bfloat16* x, long rows, long width, const float* multiplier,
                                const float* shift, float middle, float largest, uint8_t* out, uint8_t* broken,
                                int threads) {
  return quantize(x, rows, width, multiplier, shift, middle, largest, out, broken, threads);
}

void headroom_quantize_gelu(const float* x, long count, int by_tanh, float multiplier, float shift, float largest,
                            uint8_t* out, int threads) {
  quantize_gelu(x, count, by_tanh, multiplier, shift, largest, out, threads);
}
}
