/* Rows of 16-bit numbers or codes, of any width, as rows of whole vectors of floats. */

#include <string.h>

enum type { FLOAT32, BFLOAT16, FLOAT16 };
#define SIZE(type) ((type) == FLOAT32 ? 4 : 2)
#define ALL_UNROLLED _Pragma("GCC unroll 16")

/* Vectors that lie anywhere. */
typedef float loose __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH), aligned(1), may_alias));
#define LOOSE_AT(p) (*(const loose *)(p))
#define LOOSE_TO(p) (*(loose *)(p))

/* The 16-bit floats of IEEE 754. F16C comes with AVX2: PyTorch's own kernels rely on it. */
INLINE vec from_float16(halves x)
{
#if WIDTH == 16 && defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)x);
#elif WIDTH == 8 && defined(__F16C__)
    return (vec)_mm256_cvtph_ps((__m128i)x);
#else
    uvec bits = __builtin_convertvector(x, uvec), exponent = bits & 0x7c00;
    uvec size = (uvec)((vec)((bits & 0x7fff) << 13) * ALL(0x1p112f)); /* another bias */
    uvec infinite = (uvec)(exponent == 0x7c00) & 0x7f800000;
    return (vec)(size | infinite | (bits & 0x8000) << 16);
#endif
}

INLINE vec widened(const int type, const char *from)
{
    if (type == FLOAT32) return LOOSE_AT(from);
    halves x = *(const halves *)from;
    if (type == BFLOAT16) return (vec)(__builtin_convertvector(x, uvec) << 16);
    return from_float16(x);
}

INLINE void widen_rows(const int type, const char *from, int64_t bytes, int64_t rows,
                       int64_t width, int64_t wide, float *to)
{
    int64_t whole = width / WIDTH * WIDTH;
    for (int64_t i = 0; i < rows; i++, from += bytes, to += wide) {
        for (int64_t l = 0; l < whole; l += WIDTH)
            AT(to + l) = widened(type, from + l * SIZE(type));
        if (whole == wide) continue;
        char rest[4 * WIDTH] ALIGNED = {0};
        memcpy(rest, from + whole * SIZE(type), (size_t)((width - whole) * SIZE(type)));
        AT(to + whole) = widened(type, rest);
    }
}

/* Rows so many bytes apart, zeros after the last entry. */
static void widen(int64_t type, const char *from, int64_t bytes, int64_t rows, int64_t width,
                  int64_t wide, float *to)
{
    if (type == FLOAT32) widen_rows(FLOAT32, from, bytes, rows, width, wide, to);
    else if (type == BFLOAT16) widen_rows(BFLOAT16, from, bytes, rows, width, wide, to);
    else widen_rows(FLOAT16, from, bytes, rows, width, wide, to);
}

typedef uint8_t bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));

/* Bytes of a row of codes. A byte of 4-bit codes has that of an entry of the first half, and above
   it that of the same entry of the second. */
INLINE int64_t code_bytes(int64_t bits, int64_t width) { return bits == 8 ? width : (width + 1) / 2; }

INLINE uvec from_bytes(const uint8_t *from)
{
#if WIDTH == 16 && defined(__AVX512F__)
    return (uvec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif WIDTH == 8
    return (uvec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    return __builtin_convertvector(*(const bytes *)from, uvec);
#endif
}

INLINE vec floats_of(uvec x) { return __builtin_convertvector((ivec)x, vec); }

/* Rows of codes as floats, zeros after the last entry. */
INLINE void widen_code_rows(const int bits, const uint8_t *from, int64_t rows, int64_t width,
                            int64_t wide, float *to)
{
    int64_t row = code_bytes(bits, width), whole = row / WIDTH * WIDTH;
    for (int64_t i = 0; i < rows; i++, from += row, to += wide) {
        if (width < wide) AT(to + wide - WIDTH) = ALL(0.0f);
        for (int64_t l = 0; l < whole; l += WIDTH) {
            uvec x = from_bytes(from + l);
            AT(to + l) = floats_of(x & (bits == 8 ? 255u : 15u));
            if (bits == 4) LOOSE_TO(to + row + l) = floats_of(x >> 4);
        }
        for (int64_t l = whole; l < row; l++) {
            to[l] = (float)(bits == 8 ? from[l] : from[l] & 15);
            if (bits == 4 && row + l < wide) to[row + l] = (float)(from[l] >> 4);
        }
    }
}

static void widen_codes(int64_t bits, const uint8_t *from, int64_t rows, int64_t width,
                        int64_t wide, float *to)
{
    if (bits == 8) widen_code_rows(8, from, rows, width, wide, to);
    else widen_code_rows(4, from, rows, width, wide, to);
}
