/* Arithmetic across the entries of vectors, and the hyperbolic tangent of each. */

/* Sums of the entries of WIDTH vectors, as one vector. */
INLINE vec across(vec a[WIDTH])
{
#if WIDTH == 16 && defined(__AVX512F__)
    __m512 four[4], two[2];
    UNROLL for (int i = 0; i < 4; i++) {
        __m512 w = (__m512)a[4 * i], x = (__m512)a[4 * i + 1], y = (__m512)a[4 * i + 2],
               z = (__m512)a[4 * i + 3];
        __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(w, x) + _mm512_unpackhi_ps(w, x));
        __m512d high = _mm512_castps_pd(_mm512_unpacklo_ps(y, z) + _mm512_unpackhi_ps(y, z));
        four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high)) +
                  _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
    UNROLL for (int i = 0; i < 2; i++)
        two[i] = _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88) +
                 _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd);
    return (vec)(_mm512_shuffle_f32x4(two[0], two[1], 0x88) +
                 _mm512_shuffle_f32x4(two[0], two[1], 0xdd));
#elif WIDTH == 8
    __m256 four[2];
    UNROLL for (int i = 0; i < 2; i++) {
        __m256 low = _mm256_hadd_ps((__m256)a[4 * i], (__m256)a[4 * i + 1]);
        __m256 high = _mm256_hadd_ps((__m256)a[4 * i + 2], (__m256)a[4 * i + 3]);
        four[i] = _mm256_hadd_ps(low, high);
    }
    return (vec)(_mm256_permute2f128_ps(four[0], four[1], 0x20) +
                 _mm256_permute2f128_ps(four[0], four[1], 0x31));
#else
    vec found = ALL(0.0f);
    for (int i = 0; i < WIDTH; i++)
        for (int l = 0; l < WIDTH; l++) found[i] += a[i][l];
    return found;
#endif
}

INLINE float largest_of(vec x)
{
#if WIDTH == 16 && defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#elif WIDTH == 8
    __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    float top = x[0];
    for (int l = 1; l < WIDTH; l++) top = x[l] > top ? x[l] : top;
    return top;
#endif
}

INLINE float sum_of(vec x)
{
    float sum = 0.0f;
    for (int l = 0; l < WIDTH; l++) sum += x[l];
    return sum;
}

/* tanh to some units in the last place: an odd rational function, up to where it rounds to 1. */
INLINE vec tanhv(vec x)
{
    x = MIN(MAX(x, ALL(-9.0f)), ALL(9.0f));
    vec s = x * x;
    vec above = ALL(-2.76076847742355e-16f);
    above = above * s + ALL(2.00018790482477e-13f);
    above = above * s + ALL(-8.60467152213735e-11f);
    above = above * s + ALL(5.12229709037114e-08f);
    above = above * s + ALL(1.48572235717979e-05f);
    above = above * s + ALL(6.37261928875436e-04f);
    above = above * s + ALL(4.89352455891786e-03f);
    vec below = ALL(1.19825839466702e-06f);
    below = below * s + ALL(1.18534705686654e-04f);
    below = below * s + ALL(2.26843463243900e-03f);
    below = below * s + ALL(4.89352518554385e-03f);
    return x * above / below;
}
