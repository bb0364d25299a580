#include "lessons.h"

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/cost.h"
#include "dp/log.h"
#include "lesson_json.h"
#include "lesson_steps.h"
#include "machines.h"

// What holds of one node.
struct node_correction {
    char node[DP_NAME_MAX];
    struct dp_correction correction;
    struct node_correction *next;
};

struct lessons {
    struct node_correction *nodes;
    struct lesson_steps *steps;
    uint64_t *done; // jobs that were looked at when they had ended
    size_t done_count, done_capacity;
};

static struct lessons *of(struct daemon *daemon)
{
    if (daemon->lessons == NULL) {
        daemon->lessons = dp_new(struct lessons);
    }
    return daemon->lessons;
}

static struct node_correction *find_node(struct daemon *daemon, const char *node)
{
    struct node_correction *found = of(daemon)->nodes;
    while (found != NULL && strcmp(found->node, node) != 0) {
        found = found->next;
    }
    return found;
}

static void set_node(struct daemon *daemon, const char *node,
                     const struct dp_correction *correction)
{
    struct node_correction *found = find_node(daemon, node);
    if (found == NULL) {
        found = dp_new(struct node_correction);
        DP_COPY_TEXT(found->node, node);
        found->next = of(daemon)->nodes;
        of(daemon)->nodes = found;
    }
    found->correction = *correction;
}

dp_status lessons_load(struct daemon *daemon, struct dp_error *err)
{
    struct dp_profile_record *rows = NULL;
    size_t count = 0;
    dp_status status =
        dp_store_load_profiles(daemon->store, "", DP_PROFILE_RUN, 0, &rows, &count, err);
    for (size_t i = 0; i < count; i++) {
        struct dp_correction correction;
        struct dp_error unreadable = {0};
        // Newest first.
        if (find_node(daemon, rows[i].node) == NULL) {
            if (lesson_read_correction(&rows[i].document, &correction, &unreadable) == DP_OK) {
                set_node(daemon, rows[i].node, &correction);
            } else {
                dp_log_warn("correction.unreadable", "node=%s reason=\"%s\"", rows[i].node,
                            unreadable.message);
            }
        }
        dp_profile_record_deinit(&rows[i]);
    }
    free(rows);
    return status;
}

void lessons_free(struct daemon *daemon)
{
    struct lessons *lessons = of(daemon);
    while (lessons->nodes != NULL) {
        struct node_correction *next = lessons->nodes->next;
        free(lessons->nodes);
        lessons->nodes = next;
    }
    lesson_steps_free(lessons->steps);
    free(lessons->done);
    free(lessons);
    daemon->lessons = NULL;
}

// One that was made against another measurement says nothing of this one.
static struct dp_correction correction_for(struct daemon *daemon, const char *node,
                                           int64_t measured_at_s)
{
    struct dp_correction correction;
    const struct node_correction *known = find_node(daemon, node);
    dp_correction_init(&correction);
    if (known != NULL && known->correction.base_measured_at_s == measured_at_s) {
        correction = known->correction;
    }
    correction.base_measured_at_s = measured_at_s;
    return correction;
}

void lessons_apply(struct daemon *daemon, struct plan_nodes *nodes)
{
    dp_correction_init(&nodes->correction);
    if (nodes->profile_known) {
        nodes->correction =
            correction_for(daemon, nodes->profile_node, nodes->profile.measured_at_s);
        dp_correction_apply(&nodes->correction, &nodes->profile);
    }
}

bool lessons_profile(struct daemon *daemon, const struct dp_node_record *node,
                     struct dp_profile *ret_profile)
{
    struct dp_error err = {0};
    if (lesson_read_profile(&node->profile, ret_profile, &err) != DP_OK) {
        return false;
    }
    struct dp_correction correction =
        correction_for(daemon, node->name, ret_profile->measured_at_s);
    dp_correction_apply(&correction, ret_profile);
    return true;
}

static void store_lesson(struct daemon *daemon, uint64_t job, const struct dp_lesson *lesson,
                         bool ended)
{
    struct dp_lesson_record row = {.job = job};
    lesson_write(lesson, ended, &row.document);
    struct dp_record record = {DP_RECORD_LESSON, &row};
    dp_store_submit(daemon->store, 0, &record, 1);
    dp_lesson_record_deinit(&row);
}

// A message goes each way between neighbours at least once, with nothing to do meanwhile.
static double hops_s(const struct plan_nodes *nodes, const struct dp_job_spec *spec,
                     const struct dp_plan *plan)
{
    bool one_node = true;
    for (int32_t p = 1; p < plan->pipeline; p++) {
        one_node = one_node && strcmp(plan->ranks[p].node, plan->ranks[0].node) == 0;
    }
    const struct dp_link_profile *link = one_node ? &nodes->profile.local : &nodes->profile.network;
    struct dp_cost_batch batch = {.samples = plan->micro_batch_size,
                                  .sequence = spec->train.sequence,
                                  .ep_size = plan->expert,
                                  .ep_nodes = 1};
    double bytes = dp_cost_hop_bytes(&spec->model, &nodes->profile, &batch);
    if (link->bytes_per_s <= 0) {
        return 0; // an accelerator's links are other figures
    }
    return 2 * (plan->pipeline - 1) * (link->latency_s + bytes / link->bytes_per_s);
}

void lessons_planned(struct daemon *daemon, uint64_t job, const struct plan_nodes *nodes,
                     const struct dp_job_spec *spec, const struct dp_plan *plan)
{
    struct dp_lesson lesson = {.used = nodes->correction, .correction = nodes->correction};
    lesson.hops_s = nodes->profile_known ? hops_s(nodes, spec, plan) : 0;
    store_lesson(daemon, job, &lesson, false);
}

void lessons_step(struct daemon *daemon, const struct dp_report *report)
{
    uint64_t number = dp_core_job_find(daemon->core, report->fence.job);
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    const struct dp_job_record *job = dp_core_job(daemon->core, number, &ranks, &count);
    if (job != NULL && report->rank < count && report->fence.attempt == job->attempt &&
        report->fence.epoch == job->epoch) {
        lesson_steps_add(&of(daemon)->steps, report);
    }
}

static bool cores_are_shared(struct daemon *daemon, const struct job_view *view,
                             struct dp_arena *arena)
{
    const struct machine *machines = NULL;
    size_t found = view_machines(daemon, view, arena, &machines);
    for (size_t i = 0; i < found; i++) {
        if (machines[i].node->cores > 0 && machines[i].ranks > machines[i].node->cores) {
            return true;
        }
    }
    return false;
}

// A plan of an older version has no positions: its ranks then know their actions as a whole.
static void predict(const Dp__V1__Plan *plan, struct dp_part_times *ret_times)
{
    uint32_t shards =
        (plan->tensor > 1 ? plan->tensor : 1) * (plan->context > 1 ? plan->context : 1);
    for (size_t r = 0; r < plan->n_ranks; r++) {
        size_t position = plan->pipeline > 0 ? r / shards % plan->pipeline : 0;
        struct dp_part_times *times = &ret_times[r];
        if (position < plan->n_positions) {
            const Dp__V1__PlanPosition *parts = plan->positions[position];
            times->s[DP_PART_COMPUTE] = parts->compute_s;
            times->s[DP_PART_EXCHANGE] = parts->exchange_s;
            times->s[DP_PART_GRADIENT] = parts->gradient_s;
            times->s[DP_PART_OPTIMIZER] = parts->optimizer_s;
        } else {
            times->s[DP_PART_COMPUTE] = plan->expert > 1 ? 0 : plan->ranks[r]->busy_s;
            times->s[DP_PART_GRADIENT] = plan->grad_sync_s;
            times->s[DP_PART_OPTIMIZER] = plan->optimizer_s;
        }
    }
}

// A rank waits for others, whose compute is longer or shorter than was predicted in the same
// proportion, and for messages: what is left of the waits is theirs.
static void split_waits(const Dp__V1__Plan *plan, double hops_s, struct dp_part_times *predicted,
                        struct dp_part_times *measured)
{
    for (size_t r = 0; r < plan->n_ranks; r++) {
        double compute = predicted[r].s[DP_PART_COMPUTE];
        double scale = compute > 0 ? measured[r].s[DP_PART_COMPUTE] / compute : 1;
        double structure = plan->ranks[r]->bubble_s - hops_s;
        double waits = measured[r].s[DP_PART_HOP] - scale * (structure > 0 ? structure : 0);
        predicted[r].s[DP_PART_HOP] = hops_s;
        // Shorter than half of what was expected is as good as that.
        measured[r].s[DP_PART_HOP] = waits > hops_s / 2 ? waits : hops_s / 2;
    }
}

// Of the rank that has the least; 0 = not known.
static double core_share(const struct job_view *view)
{
    double least = 0;
    for (size_t r = 0; r < view->ranks_count; r++) {
        const struct dp_usage *total = &view->ranks[r].total;
        double computed = (double)(total->forward_ns + total->backward_ns + total->weight_ns +
                                   total->pair_ns + total->optimizer_ns);
        double share = computed > 0 ? (double)total->cpu_ns / computed : 0;
        least = r == 0 || share < least ? share : least;
    }
    return least;
}

static bool learning_is_off(const struct dp_job_record *job)
{
    struct dp_job_spec spec;
    struct dp_error err = {0};
    return planning_parse(job->job_toml.bytes, job->job_toml.length, job->id, &spec, &err) !=
               DP_OK ||
           spec.resources.learn == 0;
}

// Whether the nodes still are as they were when the job was planned.
static bool is_as_planned(struct daemon *daemon, const struct job_view *view,
                          const struct dp_correction *used)
{
    size_t count = dp_core_nodes_count(daemon->core);
    for (size_t i = 0; i < count; i++) {
        struct dp_node_view node;
        struct dp_profile profile;
        dp_core_node_at(daemon->core, i, &node);
        if (strcmp(node.node->name, view->ranks[0].node) == 0) {
            return lesson_read_profile(&node.node->profile, &profile, NULL) == DP_OK &&
                   profile.measured_at_s == used->base_measured_at_s;
        }
    }
    return false;
}

// Each node has a measurement of its own that the factors are of.
static void store_corrections(struct daemon *daemon, const struct job_view *view,
                              const struct dp_lesson *lesson)
{
    size_t count = dp_core_nodes_count(daemon->core);
    for (size_t i = 0; i < count; i++) {
        struct dp_node_view node;
        struct dp_profile profile;
        dp_core_node_at(daemon->core, i, &node);
        bool ran = false;
        for (size_t r = 0; r < view->ranks_count; r++) {
            ran = ran || strcmp(view->ranks[r].node, node.node->name) == 0;
        }
        if (!ran || lesson_read_profile(&node.node->profile, &profile, NULL) != DP_OK) {
            continue;
        }
        struct dp_correction correction = lesson->correction;
        correction.base_measured_at_s = profile.measured_at_s;
        set_node(daemon, node.node->name, &correction);
        struct dp_profile_record row = {.time_ns = dp_clock_realtime_ns()};
        DP_COPY_TEXT(row.node, node.node->name);
        DP_COPY_TEXT(row.source, DP_PROFILE_RUN);
        DP_COPY_TEXT(row.job, view->job->id);
        lesson_write_correction(&correction, &row.document);
        struct dp_record record = {DP_RECORD_PROFILE, &row};
        dp_store_submit(daemon->store, 0, &record, 1);
        dp_profile_record_deinit(&row);
    }
}

static void learn(struct daemon *daemon, const struct job_view *view,
                  const struct dp_correction *used, double hops)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Plan *plan = NULL;
    const struct dp_job_record *job = view->job;
    if (view_plan(job, &arena, &plan, NULL) != DP_OK || plan == NULL || view->ranks_count == 0 ||
        plan->n_ranks != view->ranks_count) {
        return;
    }
    size_t bytes = view->ranks_count * sizeof(struct dp_part_times);
    struct dp_part_times *predicted = arena_take(&arena, bytes);
    struct dp_part_times *measured = arena_take(&arena, bytes);
    struct dp_run_facts facts = {.job = job->id,
                                 .completed = job->state == DP_STATE_COMPLETED,
                                 .is_sim = strcmp(job->device, "sim") == 0,
                                 .learning_off = learning_is_off(job),
                                 .predicted_step_s = plan->step_s,
                                 .predicted = predicted,
                                 .measured = measured,
                                 .ranks = view->ranks_count,
                                 .used = *used};
    facts.cores_exceeded = plan->cores_exceeded || cores_are_shared(daemon, view, &arena);
    facts.recalibrated = !facts.is_sim && !is_as_planned(daemon, view, used);
    facts.core_share = facts.is_sim ? 0 : core_share(view);
    predict(plan, predicted);
    facts.steps = lesson_steps_medians(of(daemon)->steps, job->id, view->ranks_count, measured,
                                       &facts.measured_step_s, &facts.steps_spread);
    split_waits(plan, hops, predicted, measured);
    struct dp_lesson lesson;
    dp_lesson_learn(&facts, &lesson);
    store_lesson(daemon, job->number, &lesson, true);
    if (lesson.learned) {
        DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
        dp_correction_render(&lesson.correction, &text);
        store_corrections(daemon, view, &lesson);
        dp_log_info("job.learned", "job=%s correction=\"%s\"", job->id,
                    text.length > 0 ? text.bytes : "none");
    } else {
        dp_log_info("job.taught_nothing", "job=%s reason=\"%s\"", job->id, lesson.reason);
    }
}

static bool is_done(struct lessons *lessons, uint64_t job)
{
    for (size_t i = lessons->done_count; i-- > 0;) {
        if (lessons->done[i] == job) {
            return true;
        }
    }
    if (lessons->done_count == lessons->done_capacity) {
        lessons->done_capacity = lessons->done_capacity == 0 ? 64 : 2 * lessons->done_capacity;
        lessons->done = dp_realloc(lessons->done, lessons->done_capacity, sizeof(*lessons->done));
    }
    lessons->done[lessons->done_count++] = job;
    return false;
}

void lessons_job(struct daemon *daemon, uint64_t number)
{
    struct job_view view = {0};
    view.job = dp_core_job(daemon->core, number, &view.ranks, &view.ranks_count);
    if (view.job == NULL || !dp_job_state_ended(view.job->state) || is_done(of(daemon), number)) {
        return;
    }
    struct dp_lesson_record row = {0};
    struct dp_lesson known;
    struct dp_error err = {0};
    bool ended = false;
    if (dp_store_load_lesson(daemon->store, number, &row, &err) == DP_OK &&
        lesson_read(&row.document, &known, &ended, &err) == DP_OK && !ended) {
        learn(daemon, &view, &known.used, known.hops_s);
    }
    dp_lesson_record_deinit(&row);
    lesson_steps_forget(&of(daemon)->steps, view.job->id);
}

static char *keep_correction(const struct dp_correction *correction, struct dp_arena *arena)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_correction_render(correction, &text);
    return dp_arena_printf(arena, "%s", text.length > 0 ? text.bytes : "");
}

Dp__V1__Lesson *lessons_message(struct daemon *daemon, uint64_t job, struct dp_arena *arena)
{
    struct dp_lesson_record row = {0};
    struct dp_lesson lesson;
    struct dp_error err = {0};
    bool ended = false;
    bool known = dp_store_load_lesson(daemon->store, job, &row, &err) == DP_OK &&
                 lesson_read(&row.document, &lesson, &ended, &err) == DP_OK && ended;
    dp_lesson_record_deinit(&row);
    if (!known) {
        return NULL;
    }
    Dp__V1__Lesson *message = arena_take(arena, sizeof(*message));
    dp__v1__lesson__init(message);
    message->learned = lesson.learned;
    message->reason = dp_arena_printf(arena, "%s", lesson.reason);
    message->used = keep_correction(&lesson.used, arena);
    message->correction = keep_correction(&lesson.correction, arena);
    message->source = dp_arena_printf(arena, "%s", lesson.used.source);
    message->parts = arena_take(arena, DP_PART_COUNT * sizeof(void *));
    for (int part = 0; part < DP_PART_COUNT; part++) {
        const struct dp_part_result *from = &lesson.parts[part];
        if (from->predicted_s <= 0 && from->measured_s <= 0) {
            continue;
        }
        Dp__V1__LessonPart *to = arena_take(arena, sizeof(*to));
        dp__v1__lesson_part__init(to);
        to->part = (char *)dp_part_text((dp_part)part);
        to->predicted_s = from->predicted_s;
        to->measured_s = from->measured_s;
        to->ratio = from->ratio;
        to->learned = from->learned;
        message->parts[message->n_parts++] = to;
    }
    return message;
}
