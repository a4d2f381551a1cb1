// Attention over sequences packed end to end. One thread computes one head of one sequence at a time.

#pragma once

#include <omp.h>

#include <algorithm>

#include "products.h"
#include "relative.h"
#include "rotation.h"
#include "scratch.h"
#include "softmax.h"
#include "vectors.h"

namespace {

constexpr long kQueries = 32;  // rows of scores at a time, so that they fit into the cache
constexpr long kTogether = kRows / 2;  // rows of scores whose exponentials are computed together

// out (steps x a vector of units): the transpose of that many rows. `count` rows exist; the last row is repeated for
// the missing ones. steps: a multiple of 8.
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

  long columns, steps, value_steps, turned_rows, attended, turned, bytes;

  Room(long tokens, long size, bool rotated, const Relative* relative)
      : columns(up(tokens, paired ? 32 : 16)),              // keys, rounded up
        steps(up(size / per_unit, tiles ? 16 : 1)),         // units of a key
        value_steps(tiles ? columns / 2 : (tokens + 1) / 2),  // pairs of values
        turned_rows(rotated ? up(tokens, 16) : 0),          // whole tiles of queries may be read
        attended(up(4 * (kQueries * (columns + columns / 2 + size + steps) + steps * columns +
                         (paired ? value_steps * size : 0)),
                    64)),
        turned(attended + (rotated ? 4 * 2 * size + 2 * turned_rows * size * long{sizeof(T)} : 0)),
        bytes(up(turned, 64) + room_of(relative, kQueries)) {}
};

// out (rows x size) = weight · softmax(scale · scores) · values, of at most kQueries rows and `count` keys.
// scores (rows, columns) is overwritten, and so are probabilities (rows, columns / 2), of pairs, and sums (rows, size).
template <class T>
[[gnu::always_inline]] inline void weigh_values(float* scores, Unit<T>* probabilities, long columns, long rows,
                                                long count, float scale, const Unit<T>* values, long value_stride,
                                                long size, float* sums, float weight, T* out, long out_stride) {
  using U = Unit<T>;
  constexpr bool paired = Room<T>::paired;
  [[maybe_unused]] constexpr bool tiles = Room<T>::tiles;
  const long vectors = up(count, kLanes) / kLanes;
  const long near_steps = paired ? (tiles ? up(count, 32) / 2 : (count + 1) / 2) : count;
  T* exponents = reinterpret_cast<T*>(paired ? reinterpret_cast<float*>(probabilities) : scores);
  float inverse[kQueries];
  for (long row = 0; row < rows;) {
    const long at = row * columns;
    if (row + kTogether <= rows) {
      exponentials<kTogether>(scores + at, columns, count, vectors, scale, exponents + at, columns, inverse + row);
      row += kTogether;
    } else {
      exponentials<1>(scores + at, columns, count, vectors, scale, exponents + at, columns, inverse + row);
      row += 1;
    }
  }
  if (paired)
    for (long row = 0; row < rows; ++row)
      for (long column = vectors * kLanes; column < up(count, 32); column += kLanes)
        narrow(exponents + row * columns + column, Floats{});
#ifdef __AMX_BF16__
  if constexpr (tiles) {
    multiply_tiles(up(rows, 16), probabilities, columns / 2, values, value_stride, size, near_steps, sums, size);
  } else
#endif
  {
    const U* left = paired ? probabilities : reinterpret_cast<const U*>(scores);
    multiply(rows, left, paired ? columns / 2 : columns, values, value_stride, size, near_steps, sums, size);
  }
  for (long row = 0; row < rows; ++row) {
    const float factor = inverse[row] * weight;
    for (long column = 0; column < size; column += kLanes)
      narrow(out + row * out_stride + column, load<Floats>(sums + row * size + column) * factor);
  }
}

// out (queries x size) = weight · softmax(scale · q·kᵀ) · v of one head, scale in powers of two.
// query, key, value: the first token's `size` numbers; queries and keys are `stride` apart, values `further_stride`,
// results `out_stride`.
// following: how many rows may be read from the first query on; the rows of later sequences count.
// window: a query sees this many keys to each side; negative: all keys. memory: as much as `room` says.
// relative: of distances; null: none. head: its number among them.
template <class T>
void attend_head(const T* query, const T* key, long stride, const T* value, long further_stride, long tokens,
                 [[maybe_unused]] long following, long queries, long size, float scale, float weight, long window,
                 const Relative* relative, long head, const Room<T>& room, char* memory, T* out, long out_stride) {
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
        const T* from = value + 2 * step * further_stride + column;
        Words pairs = {};
        if (2 * step < tokens) pairs = to_words(load<Halves>(from));
        if (2 * step + 1 < tokens) pairs |= to_words(load<Halves>(from + further_stride)) << 16;
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
    long from_stride = unit_stride;
#ifdef __AMX_BF16__
    if constexpr (tiles) {
      const long filled = up(rows, 16);  // rows beyond may be other sequences' tokens; their scores are not read
      // Behind a row that is no whole tiles wide lies another head's or token's, and NaN · 0, a key's padding, is NaN.
      if (first + filled > following || key_steps < steps) {
        for (long row = 0; row < rows; ++row) {
          std::copy_n(from + row * unit_stride, key_steps, filled_queries + row * steps);
          std::fill(filled_queries + row * steps + key_steps, filled_queries + (row + 1) * steps, U{});
        }
        from = filled_queries;
        from_stride = steps;
      }
      multiply_tiles(filled, from, from_stride, keys + low, columns, vectors * kLanes, steps, scores, columns);
    } else
#endif
      multiply(rows, from, unit_stride, keys + low, columns, vectors * kLanes, steps, scores, columns);

    if (relative)
      add_relative<tiles>(*relative, head, size, from, from_stride, keys + low, columns, first, rows, low, count,
                          reinterpret_cast<float*>(memory + up(room.turned, 64)), scores);
    if (window >= 0)
      for (long row = 0; row < rows; ++row) hide_beyond(window, first + row, low, count, scores + row * columns);
    weigh_values(scores, probabilities, columns, rows, count, scale, near_values, value_stride, size, sums, weight,
                 out + first * out_stride, out_stride);
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

// Returns the first problem, a head of a sequence, of a thread's share. Shares take about as long each and lie beside
// each other: mostly a thread has computed the very rows before, and its cache holds them (affine.h).
// keys: the most that a query sees; 0 if only first tokens attend. Besides them, a token costs as much as some
// `kTokenKeys` keys: 25 were measured without AMX; with it keys cost less, so a token costs more of them.
long first_problem(const int32_t* offsets, long sequences, long heads, long keys, long share, long shares) {
  constexpr long kTokenKeys = 50;
  const auto cost = [=](long sequence) {
    const long length = offsets[sequence + 1] - offsets[sequence];
    return length * (std::min(length, keys) + kTokenKeys);
  };
  if (share == shares) return sequences * heads;
  long whole = 0;
  for (long i = 0; i < sequences; ++i) whole += cost(i);
  if (share == 0 || whole == 0) return 0;
  long sequence = 0, place = whole * heads * share / shares;
  while (place >= cost(sequence) * heads) place -= cost(sequence++) * heads;
  return sequence * heads + place / cost(sequence);
}

// Returns 0; or, without having computed anything, 1 if there is not enough memory, and 2 if sequences end before they
// begin, or beyond the tokens, the rows of weights (one row serves all), the rotation's positions or the distances.
template <class T>
int attend(const T* projected, long tokens, const int32_t* offsets, long sequences, long heads, long size,
            const float* weights, long weight_rows, bool first_only, const float* rotation, long positions,
            long window, const Relative* relative, T* out, int threads) {
  const long width = heads * size, stride = 3 * width;
  const long weight_stride = weight_rows == 1 ? 0 : heads;
  const float scale = 1.44269504f / __builtin_sqrtf(size * (relative ? relative->terms : 1));
  const long end = sequences ? offsets[sequences] : 0;
  long longest = 0, shortest = 0, computed = 0;
  for (long i = 0; i < sequences; ++i) {
    const long length = long{offsets[i + 1]} - offsets[i];
    longest = std::max(longest, length), shortest = std::min(shortest, length);
    if (length) computed = i + 1;
  }
  const long part = up(Room<T>(longest, size, rotation, relative).bytes, 4096);
  char* memory = scratch.at_least(part * threads);
  if (memory == nullptr) return 1;
  const bool weighted = !weights || weight_rows == 1 || computed <= weight_rows;
  if (shortest < 0 || offsets[0] || end > tokens || !weighted || (rotation && longest > positions)) return 2;
  if (relative && relative->order && longest > relative->reach + 1) return 2;
#pragma omp parallel num_threads(threads)
  {
    char* own = memory + part * omp_get_thread_num();
#ifdef __AMX_BF16__
    static const TileConfig config;
    if (std::is_same_v<T, bfloat16>) _tile_loadconfig(&config);
#endif
    const long share = omp_get_thread_num(), shares = omp_get_num_threads();
    const long keys = first_only ? 0 : window < 0 ? longest : 2 * window + kQueries;
    const long last = first_problem(offsets, sequences, heads, keys, share + 1, shares);
    for (long problem = first_problem(offsets, sequences, heads, keys, share, shares); problem < last; ++problem) {
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
      const Room<T> room(length, size, rotation, relative);
      if (rotation) {
        float* rows = reinterpret_cast<float*>(own + room.attended);
        T* turned_queries = reinterpret_cast<T*>(rows + 2 * size);
        T* turned_keys = turned_queries + room.turned_rows * size;
        rotate(query, stride, queries, size, rotation, rows, turned_queries);
        rotate(key, stride, length, size, rotation, rows, turned_keys);
        query = turned_queries, key = turned_keys, query_stride = size, following = room.turned_rows;
      }
      attend_head(query, key, query_stride, from + 2 * width, stride, length, following, queries, size, scale, weight,
                  window, relative, head, room, own, to, width);
    }
#ifdef __AMX_BF16__
    if (std::is_same_v<T, bfloat16>) _tile_release();
#endif
  }
  const long rest = first_only ? 0 : tokens - end;
  if (rest) std::memset(static_cast<void*>(out + end * width), 0, rest * width * sizeof(T));
  return 0;
}

}  // namespace
