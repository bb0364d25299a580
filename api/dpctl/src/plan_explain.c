// dpctl plan --explain RANK: what one rank does, what fills it and what it waits for.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/plan_text.h"
#include "dp/sim_analysis.h"
#include "plan_request.h"
#include "plan_tensors.h"

enum { MOMENTS = 12, GAPS = 3, COLUMNS = 100 };

// Idle time of the rank right before an action.
struct gap {
    double seconds;
    size_t action;
};

struct subject {
    const struct dp_plan *plan;
    int32_t rank; // global
    struct dp_plan_coordinates at;
    struct dp_schedule schedule;
    struct dp_sim_costs costs;
    struct dp_sim_result result;
    struct dp_sim_analysis analysis;
    int32_t stages[DP_RANK_STAGES_MAX];
    int32_t stages_count;
    size_t actions[DP_ACTION_KIND_COUNT];
    size_t path_actions; // of the critical path, here
    double path_s, path_travel_s;
    double held[MOMENTS]; // activation bytes at equal distances over the makespan
    struct dp_sim_memory_point peak;
    double state;          // bytes that stay for the whole step
    struct gap gaps[GAPS]; // the longest first
};

static void subject_deinit(struct subject *subject)
{
    dp_sim_analysis_deinit(&subject->analysis);
    dp_sim_result_deinit(&subject->result);
    dp_sim_costs_deinit(&subject->costs);
    dp_schedule_deinit(&subject->schedule);
}

static void count_actions(struct subject *subject)
{
    const struct dp_schedule *schedule = &subject->schedule;
    int32_t rank = subject->at.pipeline;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        subject->actions[schedule->actions[i].kind]++;
    }
    subject->stages_count = dp_schedule_rank_stages(schedule, rank, subject->stages);
}

// What the critical path does here, and what travels to it.
static void walk_path(struct subject *subject)
{
    const struct dp_sim_analysis *analysis = &subject->analysis;
    for (size_t i = 0; i < analysis->path_count; i++) {
        const struct dp_sim_path_step *step = &analysis->path[i];
        if (step->rank != subject->at.pipeline) {
            continue;
        }
        subject->path_actions++;
        subject->path_s += step->end - step->start;
        if (step->cause == DP_SIM_CAUSE_COMM && i > 0) {
            subject->path_travel_s += step->start - analysis->path[i - 1].end;
        }
    }
}

static void sample_memory(struct subject *subject)
{
    DP_AUTO_FREE struct dp_sim_memory_point *points = NULL;
    size_t count = 0;
    dp_sim_memory_over_time(&subject->schedule, &subject->costs, subject->result.spans,
                            subject->at.pipeline, &points, &count);
    size_t at = 0;
    for (int i = 0; i < MOMENTS; i++) {
        double time = subject->result.makespan * i / (MOMENTS - 1);
        while (at + 1 < count && points[at + 1].time <= time) {
            at++;
        }
        subject->held[i] = (double)points[at].bytes;
    }
    for (size_t i = 0; i < count; i++) {
        if (points[i].bytes > subject->peak.bytes) {
            subject->peak = points[i];
        }
    }
}

static void find_gaps(struct subject *subject)
{
    const struct dp_schedule *schedule = &subject->schedule;
    int32_t rank = subject->at.pipeline;
    double end = 0;
    for (size_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        struct gap gap = {subject->result.spans[i].start - end, i};
        end = subject->result.spans[i].end;
        for (int k = 0; k < GAPS; k++) {
            if (gap.seconds > subject->gaps[k].seconds) {
                struct gap shorter = subject->gaps[k];
                subject->gaps[k] = gap;
                gap = shorter;
            }
        }
    }
}

// What a rank keeps whatever it runs.
static double state_bytes(const struct dp_plan *plan, int32_t position)
{
    if (plan->positions == NULL) {
        return 0;
    }
    const struct dp_memory_parts *m = &plan->positions[position].memory;
    return dp_memory_total(m) - m->activations - m->deferred - m->transient;
}

static dp_status subject_init(const struct plan_request *request,
                              const struct plan_question *question, const struct dp_plan *plan,
                              struct subject *subject, struct dp_error *err)
{
    if (request->rank >= dp_plan_world(plan)) {
        return dp_fail(err, DP_NOT_FOUND, "--explain %d: the plan has %d ranks, from 0 on",
                       request->rank, dp_plan_world(plan));
    }
    subject->plan = plan;
    subject->rank = request->rank;
    subject->at = dp_plan_rank_coordinates(plan, request->rank);
    dp_status status = dp_plan_schedule(plan, &subject->schedule, err);
    if (status == DP_OK) {
        status = dp_planner_costs(&question->spec, plan, &question->resources, subject->at.data,
                                  &subject->schedule, &subject->costs, err);
    }
    if (status == DP_OK) {
        status = dp_simulate_analyzed(&subject->schedule, &subject->costs, &subject->result,
                                      &subject->analysis, err);
    }
    if (status == DP_OK) {
        count_actions(subject);
        walk_path(subject);
        sample_memory(subject);
        find_gaps(subject);
        subject->state = state_bytes(plan, subject->at.pipeline);
    }
    return status;
}

static json_t *stages_json(const struct subject *subject)
{
    json_t *stages = json_array();
    for (int32_t i = 0; i < subject->stages_count; i++) {
        const int32_t *layers = &subject->plan->layer_begin[subject->stages[i]];
        json_array_append_new(stages, json_pack("{s:i, s:i, s:i}", "stage", (int)subject->stages[i],
                                                "layer_begin", (int)layers[0], "layer_end",
                                                (int)layers[1]));
    }
    return stages;
}

static json_t *subject_json(const struct subject *subject)
{
    const struct dp_plan_rank *rank = &subject->plan->ranks[subject->rank];
    const struct dp_sim_rank *sim = &subject->result.ranks[subject->at.pipeline];
    json_t *actions = json_object(), *held = json_array();
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        json_object_set_new(actions, dp_action_kind_text((dp_action_kind)kind),
                            json_integer((json_int_t)subject->actions[kind]));
    }
    for (int i = 0; i < MOMENTS; i++) {
        json_array_append_new(held, json_pack("{s:f, s:f}", "at_s",
                                              subject->result.makespan * i / (MOMENTS - 1),
                                              "activations_bytes", subject->held[i]));
    }
    // The rank's own parts, as the answer has them for every pipeline rank.
    DP_AUTO_JSON json_t *whole = dp_plan_to_json(subject->plan);
    json_t *parts = json_array_get(json_object_get(json_object_get(whole, "chosen"), "per_rank"),
                                   (size_t)subject->at.pipeline);
    return json_pack(
        "{s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:O?, s:{s:f, s:f, s:f, s:f, s:f, "
        "s:f}, s:f, s:f, s:o, s:{s:I, s:I, s:f, s:f}}",
        "rank", (int)subject->rank, "node", rank->node, "slot", (int)rank->slot, "pipeline",
        (int)subject->at.pipeline, "data", (int)subject->at.data, "context",
        (int)subject->at.context, "tensor", (int)subject->at.tensor, "expert",
        (int)subject->at.expert, "stages", stages_json(subject), "actions", actions, "parts", parts,
        "waits", "warmup_s", sim->warmup, "dependency_s", sim->dependency, "imbalance_s",
        sim->imbalance, "hop_s", sim->comm, "cooldown_s", sim->cooldown, "bubble_s", sim->bubble,
        "peak_at_s", subject->peak.time, "peak_activations_bytes", (double)subject->peak.bytes,
        "memory_over_time", held, "critical_path", "actions", (json_int_t)subject->path_actions,
        "of", (json_int_t)subject->analysis.path_count, "computing_s", subject->path_s,
        "travelling_s", subject->path_travel_s);
}

static void put_places(const struct subject *subject, struct dp_buf *out)
{
    const struct dp_plan *plan = subject->plan;
    const struct dp_plan_rank *rank = &plan->ranks[subject->rank];
    const struct dp_plan_coordinates *at = &subject->at;
    dp_buf_printf(out, "rank %d: %s, slot %d; pipeline %d of %d, data %d of %d", subject->rank,
                  rank->node, rank->slot, at->pipeline, plan->pipeline, at->data, plan->data);
    const struct {
        const char *name;
        int32_t number, of;
    } more[] = {{"expert", at->expert, plan->expert},
                {"context", at->context, plan->context},
                {"tensor", at->tensor, plan->tensor}};
    for (size_t i = 0; i < DP_ARRAY_LENGTH(more); i++) {
        if (more[i].of > 1) {
            dp_buf_printf(out, ", %s %d of %d", more[i].name, more[i].number, more[i].of);
        }
    }
    dp_buf_puts(out, " (all count from 0)\nholds      ");
    for (int32_t i = 0; i < subject->stages_count; i++) {
        const int32_t *layers = &plan->layer_begin[subject->stages[i]];
        dp_buf_printf(out, "%sstage %d (layers %d to %d)", i > 0 ? ", " : "", subject->stages[i],
                      layers[0], layers[1] - 1);
    }
    dp_buf_puts(out, "\nruns      ");
    for (int kind = 0; kind < DP_ACTION_KIND_COUNT; kind++) {
        if (subject->actions[kind] > 0) {
            dp_buf_printf(out, " %zu %s", subject->actions[kind],
                          dp_action_kind_text((dp_action_kind)kind));
        }
    }
    dp_buf_puts(out, "\n");
}

struct named {
    const char *name;
    double value;
};

static void put_list(const char *first, const struct named *items, size_t count,
                     const char *(*text)(char buffer[32], double value), struct dp_buf *out)
{
    char buffer[32];
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    for (size_t i = 0; i < count; i++) {
        if (items[i].value > 1e-9) {
            dp_buf_printf(&line, "%s%s %s", line.length > 0 ? ", " : "", items[i].name,
                          text(buffer, items[i].value));
        }
    }
    if (line.length > 0) {
        dp_plan_text_wrap(first, line.bytes, COLUMNS, out);
    }
}

static void put_times(const struct subject *subject, struct dp_buf *out)
{
    const struct dp_sim_rank *sim = &subject->result.ranks[subject->at.pipeline];
    if (subject->plan->positions != NULL) {
        const struct dp_plan_position *p = &subject->plan->positions[subject->at.pipeline];
        const struct named actions[] = {
            {"forward", p->forward_s},    {"backward", p->backward_s},     {"input", p->input_s},
            {"weight", p->weight_s},      {"overlapped", p->overlapped_s}, {"bubble", p->bubble_s},
            {"gradients", p->gradient_s}, {"optimizer", p->optimizer_s}};
        const struct named inside[] = {{"compute", p->compute_s},
                                       {"exposed all-to-all", p->exchange_s},
                                       {"collectives", p->wait_s},
                                       {"all-to-all beside compute", p->hidden_s}};
        put_list("step       ", actions, DP_ARRAY_LENGTH(actions), dpctl_seconds, out);
        put_list("inside     ", inside, DP_ARRAY_LENGTH(inside), dpctl_seconds, out);
    }
    const struct named waits[] = {{"for the first input", sim->warmup},
                                  {"for inputs not computed yet", sim->dependency},
                                  {"for slower ranks", sim->imbalance},
                                  {"for inputs on their way", sim->comm},
                                  {"after its last action", sim->cooldown}};
    put_list("waits      ", waits, DP_ARRAY_LENGTH(waits), dpctl_seconds, out);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    char text[32];
    for (int k = 0; k < GAPS && subject->gaps[k].seconds > 1e-9; k++) {
        dp_buf_printf(&line, "%s%s before ", k > 0 ? ", " : "",
                      dpctl_seconds(text, subject->gaps[k].seconds));
        dp_action_format(&subject->schedule.actions[subject->gaps[k].action], &line);
    }
    if (line.length > 0) {
        dp_plan_text_wrap("longest    ", line.bytes, COLUMNS, out);
    }
}

static void put_memory(const struct subject *subject, struct dp_buf *out)
{
    char text[32], when[32];
    if (subject->plan->positions != NULL) {
        const struct dp_plan_position *position = &subject->plan->positions[subject->at.pipeline];
        const struct dp_memory_parts *m = &position->memory;
        const struct named parts[] = {
            {"weights", m->weights},        {"gradients", m->gradients},
            {"optimizer", m->optimizer},    {"activations", m->activations},
            {"until W", m->deferred},       {"running action", m->transient},
            {"communication", m->exchange}, {"runtime", m->runtime}};
        double bytes = dp_plan_position_bytes(subject->plan, subject->at.pipeline);
        dp_buf_printf(out, "memory     %s at most, %s into the step", dpctl_bytes(text, bytes),
                      dpctl_seconds(when, position->memory_at_s));
        if (position->memory_limit_bytes > 0) {
            dp_buf_printf(out, "; there is %s", dpctl_bytes(text, position->memory_limit_bytes));
        }
        dp_buf_puts(out, "\n");
        put_list("inside     ", parts, DP_ARRAY_LENGTH(parts), dpctl_bytes, out);
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    for (int i = 0; i < MOMENTS; i++) {
        double time = subject->result.makespan * i / (MOMENTS - 1);
        dp_buf_printf(&line, "%sat %s %s", i > 0 ? ", " : "", dpctl_seconds(when, time),
                      dpctl_bytes(text, subject->state + subject->held[i]));
    }
    dp_plan_text_wrap("over time  ", line.bytes, COLUMNS, out);
    dp_buf_printf(out, "kept       %s of %u chunks at most, from %s on\n",
                  dpctl_bytes(text, (double)subject->peak.bytes), subject->peak.chunks,
                  dpctl_seconds(when, subject->peak.time));
}

static void put_path(const struct subject *subject, struct dp_buf *out)
{
    char here[32], all[32], travel[32];
    DP_CLEANUP(dp_buf_deinit) struct dp_buf line = {0};
    if (subject->path_actions == 0) {
        dp_buf_printf(&line, "the %zu actions that make the step as long as it is run elsewhere",
                      subject->analysis.path_count);
    } else {
        dp_buf_printf(
            &line, "%zu of the %zu actions that make the step as long as it is run here: %s of %s",
            subject->path_actions, subject->analysis.path_count,
            dpctl_seconds(here, subject->path_s), dpctl_seconds(all, subject->result.makespan));
    }
    if (subject->path_travel_s > 1e-9) {
        dp_buf_printf(&line, ", after %s of hops", dpctl_seconds(travel, subject->path_travel_s));
    }
    dp_plan_text_wrap("critical   ", line.bytes, COLUMNS, out);
}

dp_status plan_explain(struct dpctl *ctl, const struct plan_request *request,
                       const struct plan_question *question, const struct dp_plan *plan,
                       struct dp_error *err)
{
    DP_CLEANUP(subject_deinit) struct subject subject = {0};
    dp_status status = subject_init(request, question, plan, &subject, err);
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    if (ctl->json) {
        json_t *json = subject_json(&subject);
        json_object_set_new(json, "tensors", plan_tensors_json(question, plan));
        dpctl_write_json(json, "dp.plan.explain/1", &text);
        return dpctl_write(ctl, request->out, &text, err);
    }
    put_places(&subject, &text);
    put_times(&subject, &text);
    put_memory(&subject, &text);
    plan_tensors_put(question, plan, subject.stages, subject.stages_count, &text);
    put_path(&subject, &text);
    return plan_write_text(ctl, request, &text, err);
}
