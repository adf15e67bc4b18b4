/* Few queries over lists of keys, a different number for every key head, and over a dense tail.

   Every key and value is read once for all queries of its key head, and little else is done: this
   runs at the speed of memory. Lanes go over the entries of a key for logits (whose WIDTH partial
   sums are then added crosswise, for WIDTH keys at a time), over keys for weights, and over entries
   again for the sums of values.

   The keys of all lists, each with its tail, are thought of as one long row that is cut into equal
   items, one per thread. A list that lies in several items is put together at the end, by the
   largest logits of its pieces. */

#include "widen.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 64        /* keys between two looks at the largest logit */
#define HIDDEN -3e38f   /* the logit of a key that is not there; others are above ... */
#define PRESENT -1e38f  /* ... this */
#define LOG2E 1.44269504088896340736
#define VECTORS 4       /* of a value row, summed in registers ... */
#if WIDTH == 8
#define QUERIES 3       /* ... for so many queries at a time: 12 or 24 of 16 or 32 registers */
#else
#define QUERIES 6
#endif
#define ITEM 32768      /* products of an item at least: a thread more must be worth waking */

/* The fields of kernel.py, 8 bytes each. Strides count entries. */
struct ragged {
    const float *q;
    const char *keys, *values;
    const float *log_weight;
    const int64_t *start, *stop;
    const char *tail_keys, *tail_values;
    const uint8_t *visible; /* NULL: causal */
    float *outputs;         /* [batch][n_q][heads][d_v] */
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel, or NULL */
    int64_t threads, kept, batch, key_heads, group, n_q, tail, d_k, d_v;
    int64_t type; /* of keys and values */
    int64_t q_text, q_head, q_query, q_entry;
    int64_t keys_text, keys_head, keys_key;
    int64_t values_text, values_head, values_key;
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
    float *room;   /* [WIDTH][wide_k or wide_v] keys or values in float32 */
};

/* Keys side by side: of a list or of a tail. */
struct run {
    const char *keys, *values;
    int64_t key, value;     /* strides */
    int64_t count;
    const float *log_weight; /* NULL: none */
    int64_t first;          /* of the tail; -1 in a list */
    const uint8_t *visible;
};

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

/* Products of WIDTH keys with every query: columns of the logits. */
INLINE void products(const struct call *c, const struct bench *at, const float *keys,
                     int64_t stride, float *logits)
{
    for (int64_t r = 0; r < c->rows; r++) {
        const float *tilt = at->tilts + r * c->wide_k;
        vec a[WIDTH];
        ALL_UNROLLED for (int i = 0; i < WIDTH; i++) a[i] = ALL(0.0f);
        for (int64_t l = 0; l < c->wide_k; l += WIDTH) {
            vec t = CONST_AT(tilt + l);
            const float *key = keys + l;
            ALL_UNROLLED for (int i = 0; i < WIDTH; i++, key += stride) a[i] += t * LOOSE_AT(key);
        }
        AT(logits + r * BLOCK) = across(a);
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

/* Sums over a run of keys. */
static void attend(const struct call *c, const struct bench *at, const struct run *run,
                   struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t bytes = run->value * SIZE(p->type);
    int direct = p->type == FLOAT32 && p->d_v == c->wide_v;
    for (int64_t from = 0; from < run->count; from += BLOCK) {
        int64_t count = run->count - from < BLOCK ? run->count - from : BLOCK;
        block_of_products(c, at, run, from, count);
        for (int64_t row = 0; row < c->rows; row++) {
            if (row == 0 || (run->first >= 0 && row % p->group == 0))
                additions(p, run, from, count, row / p->group, at->extra);
            weights(c, at, sums, row, count);
        }
        const char *values = run->values + from * bytes;
        if (direct) {
            weighted(c->rows, at->logits, (const float *)values, run->value, count, sums->values,
                     c->wide_v);
            continue;
        }
        for (int64_t j = 0; j < count; j += WIDTH) {
            int64_t some = count - j < WIDTH ? count - j : WIDTH;
            widen(p->type, values + j * bytes, bytes, some, p->d_v, c->wide_v, at->room);
            weighted(c->rows, at->logits + j, at->room, c->wide_v, some, sums->values, c->wide_v);
        }
    }
}

/* Queries of a list, row = query * group + head, and sums of nothing. */
static void begin(const struct call *c, int64_t list, float *tilts, struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t heads = list % p->key_heads * p->group;
    const float *q = p->q + list / p->key_heads * p->q_text + heads * p->q_head;
    float factor = (float)(p->softcap > 0.0 ? p->scaling / p->softcap : p->scaling * LOG2E);
    for (int64_t r = 0; r < c->rows; r++) {
        const float *from = q + r / p->group * p->q_query + r % p->group * p->q_head;
        float *tilt = tilts + r * c->wide_k;
        for (int64_t l = 0; l < c->wide_k; l++)
            tilt[l] = l < p->d_k ? factor * from[l * p->q_entry] : 0.0f;
        sums->peak[r] = HIDDEN;
    }
    memset(sums->total, 0, sizeof(float) * c->rows * WIDTH);
    memset(sums->values, 0, sizeof(float) * c->rows * c->wide_v);
    sums->list = list;
}

/* Outputs of a list from its sums. */
static void end(const struct call *c, const struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t heads = p->key_heads * p->group, head = sums->list % p->key_heads * p->group;
    float *outputs = p->outputs + (sums->list / p->key_heads * p->n_q * heads + head) * p->d_v;
    for (int64_t r = 0; r < c->rows; r++) {
        float *to = outputs + (r / p->group * heads + r % p->group) * p->d_v;
        float total = sum_of(AT(sums->total + r * WIDTH));
        float factor = total > 0.0f ? 1.0f / total : 0.0f;
        const float *from = sums->values + r * c->wide_v;
        for (int64_t l = 0; l < p->d_v; l++) to[l] = factor * from[l];
    }
}

/* Keys low to high of a list and its tail. */
static void some_keys(const struct call *c, const struct bench *at, int64_t list, int64_t low,
                      int64_t high, struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t size = SIZE(p->type), text = list / p->key_heads, head = list % p->key_heads;
    int64_t start = p->start[list], kept = p->stop[list] - start;
    if (low < kept) {
        int64_t first = start + low, stop = high < kept ? high : kept;
        struct run run = {p->keys + first * p->d_k * size, p->values + first * p->d_v * size,
                          p->d_k, p->d_v, stop - low, p->log_weight + first, -1, NULL};
        attend(c, at, &run, sums);
    }
    if (high > kept) {
        int64_t first = low > kept ? low - kept : 0;
        int64_t key = text * p->keys_text + head * p->keys_head + first * p->keys_key;
        int64_t value = text * p->values_text + head * p->values_head + first * p->values_key;
        struct run run = {p->tail_keys + key * size, p->tail_values + value * size,
                          p->keys_key, p->values_key, high - kept - first, NULL, first,
                          p->visible ? p->visible + text * p->visible_text : NULL};
        attend(c, at, &run, sums);
    }
}

/* Memory of sums, taken from what is left of an item's. */
static struct sums room_for(const struct call *c, float **left)
{
    struct sums sums = {.list = -1, .total = *left};
    sums.values = sums.total + c->rows * WIDTH;
    sums.peak = sums.values + c->rows * c->wide_v;
    *left = sums.peak + (c->rows + WIDTH - 1) / WIDTH * WIDTH;
    return sums;
}

/* One item: its lists are whole but for the first and the last. */
static void one_item(const struct call *c, int64_t item)
{
    const struct ragged *p = c->p;
    int64_t low = c->all * item / c->items, high = c->all * (item + 1) / c->items;
    float *left = c->memory + item * c->floats;
    struct sums *pieces = c->pieces + 2 * item, whole = room_for(c, &left);
    pieces[0] = room_for(c, &left);
    pieces[1] = room_for(c, &left);
    struct bench at = {.tilts = left};
    at.logits = at.tilts + c->rows * c->wide_k;
    at.extra = at.logits + c->rows * BLOCK;
    at.room = at.extra + BLOCK;
    int64_t begins = 0, ends;
    for (int64_t list = 0; list < p->batch * p->key_heads && begins < high; list++, begins = ends) {
        ends = begins + p->stop[list] - p->start[list] + p->tail;
        if (ends <= low || ends == begins) continue;
        int before = begins < low, after = ends > high;
        struct sums *sums = before ? pieces : after ? pieces + 1 : &whole;
        begin(c, list, at.tilts, sums);
        some_keys(c, &at, list, before ? low - begins : 0, (after ? high : ends) - begins, sums);
        if (sums == &whole) end(c, sums);
    }
}

/* What every thread does, however many there are. */
static void items(void *call)
{
    struct call *c = call;
    for (;;) {
        int64_t item = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED);
        if (item >= c->items) return;
        one_item(c, item);
    }
}

/* Sums of a list's next piece go to those of its first. */
static void join(const struct call *c, struct sums *sums, const struct sums *next)
{
    for (int64_t r = 0; r < c->rows; r++) {
        float top = sums->peak[r] > next->peak[r] ? sums->peak[r] : next->peak[r];
        vec mine = ALL(exp2f(sums->peak[r] - top)), other = ALL(exp2f(next->peak[r] - top));
        vec *total = &AT(sums->total + r * WIDTH);
        *total = mine * *total + other * AT(next->total + r * WIDTH);
        for (int64_t l = r * c->wide_v; l < (r + 1) * c->wide_v; l += WIDTH)
            AT(sums->values + l) = mine * AT(sums->values + l) + other * AT(next->values + l);
        sums->peak[r] = top;
    }
}

/* Lists that lie in several items. */
static void join_pieces(const struct call *c)
{
    struct sums *sums = NULL;
    for (struct sums *piece = c->pieces; piece < c->pieces + 2 * c->items; piece++) {
        if (piece->list < 0) continue;
        if (sums && sums->list == piece->list) {
            join(c, sums, piece);
            continue;
        }
        if (sums) end(c, sums);
        sums = piece;
    }
    if (sums) end(c, sums);
}

/* Outputs of all queries. Returns 0, or 1 if a list lies elsewhere than in the arrays, or 2 if there
   is no memory. */
int esscher_ragged(const struct ragged *p)
{
    int64_t lists = p->batch * p->key_heads;
    struct call c = {.p = p, .rows = p->group * p->n_q};
    c.wide_k = (p->d_k + WIDTH - 1) / WIDTH * WIDTH;
    c.wide_v = (p->d_v + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t list = 0; list < lists; list++) {
        int64_t start = p->start[list], stop = p->stop[list];
        if (start < 0 || stop < start || stop > p->kept) return 1;
        c.all += stop - start + p->tail;
    }
    /* lists without any key are in no item */
    memset(p->outputs, 0, sizeof(float) * lists * c.rows * p->d_v);
    int64_t worth = c.all * c.rows * (c.wide_k + c.wide_v) / ITEM;
    c.items = worth < p->threads ? worth : p->threads;
    if (!p->parallel || c.items < 1) c.items = 1;
    int64_t sums = c.rows * (WIDTH + c.wide_v) + (c.rows + WIDTH - 1) / WIDTH * WIDTH;
    int64_t widest = c.wide_k > c.wide_v ? c.wide_k : c.wide_v;
    c.floats = 3 * sums + c.rows * (c.wide_k + BLOCK) + BLOCK + WIDTH * widest;
    size_t bytes = c.items * (sizeof(float) * c.floats + 2 * sizeof(struct sums));
    c.memory = aligned_alloc(4 * WIDTH, (bytes + 4 * WIDTH - 1) / (4 * WIDTH) * (4 * WIDTH));
    if (!c.memory) return 2;
    c.pieces = (struct sums *)(c.memory + c.items * c.floats);
    if (c.items > 1) p->parallel(items, &c, (unsigned)c.items, 0);
    else items(&c);
    join_pieces(&c);
    free(c.memory);
    return 0;
}
