/* The compiled kernel on random problems, arrays of exactly the sizes it asks for: compiled with
   sanitizers, this ends at the first access beyond them. */

#include "step.c"

#include <stdio.h>
#include <stdlib.h>

static void *kept[64];
static int count;

/* An array of one problem, aligned as torch's are. */
static void *array(int64_t bytes)
{
    return kept[count++] = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
}

static float *floats(int64_t n)
{
    float *x = array(4 * n);
    for (int64_t i = 0; i < n; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return x;
}

static double *zeros(int64_t n)
{
    double *x = array(8 * n);
    for (int64_t i = 0; i < n; i++) x[i] = 0.0;
    return x;
}

static float *filled(int64_t n, float with)
{
    float *x = array(4 * n);
    for (int64_t i = 0; i < n; i++) x[i] = with;
    return x;
}

/* Zeros that end exactly where they end: nothing is rounded up to whole vectors. */
static void *bytes_of(int64_t bytes) { return kept[count++] = calloc((size_t)bytes, 1); }

static int up_to(int n) { return 1 + rand() % n; }

static void one_problem(void)
{
    int64_t n = up_to(90), width = up_to(9), rows = up_to(15), asked = up_to(70);
    int64_t scales = up_to(3), block = up_to(40), sizes = up_to(3), cut = rand() % n;
    int64_t queries = (asked + PANEL - 1) / PANEL * PANEL, group = up_to(4) * PANEL;
    if (group > queries) group = queries;
    float *keys = floats((n + KEYS - 1) / KEYS * KEYS * width), *values = floats(n * rows);
    float *tilts = floats(queries * width), *relative = floats(scales);
    int32_t *visible = array(4 * queries);
    for (int64_t i = 0; i < queries; i++) visible[i] = i < asked ? up_to((int)n) : (int32_t)n;
    for (int64_t c = 0; c < scales; c++) relative[c] = (float)(c + 1) / (float)scales;
    esscher_pack_rows(floats(n * width), floats(width), n, width, KEYS, 1.0f, keys);
    esscher_pack_rows(floats(asked * width), NULL, asked, width, PANEL,
                      rand() % 3 ? 1.0f : 3000.0f, tilts);
    esscher_pack_values(floats(n * rows), floats(rows), n, rows, values);
    struct pass p = {
        .keys = keys, .values = values, .tilts = tilts, .relative = relative,
        .visible = rand() % 2 ? visible : NULL,
        .part = floats(scales * (rows + 1) * group),
        .total = zeros(scales * (rows + 1) * queries),
        .squares = rand() % 2 ? zeros(scales * queries) : NULL,
        .shift = rand() % 2 ? filled(queries, 0.0f) : NULL,
        .peak = rand() % 2 ? filled(queries, -__builtin_inff()) : NULL,
        .scratch = floats(2 * PANEL * (block + 2 * KEYS)),
        .all_keys = n, .width = width, .rows = rows, .queries = queries, .scales = scales,
        .group = group, .block = block, .flush = up_to(60), .headroom = 40.0f,
    };
    esscher_keys(&p, 0, cut);
    esscher_keys(&p, cut, n);
    esscher_outputs(&p, asked, 0.0, 1e300, zeros(scales * rows * asked), zeros(scales * rows));
    esscher_received(&p, cut, n, sizes, floats(scales * sizes * queries),
                     floats(scales * sizes * block * WIDTH), zeros(scales * sizes * (n - cut)));
    while (count) free(kept[--count]);
}

/* As many threads as asked for, and one more, one after the other. */
static void in_turn(void (*work)(void *), void *call, unsigned threads, unsigned flags)
{
    for (unsigned i = 0; i <= threads + flags; i++) work(call);
}

static void one_ragged_problem(void)
{
    int64_t batch = up_to(3), key_heads = up_to(3), group = up_to(4), n_q = up_to(5);
    int64_t tail = rand() % 40, d_k = up_to(40), d_v = up_to(70), rows = rand() % 600;
    int64_t lists = batch * key_heads, heads = key_heads * group, type = rand() % 3;
    int64_t *start = array(8 * lists), *stop = array(8 * lists);
    for (int64_t i = 0; i < lists; i++) {
        start[i] = rand() % (rows + 1);
        stop[i] = start[i] + rand() % (rows - start[i] + 1);
    }
    /* arrays of the caller, which end where they end */
    const int64_t size = SIZE(type), ks = batch * key_heads * tail * d_k * size;
    const int64_t vs = batch * key_heads * tail * d_v * size, ms = batch * n_q * tail;
    char *keys = bytes_of(rows * d_k * size), *values = bytes_of(rows * d_v * size);
    uint8_t *visible = bytes_of(ms);
    float *q = bytes_of(4 * batch * heads * n_q * d_k);
    for (int64_t i = 0; i < batch * heads * n_q * d_k; i++) q[i] = 0.01f * (float)(rand() % 100);
    /* blocks of codes, which end where they end */
    int64_t *coded = array(40 * lists), bytes = 0;
    struct ragged widths = {.d_k = d_k, .d_v = d_v};
    for (int64_t i = 0; i < lists; i++) {
        int64_t own[5] = {bytes, rand() % 3 * (rand() % 90), 4 + 4 * (rand() % 2), 4 + 4 * (rand() % 2), 0};
        memcpy(coded + 5 * i, own, sizeof(own));
        bytes += bytes_of_codes(&widths, own, own[1]);
    }
    uint8_t *codes = bytes_of(bytes);
    struct ragged p = {
        .codes = rand() % 2 ? codes : NULL, .coded = coded, .code_bytes = bytes, .q = q, .keys = keys, .values = values, .log_weight = bytes_of(4 * rows),
        .start = start, .stop = stop, .tail_keys = bytes_of(ks), .tail_values = bytes_of(vs),
        .visible = rand() % 2 ? visible : NULL,
        .outputs = bytes_of(4 * batch * heads * n_q * d_v), .parallel = in_turn,
        .threads = up_to(5), .kept = rows, .batch = batch, .key_heads = key_heads, .group = group,
        .n_q = n_q, .tail = tail, .d_k = d_k, .d_v = d_v, .type = type,
        .q_text = heads * n_q * d_k, .q_head = n_q * d_k, .q_query = d_k, .q_entry = 1,
        .keys_text = key_heads * tail * d_k, .keys_head = tail * d_k, .keys_key = d_k,
        .values_text = key_heads * tail * d_v, .values_head = tail * d_v, .values_key = d_v,
        .visible_text = n_q * tail, .visible_query = tail, .visible_key = 1, .scaling = 0.5,
        .softcap = rand() % 2 ? 0.0 : 20.0,
    };
    if (esscher_ragged(&p)) puts("failed");
    while (count) free(kept[--count]);
}

static void one_weighing_problem(void)
{
    int64_t n = up_to(90), width = up_to(9), asked = up_to(70), columns = up_to((int)n);
    int64_t queries = (asked + PANEL - 1) / PANEL * PANEL;
    float *keys = floats((n + KEYS - 1) / KEYS * KEYS * width), *tilts = floats(queries * width);
    esscher_pack_rows(floats(n * width), NULL, n, width, KEYS, 1.0f, keys);
    esscher_pack_rows(floats(asked * width), NULL, asked, width, PANEL,
                      rand() % 3 ? 1.0f : 3000.0f, tilts);
    int32_t *ends = array(4 * queries);
    for (int64_t i = 0; i < queries; i++) ends[i] = i < asked ? up_to((int)n) : 0;
    float *extra = floats(n);
    extra[rand() % n] = -__builtin_inff();
    int64_t answered = rand() % (asked + 1), d_v = up_to(20);
    float *centre = filled(d_v, 0.0f), *values = floats(n * d_v), *packed = floats(n * d_v);
    esscher_pack_values(values, centre, n, d_v, packed);
    struct weighing p = {
        .values = packed, .log_sum = floats(answered), .output = floats(answered * d_v),
        .answered = answered, .value_width = d_v,
        .keys = keys, .tilts = tilts, .extra = rand() % 2 ? extra : NULL,
        .ends = rand() % 2 ? ends : NULL, .room = floats(n * PANEL),
        .sums = filled(3 * columns * WIDTH, 0.0f), .square = floats(columns),
        .received = floats(columns), .largest = floats(columns), .all_keys = n, .width = width,
        .queries = asked, .columns = columns, .cap = rand() % 2 ? 0.0 : 20.0,
    };
    esscher_weighed(&p);
    for (int64_t j = 0; j < columns; j++)
        if (!(p.square[j] >= 0.0f && p.square[j] <= 1.001f * p.received[j])) puts("failed");
    while (count) free(kept[--count]);
}

int main(void)
{
    for (int i = 0; i < 2000; i++) one_problem();
    for (int i = 0; i < 2000; i++) one_ragged_problem();
    for (int i = 0; i < 2000; i++) one_weighing_problem();
    puts("ok");
}
