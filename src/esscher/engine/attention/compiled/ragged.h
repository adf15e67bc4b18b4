/* Few queries over lists of keys, a different number for every key head, and over a dense tail.

   Every key and value is read once for all queries of its key head, and little else is done: this
   runs at the speed of memory.

   The keys of all lists, each with its tail, are thought of as one long row that is cut into equal
   items, one per thread. A list that lies in several items is put together at the end, by the
   largest logits of its pieces. */

#include "block.h"

#include <stdlib.h>

#define ITEM 131072 /* products that are worth waking a thread for: some 5 microseconds */

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

/* First byte, tokens, and bits of what a list has in codes. */
static const int64_t *coded_of(const struct ragged *p, int64_t list)
{
    static const int64_t none[5] = {0, 0, 8, 8, 0};
    return p->codes ? p->coded + 5 * list : none;
}

/* Bytes of the blocks of so many tokens. */
static int64_t bytes_of_codes(const struct ragged *p, const int64_t *coded, int64_t tokens)
{
    int64_t row = code_bytes(coded[2], p->d_k) + code_bytes(coded[3], p->d_v);
    return (tokens + STEP - 1) / STEP * 4 * p->d_k + tokens * (6 + row);
}

/* Keys low to high of a list and its tail. */
static void some_keys(const struct call *c, const struct bench *at, int64_t list, int64_t low,
                      int64_t high, struct sums *sums)
{
    const struct ragged *p = c->p;
    int64_t size = SIZE(p->type), text = list / p->key_heads, head = list % p->key_heads;
    int64_t start = p->start[list], kept = p->stop[list] - start;
    const int64_t *coded = coded_of(p, list);
    if (low < coded[1]) {
        /* a block belongs to where its first token is */
        int64_t first = (low + STEP - 1) / STEP, stop = (high + STEP - 1) / STEP * STEP;
        if (stop > coded[1]) stop = coded[1];
        struct run run = {.count = stop - first * STEP, .first = -1, .key_bits = coded[2],
                          .value_bits = coded[3]};
        run.codes = p->codes + coded[0] + bytes_of_codes(p, coded, first * STEP);
        attend(c, at, &run, sums);
    }
    low = low > coded[1] ? low - coded[1] : 0;
    high -= coded[1];
    if (low < kept && high > 0) {
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
    at.scaled = at.extra + BLOCK;
    at.room = at.scaled + c->rows * c->wide_k;
    int64_t begins = 0, ends;
    for (int64_t list = 0; list < p->batch * p->key_heads && begins < high; list++, begins = ends) {
        ends = begins + coded_of(p, list)[1] + p->stop[list] - p->start[list] + p->tail;
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
        const int64_t *coded = coded_of(p, list);
        if (coded[0] < 0 || coded[1] < 0 || coded[0] + bytes_of_codes(p, coded, coded[1]) > p->code_bytes)
            return 1;
        c.all += coded[1] + stop - start + p->tail;
    }
    /* lists without any key are in no item */
    memset(p->outputs, 0, sizeof(float) * lists * c.rows * p->d_v);
    int64_t worth = c.all * c.rows * (c.wide_k + c.wide_v) / ITEM;
    c.items = worth < p->threads ? worth : p->threads;
    if (!p->parallel || c.items < 1) c.items = 1;
    int64_t sums = c.rows * (WIDTH + c.wide_v) + (c.rows + WIDTH - 1) / WIDTH * WIDTH;
    int64_t widest = c.wide_k > c.wide_v ? c.wide_k : c.wide_v;
    c.floats = 3 * sums + c.rows * (2 * c.wide_k + BLOCK) + BLOCK + STEP * widest;
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
