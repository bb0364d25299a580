// Every choice that spec and ranks leave open, by the rules that need no simulation.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "internal.h"

enum { MICRO_BATCH_MAX = 64 };

void dp_planner_choices_deinit(struct choices *choices)
{
    for (size_t i = 0; i < choices->refused_count; i++) {
        free(choices->refused[i].reason);
    }
    free(choices->refused);
    free(choices->legal);
    *choices = (struct choices){0};
}

static void add_legal(struct choices *choices, const struct choice *choice)
{
    if ((choices->legal_count & (choices->legal_count - 1)) == 0) {
        size_t room = choices->legal_count == 0 ? 1 : 2 * choices->legal_count;
        choices->legal = dp_realloc(choices->legal, room, sizeof(*choices->legal));
    }
    choices->legal[choices->legal_count++] = *choice;
}

// Takes the reason.
static void add_refused(struct choices *choices, const struct choice *choice, char *reason)
{
    choices->refused_total++;
    if (choices->refused_count == REFUSED_MAX) {
        free(reason);
        return;
    }
    if (choices->refused == NULL) {
        choices->refused = dp_new_array(struct refusal, REFUSED_MAX);
    }
    choices->refused[choices->refused_count++] = (struct refusal){*choice, reason};
}

// With what would fit: fewer chunks per rank where there is a choice, else fewer ranks.
static char *too_many_stages(const struct choice *choice, int32_t layers)
{
    const struct dp_schedule_family *family = choice->family;
    int32_t step = family->virtual_max > 0 ? family->virtual_step : 1;
    int32_t chunks = family->virtual_max > 0 ? layers / choice->pipeline / step * step : 0;
    int32_t ranks = (int32_t)((int64_t)layers * choice->pipeline / choice->stages);
    return dp_asprintf("%s on %d ranks has %d stages, but the model only %d layers; %s at most %d",
                       family->name, choice->pipeline, choice->stages, layers,
                       chunks >= 2 ? "virtual" : "pipeline", chunks >= 2 ? chunks : ranks);
}

static void consider(const struct problem *problem, const struct choice *choice,
                     struct choices *choices)
{
    struct choice complete = *choice;
    const struct dp_schedule_family *family = choice->family;
    const struct dp_schedule_params params = {.pipeline = choice->pipeline,
                                              .microbatches = choice->microbatches,
                                              .virtual_stages = choice->virtual_stages};
    struct dp_error why = {0};
    if (dp_schedule_check(family->name, &params, &why) != DP_OK) {
        add_refused(choices, choice, dp_strdup(why.message));
        return;
    }
    complete.stages = dp_schedule_family_stages(family, &params);
    int32_t layers = problem->spec->model.layers;
    if (complete.stages > layers) {
        add_refused(choices, choice, too_many_stages(&complete, layers));
        return;
    }
    if (problem->set_stages > 0 && complete.stages != problem->set_stages) {
        add_refused(choices, choice,
                    dp_asprintf("layers_per_stage has %d stages, but %s on %d ranks %d",
                                problem->set_stages, family->name, choice->pipeline,
                                complete.stages));
        return;
    }
    complete.bound_s = dp_planner_choice_bound_s(problem, &complete);
    add_legal(choices, &complete);
}

// Chunks per rank where neither the job nor the family says how many; more than 8 only adds
// messages to a bubble that is small by then.
static const int32_t virtual_choices[] = {2, 3, 4, 8};

static void each_virtual(const struct problem *problem, struct choice *choice,
                         struct choices *choices)
{
    const struct dp_schedule_family *family = choice->family;
    int32_t wanted = problem->spec->parallel.virtual_stages;
    choice->virtual_stages = wanted;
    // A single rank gains nothing by more chunks.
    if (wanted > 0 || family->virtual_max == 0 || choice->pipeline == 1) {
        consider(problem, choice, choices);
        return;
    }
    for (size_t i = 0; i < DP_ARRAY_LENGTH(virtual_choices); i++) {
        int32_t chunks = virtual_choices[i];
        bool fits = chunks * choice->pipeline <= problem->spec->model.layers;
        if (chunks % family->virtual_step == 0 && (fits || i == 0)) {
            choice->virtual_stages = chunks;
            consider(problem, choice, choices);
        }
    }
}

static void each_family(const struct problem *problem, struct choice *choice,
                        struct choices *choices)
{
    const char *wanted = problem->spec->parallel.schedule;
    // An order of its own is searched on the sizes where fixed families are best.
    bool any = wanted[0] == '\0' || strcmp(wanted, "auto") == 0;
    size_t count;
    const struct dp_schedule_family *families = dp_schedule_families(&count);
    for (size_t i = 0; i < count; i++) {
        if (any || strcmp(wanted, families[i].name) == 0) {
            choice->family = &families[i];
            each_virtual(problem, choice, choices);
        }
    }
}

static void each_micro_batch_size(const struct problem *problem, struct choice *choice,
                                  struct choices *choices)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t share = problem->spec->train.global_batch / choice->data;
    for (int32_t size = 1; size <= share; size *= 2) {
        int32_t samples = p->micro_batch_size > 0 ? p->micro_batch_size : size;
        if (p->micro_batch_size == 0 && p->microbatches > 0) {
            samples = share % p->microbatches == 0 ? share / p->microbatches : 0;
        }
        bool fits = samples > 0 && share % samples == 0 &&
                    (p->microbatches == 0 || share / samples == p->microbatches) &&
                    share / samples <= DP_MICROBATCHES_MAX;
        if (fits) {
            choice->micro_batch_size = samples;
            choice->microbatches = share / samples;
            each_family(problem, choice, choices);
        }
        if (p->micro_batch_size > 0 || p->microbatches > 0 || size == MICRO_BATCH_MAX) {
            return;
        }
    }
}

static void each_expert(const struct problem *problem, struct choice *choice,
                        struct choices *choices)
{
    int32_t wanted = problem->spec->parallel.expert, experts = problem->spec->model.experts;
    for (int32_t expert = 1; expert <= choice->data; expert++) {
        bool legal =
            choice->data % expert == 0 && (expert == 1 || (experts > 0 && experts % expert == 0));
        if (legal && (wanted == 0 || wanted == expert)) {
            choice->expert = expert;
            each_micro_batch_size(problem, choice, choices);
        }
    }
}

// Where neither the job nor its batch asks for less, large clusters are used by more than half:
// smaller shares cannot win there.
enum { SMALL_CLUSTER = 64 };

static bool world_is_wanted(const struct problem *problem, int64_t world)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t ranks = problem->spec->resources.ranks;
    if (ranks > 0) {
        return world == ranks;
    }
    bool is_set = p->pipeline > 0 && p->data > 0;
    // No more ranks than one layer and one sample each.
    int64_t most = (int64_t)problem->spec->model.layers * problem->spec->train.global_batch;
    int64_t useful = most < problem->slots ? most : problem->slots;
    return world <= problem->slots && (is_set || useful <= SMALL_CLUSTER || 2 * world > useful);
}

static void each_world(const struct problem *problem, struct choices *choices)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    int32_t layers = problem->spec->model.layers;
    int32_t batch = problem->spec->train.global_batch;
    int32_t pipeline_max = layers < DP_PIPELINE_MAX ? layers : DP_PIPELINE_MAX;
    struct choice choice = {0};
    for (int32_t pipeline = 1; pipeline <= pipeline_max; pipeline++) {
        if (p->pipeline > 0 && p->pipeline != pipeline) {
            continue;
        }
        for (int32_t data = 1; data <= batch && (int64_t)data * pipeline <= problem->slots;
             data++) {
            bool legal = batch % data == 0 && (p->data == 0 || p->data == data);
            if (legal && world_is_wanted(problem, (int64_t)data * pipeline)) {
                choice.pipeline = pipeline;
                choice.data = data;
                each_expert(problem, &choice, choices);
            }
        }
    }
}

// The ranks that the job cannot do without.
static int64_t ranks_needed(const struct dp_job_spec *spec)
{
    const struct dp_parallel_spec *p = &spec->parallel;
    int32_t expert = p->expert > 0 ? p->expert : 1;
    int64_t data = p->data > 0 ? p->data : expert;
    int64_t needed = (p->pipeline > 0 ? p->pipeline : 1) * data;
    return spec->resources.ranks > needed ? spec->resources.ranks : needed;
}

static dp_status fail_for_ranks(const struct problem *problem, int64_t needed, struct dp_error *err)
{
    const struct dp_parallel_spec *p = &problem->spec->parallel;
    char why[96] = "";
    if (problem->spec->resources.ranks < needed) {
        snprintf(why, sizeof(why), " (pipeline %d x data %lld)", p->pipeline > 0 ? p->pipeline : 1,
                 (long long)(needed / (p->pipeline > 0 ? p->pipeline : 1)));
    }
    return dp_fail(err, DP_UNSCHEDULABLE,
                   "the job needs %lld ranks%s; %lld are free on %zu node%s: wait for more, or ask "
                   "for fewer",
                   (long long)needed, why, (long long)problem->slots, problem->nodes_count,
                   problem->nodes_count == 1 ? "" : "s");
}

static dp_status fail_for_choices(const struct problem *problem, const struct choices *choices,
                                  struct dp_error *err)
{
    if (choices->refused_count == 0) {
        return dp_fail(err, DP_INVALID,
                       "no division of %d samples over at most %lld ranks satisfies what the job "
                       "sets; relax [parallel] or [resources] ranks",
                       problem->spec->train.global_batch, (long long)problem->slots);
    }
    if (choices->refused_total == 1) {
        return dp_fail(err, DP_INVALID, "%s", choices->refused[0].reason);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    for (size_t i = 0; i < choices->refused_count && i < 4; i++) {
        const struct choice *c = &choices->refused[i].choice;
        dp_buf_printf(&text, "\n  pipeline %d, data %d, %d micro-batches of %d: %s", c->pipeline,
                      c->data, c->microbatches, c->micro_batch_size, choices->refused[i].reason);
    }
    if (choices->refused_total > 4) {
        dp_buf_printf(&text, "\n  and %zu more", choices->refused_total - 4);
    }
    return dp_fail(err, DP_INVALID, "none of %zu choices is legal:%s", choices->refused_total,
                   text.bytes);
}

dp_status dp_planner_check_schedule(const struct dp_job_spec *spec, struct dp_error *err)
{
    const char *name = spec->parallel.schedule;
    if (name[0] == '\0' || strcmp(name, "auto") == 0 || dp_schedule_family_find(name) != NULL) {
        return DP_OK;
    }
    const struct dp_schedule_params params = {.pipeline = 1, .microbatches = 1};
    struct dp_error why = {0};
    dp_schedule_check(name, &params, &why);
    // --set takes "any" to undo what a file says.
    return dp_fail(err, DP_INVALID, "[parallel] schedule: %s%s", why.message,
                   strcmp(name, "any") == 0 ? "; leave the key out to have the planner choose"
                                            : "");
}

dp_status dp_planner_enumerate_choices(const struct problem *problem, struct choices *ret_choices,
                                       struct dp_error *err)
{
    dp_status status = dp_planner_check_schedule(problem->spec, err);
    if (status != DP_OK) {
        return status;
    }
    int64_t needed = ranks_needed(problem->spec);
    if (needed > problem->slots) {
        return fail_for_ranks(problem, needed, err);
    }
    struct choices choices = {0};
    each_world(problem, &choices);
    if (choices.legal_count == 0) {
        status = fail_for_choices(problem, &choices, err);
        dp_planner_choices_deinit(&choices);
        return status;
    }
    *ret_choices = choices;
    return DP_OK;
}
