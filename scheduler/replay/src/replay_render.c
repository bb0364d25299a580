// The result in words and tables.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/replay.h"

enum { WORST_MAX = 10, GRID_ROWS_MAX = 16, GRID_COLUMNS_MAX = 9 };

struct contributor {
    char name[48];
    double slowdown;
};

static int compare_contributors(const void *a, const void *b)
{
    const struct contributor *left = a, *right = b;
    return (left->slowdown < right->slowdown) - (left->slowdown > right->slowdown);
}

static void render_worst(const struct dp_replay_result *result, struct dp_buf *out)
{
    size_t most = (size_t)DP_REPLAY_PART_COUNT + (size_t)result->replicas + (size_t)result->stages;
    DP_AUTO_FREE struct contributor *list = dp_new_array(struct contributor, most);
    size_t count = 0;
    for (int part = 0; part < DP_REPLAY_PART_COUNT; part++) {
        if (!isnan(result->slowdown_part[part])) {
            list[count].slowdown = result->slowdown_part[part];
            snprintf(list[count++].name, sizeof(list->name), "%s",
                     dp_replay_part_text((dp_replay_part)part));
        }
    }
    for (int32_t stage = 0; stage < result->stages; stage++) {
        list[count].slowdown = result->slowdown_stage[stage];
        snprintf(list[count++].name, sizeof(list->name), "stage %d", stage);
    }
    for (int32_t replica = 0; replica < result->replicas; replica++) {
        list[count].slowdown = result->slowdown_replica[replica];
        snprintf(list[count++].name, sizeof(list->name), "dp_rank %d", replica);
    }
    qsort(list, count, sizeof(*list), compare_contributors);
    dp_buf_puts(out, "\nwith this alone as measured, all else ideal\n");
    dp_buf_printf(out, "  %-28s %8s %10s\n", "", "S", "step");
    for (size_t i = 0; i < count && i < WORST_MAX; i++) {
        dp_buf_printf(out, "  %-28s %8.3f %+8.1f %%\n", list[i].name, list[i].slowdown,
                      100 * (list[i].slowdown - 1));
    }
    if (count > WORST_MAX) {
        dp_buf_printf(out, "  and %zu more, at most %.3f\n", count - WORST_MAX,
                      list[WORST_MAX].slowdown);
    }
}

// Replicas down, stages across, when that fits.
static void render_grid(const struct dp_replay_result *result, struct dp_buf *out)
{
    if (result->replicas > GRID_ROWS_MAX || result->stages > GRID_COLUMNS_MAX ||
        result->replicas * result->stages == 1) {
        return;
    }
    dp_buf_puts(out, "\nS of each worker: the smaller of its dp_rank's and its stage's (* = fixed "
                     "for M_W)\n  dp_rank ");
    for (int32_t stage = 0; stage < result->stages; stage++) {
        dp_buf_printf(out, "%sstage %d", stage == 0 ? "  " : "   ", stage);
    }
    dp_buf_puts(out, "\n");
    for (int32_t replica = 0; replica < result->replicas; replica++) {
        dp_buf_printf(out, "  %7d ", replica);
        for (int32_t stage = 0; stage < result->stages; stage++) {
            const struct dp_replay_worker *worker =
                &result->workers[replica * result->stages + stage];
            dp_buf_printf(out, " %8.3f%s", worker->slowdown, worker->fixed ? "*" : " ");
        }
        while (out->length > 0 && out->bytes[out->length - 1] == ' ') {
            out->bytes[--out->length] = '\0';
        }
        dp_buf_puts(out, "\n");
    }
}

static void render_fixed(const struct dp_replay_result *result, struct dp_buf *out)
{
    size_t fixed = 0, named = 0;
    for (int32_t i = 0; i < result->replicas * result->stages; i++) {
        fixed += result->workers[i].fixed;
    }
    for (int32_t i = 0; i < result->replicas * result->stages && named < 4; i++) {
        const struct dp_replay_worker *worker = &result->workers[i];
        if (worker->fixed) {
            dp_buf_printf(out, "%srank %d (dp_rank %d, stage %d)", named++ == 0 ? "" : ", ",
                          worker->rank, worker->dp_rank, worker->stage);
        }
    }
    if (fixed > named) {
        dp_buf_printf(out, " and %zu more", fixed - named);
    }
}

static void render_share(const char *name, double share, struct dp_buf *out)
{
    if (isnan(share)) {
        dp_buf_printf(out, "%-3s     -  ", name);
    } else {
        dp_buf_printf(out, "%-3s %7.3f", name, share);
    }
}

static int largest_part(const struct dp_replay_result *result)
{
    int largest = -1;
    for (int part = 0; part < DP_REPLAY_PART_COUNT; part++) {
        if (!isnan(result->slowdown_part[part]) &&
            (largest < 0 || result->slowdown_part[part] > result->slowdown_part[largest])) {
            largest = part;
        }
    }
    return largest;
}

static void render_verdict(const struct dp_replay_result *result, struct dp_buf *out)
{
    dp_buf_puts(out, "verdict ");
    int part = largest_part(result);
    switch (result->verdict) {
    case DP_REPLAY_EVEN:
        dp_buf_puts(out, "even: under 3 %, too little to look for a cause\n");
        break;
    case DP_REPLAY_BAD_WORKER:
        dp_buf_puts(out, "bad worker: look at ");
        render_fixed(result, out);
        dp_buf_puts(out, "\n");
        break;
    case DP_REPLAY_UNEVEN_STAGE:
        dp_buf_printf(out,
                      "uneven stage: the last one, %d, has too much to do; give it fewer "
                      "layers\n",
                      result->stages - 1);
        break;
    case DP_REPLAY_ELSEWHERE:
        if (part == DP_REPLAY_PART_FORWARD || part == DP_REPLAY_PART_BACKWARD) {
            dp_buf_puts(out, "neither a few workers nor the last stage; it is compute, so look at "
                             "sequences of uneven length, garbage collection, other stages\n");
        } else {
            dp_buf_printf(out, "neither a few workers nor the last stage; most of it is %s\n",
                          part < 0 ? "unknown" : dp_replay_part_text((dp_replay_part)part));
        }
        break;
    }
}

void dp_replay_render(const struct dp_replay_result *result, struct dp_buf *out)
{
    dp_buf_printf(out, "%zu step%s of %d worker%s (dp %d x %d stage%s), %zu operations\n",
                  result->step_count, result->step_count == 1 ? "" : "s",
                  result->replicas * result->stages,
                  result->replicas * result->stages == 1 ? "" : "s", result->replicas,
                  result->stages, result->stages == 1 ? "" : "s", result->operations);
    if (result->steps_left_out > 0) {
        dp_buf_printf(out, "left out %zu step%s with other operations than most, such as %d\n",
                      result->steps_left_out, result->steps_left_out == 1 ? "" : "s",
                      result->left_out);
    }
    dp_buf_printf(out, "mean step: measured %.4g s, replayed %.4g s, ideal %.4g s\n\n",
                  result->measured_s, result->replayed_s, result->ideal_s);
    dp_buf_printf(out,
                  "S   %7.3f  the step takes %.1f %% longer than with every operation at what "
                  "its kind takes\n",
                  result->slowdown, 100 * (result->slowdown - 1));
    render_share("M_W", result->m_workers, out);
    dp_buf_puts(out, "  of that goes with the slowest 3 % of the workers fixed: ");
    render_fixed(result, out);
    dp_buf_puts(out, "\n");
    render_share("M_S", result->m_stage, out);
    dp_buf_puts(out, "  of that goes with the last stage fixed\n");
    render_verdict(result, out);
    if (result->gaps > 1.03) {
        dp_buf_printf(out,
                      "besides, %.1f %% of the measured step are gaps between operations: the "
                      "host, the loader of data\n",
                      100 * (1 - 1 / result->gaps));
    }
    render_worst(result, out);
    render_grid(result, out);
}
