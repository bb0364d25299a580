#include "naive_order.h"

#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"

// Done or counted, by kind (F B I W), stage and micro-batch.
struct table {
    const struct dp_schedule *schedule;
    int *items;
};

static int *item(const struct table *table, int kind, int stage, int microbatch)
{
    int row = kind * table->schedule->stages + stage;
    return &table->items[row * table->schedule->microbatches + microbatch];
}

static bool count_one(const struct table *table, int rank, int kind, int stage, int microbatch)
{
    const struct dp_schedule *s = table->schedule;
    int direction = s->directions == 2 && microbatch >= s->microbatches / 2;
    (*item(table, kind, stage, microbatch))++;
    return s->placement[2 * stage + direction] == rank;
}

static bool each_chunk_is_done_once_on_its_rank(const struct dp_schedule *s)
{
    DP_AUTO_FREE int *items = dp_new_array(int, 4 * (size_t)s->stages * (size_t)s->microbatches);
    struct table table = {s, items};
    bool right = true;
    for (int rank = 0; rank < s->pipeline; rank++) {
        for (size_t i = s->rank_begin[rank]; i < s->rank_begin[rank + 1]; i++) {
            const struct dp_action *a = &s->actions[i];
            int kind = a->kind == DP_ACTION_FB ? DP_ACTION_F : a->kind;
            right = count_one(&table, rank, kind, a->stage, (int)a->microbatch) && right;
            if (a->kind == DP_ACTION_FB) {
                right =
                    count_one(&table, rank, a->b_kind, a->b_stage, (int)a->b_microbatch) && right;
            }
        }
    }
    for (int stage = 0; stage < s->stages; stage++) {
        for (int m = 0; m < s->microbatches; m++) {
            int f = *item(&table, DP_ACTION_F, stage, m), b = *item(&table, DP_ACTION_B, stage, m);
            int i = *item(&table, DP_ACTION_I, stage, m), w = *item(&table, DP_ACTION_W, stage, m);
            right = right && f == 1 && b + i == 1 && w == i;
        }
    }
    return right;
}

// Whether what a half needs is done: its own stage's earlier half, and the neighbour's.
static bool has_inputs(const struct table *done, int kind, int stage, int m)
{
    int last = done->schedule->stages - 1;
    if (kind == DP_ACTION_F) {
        return stage == 0 || *item(done, DP_ACTION_F, stage - 1, m) > 0;
    }
    if (kind == DP_ACTION_W) {
        return *item(done, DP_ACTION_I, stage, m) > 0;
    }
    return *item(done, DP_ACTION_F, stage, m) > 0 &&
           (stage == last || *item(done, DP_ACTION_B, stage + 1, m) > 0 ||
            *item(done, DP_ACTION_I, stage + 1, m) > 0);
}

static bool step(const struct table *done, const struct dp_action *a)
{
    bool pair = a->kind == DP_ACTION_FB;
    int kind = pair ? DP_ACTION_F : a->kind;
    if (!has_inputs(done, kind, a->stage, (int)a->microbatch) ||
        (pair && !has_inputs(done, a->b_kind, a->b_stage, (int)a->b_microbatch))) {
        return false;
    }
    *item(done, kind, a->stage, (int)a->microbatch) = 1;
    if (pair) {
        *item(done, a->b_kind, a->b_stage, (int)a->b_microbatch) = 1;
    }
    return true;
}

bool naive_can_run(const struct dp_schedule *s)
{
    if (!each_chunk_is_done_once_on_its_rank(s)) {
        return false;
    }
    DP_AUTO_FREE int *items = dp_new_array(int, 4 * (size_t)s->stages * (size_t)s->microbatches);
    DP_AUTO_FREE size_t *at = dp_memdup(s->rank_begin, (size_t)s->pipeline * sizeof(size_t));
    struct table done = {s, items};
    size_t left = dp_schedule_action_count(s);
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < s->pipeline; rank++) {
            if (at[rank] < s->rank_begin[rank + 1] && step(&done, &s->actions[at[rank]])) {
                at[rank]++;
                left--;
                moved = true;
            }
        }
    }
    return left == 0;
}
