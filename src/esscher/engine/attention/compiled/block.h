/* A block of keys past few queries: logits, weights, weighted sums of values.

   Lanes go over the entries of a key for logits (whose WIDTH partial sums are then added crosswise,
   for WIDTH keys at a time), over keys for weights, and over entries again for the sums of values.
   Arrays of the caller lie anywhere and have any width; those made here have rows of whole vectors,
   wide_k and wide_v entries long. */

#include "lanes.h"
#include "widen.h"

#include <string.h>

#define BLOCK 128      /* keys between two looks at the largest logit */
#define STEP 32        /* keys whose values are summed before the next are asked for, or of a block
                          of codes */
#define AHEAD 4096     /* bytes from what is read to what is asked for */
#define LINE 64        /* bytes of a line of the cache */
#define HIDDEN -3e38f  /* the logit of a key that is not there; others are above ... */
#define PRESENT -1e38f /* ... this */
#define LOG2E 1.44269504088896340736
#define VECTORS 4      /* of a value's entries, summed in registers ... */
#if WIDTH == 8
#define QUERIES 3      /* ... for so many queries at a time: 12 or 24 of 16 or 32 registers */
#else
#define QUERIES 6
#endif

/* As ragged.py packs it, 8 bytes a field: what is the same for all calls with these lists, then the
   rest. Strides count entries. */
struct ragged {
    const char *keys, *values;
    const float *log_weight;
    const int64_t *start, *stop;
    int64_t kept, d_k, d_v;
    int64_t type; /* of keys and values */
    const uint8_t *codes; /* blocks of STEP coded tokens; see coded.py */
    const int64_t *coded; /* [lists][5] first byte, tokens, bits of keys, of values */
    int64_t code_bytes;
    const float *q;
    const char *tail_keys, *tail_values;
    const uint8_t *visible; /* NULL: causal */
    float *outputs;         /* [batch][n_q][heads][d_v] */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel, or NULL */
    int64_t threads, batch, key_heads, group, n_q, tail;
    int64_t q_text, q_head, q_query, q_entry;
    int64_t keys_text, keys_head, keys_key, keys_entry;
    int64_t values_text, values_head, values_key, values_entry; /* an entry is 1 */
    int64_t visible_text, visible_query, visible_key;
    double scaling, softcap; /* 0: none */
};

/* Sums of one list's queries over some of its keys. */
struct sums {
    int64_t list; /* -1: nothing here */
    float *peak;  /* [rows] largest logit */
    float *total; /* [rows][WIDTH] weights relative to it */
    float *values; /* [rows][wide_v] */
};

/* All items of a call, and what they share. */
struct call {
    const struct ragged *p;
    int64_t rows, wide_k, wide_v, items, next;
    int64_t all;        /* keys of all lists and tails */
    int64_t floats;     /* working memory of an item */
    float *memory;
    struct sums *pieces; /* [item][2] of lists that begin before it, and end after it */
};

/* Where an item works. */
struct bench {
    float *tilts;  /* [rows][wide_k] queries times the scaling, in powers of two */
    float *logits; /* [rows][BLOCK], then weights */
    float *extra;  /* [BLOCK] added to the logits */
    float *room;   /* [STEP][wide_k or wide_v] keys or values in float32 */
    float *scaled; /* [rows][wide_k] tilts times the scales of a block of codes */
};

/* Keys side by side: of a list or of a tail. */
struct run {
    const char *keys, *values;
    int64_t key, value;     /* strides */
    int64_t count;
    const float *log_weight; /* NULL: none */
    int64_t first;          /* of the tail; -1 in a list */
    const uint8_t *visible;
    const uint8_t *codes;   /* the block of the first key, if keys are coded, and the bits */
    int64_t key_bits, value_bits;
};

/* A block of coded tokens, as coded.py lays it out: scales and least entries of the channels of
   keys, of the tokens' values, log weights (all float16), codes of keys, codes of values. */
struct block {
    const char *key_scale, *key_least, *value_scale, *value_least, *log_weight;
    const uint8_t *keys, *values, *end;
};

INLINE struct block block_at(const struct ragged *p, const struct run *run, const uint8_t *at,
                             int64_t count)
{
    struct block b = {.key_scale = (const char *)at};
    b.key_least = b.key_scale + 2 * p->d_k;
    b.value_scale = b.key_least + 2 * p->d_k;
    b.value_least = b.value_scale + 2 * count;
    b.log_weight = b.value_least + 2 * count;
    b.keys = (const uint8_t *)b.log_weight + 2 * count;
    b.values = b.keys + count * code_bytes(run->key_bits, p->d_k);
    b.end = b.values + count * code_bytes(run->value_bits, p->d_v);
    return b;
}

/* a[i] += products of some vectors of key i with those of a query. Keys are read in the order in
   which they lie, which the processor foresees. */
INLINE void add_dots(const int vectors, const float *tilt, const float *keys, int64_t stride,
                     vec a[WIDTH])
{
    vec t[VECTORS];
    UNROLL for (int l = 0; l < vectors; l++) t[l] = CONST_AT(tilt + WIDTH * l);
    ALL_UNROLLED for (int i = 0; i < WIDTH; i++, keys += stride)
        UNROLL for (int l = 0; l < vectors; l++) a[i] += t[l] * LOOSE_AT(keys + WIDTH * l);
}

/* Products of WIDTH keys with every query: columns of the logits. */
INLINE void products(const struct call *c, const struct bench *at, const float *keys,
                     int64_t stride, float *logits)
{
    for (int64_t r = 0; r < c->rows; r++) {
        const float *tilt = at->tilts + r * c->wide_k;
        vec a[WIDTH];
        int64_t l = 0;
        ALL_UNROLLED for (int i = 0; i < WIDTH; i++) a[i] = ALL(0.0f);
        for (; l + VECTORS * WIDTH <= c->wide_k; l += VECTORS * WIDTH)
            add_dots(VECTORS, tilt + l, keys + l, stride, a);
        for (; l < c->wide_k; l += WIDTH) add_dots(1, tilt + l, keys + l, stride, a);
        AT(logits + r * BLOCK) = across(a);
    }
}

/* Ask for what comes some pages after this, into the second-level cache: processors do not foresee
   reading across pages, and the first level has few misses under way at a time. */
INLINE void fetch_after(const char *this, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(this + AHEAD + at, 0, 2);
}

/* Products of coded keys, which are codes times scales plus least entries: scales go to the
   queries. */
static void products_of_codes(const struct call *c, const struct bench *at, const struct run *run,
                              const uint8_t *codes, int64_t count)
{
    const struct ragged *p = c->p;
    struct bench scaled = *at;
    scaled.tilts = at->scaled;
    for (int64_t j = 0; j < count; j += STEP) {
        int64_t some = count - j < STEP ? count - j : STEP;
        struct block b = block_at(p, run, codes, some);
        fetch_after((const char *)codes, b.end - codes);
        float *scale = at->room, *least = at->room + c->wide_k;
        widen(FLOAT16, b.key_scale, 0, 1, p->d_k, c->wide_k, scale);
        widen(FLOAT16, b.key_least, 0, 1, p->d_k, c->wide_k, least);
        float added[c->rows];
        for (int64_t r = 0; r < c->rows; r++) {
            const float *tilt = at->tilts + r * c->wide_k;
            vec sum = ALL(0.0f);
            for (int64_t l = 0; l < c->wide_k; l += WIDTH) {
                AT(at->scaled + r * c->wide_k + l) = CONST_AT(tilt + l) * AT(scale + l);
                sum += CONST_AT(tilt + l) * AT(least + l);
            }
            added[r] = sum_of(sum);
        }
        widen_codes(run->key_bits, b.keys, some, p->d_k, c->wide_k, at->room);
        memset(at->room + some * c->wide_k, 0, sizeof(float) * (STEP - some) * c->wide_k);
        for (int64_t i = 0; i < some; i += WIDTH) {
            products(c, &scaled, at->room + i * c->wide_k, c->wide_k, at->logits + j + i);
            for (int64_t r = 0; r < c->rows; r++)
                AT(at->logits + r * BLOCK + j + i) += ALL(added[r]);
        }
        codes = b.end;
    }
}

/* Products of count keys, from the first of a run or later. */
static void block_of_products(const struct call *c, const struct bench *at, const struct run *run,
                              int64_t from, int64_t count)
{
    const struct ragged *p = c->p;
    int64_t bytes = run->key * SIZE(p->type);
    const char *keys = run->keys + from * bytes;
    int direct = p->type == FLOAT32 && p->d_k == c->wide_k;
    for (int64_t j = 0; j < count; j += WIDTH, keys += WIDTH * bytes) {
        fetch_after(keys, WIDTH * bytes);
        if (direct && count - j >= WIDTH) {
            products(c, at, (const float *)keys, run->key, at->logits + j);
            continue;
        }
        int64_t some = count - j < WIDTH ? count - j : WIDTH;
        widen(p->type, keys, bytes, some, p->d_k, c->wide_k, at->room);
        memset(at->room + some * c->wide_k, 0, sizeof(float) * (WIDTH - some) * c->wide_k);
        products(c, at, at->room, c->wide_k, at->logits + j);
    }
}

/* What is added to the logits of a query's block: log weights, or what it does not see. */
static void additions(const struct ragged *p, const struct run *run, int64_t from, int64_t count,
                      int64_t query, float *extra)
{
    for (int64_t j = 0; j < BLOCK; j++) extra[j] = j < count ? 0.0f : HIDDEN;
    const uint8_t *codes = run->codes;
    for (int64_t j = 0; codes && j < count; j += STEP) {
        int64_t some = count - j < STEP ? count - j : STEP;
        struct block b = block_at(p, run, codes, some);
        widen(FLOAT16, b.log_weight, 0, 1, some, (some + WIDTH - 1) / WIDTH * WIDTH, extra + j);
        for (int64_t i = j; i < j + some; i++) extra[i] *= (float)LOG2E;
        for (int64_t i = j + some; i < BLOCK; i++) extra[i] = HIDDEN;
        codes = b.end;
    }
    if (run->log_weight)
        for (int64_t j = 0; j < count; j++) extra[j] = (float)LOG2E * run->log_weight[from + j];
    if (run->first < 0) return;
    int64_t key = run->first + from;
    if (!run->visible) {
        int64_t seen = p->tail - p->n_q + query + 1 - key;
        for (int64_t j = seen < 0 ? 0 : seen; j < count; j++) extra[j] = HIDDEN;
        return;
    }
    const uint8_t *visible = run->visible + query * p->visible_query + key * p->visible_key;
    for (int64_t j = 0; j < count; j++)
        if (!visible[j * p->visible_key]) extra[j] = HIDDEN;
}

/* Products of a query become weights, relative to the largest logit so far. */
INLINE void weights(const struct call *c, const struct bench *at, struct sums *sums, int64_t row,
                    int64_t count)
{
    float *logits = at->logits + row * BLOCK, cap = (float)(c->p->softcap * LOG2E);
    vec most = ALL(HIDDEN);
    for (int64_t j = 0; j < count; j += WIDTH) {
        vec x = AT(logits + j);
        if (cap > 0.0f) x = ALL(cap) * tanhv(x);
        x += AT(at->extra + j);
        AT(logits + j) = x;
        most = MAX(most, x);
    }
    float top = largest_of(most), before = sums->peak[row];
    vec total = AT(sums->total + row * WIDTH);
    if (top > before) {
        vec factor = ALL(exp2f(before - top));
        float *values = sums->values + row * c->wide_v;
        for (int64_t l = 0; l < c->wide_v; l += WIDTH) AT(values + l) *= factor;
        total *= factor;
        sums->peak[row] = top;
    }
    struct constants k = constants();
    vec peak = ALL(sums->peak[row]);
    for (int64_t j = 0; j < count; j += WIDTH) {
        vec x = AT(logits + j);
        vec w = exp2v(k, x - peak, ALL(1.0f), 1);
        w = (vec)((ivec)w & (x > ALL(PRESENT)));
        AT(logits + j) = w;
        total += w;
    }
    AT(sums->total + row * WIDTH) = total;
}

/* sums += weights times values, for some queries and some vectors of the values' entries. */
INLINE void add_weighted(const int rows, const int vectors, const float *weights,
                         const float *values, int64_t stride, int64_t count, float *sums,
                         int64_t wide)
{
    vec a[QUERIES][VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int l = 0; l < vectors; l++) a[i][l] = AT(sums + i * wide + WIDTH * l);
    for (int64_t j = 0; j < count; j++, values += stride) {
        vec v[VECTORS];
        UNROLL for (int l = 0; l < vectors; l++) v[l] = LOOSE_AT(values + WIDTH * l);
        UNROLL for (int i = 0; i < rows; i++) {
            vec w = ALL(weights[i * BLOCK + j]);
            UNROLL for (int l = 0; l < vectors; l++) a[i][l] += w * v[l];
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int l = 0; l < vectors; l++) AT(sums + i * wide + WIDTH * l) = a[i][l];
}

#define WEIGHTED(n)                                                                               \
    case n:                                                                                       \
        for (; l + VECTORS * WIDTH <= wide; l += VECTORS * WIDTH)                                 \
            add_weighted(n, VECTORS, weights, values + l, stride, count, sums + l, wide);         \
        for (; l < wide; l += WIDTH)                                                              \
            add_weighted(n, 1, weights, values + l, stride, count, sums + l, wide);               \
        break;

/* The same for all queries and entries. */
static void weighted(int64_t rows, const float *weights, const float *values, int64_t stride,
                     int64_t count, float *sums, int64_t wide)
{
    while (rows > 0) {
        int64_t some = rows < QUERIES ? rows : QUERIES, l = 0;
        switch (some) {
            WEIGHTED(1)
            WEIGHTED(2)
            WEIGHTED(3)
#if QUERIES == 6
            WEIGHTED(4)
            WEIGHTED(5)
            WEIGHTED(6)
#endif
        }
        rows -= some;
        weights += some * BLOCK;
        sums += some * wide;
    }
}

/* sums += weights times coded values; the weights become those of the codes. */
static const uint8_t *weighted_codes(const struct call *c, const struct bench *at,
                                     const struct run *run, const uint8_t *codes, int64_t from,
                                     int64_t count, struct sums *sums)
{
    const struct ragged *p = c->p;
    struct block b = block_at(p, run, codes, count);
    float *scale = at->room, *least = at->room + STEP;
    int64_t wide = (count + WIDTH - 1) / WIDTH * WIDTH;
    widen(FLOAT16, b.value_scale, 0, 1, count, wide, scale);
    widen(FLOAT16, b.value_least, 0, 1, count, wide, least);
    for (int64_t r = 0; r < c->rows; r++) {
        float *weights = at->logits + r * BLOCK + from, *values = sums->values + r * c->wide_v;
        vec sum = ALL(0.0f);
        for (int64_t j = 0; j < count; j += WIDTH) {
            sum += AT(weights + j) * AT(least + j);
            AT(weights + j) *= AT(scale + j);
        }
        vec added = ALL(sum_of(sum));
        for (int64_t l = 0; l < c->wide_v; l += WIDTH) AT(values + l) += added;
    }
    widen_codes(run->value_bits, b.values, count, p->d_v, c->wide_v, at->room);
    weighted(c->rows, at->logits + from, at->room, c->wide_v, count, sums->values, c->wide_v);
    return b.end;
}

/* Sums over a run of keys. */
static void attend(const struct call *c, const struct bench *at, struct run *run,
                   struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t bytes = run->value * SIZE(p->type);
    int direct = p->type == FLOAT32 && p->d_v == c->wide_v;
    for (int64_t from = 0; from < run->count; from += BLOCK) {
        int64_t count = run->count - from < BLOCK ? run->count - from : BLOCK;
        if (run->codes) products_of_codes(c, at, run, run->codes, count);
        else block_of_products(c, at, run, from, count);
        for (int64_t row = 0; row < c->rows; row++) {
            if (row == 0 || (run->first >= 0 && row % p->group == 0))
                additions(p, run, from, count, row / p->group, at->extra);
            weights(c, at, sums, row, count);
        }
        if (run->codes) {
            for (int64_t j = 0; j < count; j += STEP)
                run->codes = weighted_codes(c, at, run, run->codes, j,
                                            count - j < STEP ? count - j : STEP, sums);
            continue;
        }
        const char *values = run->values + from * bytes;
        for (int64_t j = 0; j < count; j += STEP, values += STEP * bytes) {
            int64_t some = count - j < STEP ? count - j : STEP, stride = run->value;
            const float *tile = (const float *)values;
            fetch_after(values, STEP * bytes);
            if (!direct) {
                widen(p->type, values, bytes, some, p->d_v, c->wide_v, at->room);
                tile = at->room;
                stride = c->wide_v;
            }
            weighted(c->rows, at->logits + j, tile, stride, some, sums->values, c->wide_v);
        }
    }
}
