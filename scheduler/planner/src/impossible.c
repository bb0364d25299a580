#include "impossible.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "appraise.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "frontier.h"
#include "peak.h"

// Keys of [parallel] that a job may set, as --set spells them.
static const struct {
    const char *name;
    size_t offset;
} keys[] = {
    {"micro_batch_size", offsetof(struct dp_parallel_spec, micro_batch_size)},
    {"microbatches", offsetof(struct dp_parallel_spec, microbatches)},
    {"virtual", offsetof(struct dp_parallel_spec, virtual_stages)},
    {"expert", offsetof(struct dp_parallel_spec, expert)},
    {"expert_tensor", offsetof(struct dp_parallel_spec, expert_tensor)},
    {"data", offsetof(struct dp_parallel_spec, data)},
    {"context", offsetof(struct dp_parallel_spec, context)},
    {"tensor", offsetof(struct dp_parallel_spec, tensor)},
    {"pipeline", offsetof(struct dp_parallel_spec, pipeline)},
};
enum { KEYS = sizeof(keys) / sizeof(keys[0]) };

static int32_t *value_of(struct dp_job_spec *spec, size_t key)
{
    return (int32_t *)(void *)((char *)&spec->parallel + keys[key].offset);
}

// Whether a changed spec leaves anything open on these ranks.
static bool is_legal(const struct explorer *explorer, const struct dp_job_spec *spec)
{
    if (dp_job_spec_check(spec, NULL) != DP_OK) {
        return false;
    }
    struct problem problem = *explorer->problem;
    problem.spec = spec;
    struct explorer changed = *explorer;
    changed.problem = &problem;
    return dp_planner_space_world(&changed, 16) > 0;
}

enum { NEAR_MAX = 128 };

// The value of a key that is set which is nearest to it and legal; 0 = none near.
static int32_t nearest_value(const struct explorer *explorer, struct dp_job_spec *spec,
                             int32_t *value, int32_t step)
{
    int32_t asked = *value, found = 0;
    for (int32_t away = 1; away <= NEAR_MAX && found == 0; away++) {
        for (int sign = -1; sign <= 1 && found == 0; sign += 2) {
            *value = (asked + sign * away * step) / step * step;
            found = *value > 0 && is_legal(explorer, spec) ? *value : 0;
        }
    }
    *value = asked;
    return found;
}

static int32_t at_least_one(int32_t size)
{
    return size > 0 ? size : 1;
}

// What the job sets must divide the batch.
static int32_t batch_step(const struct dp_parallel_spec *p)
{
    int64_t step = (int64_t)at_least_one(p->data) * at_least_one(p->microbatches) *
                   at_least_one(p->micro_batch_size);
    return step < DP_GLOBAL_BATCH_MAX / NEAR_MAX ? (int32_t)step : 1;
}

// Of all single changes the one that moves its key least, as a share of it.
static void write_nearest_change(const struct explorer *explorer, struct dp_buf *out)
{
    struct dp_job_spec *spec = dp_memdup(explorer->problem->spec, sizeof(*spec));
    double least = 0;
    char text[DP_NAME_MAX + 32] = "";
    for (size_t i = 0; i < KEYS + 1; i++) {
        int32_t *value = i < KEYS ? value_of(spec, i) : &spec->train.global_batch;
        int32_t step = i < KEYS ? 1 : batch_step(&spec->parallel);
        int32_t asked = *value, near = asked > 0 ? nearest_value(explorer, spec, value, step) : 0;
        double moved = asked > 0 ? (double)abs(near - asked) / asked : 0;
        if (near > 0 && (text[0] == '\0' || moved < least)) {
            least = moved;
            snprintf(text, sizeof(text), "%s = %d", i < KEYS ? keys[i].name : "train.global_batch",
                     near);
        }
    }
    char schedule[DP_NAME_MAX];
    DP_COPY_TEXT(schedule, spec->parallel.schedule);
    spec->parallel.schedule[0] = '\0';
    if (text[0] != '\0') {
        dp_buf_printf(out, "; the nearest change that is possible: %s", text);
    } else if (schedule[0] != '\0' && is_legal(explorer, spec)) {
        dp_buf_printf(out, "; without schedule = %s it is possible", schedule);
    } else {
        dp_buf_puts(out, "; relax [parallel] or [resources] ranks");
    }
    free(spec);
}

// The ranks that the job cannot do without.
static int64_t ranks_needed(const struct dp_job_spec *spec)
{
    const struct dp_parallel_spec *p = &spec->parallel;
    int64_t shards = (int64_t)at_least_one(p->tensor) * at_least_one(p->context);
    int64_t group = (int64_t)at_least_one(p->expert) * at_least_one(p->expert_tensor);
    int64_t data = p->data > 0 ? p->data : (group + shards - 1) / shards;
    int64_t needed = at_least_one(p->pipeline) * data * shards;
    return spec->resources.ranks > needed ? spec->resources.ranks : needed;
}

dp_status dp_planner_impossible_sizes(struct explorer *explorer, struct dp_error *err)
{
    const struct problem *problem = explorer->problem;
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int64_t needed = ranks_needed(problem->spec);
    if (needed > problem->slots) {
        char why[128] = "";
        if (problem->spec->resources.ranks < needed) {
            int64_t rest = needed / at_least_one(p->pipeline);
            snprintf(why, sizeof(why), " (pipeline %d x %lld ranks of each position)",
                     at_least_one(p->pipeline), (long long)rest);
        }
        return dp_fail(err, DP_UNSCHEDULABLE,
                       "the job needs %lld ranks%s; %lld are free on %zu node%s: wait for more, or "
                       "ask for fewer",
                       (long long)needed, why, (long long)problem->slots, problem->nodes_count,
                       problem->nodes_count == 1 ? "" : "s");
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    struct dp_error why = {0};
    dp_planner_space_refusal(explorer, &why);
    int32_t heads = problem->spec->model.heads, tensor = at_least_one(p->tensor);
    if (heads % tensor != 0) {
        dp_buf_printf(&text, "%d tensor ranks cannot share %d heads evenly", tensor, heads);
    } else if (why.message[0] != '\0') {
        dp_buf_puts(&text, why.message);
    } else {
        dp_buf_printf(&text,
                      "no division of %d samples over at most %lld ranks satisfies what the job "
                      "sets",
                      problem->spec->train.global_batch, (long long)problem->slots);
    }
    write_nearest_change(explorer, &text);
    return dp_fail(err, DP_INVALID, "%s", text.bytes);
}

// The candidate with the least memory on its fullest rank.
struct leanest {
    struct explorer *explorer;
    struct choice choice;
    double bytes;  // negative = none yet
    double enough; // where to stop; 0 = nowhere
};

// Schedules that keep the fewest chunks alive; others are looked at only where they are asked for.
static bool is_lean(const struct explorer *explorer, const struct dp_schedule_family *family)
{
    static const char *const names[] = {"1f1b", "v-half", "v-min", "dualpipev"};
    bool found = explorer->problem->spec->parallel.schedule[0] != '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        found = found || strcmp(names[i], family->name) == 0;
    }
    return found;
}

static void visit_lean(void *context, const struct choice *choice)
{
    struct leanest *leanest = context;
    struct choice candidate = *choice;
    for (int rule = 0; rule < CUT_ALL_COUNT && !leanest->explorer->is_stopped; rule++) {
        candidate.split = rule;
        if (!is_lean(leanest->explorer, choice->family) ||
            dp_planner_cuts_get(leanest->explorer->cuts, choice->stages, rule) == NULL) {
            continue;
        }
        struct score score;
        dp_planner_score(leanest->explorer, &candidate, &score);
        if (leanest->bytes < 0 || score.bytes < leanest->bytes) {
            leanest->bytes = score.bytes;
            leanest->choice = candidate;
        }
    }
}

static int compare_divisions(const void *a, const void *b)
{
    const struct division *one = a, *two = b;
    return (one->bytes > two->bytes) - (one->bytes < two->bytes);
}

static void find_leanest(struct explorer *explorer, double enough, struct leanest *leanest)
{
    *leanest = (struct leanest){.explorer = explorer, .bytes = -1, .enough = enough};
    qsort(explorer->divisions, explorer->divisions_count, sizeof(*explorer->divisions),
          compare_divisions);
    for (size_t i = 0; i < explorer->divisions_count; i++) {
        const struct division *division = &explorer->divisions[i];
        if (leanest->bytes >= 0 &&
            (division->bytes >= leanest->bytes || leanest->bytes <= leanest->enough)) {
            break;
        }
        if (enough > 0 && division->bytes > enough) {
            break;
        }
        if (explorer->is_stopped) {
            break;
        }
        dp_planner_space_families(explorer, &division->choice, visit_lean, leanest);
    }
}

// Bytes of the fullest rank with a changed strategy; 0 = it is not legal.
static double bytes_with(struct explorer *explorer, const struct choice *base,
                         const struct dp_strategy *strategy)
{
    struct choice choice = *base;
    choice.pipeline = strategy->pipeline;
    choice.data = strategy->data;
    choice.tensor = strategy->tensor;
    choice.context = strategy->context;
    choice.expert = strategy->expert;
    choice.microbatches = strategy->microbatches;
    choice.micro_batch_size = strategy->micro_batch_size;
    choice.shard = strategy->shard;
    choice.recompute = strategy->recompute;
    const struct dp_schedule_params params = {.pipeline = choice.pipeline,
                                              .microbatches = choice.microbatches,
                                              .virtual_stages = choice.virtual_stages};
    choice.stages = dp_schedule_family_stages(choice.family, &params);
    if (dp_schedule_check(choice.family->name, &params, NULL) != DP_OK ||
        dp_planner_cuts_get(explorer->cuts, choice.stages, choice.split) == NULL) {
        return 0;
    }
    struct score score;
    dp_planner_score(explorer, &choice, &score);
    return score.bytes;
}

// How many times the nodes it takes until something fits.
static int64_t ranks_that_fit(const struct explorer *explorer)
{
    static const int32_t times[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    const struct problem *problem = explorer->problem;
    DP_AUTO_FREE struct dp_job_spec *spec = dp_memdup(problem->spec, sizeof(*spec));
    spec->resources.ranks = 0;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (problem->slots * times[i] > DP_RANKS_MAX || dp_planner_is_stopped(problem)) {
            break;
        }
        size_t count = problem->nodes_count * (size_t)times[i];
        DP_AUTO_FREE struct dp_planner_node *nodes = dp_new_array(struct dp_planner_node, count);
        int32_t domains = (int32_t)problem->nodes_count + 1;
        for (size_t n = 0; n < count; n++) {
            nodes[n] = problem->nodes[n % problem->nodes_count];
            int32_t copy = (int32_t)(n / problem->nodes_count);
            nodes[n].domain += nodes[n].domain > 0 ? copy * domains : 0;
            memset(nodes[n].group, 0, sizeof(nodes[n].group));
        }
        struct problem more = *problem;
        more.spec = spec;
        more.nodes = nodes;
        more.nodes_count = count;
        more.slots = problem->slots * times[i];
        DP_CLEANUP(dp_planner_explorer_deinit) struct explorer larger = {0};
        struct dp_error ignored = {0};
        if (dp_planner_explorer_init(&larger, &more, &ignored) != DP_OK ||
            dp_planner_space_init(&larger, &ignored) != DP_OK) {
            continue;
        }
        struct leanest leanest;
        find_leanest(&larger, larger.memory_limit, &leanest);
        if (leanest.bytes >= 0 && leanest.bytes <= larger.memory_limit) {
            return more.slots;
        }
    }
    return 0;
}

// The first key that is set without which something fits.
static const char *key_in_the_way(const struct explorer *explorer)
{
    DP_AUTO_FREE struct dp_job_spec *spec = dp_new(struct dp_job_spec);
    for (size_t i = 0; i < KEYS + 3; i++) {
        *spec = *explorer->problem->spec;
        struct dp_parallel_spec *p = &spec->parallel;
        char *texts[] = {p->schedule, p->recompute, p->shard};
        const char *const names[] = {"schedule", "recompute", "shard"};
        bool is_set = i < KEYS ? *value_of(spec, i) > 0 : texts[i - KEYS][0] != '\0';
        if (!is_set) {
            continue;
        }
        if (i < KEYS) {
            *value_of(spec, i) = 0;
        } else {
            texts[i - KEYS][0] = '\0';
        }
        struct problem problem = *explorer->problem;
        problem.spec = spec;
        DP_CLEANUP(dp_planner_explorer_deinit) struct explorer other = {0};
        struct dp_error ignored = {0};
        if (dp_planner_explorer_init(&other, &problem, &ignored) != DP_OK ||
            dp_planner_space_init(&other, &ignored) != DP_OK) {
            continue;
        }
        struct leanest leanest;
        find_leanest(&other, other.memory_limit, &leanest);
        if (leanest.bytes >= 0 && leanest.bytes <= other.memory_limit) {
            return i < KEYS ? keys[i].name : names[i - KEYS];
        }
    }
    return NULL;
}

static void write_way_out(const struct explorer *explorer, struct dp_buf *out)
{
    const char *key = key_in_the_way(explorer);
    if (key != NULL) {
        dp_buf_printf(out, ". Without %s being set something fits", key);
        return;
    }
    int64_t ranks = ranks_that_fit(explorer);
    if (ranks > 0) {
        dp_buf_printf(out, ". %lld of these accelerators would do", (long long)ranks);
    }
}

dp_status dp_planner_impossible_memory(struct explorer *explorer, struct dp_error *err)
{
    struct leanest leanest;
    find_leanest(explorer, 0, &leanest);
    if (leanest.bytes < 0 || dp_planner_is_stopped(explorer->problem)) {
        return dp_fail(err, DP_INTERRUPTED,
                       "planning was stopped before anything was found to fit");
    }
    DP_CLEANUP(dp_planner_appraisal_deinit) struct appraisal appraisal = {0};
    dp_status status = dp_planner_appraise(explorer, &leanest.choice, &appraisal, err);
    if (status != DP_OK) {
        return status;
    }
    int32_t fullest = appraisal.fullest;
    struct memory_change changes[MEMORY_CHANGES_MAX];
    size_t changes_count = dp_planner_memory_changes(&appraisal.pricing.strategy,
                                                     &explorer->problem->spec->model, changes);
    for (size_t i = 0; i < changes_count; i++) {
        changes[i].bytes = bytes_with(explorer, &leanest.choice, &changes[i].strategy);
    }
    struct memory_refusal refusal = {
        .strategy = &appraisal.pricing.strategy,
        .position = fullest,
        .rank = fullest * leanest.choice.tensor * leanest.choice.context,
        .parts = appraisal.positions[fullest].memory,
        .limit = explorer->memory_limit,
        .at_s = appraisal.positions[fullest].memory_at_s,
        .changes = changes,
        .changes_count = changes_count,
    };
    for (size_t i = appraisal.schedule.rank_begin[fullest];
         i < appraisal.schedule.rank_begin[fullest + 1]; i++) {
        if (appraisal.result.spans[i].start >= refusal.at_s) {
            refusal.action = appraisal.schedule.actions[i];
            dp_planner_peak_alive(&appraisal.schedule, fullest, i, &refusal.kept,
                                  &refusal.deferred);
            break;
        }
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_planner_memory_refusal_write(&refusal, &text);
    write_way_out(explorer, &text);
    if (dp_planner_is_stopped(explorer->problem)) {
        return dp_fail(err, DP_INTERRUPTED, "planning was stopped while a way out was looked for");
    }
    return dp_fail(err, DP_UNSCHEDULABLE,
                   "the job fits into no rank's memory: of the leanest of all choices (%s, "
                   "pipeline %d, expert %d, data %d, tensor %d) %s",
                   leanest.choice.family->name, leanest.choice.pipeline, leanest.choice.expert,
                   leanest.choice.data, leanest.choice.tensor, text.bytes);
}
