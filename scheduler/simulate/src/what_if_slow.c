// The text of --slow.

#include <math.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/what_if.h"
#include "what_if_text.h"

enum { KINDS = DP_ACTION_FB }; // of one chunk

// What one item says: everything of a rank, or of a stage, or one kind of it.
struct slow {
    bool is_stage;
    int32_t index;
    int kind; // -1 = all
    double factor;
};

static int find_kind(const struct dp_csv_cell *cell)
{
    for (int kind = 0; kind < KINDS; kind++) {
        if (dp_what_if_is(cell, dp_action_kind_text((dp_action_kind)kind))) {
            return kind;
        }
    }
    return -1;
}

static bool read_amount(const struct dp_csv_cell *amount, struct dp_diags *diags, struct slow *slow)
{
    struct dp_csv_cell letter, factor;
    slow->kind = -1;
    if (!dp_what_if_cut(amount, '=', &letter, &factor)) {
        return dp_what_if_factor(amount, diags, 1, &slow->factor);
    }
    slow->kind = find_kind(&letter);
    if (slow->kind < 0) {
        dp_diags_add(diags, 1, letter.column, "kinds are F, B, I and W", "unknown kind \"%.*s\"",
                     dp_csv_shown(&letter), letter.text);
        return false;
    }
    return dp_what_if_factor(&factor, diags, 1, &slow->factor);
}

static bool read_item(const struct dp_csv_cell *item, const struct dp_schedule *schedule,
                      struct dp_diags *diags, struct slow *slow)
{
    struct dp_csv_cell target, amount, noun, index;
    if (!dp_what_if_cut(item, ':', &target, &amount) ||
        !dp_what_if_cut(&target, '=', &noun, &index)) {
        dp_diags_add(diags, 1, item->column, "write rank=3:1.5, stage=2:1.3 or rank=3:F=1.5",
                     "\"%.*s\" is no rank or stage with a factor", dp_csv_shown(item), item->text);
        return false;
    }
    slow->is_stage = dp_what_if_is(&noun, "stage");
    if (!slow->is_stage && !dp_what_if_is(&noun, "rank")) {
        dp_diags_add(diags, 1, noun.column, "write rank=N or stage=N", "unknown word \"%.*s\"",
                     dp_csv_shown(&noun), noun.text);
        return false;
    }
    return dp_what_if_index(&index, slow->is_stage ? "stage" : "rank",
                            slow->is_stage ? schedule->stages : schedule->pipeline, diags, 1,
                            &slow->index) &&
           read_amount(&amount, diags, slow);
}

static bool same_target(const struct slow *a, const struct slow *b)
{
    return a->is_stage == b->is_stage && a->index == b->index && a->kind == b->kind;
}

// A pair keeps the share of its parts that overlap hides. It ends no earlier than its longer part,
// unless it did before.
static void scale_pair(double *pair, double f, double b, double new_f, double new_b)
{
    if (f + b > 0) {
        double least = *pair >= fmax(f, b) ? fmax(new_f, new_b) : 0;
        *pair = fmax(*pair * ((new_f + new_b) / (f + b)), least);
    }
}

static void scale_rank(struct dp_sim_costs *costs, int32_t rank, int32_t count,
                       const double factors[][KINDS])
{
    for (int32_t forward = 0; forward < count; forward++) {
        double f = dp_sim_chunk_at(costs, rank, forward)->seconds[DP_ACTION_F];
        double new_f = f * factors[forward][DP_ACTION_F];
        for (int32_t backward = 0; backward < count; backward++) {
            const double *seconds = dp_sim_chunk_at(costs, rank, backward)->seconds;
            const double *by = factors[backward];
            size_t pair = dp_sim_pair_index(costs, rank, forward, backward);
            scale_pair(&costs->fb[pair], f, seconds[DP_ACTION_B], new_f,
                       seconds[DP_ACTION_B] * by[DP_ACTION_B]);
            scale_pair(&costs->fi[pair], f, seconds[DP_ACTION_I], new_f,
                       seconds[DP_ACTION_I] * by[DP_ACTION_I]);
        }
    }
    for (int32_t slot = 0; slot < count; slot++) {
        for (int kind = 0; kind < KINDS; kind++) {
            dp_sim_chunk_at(costs, rank, slot)->seconds[kind] *= factors[slot][kind];
        }
    }
}

static void apply(const struct slow *slows, size_t count, const struct dp_schedule *schedule,
                  struct dp_sim_costs *costs)
{
    for (int32_t rank = 0; rank < schedule->pipeline; rank++) {
        int32_t stages[DP_RANK_STAGES_MAX];
        int32_t slots = dp_schedule_rank_stages(schedule, rank, stages);
        double factors[DP_RANK_STAGES_MAX][KINDS];
        for (int32_t slot = 0; slot < slots; slot++) {
            for (int kind = 0; kind < KINDS; kind++) {
                double factor = 1;
                for (size_t i = 0; i < count; i++) {
                    bool hit = slows[i].index == (slows[i].is_stage ? stages[slot] : rank) &&
                               (slows[i].kind < 0 || slows[i].kind == kind);
                    factor *= hit ? slows[i].factor : 1;
                }
                factors[slot][kind] = factor;
            }
        }
        scale_rank(costs, rank, slots, (const double(*)[KINDS])factors);
    }
}

dp_status dp_what_if_slow(const char *name, const char *text, const struct dp_schedule *schedule,
                          struct dp_sim_costs *costs, struct dp_error *err)
{
    struct what_if_items items;
    dp_what_if_items_init(&items, name, text);
    DP_AUTO_FREE struct slow *slows = dp_new_array(struct slow, items.count);
    for (size_t i = 0; i < items.count; i++) {
        if (!read_item(&items.cells[i], schedule, &items.diags, &slows[i])) {
            slows[i].kind = KINDS; // matches nothing
            continue;
        }
        for (size_t j = 0; j < i; j++) {
            if (same_target(&slows[i], &slows[j])) {
                dp_diags_add(&items.diags, 1, items.cells[i].column, NULL, "%s %d is there twice",
                             slows[i].is_stage ? "stage" : "rank", slows[i].index);
            }
        }
    }
    dp_status status = dp_diags_status(&items.diags, err);
    if (status == DP_OK) {
        apply(slows, items.count, schedule, costs);
    }
    dp_what_if_items_deinit(&items);
    return status;
}
