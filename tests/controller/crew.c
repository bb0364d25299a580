#include "crew.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp_test.h"

#define HEARTBEAT_MS 1000

void crew_init(struct crew *crew, const struct dp_core_config *config)
{
    *crew = (struct crew){.saves = true};
    world_init(&crew->world);
    if (config != NULL) {
        crew->world.config = *config;
        world_configure(&crew->world);
    }
}

void crew_deinit(struct crew *crew)
{
    world_deinit(&crew->world);
}

void crew_nodes(struct crew *crew, size_t count, uint32_t slots)
{
    for (size_t i = 0; i < count; i++) {
        DP_CHECK(crew->nodes_count < CREW_NODES_MAX);
        size_t at = crew->nodes_count++;
        snprintf(crew->nodes[at].name, sizeof(crew->nodes[at].name), "n%zu", at);
        crew->nodes[at].session = world_hello(&crew->world, crew->nodes[at].name, slots, NULL, 0);
    }
    crew_settle(crew);
}

void crew_start(struct crew *crew, size_t count, uint32_t slots)
{
    crew_init(crew, NULL);
    crew_nodes(crew, count, slots);
}

void crew_lose(struct crew *crew, size_t node)
{
    crew->nodes[node].session = 0;
}

static uint64_t session_of(const struct crew *crew, const char *node)
{
    for (size_t i = 0; i < crew->nodes_count; i++) {
        if (strcmp(crew->nodes[i].name, node) == 0) {
            return crew->nodes[i].session;
        }
    }
    return 0;
}

static struct crew_work *find_work(struct crew *crew, const struct dp_fence *fence,
                                   const char *node)
{
    for (size_t i = 0; i < crew->work_count; i++) {
        struct crew_work *work = &crew->work[i];
        if (strcmp(work->fence.job, fence->job) == 0 && work->fence.attempt == fence->attempt &&
            work->fence.epoch == fence->epoch && strcmp(work->node, node) == 0) {
            return work;
        }
    }
    return NULL;
}

static void tell(struct crew *crew, struct crew_work *work, dp_rank_phase phase, bool stopped)
{
    struct dp_rank_level ranks[64];
    if (dp_rank_phase_ended(work->phase)) {
        return;
    }
    for (uint32_t i = 0; i < work->count; i++) {
        ranks[i] = world_rank_level(work->ranks[i], phase);
        ranks[i].stopped = stopped;
        ranks[i].signal = phase == DP_RANK_DIED ? 15 : 0;
    }
    work->phase = phase;
    work->stopped = stopped;
    struct dp_assignment_level level = {
        .fence = work->fence, .ranks = ranks, .ranks_count = work->count};
    world_send_level(&crew->world, session_of(crew, work->node), &level);
}

static void prepare(struct crew *crew, const struct world_order *order)
{
    const struct dp_rank_record *ranks = NULL;
    size_t count = 0;
    uint64_t number = dp_core_job_find(crew->world.core, order->fence.job);
    if (dp_core_job(crew->world.core, number, &ranks, &count) == NULL) {
        return; // it is over by now
    }
    DP_CHECK(crew->work_count < CREW_WORK_MAX);
    struct crew_work *work = &crew->work[crew->work_count++];
    *work = (struct crew_work){.fence = order->fence, .phase = DP_RANK_STARTING};
    DP_COPY_TEXT(work->node, order->node);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(ranks[i].node, order->node) == 0) {
            work->ranks[work->count++] = ranks[i].rank;
        }
    }
    tell(crew, work, DP_RANK_READY, false);
}

static void save(struct crew *crew, const struct crew_work *work, uint64_t step)
{
    char path[64];
    snprintf(path, sizeof(path), "/c/%s/step-%llu", work->fence.job, (unsigned long long)step);
    struct dp_report report = {.kind = DP_REPORT_CHECKPOINT,
                               .fence = work->fence,
                               .checkpoint = {.step = step, .path = path, .error = ""}};
    world_report(&crew->world, session_of(crew, work->node), work->ranks[0], &report);
}

static bool has_first_rank(const struct crew_work *work)
{
    return work->count > 0 && work->ranks[0] == 0;
}

static void carry_out(struct crew *crew, const struct world_order *order)
{
    struct crew_work *work = find_work(crew, &order->fence, order->node);
    switch (order->order) {
    case DP_ORDER_PREPARE:
        if (work == NULL) {
            prepare(crew, order);
        }
        break;
    case DP_ORDER_START:
        if (work != NULL) {
            tell(crew, work, DP_RANK_RUNNING, false);
        }
        break;
    case DP_ORDER_STOP:
        if (work == NULL || crew->stays) {
            break;
        }
        if (order->checkpoint && crew->saves && has_first_rank(work)) {
            save(crew, work, ++crew->step);
            crew->saved++;
        }
        tell(crew, work, DP_RANK_DIED, true);
        break;
    default:
        break;
    }
}

void crew_settle(struct crew *crew)
{
    while (crew->taken < crew->world.sent_count) {
        struct world_order order = crew->world.sent[crew->taken++];
        carry_out(crew, &order);
    }
    // All were taken: room for more.
    crew->world.sent_count = crew->taken = 0;
    crew->world.replies_count = 0;
}

static void beat(struct crew *crew)
{
    for (size_t n = 0; n < crew->nodes_count; n++) {
        if (crew->nodes[n].session == 0) {
            continue;
        }
        struct dp_assignment_level levels[64];
        static struct dp_rank_level ranks[64][64];
        size_t count = 0;
        for (size_t i = 0; i < crew->work_count; i++) {
            struct crew_work *work = &crew->work[i];
            const struct dp_job_record *job =
                world_job(&crew->world, dp_core_job_find(crew->world.core, work->fence.job));
            bool over = job == NULL || job->attempt != work->fence.attempt;
            if (strcmp(work->node, crew->nodes[n].name) != 0 ||
                (over && dp_rank_phase_ended(work->phase)) || count == 64) {
                continue;
            }
            for (uint32_t k = 0; k < work->count; k++) {
                ranks[count][k] = world_rank_level(work->ranks[k], work->phase);
                ranks[count][k].stopped = work->stopped;
            }
            levels[count] = (struct dp_assignment_level){.fence = work->fence,
                                                         .ranks = ranks[count],
                                                         .ranks_count = work->count,
                                                         .error = ""};
            count++;
        }
        world_heartbeat(&crew->world, crew->nodes[n].session, levels, count);
    }
    crew_settle(crew);
}

void crew_pass(struct crew *crew, int64_t ms)
{
    while (ms > 0) {
        int64_t part_ms = ms < HEARTBEAT_MS ? ms : HEARTBEAT_MS;
        world_pass(&crew->world, part_ms);
        crew_settle(crew);
        beat(crew);
        ms -= part_ms;
    }
}

struct dp_submit crew_job(int32_t ranks)
{
    return (struct dp_submit){.request_id = "",
                              .name = "a job",
                              .device = "cpu",
                              .job_toml = "x = 1",
                              .job_toml_length = 5,
                              .ranks_wanted = ranks,
                              .ranks_fixed = true,
                              .needs_profile = true,
                              .preemptible = true,
                              .retry_max = 2,
                              .retry_backoff_s = 10,
                              .no_progress_max = 3,
                              .recovery = DP_JOB_RECOVERY_CHECKPOINT,
                              .steps_total = 10};
}

uint64_t crew_submit(struct crew *crew, const struct dp_submit *submit)
{
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = *submit};
    event.submit.reply = ++crew->replies;
    world_step(&crew->world, &event);
    const struct world_reply *reply = world_reply(&crew->world, crew->replies);
    assert_non_null(reply);
    assert_int_equal(reply->status, DP_OK);
    uint64_t job = reply->job;
    crew_settle(crew);
    return job;
}

uint64_t crew_submit_ranks(struct crew *crew, int32_t ranks)
{
    struct dp_submit submit = crew_job(ranks);
    return crew_submit(crew, &submit);
}

const struct dp_job_record *crew_row(const struct crew *crew, uint64_t job)
{
    const struct dp_job_record *found = world_job(&crew->world, job);
    assert_non_null(found);
    return found;
}

static struct crew_work *current(struct crew *crew, uint64_t job, size_t i)
{
    const struct dp_job_record *row = world_job(&crew->world, job);
    struct crew_work *work = &crew->work[i];
    return row != NULL && strcmp(work->fence.job, row->id) == 0 &&
                   work->fence.attempt == row->attempt && work->fence.epoch == row->epoch
               ? work
               : NULL;
}

void crew_finish(struct crew *crew, uint64_t job)
{
    for (size_t i = 0; i < crew->work_count; i++) {
        struct crew_work *work = current(crew, job, i);
        if (work != NULL) {
            tell(crew, work, DP_RANK_FINISHED, false);
        }
    }
    crew_settle(crew);
}

void crew_step(struct crew *crew, uint64_t job, uint64_t step, int64_t step_ns)
{
    for (size_t i = 0; i < crew->work_count; i++) {
        struct crew_work *work = current(crew, job, i);
        for (uint32_t k = 0; work != NULL && k < work->count; k++) {
            struct dp_report report = {
                .kind = DP_REPORT_STEP,
                .fence = work->fence,
                .step.row = {.step = step, .step_ns = step_ns, .tokens = 1, .time_ns = 1}};
            world_report(&crew->world, session_of(crew, work->node), work->ranks[k], &report);
        }
    }
    crew_settle(crew);
}

void crew_tidy(struct crew *crew)
{
    size_t kept = 0;
    for (size_t i = 0; i < crew->work_count; i++) {
        if (!dp_rank_phase_ended(crew->work[i].phase)) {
            crew->work[kept++] = crew->work[i];
        }
    }
    crew->work_count = kept;
}

void crew_kill_rank(struct crew *crew, uint64_t job, int signal)
{
    for (size_t i = 0; i < crew->work_count; i++) {
        struct crew_work *work = current(crew, job, i);
        if (work != NULL && !dp_rank_phase_ended(work->phase) &&
            session_of(crew, work->node) != 0) {
            struct dp_rank_level rank = world_rank_level(work->ranks[0], DP_RANK_DIED);
            rank.signal = signal;
            struct dp_assignment_level level = {
                .fence = work->fence, .ranks = &rank, .ranks_count = 1};
            world_send_level(&crew->world, session_of(crew, work->node), &level);
            crew_settle(crew);
            return;
        }
    }
    fail_msg("job %llu has no rank that could be killed", (unsigned long long)job);
}

void crew_checkpoint(struct crew *crew, uint64_t job, uint64_t step)
{
    for (size_t i = 0; i < crew->work_count; i++) {
        struct crew_work *work = current(crew, job, i);
        if (work != NULL && has_first_rank(work)) {
            save(crew, work, step);
            crew->step = step > crew->step ? step : crew->step;
            crew_settle(crew);
            return;
        }
    }
    fail_msg("job %llu does not run", (unsigned long long)job);
}

void crew_ask(struct crew *crew, const char *node, dp_node_action action, int64_t deadline_ms,
              bool force)
{
    struct dp_core_event event = {.kind = DP_EVENT_NODE_ASK,
                                  .node_ask = {.reply = ++crew->replies,
                                               .node = node,
                                               .reason = "fan",
                                               .by = "operator",
                                               .word = "changed",
                                               .action = action,
                                               .deadline_ms = deadline_ms,
                                               .force = force}};
    world_step(&crew->world, &event);
    const struct world_reply *reply = world_reply(&crew->world, crew->replies);
    assert_non_null(reply);
    assert_int_equal(reply->status, DP_OK);
    crew_settle(crew);
}

void crew_quota(struct crew *crew, const char *user, uint32_t ranks)
{
    struct dp_core_event event = {
        .kind = DP_EVENT_QUOTA_ASK,
        .quota_ask = {.reply = ++crew->replies, .user = user, .by = "operator", .ranks = ranks}};
    world_step(&crew->world, &event);
    crew_settle(crew);
}

uint32_t crew_running(const struct crew *crew, uint64_t job)
{
    uint32_t running = 0;
    char id[DP_ID_MAX];
    snprintf(id, sizeof(id), "job-%llu", (unsigned long long)job);
    for (size_t i = 0; i < crew->work_count; i++) {
        const struct crew_work *work = &crew->work[i];
        if (strcmp(work->fence.job, id) == 0 && !dp_rank_phase_ended(work->phase)) {
            running += work->count;
        }
    }
    return running;
}
