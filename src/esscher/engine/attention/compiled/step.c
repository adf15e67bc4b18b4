/* Keys past a block of queries: logits, weights, weighted sums of values.

   Everything that belongs to a panel of queries (two vectors wide) is done while its weights are in
   the first-level cache: the logits of all keys of the step, their exponentials, and the product
   with the values. Matrix products of this shape reach the speed of a large one here, and
   exponentials cost a quarter of what they cost as an operation of their own.

   Layouts, in floats ("tile" is KEYS keys, or at most ROWS value rows, "panel" is PANEL queries):

     keys     [tile][width][KEYS]       zeros after the last key
     values   [tile of rows][key][rows of the tile]
     tilts    [panel][width][PANEL]     in powers of two, zeros after the last query
     part     [scale][rows + 1][group], the last row holding the sums of weights
     total    [scale][rows + 1][queries], the same

   A group of queries is so small that its part stays in the second-level cache. Arrays of queries
   are as long as whole panels, and aligned to vectors.

   Compiled once per instruction set, with ESSCHER_WIDTH floats in a vector; see build.py. */

#include <math.h>
#include <stddef.h>

#include "vectors.h"

#define LAYOUT 9 /* changed together with LAYOUT in kernel.py whenever a struct changes */
#define KEYS 6
#define ROWS 6

/* What is the same for all of a block of queries' keys ... */
struct pass {
    const float *keys, *values, *tilts;
    const float *relative;  /* [scale] multiplies the logits */
    const int32_t *visible; /* [queries] how many of all keys a query may attend, NULL for all */
    float *part;            /* working sums of a group of queries and some thousand keys */
    double *total;          /* sums of all queries and keys */
    double *squares;        /* [scale][queries] sums of squared weights, or NULL */
    float *shift;           /* [queries] subtracted from the logits, or NULL */
    float *peak;            /* [queries] largest shifted logit so far, or NULL */
    float *scratch;         /* 2 * PANEL * (block + 2 * KEYS) */
    int64_t all_keys, width, rows, queries, scales;
    int64_t group;          /* at most so many queries at a time, whole panels */
    int64_t block;          /* at most so many keys at a time */
    int64_t flush;          /* after so many keys the part goes to the total */
    int64_t started;        /* whether keys were here before */
    float headroom;         /* a shifted logit above this raises the shift */
};

/* ... and one block of them, past one group of queries. */
struct step {
    int64_t low, high;   /* of the queries */
    int64_t start, stop; /* of the keys */
    int fresh;           /* the part is to be overwritten, not added to */
    int started;         /* these are not the first keys, which set the shift */
};

int esscher_layout(void) { return LAYOUT; }
int esscher_panel(void) { return PANEL; }

/* Whether this processor, and the system on it, have what the rest was compiled for. */
int esscher_runs_here(void)
{
    __builtin_cpu_init();
#ifdef __AVX512F__
    return __builtin_cpu_supports("avx512f") != 0;
#else
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

#include "pack.h"

/* a[i] += sum over j of left[j][i] right[j], a panel wide: the inner loop of both products. */
INLINE void add_products(const int rows, const float *restrict left, const float *restrict right,
                         int64_t count, vec a[][2])
{
    TWICE for (int64_t j = 0; j < count; j++) {
        vec x = CONST_AT(right + PANEL * j), y = CONST_AT(right + PANEL * j + WIDTH);
        UNROLL for (int i = 0; i < rows; i++) {
            vec l = ALL(left[rows * j + i]);
            a[i][0] += l * x;
            a[i][1] += l * y;
        }
    }
}

/* Logits of KEYS keys and a panel of queries. */
INLINE void tile_of_logits(const float *restrict keys, const float *restrict tilts, int64_t width,
                           vec a[KEYS][2])
{
    UNROLL for (int i = 0; i < KEYS; i++) a[i][0] = a[i][1] = ALL(0.0f);
    add_products(KEYS, keys, tilts, width, a);
}

/* rows of the part += values' rows times weights. */
INLINE void tile_of_sums(const int rows, const float *restrict values,
                         const float *restrict weights, int64_t keys, float *restrict part,
                         int64_t stride, int fresh)
{
    vec a[ROWS][2];
    UNROLL for (int i = 0; i < rows; i++) {
        a[i][0] = fresh ? ALL(0.0f) : AT(part + stride * i);
        a[i][1] = fresh ? ALL(0.0f) : AT(part + stride * i + WIDTH);
    }
    add_products(rows, values, weights, keys, a);
    UNROLL for (int i = 0; i < rows; i++) {
        AT(part + stride * i) = a[i][0];
        AT(part + stride * i + WIDTH) = a[i][1];
    }
}

/* All value rows of one panel: the rows are cut into the fewest tiles, about equal. */
static void weighted_sums(const struct pass *p, const struct step *s, const float *weights,
                          float *part)
{
    int64_t keys = s->stop - s->start, rows = p->rows, tiles = (rows + ROWS - 1) / ROWS;
    const float *values = p->values;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t n = rows * (t + 1) / tiles - rows * t / tiles;
        const float *from = values + n * s->start;
        switch (n) {
        case 1: tile_of_sums(1, from, weights, keys, part, p->group, s->fresh); break;
        case 2: tile_of_sums(2, from, weights, keys, part, p->group, s->fresh); break;
        case 3: tile_of_sums(3, from, weights, keys, part, p->group, s->fresh); break;
        case 4: tile_of_sums(4, from, weights, keys, part, p->group, s->fresh); break;
        case 5: tile_of_sums(5, from, weights, keys, part, p->group, s->fresh); break;
        default: tile_of_sums(6, from, weights, keys, part, p->group, s->fresh);
        }
        values += n * p->all_keys;
        part += n * p->group;
    }
}

/* Logits of a panel for the keys of the step; returns those of the first. Without a shift,
   those that overflow do so at the largest scale, which is 1; deep says whether some may be too
   small for a power of two. */
INLINE float *panel_of_logits(const struct pass *p, const struct step *s, int64_t at, float *to,
                              int *deep)
{
    const float *tilts = p->tilts + at * p->width;
    int64_t low = s->start / KEYS, high = (s->stop + KEYS - 1) / KEYS;
    vec shift[2] = {{0}, {0}}, least = ALL(0.0f);
    vec most = ALL(p->shift ? __builtin_inff() : HIGHEST); /* a shift keeps them below anyway */
    if (p->shift) shift[0] = AT(p->shift + at), shift[1] = AT(p->shift + at + WIDTH);
    for (int64_t t = low; t < high; t++) {
        vec a[KEYS][2];
        tile_of_logits(p->keys + t * KEYS * p->width, tilts, p->width, a);
        UNROLL for (int i = 0; i < KEYS; i++) {
            UNROLL for (int h = 0; h < 2; h++) {
                vec x = MIN(a[i][h] - shift[h], most);
                least = MIN(least, x);
                AT(to + PANEL * (KEYS * (t - low) + i) + WIDTH * h) = x;
            }
        }
    }
    ivec below = least < ALL(DEEPEST);
    *deep = 0;
    UNROLL for (int i = 0; i < WIDTH; i++) *deep |= below[i];
    return to + PANEL * (s->start - low * KEYS);
}

/* The common case, one scale and nothing to look at in between: logits never leave registers. */
INLINE float *panel_of_weights(const struct pass *p, const struct step *s, int64_t at, float *to,
                               float *sums)
{
    const float *tilts = p->tilts + at * p->width;
    int64_t low = s->start / KEYS, high = (s->stop + KEYS - 1) / KEYS;
    vec sum[2] = {{0}, {0}};
    struct constants k = constants();
    for (int64_t t = low; t < high; t++) {
        vec a[KEYS][2];
        float *w = to + PANEL * KEYS * (t - low);
        tile_of_logits(p->keys + t * KEYS * p->width, tilts, p->width, a);
        UNROLL for (int i = 0; i < KEYS; i++) {
            a[i][0] = exp2v(k, MIN(a[i][0], ALL(HIGHEST)), ALL(1.0f), 1);
            a[i][1] = exp2v(k, MIN(a[i][1], ALL(HIGHEST)), ALL(1.0f), 1);
            AT(w + PANEL * i) = a[i][0];
            AT(w + PANEL * i + WIDTH) = a[i][1];
        }
        if (t * KEYS >= s->start && (t + 1) * KEYS <= s->stop) {
            UNROLL for (int i = 0; i < KEYS; i++) sum[0] += a[i][0], sum[1] += a[i][1];
        } else {
            for (int i = 0; i < KEYS; i++) {
                if (t * KEYS + i < s->start || t * KEYS + i >= s->stop) continue;
                sum[0] += CONST_AT(w + PANEL * i), sum[1] += CONST_AT(w + PANEL * i + WIDTH);
            }
        }
    }
    AT(sums) = sum[0], AT(sums + WIDTH) = sum[1];
    return to + PANEL * (s->start - low * KEYS);
}

/* Weights of one scale from stored logits; their sums, and those of their squares. */
INLINE void weigh(const struct pass *p, const struct step *s, const float *restrict logits,
                  float *restrict weights, float relative, int64_t at, const int deep,
                  const int masked, const int squared, float *restrict sums,
                  float *restrict squares)
{
    vec sum[2] = {{0}, {0}}, square[2] = {{0}, {0}}, scale = ALL(relative);
    struct constants k = constants();
    ivec visible[2] = {{0}, {0}};
    if (masked)
        UNROLL for (int h = 0; h < 2; h++)
            visible[h] = *(const ivec *)(p->visible + at + WIDTH * h) - (int32_t)s->start;
    TWICE for (int64_t j = 0; j < s->stop - s->start; j++) {
        UNROLL for (int h = 0; h < 2; h++) {
            vec w = exp2v(k, CONST_AT(logits + PANEL * j + WIDTH * h), scale, deep);
            if (masked) w = (vec)((ivec)w & (visible[h] > (ivec){0} + (int32_t)j));
            AT(weights + PANEL * j + WIDTH * h) = w;
            sum[h] += w;
            if (squared) square[h] += w * w;
        }
    }
    UNROLL for (int h = 0; h < 2; h++) {
        AT(sums + WIDTH * h) = sum[h];
        AT(squares + WIDTH * h) = square[h];
    }
}

/* Largest logits of a panel among the keys that each query attends. */
INLINE void largest(const struct pass *p, const struct step *s, const float *logits, int64_t at,
                    const int masked, float *top)
{
    const ivec none = (ivec)ALL(-__builtin_inff());
    for (int h = 0; h < 2; h++) {
        vec most = (vec)none;
        ivec visible = {0};
        if (masked) visible = *(const ivec *)(p->visible + at + WIDTH * h) - (int32_t)s->start;
        for (int64_t j = 0; j < s->stop - s->start; j++) {
            ivec x = (ivec)CONST_AT(logits + PANEL * j + WIDTH * h);
            ivec seen = visible > (ivec){0} + (int32_t)j;
            if (masked) x = (x & seen) | (none & ~seen);
            most = MAX(most, (vec)x);
        }
        AT(top + WIDTH * h) = most;
    }
}

/* A query's shift rises: so its logits and all that was summed under the lower one become smaller.
   The first keys set the shift, to less than 0 perhaps; then there is nothing summed yet. */
static void lift(const struct pass *p, const struct step *s, float *logits, int64_t query,
                 float *top)
{
    double old = p->shift[query];
    float now = (float)(old + *top);
    double rise = (double)now - old; /* what the rounded shift really rises by */
    p->shift[query] = now;
    *top -= (float)rise;
    for (int64_t j = 0; j < s->stop - s->start; j++) logits[PANEL * j] -= (float)rise;
    if (p->peak) p->peak[query] -= (float)rise;
    if (!s->started) return;
    for (int64_t c = 0; c < p->scales; c++) {
        double smaller = exp2(-p->relative[c] * rise);
        for (int64_t row = 0; row <= p->rows; row++) {
            int64_t line = c * (p->rows + 1) + row;
            if (!s->fresh) p->part[line * p->group + query - s->low] *= (float)smaller;
            p->total[line * p->queries + query] *= smaller;
        }
        if (p->squares) p->squares[c * p->queries + query] *= smaller * smaller;
    }
}

/* Raise the shift of a panel's queries if any logit passes the headroom. */
static void keep_below(const struct pass *p, const struct step *s, float *logits, int64_t at,
                       float *top)
{
    int needed = !s->started;
    for (int i = 0; i < PANEL; i++) needed |= top[i] > p->headroom;
    if (!needed) return;
    for (int i = 0; i < PANEL; i++)
        if (!s->started || top[i] > 0.0f) lift(p, s, logits + i, at + i, top + i);
}

/* The rest of a step for one panel whose weights are known. */
INLINE void finish(const struct pass *p, const struct step *s, const float *weights,
                   const float *sums, float *part)
{
    float *total = part + p->rows * p->group;
    for (int h = 0; h < 2; h++) {
        vec before = s->fresh ? ALL(0.0f) : AT(total + WIDTH * h);
        AT(total + WIDTH * h) = before + CONST_AT(sums + WIDTH * h);
    }
    weighted_sums(p, s, weights, part);
}

/* Whether some query of a panel may not attend all keys of a step. */
INLINE int hides(const struct pass *p, const struct step *s, int64_t at)
{
    int hidden = 0;
    if (p->visible)
        for (int i = 0; i < PANEL; i++) hidden |= p->visible[at + i] < s->stop;
    return hidden;
}

static void one_step(const struct pass *p, const struct step *s)
{
    int64_t keys = s->stop - s->start;
    float *scratch = p->scratch, *stored = p->scratch + PANEL * (keys + 2 * KEYS);
    float sums[PANEL] ALIGNED, squares[PANEL] ALIGNED, top[PANEL] ALIGNED;
    int looked_at = p->shift || p->peak;
    int plain = p->scales == 1 && p->relative[0] == 1.0f && !looked_at && !p->squares;
    for (int64_t at = s->low; at < s->high; at += PANEL) {
        int hidden = hides(p, s, at);
        if (plain && !hidden) {
            const float *weights = panel_of_weights(p, s, at, scratch, sums);
            finish(p, s, weights, sums, p->part + at - s->low);
            continue;
        }
        int deep;
        float *logits = panel_of_logits(p, s, at, stored, &deep);
        if (looked_at) {
            if (hidden) largest(p, s, logits, at, 1, top);
            else largest(p, s, logits, at, 0, top);
            if (p->shift) keep_below(p, s, logits, at, top);
        }
        if (p->peak)
            for (int h = 0; h < PANEL; h += WIDTH)
                AT(p->peak + at + h) = MAX(AT(p->peak + at + h), CONST_AT(top + h));
        for (int64_t c = 0; c < p->scales; c++) {
            float relative = p->relative[c];
            if (hidden) weigh(p, s, logits, scratch, relative, at, 1, 1, 1, sums, squares);
            else if (p->squares || deep || p->shift)
                weigh(p, s, logits, scratch, relative, at, 1, 0, 1, sums, squares);
            else weigh(p, s, logits, scratch, relative, at, 0, 0, 0, sums, squares);
            if (p->squares)
                for (int i = 0; i < PANEL; i++)
                    p->squares[c * p->queries + at + i] += squares[i];
            float *part = p->part + c * (p->rows + 1) * p->group + at - s->low;
            finish(p, s, scratch, sums, part);
        }
    }
}

/* The part of a group of queries goes to the total. */
static void flush(const struct pass *p, const struct step *s)
{
    for (int64_t line = 0; line < p->scales * (p->rows + 1); line++) {
        double *restrict total = p->total + line * p->queries + s->low;
        const float *restrict part = p->part + line * p->group;
        for (int64_t i = 0; i < s->high - s->low; i++) total[i] += part[i];
    }
}

/* Keys start to stop past all queries of the block; afterwards all that was summed is in total. */
void esscher_keys(struct pass *p, int64_t start, int64_t stop)
{
    if (stop <= start) return;
    int64_t blocks = (stop - start + p->block - 1) / p->block;
    int64_t even = (stop - start + blocks - 1) / blocks;
    even = (even + KEYS - 1) / KEYS * KEYS;
    if (even > p->block) even = p->block;
    for (int64_t low = 0; low < p->queries; low += p->group) {
        int64_t high = low + p->group < p->queries ? low + p->group : p->queries, waiting = 0;
        for (int64_t at = start; at < stop; at += even) {
            struct step s = {low, high, at, at + even < stop ? at + even : stop, waiting == 0,
                             p->started || at > start};
            one_step(p, &s);
            waiting += s.stop - s.start;
            if (waiting < p->flush && s.stop < stop) continue;
            flush(p, &s);
            waiting = 0;
        }
    }
    p->started = 1;
}

#include "received.h"

/* Outputs of the first count queries, [scale][row][count], and their sums over queries,
   [scale][row]. Returns whether all is finite and every sum of weights between the bounds. */
int esscher_outputs(const struct pass *p, int64_t count, double least, double most,
                    double *restrict outputs, double *restrict sums)
{
    int sound = 1;
    double all = 0.0;
    for (int64_t c = 0; c < p->scales; c++) {
        const double *total = p->total + c * (p->rows + 1) * p->queries;
        const double *weight = total + p->rows * p->queries;
        for (int64_t i = 0; i < count; i++) {
            sound &= weight[i] > least && weight[i] < most;
            if (p->squares) all += p->squares[c * p->queries + i];
        }
        for (int64_t row = 0; row < p->rows; row++, total += p->queries, outputs += count) {
            double sum = 0.0;
            for (int64_t i = 0; i < count; i++) sum += outputs[i] = total[i] / weight[i];
            *sums++ = sum;
            all += sum;
        }
    }
    return sound && __builtin_isfinite(all);
}

#include "ragged.h"
#include "weighing.h"
