/* Weights of many queries over all keys of a head, summed by key, and outputs of the first queries.

   The logits of a panel of queries for all keys are held until their largest and the sum of their
   exponentials are known. So every product is computed once, and a weight leaves the caches only
   where there are more keys than they hold. */

/* As ragged.py packs it. */
struct weighing {
    const float *keys;    /* [tile][width][KEYS] */
    const float *tilts;   /* [panel][width][PANEL] in powers of two; with a cap, in units of it */
    const float *extra;   /* [keys] added to the logits in powers of two, or NULL */
    const int32_t *ends;  /* [queries, whole panels] how many keys each sees, or NULL */
    float *room;          /* [keys][PANEL] */
    float *sums;          /* [columns][3][WIDTH] zeros: squares, weights, the largest */
    float *square, *received, *largest; /* [columns] the results */
    const float *values;  /* [tile of columns][key][columns of the tile] */
    float *log_sum;       /* [answered] of the exponentials of the logits */
    float *output;        /* [answered][value_width] */
    int64_t all_keys, width, queries, columns, answered, value_width;
    double cap;           /* of the logits, in powers of two; 0: none */
};

/* Logits of a panel for all keys into the room; the largest of each query. */
INLINE void all_logits(const struct weighing *p, int64_t at, const int plain, vec most[2])
{
    const float *tilts = p->tilts + at * p->width;
    ivec ends[2] = {{0}, {0}};
    most[0] = most[1] = ALL(HIDDEN);
    if (!plain && p->ends)
        UNROLL for (int h = 0; h < 2; h++) ends[h] = *(const ivec *)(p->ends + at + WIDTH * h);
    for (int64_t first = 0; first < p->all_keys; first += KEYS) {
        vec a[KEYS][2];
        tile_of_logits(p->keys + first * p->width, tilts, p->width, a);
        UNROLL for (int i = 0; i < KEYS; i++) {
            int64_t j = first + i;
            if (j >= p->all_keys) break;
            UNROLL for (int h = 0; h < 2; h++) {
                vec x = a[i][h];
                if (!plain) {
                    if (p->cap > 0.0) x = ALL((float)p->cap) * tanhv(x);
                    if (p->extra) x = MAX(x + ALL(p->extra[j]), ALL(HIDDEN));
                    if (p->ends) {
                        ivec seen = ends[h] > (ivec){0} + (int32_t)j;
                        x = (vec)(((ivec)x & seen) | ((ivec)ALL(HIDDEN) & ~seen));
                    }
                }
                most[h] = MAX(most[h], x);
                AT(p->room + PANEL * j + WIDTH * h) = x;
            }
        }
    }
}

/* Logits in the room become exponentials relative to the largest; their sums. */
INLINE void all_exponentials(const struct weighing *p, const vec most[2], vec sum[2])
{
    struct constants k = constants();
    sum[0] = sum[1] = ALL(0.0f);
    TWICE for (int64_t j = 0; j < p->all_keys; j++) {
        UNROLL for (int h = 0; h < 2; h++) {
            vec x = AT(p->room + PANEL * j + WIDTH * h);
            vec w = exp2v(k, x - most[h], ALL(1.0f), 1);
            w = (vec)((ivec)w & (x > ALL(PRESENT)));
            AT(p->room + PANEL * j + WIDTH * h) = w;
            sum[h] += w;
        }
    }
}

/* Sums of some columns of the values by the weights in the room, for the queries of a panel. */
INLINE void columns_of_outputs(const struct weighing *p, const float *values, int64_t at,
                               int64_t low, const vec share[2], const int columns)
{
    vec a[ROWS][2] = {{{0}}};
    for (int64_t j = 0; j < p->all_keys; j++, values += columns) {
        vec x = CONST_AT(p->room + PANEL * j), y = CONST_AT(p->room + PANEL * j + WIDTH);
        UNROLL for (int i = 0; i < columns; i++) {
            a[i][0] += ALL(values[i]) * x;
            a[i][1] += ALL(values[i]) * y;
        }
    }
    for (int i = 0; i < columns; i++) {
        a[i][0] *= share[0];
        a[i][1] *= share[1];
        for (int l = 0; l < PANEL && at + l < p->answered; l++)
            p->output[(at + l) * p->value_width + low + i] = a[i][l / WIDTH][l % WIDTH];
    }
}

/* Outputs of the queries of a panel, and logarithms of their sums. */
INLINE void answers(const struct weighing *p, int64_t at, const vec most[2], const vec sum[2],
                    const vec share[2])
{
    int64_t width = p->value_width, tiles = (width + ROWS - 1) / ROWS;
    for (int l = 0; l < PANEL && at + l < p->answered; l++)
        p->log_sum[at + l] =
            0.69314718f * (most[l / WIDTH][l % WIDTH] + log2f(sum[l / WIDTH][l % WIDTH]));
    for (int64_t t = 0; t < tiles; t++) {
        int64_t low = width * t / tiles;
        const float *values = p->values + low * p->all_keys;
        switch (width * (t + 1) / tiles - low) {
        case 6: columns_of_outputs(p, values, at, low, share, 6); break;
        case 5: columns_of_outputs(p, values, at, low, share, 5); break;
        case 4: columns_of_outputs(p, values, at, low, share, 4); break;
        case 3: columns_of_outputs(p, values, at, low, share, 3); break;
        case 2: columns_of_outputs(p, values, at, low, share, 2); break;
        default: columns_of_outputs(p, values, at, low, share, 1);
        }
    }
}

void esscher_weighed(const struct weighing *p)
{
    int plain = !p->extra && !p->ends && p->cap == 0.0;
    for (int64_t at = 0; at < p->queries; at += PANEL) {
        vec most[2], sum[2], share[2];
        if (plain) all_logits(p, at, 1, most);
        else all_logits(p, at, 0, most);
        all_exponentials(p, most, sum);
        /* queries that are padding, or see nothing, have no weights */
        for (int i = 0; i < PANEL; i++) {
            float total = sum[i / WIDTH][i % WIDTH];
            share[i / WIDTH][i % WIDTH] = at + i < p->queries && total > 0.0f ? 1.0f / total : 0.0f;
        }
        if (at < p->answered) answers(p, at, most, sum, share);
        for (int64_t j = 0; j < p->columns; j++) {
            vec x = share[0] * AT(p->room + PANEL * j);
            vec y = share[1] * AT(p->room + PANEL * j + WIDTH);
            float *to = p->sums + 3 * WIDTH * j;
            AT(to) += x * x + y * y;
            AT(to + WIDTH) += x + y;
            AT(to + 2 * WIDTH) = MAX(AT(to + 2 * WIDTH), MAX(x, y));
        }
    }
    for (int64_t j = 0; j < p->columns; j++) {
        const float *from = p->sums + 3 * WIDTH * j;
        double square = 0.0, received = 0.0;
        for (int l = 0; l < WIDTH; l++) square += from[l], received += from[WIDTH + l];
        p->square[j] = (float)square;
        p->received[j] = (float)received;
        p->largest[j] = largest_of(CONST_AT(from + 2 * WIDTH));
    }
}
