/* From rows, as they come, into the layouts that step.c describes. */

/* Rows of n keys or queries as [tile][width][group], zeros after the last: those of x less a centre
   (or nothing), times a factor. Returns their largest squared length. */
float esscher_pack_rows(const float *restrict x, const float *restrict centre, int64_t n,
                        int64_t width, int64_t group, float factor, float *restrict packed)
{
    float longest = 0.0f, squares[PANEL];
    for (int64_t first = 0; first < n; first += group, x += group * width) {
        int64_t rows = n - first < group ? n - first : group;
        for (int64_t i = 0; i < rows; i++) squares[i] = 0.0f;
        for (int64_t l = 0; l < width; l++, packed += group) {
            float from = centre ? centre[l] : 0.0f;
            for (int64_t i = 0; i < rows; i++) {
                float y = factor * (x[i * width + l] - from);
                packed[i] = y;
                squares[i] += y * y;
            }
            for (int64_t i = rows; i < group; i++) packed[i] = 0.0f;
        }
        for (int64_t i = 0; i < rows; i++) longest = squares[i] > longest ? squares[i] : longest;
    }
    return longest;
}

/* n rows of values less a centre, as [tile of columns][row][columns of the tile]. Returns the
   largest absolute entry. */
float esscher_pack_values(const float *restrict values, const float *restrict centre, int64_t n,
                          int64_t width, float *restrict packed)
{
    int64_t tiles = (width + ROWS - 1) / ROWS;
    float largest = 0.0f;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t low = width * t / tiles, high = width * (t + 1) / tiles;
        for (int64_t j = 0; j < n; j++) {
            for (int64_t i = low; i < high; i++) {
                float y = values[j * width + i] - centre[i];
                float size = __builtin_fabsf(y);
                *packed++ = y;
                largest = size > largest ? size : largest;
            }
        }
    }
    return largest;
}
