// Attention of decoders: a token sees those before it in its sequence, and all of the sequence that it goes on from.
// Several heads of queries share keys and values (models/ops/causal.py). One thread computes the heads of one group of
// one sequence: their keys are normalised, rotated and laid out once.

#pragma once

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "attention.h"

namespace {

// Numbers of one token's head, normalised by their root mean square if there are weights, and rotated by the angles of
// its position. out may be wider: what is beyond `size` is left as it is. room: 2 · size floats.
template <class T>
void turned_head(const T* from, long size, const float* norm, float epsilon, const float* cosine, float* room, T* out) {
  const long half = size / 2;
  float *result = room + size, factor = 1.f;
  for (long at = 0; at < size; at += kLanes) store(room + at, widen(from + at));
  if (norm) {
    Floats squares = {};
    for (long at = 0; at < size; at += kLanes) {
      const Floats values = load<Floats>(room + at);
      squares = fused(values, values, squares);
      store(room + at, values * load<Floats>(norm + at));
    }
    factor = 1.f / __builtin_sqrtf(total(squares) / size + epsilon);
  }
  for (long i = 0; i < half; ++i) {
    const float one = room[i] * factor, other = room[i + half] * factor;
    result[i] = one * cosine[i] - other * cosine[i + half];
    result[i + half] = other * cosine[i] + one * cosine[i + half];
  }
  for (long at = 0; at < size; at += kLanes) narrow(out + at, load<Floats>(result + at));
}

// A sequence of a pack, and the one that it goes on from.
struct Segment {
  long first, length, prefix_first, prefix_length;

  long tokens() const { return prefix_length + length; }
  long row(long token) const { return token < prefix_length ? prefix_first + token : first + token - prefix_length; }
};

// What attention is computed of: pointers as models/ops/kernels.py passes them.
template <class T>
struct Causal {
  const T* projected;
  const int32_t* borders;  // where the heads of queries of each group begin, and where the last ones end
  long groups, size;
  const float* rotation;
  const float *query_norm, *key_norm;
  float epsilon, scale;

  long heads() const { return borders[groups]; }
  long stride() const { return (heads() + 2 * groups) * size; }
  const T* query(long row, long head) const { return projected + row * stride() + head * size; }
  const T* key(long row, long group) const { return query(row, heads() + group); }
  const T* value(long row, long group) const { return query(row, heads() + groups + group); }
};

// Memory for one group of a sequence of so many tokens, prefix included; numbers are of 32-bit units.
template <class T>
struct CausalRoom {
  using U = Unit<T>;
  static constexpr bool paired = Room<T>::paired, tiles = Room<T>::tiles;

  long columns, steps, value_steps, bytes;

  CausalRoom(long tokens, long size)
      : columns(up(tokens, 32)),
        steps(up(size / Room<T>::per_unit, tiles ? 16 : 1)),
        value_steps(paired ? (tiles ? columns / 2 : (tokens + 1) / 2) : tokens),
        bytes(4 * (kQueries * (columns + columns / 2 + size + steps) + kLanes * steps + 2 * size + steps * columns +
                   value_steps * size)) {}
};

template <class T>
void attend_group(const Causal<T>& causal, const Segment& segment, long group, const float* weights, bool last_only,
                  char* memory, T* out, long out_stride) {
  using U = Unit<T>;
  const CausalRoom<T> room(segment.tokens(), causal.size);
  constexpr bool paired = CausalRoom<T>::paired, tiles = CausalRoom<T>::tiles;
  const long columns = room.columns, steps = room.steps, size = causal.size, tokens = segment.tokens();
  const long key_steps = size / Room<T>::per_unit, width = steps * Room<T>::per_unit;

  float* scores = reinterpret_cast<float*>(memory);
  U* probabilities = reinterpret_cast<U*>(scores + kQueries * columns);
  float* sums = reinterpret_cast<float*>(probabilities) + kQueries * (columns / 2);
  T* queries = reinterpret_cast<T*>(sums + kQueries * size);
  T* few = queries + kQueries * width;  // turned keys of a vector of tokens
  float* numbers = reinterpret_cast<float*>(few + kLanes * width);
  U* keys = reinterpret_cast<U*>(numbers + 2 * size);  // (steps, columns)
  U* values = keys + steps * columns;                  // (value_steps, size)

  for (long column = 0; column < tokens; column += kLanes) {
    const long count = std::min(kLanes, tokens - column);
    for (long i = 0; i < count; ++i)
      turned_head(causal.key(segment.row(column + i), group), size, causal.key_norm, causal.epsilon,
                  causal.rotation + (column + i) * size, numbers, few + i * width);
    transpose_rows(reinterpret_cast<const U*>(few), steps, count, key_steps, keys + column, columns);
  }
  for (long at = key_steps * columns; at < steps * columns; at += kLanes) store(keys + at, Floats{});
  for (long step = 0; step < room.value_steps; ++step)
    for (long column = 0; column < size; column += kLanes) {
      if constexpr (paired) {
        Words pairs = {};
        for (long i = 0; i < 2; ++i)
          if (2 * step + i < tokens)
            pairs |= to_words(load<Halves>(causal.value(segment.row(2 * step + i), group) + column)) << (16 * i);
        store(values + step * size + column, pairs);
      } else {
        store(values + step * size + column, load<Floats>(causal.value(segment.row(step), group) + column));
      }
    }
  if constexpr (tiles) std::fill_n(queries, kQueries * width, T{});

  for (long head = causal.borders[group]; head < causal.borders[group + 1]; ++head) {
    const float weight = weights ? weights[head] : 1.f;
    for (long first = last_only ? segment.length - 1 : 0; first < segment.length; first += kQueries) {
      const long rows = std::min(kQueries, segment.length - first), before = segment.prefix_length + first;
      for (long row = 0; row < rows; ++row)
        turned_head(causal.query(segment.first + first + row, head), size, causal.query_norm, causal.epsilon,
                    causal.rotation + (before + row) * size, numbers, queries + row * width);
      const U* from = reinterpret_cast<const U*>(queries);
      const long count = before + rows;  // the keys that the last of these queries sees
      const long vectors = up(count, kLanes) / kLanes;
#ifdef __AMX_BF16__
      if constexpr (tiles)
        multiply_tiles(up(rows, 16), from, steps, keys, columns, vectors * kLanes, steps, scores, columns);
      else
#endif
        multiply(rows, from, steps, keys, columns, vectors * kLanes, steps, scores, columns);
      for (long row = 0; row + 1 < rows; ++row)
        std::fill(scores + row * columns + before + row + 1, scores + row * columns + count, -1e30f);
      weigh_values(scores, probabilities, columns, rows, count, causal.scale, values, size, size, sums, weight,
                   out + (last_only ? 0 : first) * out_stride + head * size, out_stride);
    }
  }
}

// Returns 0; or, without having computed anything, 1 if there is not enough memory, and 2 if sequences end before they
// begin, or beyond the tokens, the rows of weights (one row serves all) or the rotation's positions, or if one goes on
// from none of the sequences or from one that goes on itself. prefixes: the sequence that each goes on from, −1 for
// none; null if none does.
template <class T>
int attend_causal(const T* projected, long tokens, const int32_t* offsets, const int32_t* prefixes, long sequences,
                  const int32_t* borders, long groups, long size, const float* weights, long weight_rows,
                  bool last_only, const float* rotation, long positions, const float* query_norm,
                  const float* key_norm, float epsilon, T* out, int threads) {
  const Causal<T> causal{projected,  borders,  groups,  size, rotation, query_norm, key_norm,
                         epsilon, 1.44269504f / __builtin_sqrtf(size)};
  const long heads = causal.heads(), width = heads * size, end = sequences ? offsets[sequences] : 0;
  const auto segment = [=](long i) {
    const long prefix = prefixes ? prefixes[i] : -1, first = offsets[i], length = offsets[i + 1] - first;
    if (prefix < 0) return Segment{first, length, 0, 0};
    return Segment{first, length, offsets[prefix], long{offsets[prefix + 1]} - offsets[prefix]};
  };
  long longest = 0, computed = 0;
  for (long i = 0; i < sequences; ++i) {
    if (offsets[i + 1] < offsets[i]) return 2;
    if (prefixes && prefixes[i] >= 0 && (prefixes[i] >= sequences || prefixes[prefixes[i]] >= 0)) return 2;
    if (offsets[i + 1] > offsets[i]) computed = i + 1;
  }
  const bool weighted = !weights || weight_rows == 1 || computed <= weight_rows;
  if (offsets[0] || end > tokens || !weighted) return 2;
  for (long i = 0; i < sequences; ++i) longest = std::max(longest, segment(i).tokens());
  if (longest > positions) return 2;
  const long part = up(CausalRoom<T>(longest, size).bytes, 4096);
  char* memory = scratch.at_least(part * threads);
  if (memory == nullptr) return 1;
#pragma omp parallel num_threads(threads)
  {
    char* own = memory + part * omp_get_thread_num();
#ifdef __AMX_BF16__
    static const TileConfig config;
    if (std::is_same_v<T, bfloat16>) _tile_loadconfig(&config);
#endif
#pragma omp for schedule(dynamic)
    for (long problem = 0; problem < sequences * groups; ++problem) {
      const long row = problem / groups, group = problem % groups;
      const Segment of = segment(row);
      T* to = out + (last_only ? row : of.first) * width;
      if (of.length) {
        const float* own_weights = weights ? weights + (weight_rows == 1 ? 0 : row) * heads : nullptr;
        attend_group(causal, of, group, own_weights, last_only, own, to, width);
      } else if (last_only && group == 0) {
        std::memset(static_cast<void*>(to), 0, width * sizeof(T));
      }
    }
#ifdef __AMX_BF16__
    if (std::is_same_v<T, bfloat16>) _tile_release();
#endif
  }
  const long rest = last_only ? 0 : tokens - end;
  if (rest) std::memset(static_cast<void*>(out + end * width), 0, rest * width * sizeof(T));
  return 0;
}

}  // namespace
