/* Vectors of ESSCHER_WIDTH floats, and powers of two of them. */

#include <immintrin.h>
#include <stdint.h>

#ifndef ESSCHER_WIDTH
#error "ESSCHER_WIDTH, the floats in a vector, must be 8 or 16"
#endif

#define WIDTH ESSCHER_WIDTH
#define PANEL (2 * WIDTH)
#define DEEPEST -125.0f /* powers of two that are normal numbers, with a margin */
#define HIGHEST 128.4f  /* a power of two that is not finite */
#define ALIGNED __attribute__((aligned(4 * WIDTH)))
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define TWICE _Pragma("GCC unroll 2")

typedef float vec __attribute__((vector_size(4 * WIDTH), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH), may_alias));

#if WIDTH == 8
#define MAX(x, y) ((vec)_mm256_max_ps((__m256)(x), (__m256)(y)))
#define MIN(x, y) ((vec)_mm256_min_ps((__m256)(x), (__m256)(y)))
#define ALL(x) ((vec)_mm256_set1_ps(x))
#define IN_REGISTER(x) __asm__("" : "+x"(x))
#elif defined(__AVX512F__)
#define MAX(x, y) ((vec)_mm512_max_ps((__m512)(x), (__m512)(y)))
#define MIN(x, y) ((vec)_mm512_min_ps((__m512)(x), (__m512)(y)))
#define ALL(x) ((vec)_mm512_set1_ps(x))
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else /* the layout of AVX-512 on other processors, slow: for tests */
#define CHOOSE(which, x, y) ((vec)(((which) & (ivec)(x)) | (~(which) & (ivec)(y))))
#define MAX(x, y) CHOOSE((vec)(x) > (vec)(y), x, y)
#define MIN(x, y) CHOOSE((vec)(x) < (vec)(y), x, y)
#define ALL(x) ((vec)((vec){0} + (x)))
#define IN_REGISTER(x) (void)(x)
#endif
#define AT(p) (*(vec *)(p))
#define CONST_AT(p) (*(const vec *)(p))

/* 2^r for |r| <= 1/2. The relative error is below 1.6e-7 with the rounding; a logit of a few bits
   is less exact than that. */
static const float POLYNOMIAL[6] = {1.0f,         6.931470e-1f, 2.4022242e-1f,
                                    5.5507336e-2f, 9.671513e-3f, 1.3264727e-3f};
#define MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

/* The constants of exp2v in registers: compilers prefer to load them for each use, which is slower
   than the arithmetic. */
struct constants {
    vec c[6], magic;
};

INLINE struct constants constants(void)
{
    struct constants k;
    UNROLL for (int i = 0; i < 6; i++) {
        k.c[i] = ALL(POLYNOMIAL[i]);
        IN_REGISTER(k.c[i]);
    }
    k.magic = ALL(MAGIC);
    IN_REGISTER(k.magic);
    return k;
}

/* 2^(scale * x), which is not finite above 2^128. Unless deep, scale * x is above DEEPEST; what is
   raised to it is far below float's precision. */
INLINE vec exp2v(struct constants k, vec x, vec scale, const int deep)
{
    vec rounded, r;
    if (deep) {
        x = MAX(x * scale, ALL(DEEPEST));
        rounded = x + k.magic;
        r = x - (rounded - k.magic);
    } else {
        rounded = x * scale + k.magic;
        r = x * scale - (rounded - k.magic);
    }
    vec p = k.c[5];
    UNROLL for (int i = 4; i >= 0; i--) p = p * r + k.c[i];
    return (vec)((uvec)p + ((uvec)rounded << 23)); /* modulo 2^32 */
}
