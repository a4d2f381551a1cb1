// Rotary position embeddings, which ModernBERT has.

#pragma once

#include "vectors.h"

namespace {

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

}  // namespace
