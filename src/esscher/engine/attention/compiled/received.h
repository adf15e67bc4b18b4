/* Received attention: the weights once more, added up over queries. */

/* What the block of queries gives to keys start to stop, [scale][size][key]: their weights times
   the factors [scale][size][query] of each size. The shift stays as it is. room holds
   scales * sizes * block vectors. */
void esscher_received(const struct pass *p, int64_t start, int64_t stop, int64_t sizes,
                      const float *factors, float *room, double *given)
{
    float *scratch = p->scratch, *stored = p->scratch + PANEL * (p->block + 2 * KEYS);
    float sums[PANEL] ALIGNED, squares[PANEL] ALIGNED;
    int plain = p->scales == 1 && p->relative[0] == 1.0f && !p->shift;
    for (int64_t at_key = start; at_key < stop; at_key += p->block) {
        int64_t end = at_key + p->block < stop ? at_key + p->block : stop, keys = end - at_key;
        struct step s = {.low = 0, .high = p->queries, .start = at_key, .stop = end, .started = 1};
        for (int64_t i = 0; i < p->scales * sizes * keys; i++) AT(room + WIDTH * i) = ALL(0.0f);
        for (int64_t at = 0; at < p->queries; at += PANEL) {
            int hidden = hides(p, &s, at), deep = 1;
            const float *weights = scratch, *logits = NULL;
            if (plain && !hidden) weights = panel_of_weights(p, &s, at, scratch, sums);
            else logits = panel_of_logits(p, &s, at, stored, &deep);
            for (int64_t c = 0; c < p->scales; c++) {
                float relative = p->relative[c];
                if (hidden) weigh(p, &s, logits, scratch, relative, at, 1, 1, 0, sums, squares);
                else if (!plain)
                    weigh(p, &s, logits, scratch, relative, at, 1, 0, 0, sums, squares);
                for (int64_t m = 0; m < sizes; m++) {
                    const float *factor = factors + (c * sizes + m) * p->queries + at;
                    vec f = CONST_AT(factor), g = CONST_AT(factor + WIDTH);
                    float *sum = room + WIDTH * keys * (c * sizes + m);
                    for (int64_t j = 0; j < keys; j++) {
                        AT(sum + WIDTH * j) += f * CONST_AT(weights + PANEL * j)
                                               + g * CONST_AT(weights + PANEL * j + WIDTH);
                    }
                }
            }
        }
        for (int64_t line = 0; line < p->scales * sizes; line++) {
            for (int64_t j = 0; j < keys; j++) {
                double sum = 0.0;
                for (int i = 0; i < WIDTH; i++) sum += room[WIDTH * (keys * line + j) + i];
                given[(stop - start) * line + at_key - start + j] = sum;
            }
        }
    }
}
