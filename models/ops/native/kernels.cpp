// Kernels for CPUs that torch has no single operator for: attention over sequences packed end to end, with a
// weight for every head of every sequence; layer normalisation of narrow rows; quantization to 8 bits, after GELU too;
// affine maps on AMX's tiles, whose results need not be written and read again for GELU and residuals.
// models/ops/kernel_build.py compiles this file, which includes the others; models/ops/kernels.py calls what it exports.
//
// One thread computes one head of one sequence at a time. Only vectors are padded, and only a head's keys and
// values are copied. No result depends on the rest of the pack or on the number of threads.
//
// Products work on units of 32 bits: one float, or two neighbouring bfloat16, which one instruction multiplies and
// adds in pairs. The vectors are GCC's, so one source serves every level. AVX-512's bfloat16 products and AMX's
// tiles are used if the compiler's flags allow them. NaN in the input is NaN in the output, whatever its bits.

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "affine.h"
#include "attention.h"
#include "causal.h"
#include "normalisation.h"
#include "quantization.h"

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
                             long size, const float* weights, long weight_rows, int first_only,
                             const float* rotation, long positions, long window, const Relative* relative,
                             float* out, int threads) {
  return attend(projected, tokens, offsets, sequences, heads, size, weights, weight_rows, first_only, rotation,
                positions, window, relative, out, threads);
}

int headroom_attend_bfloat16(const bfloat16* projected, long tokens, const int32_t* offsets, long sequences,
                              long heads, long size, const float* weights, long weight_rows, int first_only,
                              const float* rotation, long positions, long window, const Relative* relative,
                             bfloat16* out, int threads) {
  return attend(projected, tokens, offsets, sequences, heads, size, weights, weight_rows, first_only, rotation,
                positions, window, relative, out, threads);
}

int headroom_causal_float32(const float* projected, long tokens, const int32_t* offsets, const int32_t* prefixes,
                            long sequences, const int32_t* borders, long groups, long size, const float* weights,
                            long weight_rows, int last_only, const float* rotation, long positions,
                            const float* query_norm, const float* key_norm, float epsilon, float* out, int threads) {
  return attend_causal(projected, tokens, offsets, prefixes, sequences, borders, groups, size, weights, weight_rows,
                       last_only, rotation, positions, query_norm, key_norm, epsilon, out, threads);
}

int headroom_causal_bfloat16(const bfloat16* projected, long tokens, const int32_t* offsets, const int32_t* prefixes,
                             long sequences, const int32_t* borders, long groups, long size, const float* weights,
                             long weight_rows, int last_only, const float* rotation, long positions,
                             const float* query_norm, const float* key_norm, float epsilon, bfloat16* out,
                             int threads) {
  return attend_causal(projected, tokens, offsets, prefixes, sequences, borders, groups, size, weights, weight_rows,
                       last_only, rotation, positions, query_norm, key_norm, epsilon, out, threads);
}

void headroom_root_normalise_float32(const float* x, long rows, long width, const float* weight, float epsilon,
                                     float* out, int threads) {
  root_normalise(x, rows, width, weight, epsilon, out, threads);
}

void headroom_root_normalise_bfloat16(const bfloat16* x, long rows, long width, const float* weight, float epsilon,
                                      bfloat16* out, int threads) {
  root_normalise(x, rows, width, weight, epsilon, out, threads);
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

#ifdef __AMX_BF16__
int headroom_map_bfloat16(const bfloat16* x, long rows, long inputs, const bfloat16* weights, const float* bias,
                          long outputs, int finish, const bfloat16* other, const bfloat16* norm_weight,
                          const bfloat16* norm_bias, float epsilon, bfloat16* out, int threads) {
  const Map map{reinterpret_cast<const char*>(x), reinterpret_cast<const char*>(weights),
                reinterpret_cast<const char*>(bias), nullptr, nullptr, other, 0, 0, out, {},
                {norm_weight, norm_bias, epsilon}};
  return map_rows<false>(map, rows, inputs * long{sizeof(bfloat16)}, outputs, static_cast<Finish>(finish), threads);
}

// x: uint8; or bfloat16 that is quantized first, with source_multiplier, source_shift and middle as in `quantize`.
int headroom_map_int8(const void* x, int quantized, long rows, long inputs, const float* source_multiplier,
                      const float* source_shift, float middle, const int8_t* weights, const int32_t* start,
                      const float* scale, const float* bias, long outputs, int finish, const bfloat16* other,
                      float multiplier, float shift, const bfloat16* norm_weight, const bfloat16* norm_bias,
                      float epsilon, void* out, int threads) {
  const Source source{static_cast<const bfloat16*>(quantized ? nullptr : x), source_multiplier, source_shift, middle};
  const Map map{static_cast<const char*>(quantized ? x : nullptr), reinterpret_cast<const char*>(weights),
                reinterpret_cast<const char*>(start), scale, bias, other, multiplier, shift, out, source,
                {norm_weight, norm_bias, epsilon}};
  return map_rows<true>(map, rows, inputs, outputs, static_cast<Finish>(finish), threads);
}
#endif
}
