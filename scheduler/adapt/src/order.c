// Another order on the replica that takes longest: the search of scheduler/auto with its costs.

#include <math.h>
#include <stdio.h>

#include "dp/alloc.h"
#include "dp/auto.h"
#include "dp/cleanup.h"
#include "internal.h"

// Orders that are looked at when nobody says how many.
enum { MOVES = 400, SEARCHES_MAX = 4 };

struct question {
    struct adapt *adapt;
    const struct layout *layout;
    int32_t block;
};

static dp_status give_costs(void *context, const struct dp_schedule *shape,
                            struct dp_sim_costs *ret_costs, uint64_t *ret_static_bytes,
                            struct dp_error *err)
{
    const struct question *question = context;
    (void)ret_static_bytes;
    (void)err;
    dp_adapt_block_costs(question->adapt, question->layout, question->block, shape, ret_costs);
    return DP_OK;
}

// In the units of dp_adapt_block_costs, whose chunks weigh as their layers do: what runs now, and
// as much more as the memory has room for; no more where that is not known. Ranks without state
// have no cap.
static dp_status fill_cap(struct adapt *adapt, const struct layout *layout, int32_t block,
                          const struct dp_schedule *schedule, uint64_t *ret_cap)
{
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs;
    DP_CLEANUP(dp_sim_result_deinit) struct dp_sim_result now = {0};
    dp_adapt_block_costs(adapt, layout, block, schedule, &costs);
    dp_status status = dp_simulate(schedule, &costs, false, &now, NULL);
    for (int32_t p = 0; p < adapt->pipeline && status == DP_OK; p++) {
        const struct dp_plan_position *position =
            adapt->plan->positions == NULL ? NULL : &adapt->plan->positions[p];
        double more = 0;
        if (position != NULL && position->memory_limit_bytes > 0) {
            double chunks = position->memory.activations + position->memory.deferred;
            double room = position->memory_limit_bytes - dp_memory_total(&position->memory);
            more = chunks > 0 ? fmax(0, room) / chunks : 0;
        }
        ret_cap[p] = (uint64_t)((double)now.ranks[p].peak_bytes * (1 + fmin(more, 1e6)));
    }
    return status;
}

static struct order *search(struct adapt *adapt, const struct layout *layout, int32_t block)
{
    struct question question = {adapt, layout, block};
    const struct dp_schedule *now = &dp_adapt_block_order(adapt, layout, block)->schedule;
    DP_AUTO_FREE uint64_t *cap = dp_new_array(uint64_t, (size_t)adapt->pipeline);
    const struct dp_auto_problem problem = {
        .pipeline = adapt->pipeline,
        .microbatches = layout->count[block],
        .costs = give_costs,
        .context = &question,
        .memory_cap = dp_adapt_has_state(adapt) ? cap : NULL,
        .shape = now,
    };
    if (fill_cap(adapt, layout, block, now, cap) != DP_OK) {
        return NULL;
    }
    const struct dp_adapt_limits *limits = &adapt->input->limits;
    const struct dp_auto_options options = {
        .moves_max = limits->moves_max > 0 ? limits->moves_max : MOVES,
        .stop = limits->stop,
        .context = limits->context,
    };
    struct dp_auto_result result;
    if (dp_auto_search(&problem, &options, &result, NULL) != DP_OK) {
        return NULL;
    }
    adapt->moves += result.moves;
    struct order *order = dp_adapt_order_add(adapt, &result.schedule);
    dp_auto_result_deinit(&result);
    return order;
}

static int32_t longest_block(struct adapt *adapt, const struct layout *layout, double *ret_step)
{
    int32_t longest = 0;
    *ret_step = 0;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        double step = dp_adapt_block_step(adapt, layout, b);
        if (step > *ret_step) {
            *ret_step = step;
            longest = b;
        }
    }
    return longest;
}

// Blocks with the same costs take the same order.
static void spread(struct adapt *adapt, struct layout *layout, int32_t block, double step,
                   struct order *order)
{
    for (int32_t b = 0; b < adapt->blocks; b++) {
        if (b != block && layout->count[b] == layout->count[block] && layout->own[b] != order &&
            fabs(dp_adapt_block_step(adapt, layout, b) - step) <= 1e-12 * step) {
            struct order *before = layout->own[b];
            layout->own[b] = order;
            layout->own[b] = dp_adapt_block_step(adapt, layout, b) < step ? order : before;
        }
    }
}

// What all replicas' orders take in the plan, as text.
static bool is_short(const struct adapt *adapt, const struct layout *layout)
{
    size_t bytes = 0;
    for (int32_t b = 0; b < adapt->blocks; b++) {
        if (layout->own[b] != NULL) {
            bytes += (size_t)adapt->coupled * dp_schedule_json_bytes(&layout->own[b]->schedule);
        }
    }
    return adapt->blocks == 1 ? bytes / (size_t)adapt->coupled <= DP_PLAN_SCHEDULE_BYTES_MAX
                              : bytes <= DP_PLAN_SCHEDULE_BYTES_MAX;
}

bool dp_adapt_order(struct adapt *adapt, struct layout *layout, char *ret_why)
{
    snprintf(ret_why, DP_ADAPT_WHY_MAX, "the search found no faster order of these stages");
    bool is_better = false;
    for (int i = 0; i < SEARCHES_MAX && !dp_adapt_is_over(adapt); i++) {
        double step;
        int32_t block = longest_block(adapt, layout, &step);
        struct order *before = layout->own[block];
        struct order *found = search(adapt, layout, block);
        if (found == NULL) {
            snprintf(ret_why, DP_ADAPT_WHY_MAX,
                     "the order is too long to be searched, or the "
                     "search was stopped");
            break;
        }
        layout->own[block] = found;
        if (!(dp_adapt_block_step(adapt, layout, block) < step * (1 - 1e-9)) ||
            !is_short(adapt, layout)) {
            layout->own[block] = before;
            break;
        }
        spread(adapt, layout, block, step, found);
        is_better = true;
    }
    return is_better;
}
