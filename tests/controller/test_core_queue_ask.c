// What people change of jobs that wait, and what they are told of the queue.
#include <stdlib.h>
#include <string.h>

#include "crew.h"
#include "dp/alloc.h"
#include "dp/check.h"
#include "dp/clock.h"
#include "dp/rand.h"
#include "dp_test.h"

#define PLACES_MAX 64

static uint64_t submit(struct crew *crew, int32_t ranks, int32_t priority)
{
    struct dp_submit job = crew_job(ranks);
    job.priority = priority;
    return crew_submit(crew, &job);
}

static struct dp_job_update hold_by(const char *by, const char *reason)
{
    return (struct dp_job_update){.request_id = "", .by = by, .reason = reason, .holds = true};
}

static struct dp_job_update release_by(const char *by)
{
    return (struct dp_job_update){.request_id = "", .by = by, .reason = "", .releases = true};
}

static struct dp_job_update order(int32_t priority)
{
    return (struct dp_job_update){
        .request_id = "", .by = "mo", .reason = "", .sets_priority = true, .priority = priority};
}

// Asks, with its row of the audit; returns the number of the reply.
static uint64_t ask(struct crew *crew, uint64_t job, struct dp_job_update what)
{
    struct dp_audit_record audit = {.verb = "UpdateJob"};
    what.reply = ++crew->replies;
    snprintf(what.job, sizeof(what.job), "job-%llu", (unsigned long long)job);
    DP_COPY_TEXT(audit.object, what.job);
    DP_COPY_TEXT(audit.request_id, what.request_id);
    struct dp_core_event event = {
        .kind = DP_EVENT_UPDATE, .audit = &audit, .audit_reply = what.reply, .update = what};
    world_step(&crew->world, &event);
    return what.reply;
}

static void change(struct crew *crew, uint64_t job, struct dp_job_update what)
{
    const struct world_reply *reply = world_reply(&crew->world, ask(crew, job, what));
    assert_non_null(reply);
    assert_int_equal(reply->status, DP_OK);
    crew_settle(crew);
}

static size_t places(struct crew *crew, struct dp_queue_place ret_places[PLACES_MAX])
{
    assert_true(dp_core_queue_length(crew->world.core) <= PLACES_MAX);
    return dp_core_queue_places(crew->world.core, crew->world.now_ns, ret_places);
}

static void a_held_job_starts_only_when_it_is_released_and_others_pass_it(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    uint64_t held = submit(&crew, 2, 9), other = submit(&crew, 1, 0);
    change(&crew, held, hold_by("mo", "data is copied"));
    assert_string_equal(crew_row(&crew, held)->reason, "Held");
    assert_string_equal(crew_row(&crew, held)->message, "held by mo (data is copied)");
    assert_int_equal(world_noted(&crew.world, "job.held", "by mo: data is copied"), 1);
    assert_string_equal(crew.world.audit.after, "priority 9 held");
    crew_nodes(&crew, 1, 2);
    crew_pass(&crew, 700000); // longer than others may pass one that lacks room
    assert_int_equal(crew_row(&crew, held)->state, DP_STATE_QUEUED);
    assert_int_equal(crew_row(&crew, other)->state, DP_STATE_RUNNING);
    crew_finish(&crew, other);
    assert_int_equal(crew_row(&crew, held)->state, DP_STATE_QUEUED);
    change(&crew, held, release_by("mia"));
    assert_int_equal(world_noted(&crew.world, "job.released", "by mia"), 1);
    assert_int_equal(crew_row(&crew, held)->state, DP_STATE_RUNNING);
}

static void one_far_behind_says_that_it_is_held(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.queue = DP_QUEUE_STRICT;
    crew_init(&crew, &config);
    crew_nodes(&crew, 1, 1);
    uint64_t last = 0;
    for (int i = 0; i < 30; i++) {
        last = submit(&crew, 1, 0);
    }
    change(&crew, last, hold_by("mo", ""));
    assert_string_equal(crew_row(&crew, last)->message, "held by mo");
    change(&crew, last, release_by("mo"));
    assert_string_equal(crew_row(&crew, last)->reason, "WaitingForEarlierJobs");
}

static void one_that_is_released_lets_others_pass_for_a_while_as_if_it_were_new(void **state)
{
    (void)state;
    AUTO_CREW crew;
    struct dp_core_config config;
    dp_core_config_init(&config);
    config.pass_ms = 60000;
    crew_init(&crew, &config);
    crew_nodes(&crew, 1, 4);
    submit(&crew, 1, 0);
    uint64_t large = submit(&crew, 4, 0);
    submit(&crew, 1, 0); // passes it: from now on time counts
    change(&crew, large, hold_by("mo", ""));
    crew_pass(&crew, 120000);
    change(&crew, large, release_by("mo"));
    uint64_t small = submit(&crew, 1, 0);
    assert_int_equal(crew_row(&crew, small)->state, DP_STATE_RUNNING);
}

static void one_that_was_held_meanwhile_does_not_start_by_the_plan_that_was_asked_for(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew.world.hold_plan = true;
    struct dp_submit job = crew_job(2);
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = job};
    world_step(&crew.world, &event);
    assert_int_equal(crew.world.planned_job, 1);
    change(&crew, 1, hold_by("", ""));
    assert_string_equal(crew_row(&crew, 1)->message, "held by somebody");
    crew.world.hold_plan = false;
    world_plan(&crew.world);
    crew_settle(&crew);
    assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_QUEUED);
    assert_string_equal(crew_row(&crew, 1)->reason, "Held");
    change(&crew, 1, release_by(""));
    assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_RUNNING);
}

static void one_that_was_held_meanwhile_does_not_fail_by_a_plan_that_there_is_not(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew.world.hold_plan = true;
    struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = crew_job(2)};
    world_step(&crew.world, &event);
    assert_int_equal(crew.world.planned_job, 1);
    change(&crew, 1, hold_by("mo", "nodes with more memory come"));
    event = (struct dp_core_event){.kind = DP_EVENT_PLAN_FAILED, .plan_failed.job = 1};
    dp_fail(&event.plan_failed.error, DP_UNSCHEDULABLE, "rank 0 needs 9 GiB and has 2");
    world_step(&crew.world, &event);
    assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_QUEUED);
    assert_string_equal(crew_row(&crew, 1)->reason, "Held");
    crew.world.planned_job = 0;
    change(&crew, 1, release_by("mo"));
    assert_int_equal(crew.world.planned_job, 1);
}

static void a_hold_and_a_priority_last_under_the_next_controller(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    uint64_t job = submit(&crew, 1, 0);
    change(&crew, job, hold_by("mo", "later"));
    change(&crew, job, order(-7));
    struct dp_job_record kept = *crew_row(&crew, job);
    kept.job_toml = kept.plan = kept.sources = (struct dp_buf){0};
    world_configure(&crew.world);
    struct dp_core_event load = {.kind = DP_EVENT_LOAD_JOB, .load_job.job = &kept};
    world_step(&crew.world, &load);
    crew_nodes(&crew, 1, 1);
    assert_string_equal(crew_row(&crew, job)->message, "held by mo (later)");
    assert_int_equal(crew_row(&crew, job)->priority, -7);
    change(&crew, job, release_by("mo"));
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
}

static void what_runs_is_not_held_and_what_will_begin_again_is(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t job = submit(&crew, 2, 0);
    const struct world_reply *reply = world_reply(&crew.world, ask(&crew, job, hold_by("mo", "")));
    assert_int_equal(reply->status, DP_CONFLICT);
    assert_non_null(strstr(reply->text, "job-1 is RUNNING: only a job that waits can be held"));
    crew.stays = true;
    crew_kill_rank(&crew, job, 9);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_STOPPING);
    change(&crew, job, hold_by("mo", ""));
    crew.stays = false;
    crew_pass(&crew, 120000); // more than the time between two attempts
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
    assert_string_equal(crew_row(&crew, job)->message, "held by mo");
    change(&crew, job, release_by("mo"));
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
    crew_finish(&crew, job);
}

static void a_priority_counts_in_the_queue_and_of_one_that_runs_for_preemption(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t runs = submit(&crew, 2, 0), first = submit(&crew, 2, 0), second = submit(&crew, 2, 0);
    uint64_t index = dp_core_index(crew.world.core);
    change(&crew, runs, order(5));
    assert_true(dp_core_index(crew.world.core) > index); // plans rest on it
    change(&crew, second, order(3));
    assert_string_equal(crew.world.audit.before, "priority 0");
    assert_string_equal(crew.world.audit.after, "priority 3");
    assert_int_equal(world_noted(&crew.world, "job.priority", "3, it was 0; by mo"), 1);
    assert_int_equal(crew_row(&crew, runs)->state, DP_STATE_RUNNING); // for nobody of a lower one
    change(&crew, runs, order(2));
    assert_int_equal(crew_row(&crew, runs)->preemptions, 1);
    assert_int_equal(crew_row(&crew, second)->state, DP_STATE_RUNNING);
    change(&crew, first, order(2)); // handed in after the other one of this priority
    change(&crew, second, order(9));
    crew_finish(&crew, second);
    assert_int_equal(crew_row(&crew, runs)->state, DP_STATE_RUNNING);
}

static void a_job_that_is_being_planned_stays_so_when_its_place_changes(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    crew.world.hold_plan = true;
    for (int i = 0; i < 2; i++) {
        struct dp_core_event event = {.kind = DP_EVENT_SUBMIT, .submit = crew_job(2)};
        event.submit.preemptible = false;
        world_step(&crew.world, &event);
    }
    assert_int_equal(crew.world.planned_job, 1);
    change(&crew, 1, order(4));
    assert_int_equal(crew.world.planned_job, 1); // nobody else's plan was asked for
    change(&crew, 2, order(9));
    assert_int_equal(crew.world.planned_job, 1);
    crew.world.hold_plan = false;
    world_plan(&crew.world);
    crew_settle(&crew);
    assert_int_equal(crew_row(&crew, 1)->state, DP_STATE_RUNNING);
}

static void a_change_is_made_once_for_each_request_id(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    uint64_t job = submit(&crew, 1, 0), other = submit(&crew, 1, 0);
    crew.world.hold_store = true; // nothing of it is on disk yet: the store does not know it
    struct dp_job_update held = hold_by("mo", "");
    held.request_id = "r-1";
    uint64_t first = ask(&crew, job, held);
    ask(&crew, job, release_by("mia"));
    uint64_t again = ask(&crew, job, held);
    ask(&crew, other, held); // another one's: carried out here, refused by who asks the store
    world_store_all(&crew.world);
    assert_int_equal(world_reply(&crew.world, first)->status, DP_OK);
    assert_int_equal(world_reply(&crew.world, again)->status, DP_OK);
    assert_int_equal(crew_row(&crew, job)->held_ns, 0);
    assert_true(crew_row(&crew, other)->held_ns != 0);
}

static void places_are_in_the_order_of_the_queue_with_what_is_ahead(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_init(&crew, NULL);
    static const int32_t priorities[5] = {0, 5, -1, 5, 0};
    for (int32_t i = 0; i < 5; i++) {
        submit(&crew, i + 1, priorities[i]);
    }
    change(&crew, 4, hold_by("mo", ""));
    struct dp_queue_place found[PLACES_MAX];
    assert_int_equal(places(&crew, found), 5);
    static const struct dp_queue_place want[5] = {
        {2, 1, 0, 0, -1}, {4, 0, 1, 2, -1}, {1, 2, 1, 2, -1}, {5, 3, 2, 3, -1}, {3, 4, 3, 8, -1}};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(found[i].job, want[i].job);
        assert_int_equal(found[i].position, want[i].position);
        assert_int_equal(found[i].jobs_ahead, want[i].jobs_ahead);
        assert_int_equal(found[i].ranks_ahead, want[i].ranks_ahead);
        assert_int_equal(found[i].start_in_ns, -1);
    }
}

static void a_start_is_when_the_steps_that_are_left_are_done_and_else_unknown(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 2, 2);
    uint64_t quick = submit(&crew, 2, 0), silent = submit(&crew, 2, 0);
    submit(&crew, 2, 0);
    submit(&crew, 2, 0);
    struct dp_queue_place found[PLACES_MAX];
    places(&crew, found);
    assert_int_equal(found[0].start_in_ns, -1); // nobody has taken a step
    for (uint64_t step = 1; step <= 4; step++) {
        crew_step(&crew, quick, step, 3 * DP_NS_PER_S);
    }
    places(&crew, found);
    assert_int_equal(found[0].start_in_ns, 18 * DP_NS_PER_S); // 6 of 10 steps of 3 s
    assert_int_equal(found[1].start_in_ns, -1); // nobody knows how long the one before it takes
    assert_int_equal(crew_row(&crew, silent)->step, 0);
}

static void an_attempt_is_foretold_for_when_its_pause_is_over(void **state)
{
    (void)state;
    AUTO_CREW crew;
    crew_start(&crew, 1, 2);
    uint64_t job = submit(&crew, 2, 0);
    crew_kill_rank(&crew, job, 9);
    crew_pass(&crew, 2000); // the cause is looked for
    assert_string_equal(crew_row(&crew, job)->reason, "Backoff");
    struct dp_queue_place found[PLACES_MAX];
    assert_int_equal(places(&crew, found), 1);
    assert_true(found[0].start_in_ns > DP_NS_PER_S);
    crew_pass(&crew, found[0].start_in_ns / DP_NS_PER_MS - 1);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_QUEUED);
    crew_pass(&crew, 2);
    assert_int_equal(crew_row(&crew, job)->state, DP_STATE_RUNNING);
}

// A cluster with jobs that run, others that wait, and what was said of these.
struct forecast {
    struct crew crew;
    struct dp_rand rand;
    struct {
        uint64_t job;
        int64_t end_ns; // INT64_MAX = nobody knows
    } runs[16];
    size_t runs_count;
    struct dp_queue_place said[PLACES_MAX];
    size_t said_count;
    int64_t said_ns;
    size_t foretold;
};

static uint64_t draw(struct forecast *forecast, uint64_t below)
{
    return dp_rand_below(&forecast->rand, below);
}

static struct dp_submit draw_job(struct forecast *forecast)
{
    static const char *const users[] = {"a", "b", "c"};
    struct dp_submit job = crew_job(1 + (int32_t)draw(forecast, 5));
    job.priority = (int32_t)draw(forecast, 3);
    job.user = users[draw(forecast, 3)];
    job.preemptible = false;
    job.steps_total = 5 + draw(forecast, 40);
    return job;
}

static void begin(struct forecast *forecast, uint64_t seed)
{
    struct dp_core_config config;
    dp_core_config_init(&config);
    dp_rand_init(&forecast->rand, seed);
    config.queue = draw(forecast, 2) == 0 ? DP_QUEUE_STRICT : DP_QUEUE_BEST_EFFORT;
    config.pass_ms = 1000 * (uint32_t)(1 + draw(forecast, 100));
    crew_init(&forecast->crew, &config);
    crew_nodes(&forecast->crew, 3, 3);
    if (draw(forecast, 2) == 0) {
        crew_quota(&forecast->crew, "a", 5);
        crew_quota(&forecast->crew, "b", 3);
    }
    for (int i = 0; i < 30; i++) {
        struct dp_submit job = draw_job(forecast);
        uint64_t number = crew_submit(&forecast->crew, &job);
        if (crew_row(&forecast->crew, number)->state != DP_STATE_RUNNING) {
            if (draw(forecast, 5) == 0) {
                change(&forecast->crew, number, hold_by("", ""));
            }
            continue;
        }
        int64_t step_ms = 1 + (int64_t)draw(forecast, 5000);
        bool tells = draw(forecast, 5) != 0;
        for (uint64_t step = 1; tells && step <= 3; step++) {
            crew_step(&forecast->crew, number, step, step_ms * DP_NS_PER_MS);
        }
        int64_t left_ns = step_ms * DP_NS_PER_MS * (int64_t)(job.steps_total - 3);
        forecast->runs[forecast->runs_count].job = number;
        forecast->runs[forecast->runs_count++].end_ns =
            tells ? forecast->crew.world.now_ns + left_ns : INT64_MAX;
    }
    forecast->said_count = places(&forecast->crew, forecast->said);
    forecast->said_ns = forecast->crew.world.now_ns;
}

// Who has been foretold starts at that moment, and nobody else does.
static void compare(struct forecast *forecast)
{
    int64_t since_ns = forecast->crew.world.now_ns - forecast->said_ns;
    for (size_t i = 0; i < forecast->said_count; i++) {
        const struct dp_queue_place *said = &forecast->said[i];
        bool runs = crew_row(&forecast->crew, said->job)->state == DP_STATE_RUNNING;
        bool foretold = said->start_in_ns >= 0 && said->start_in_ns <= since_ns;
        if (runs != foretold) {
            fail_msg("job-%llu %s after %.3f s, and was to start after %.3f s",
                     (unsigned long long)said->job, runs ? "runs" : "does not run",
                     (double)since_ns / 1e9, (double)said->start_in_ns / 1e9);
        }
        forecast->foretold += runs;
    }
}

// Those that ran end when they were thought to; those that started since do not end.
static bool pass_to_next_end(struct forecast *forecast)
{
    size_t next = 0;
    for (size_t i = 1; i < forecast->runs_count; i++) {
        next = forecast->runs[i].end_ns < forecast->runs[next].end_ns ? i : next;
    }
    if (forecast->runs_count == 0 || forecast->runs[next].end_ns == INT64_MAX) {
        return false;
    }
    int64_t wait_ns = forecast->runs[next].end_ns - forecast->crew.world.now_ns;
    crew_pass(&forecast->crew, wait_ns / DP_NS_PER_MS);
    crew_finish(&forecast->crew, forecast->runs[next].job);
    forecast->runs[next].end_ns = INT64_MAX;
    return true;
}

static void what_is_foretold_is_what_the_queue_does(void **state)
{
    (void)state;
    size_t foretold = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)dp_fuzz_runs(60); seed++) {
        struct forecast *forecast = dp_new(struct forecast);
        begin(forecast, seed);
        compare(forecast);
        while (pass_to_next_end(forecast)) {
            compare(forecast);
        }
        foretold += forecast->foretold;
        crew_deinit(&forecast->crew);
        free(forecast);
    }
    assert_true(foretold > 100);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_held_job_starts_only_when_it_is_released_and_others_pass_it),
    cmocka_unit_test(one_far_behind_says_that_it_is_held),
    cmocka_unit_test(one_that_is_released_lets_others_pass_for_a_while_as_if_it_were_new),
    cmocka_unit_test(one_that_was_held_meanwhile_does_not_start_by_the_plan_that_was_asked_for),
    cmocka_unit_test(one_that_was_held_meanwhile_does_not_fail_by_a_plan_that_there_is_not),
    cmocka_unit_test(a_hold_and_a_priority_last_under_the_next_controller),
    cmocka_unit_test(what_runs_is_not_held_and_what_will_begin_again_is),
    cmocka_unit_test(a_priority_counts_in_the_queue_and_of_one_that_runs_for_preemption),
    cmocka_unit_test(a_job_that_is_being_planned_stays_so_when_its_place_changes),
    cmocka_unit_test(a_change_is_made_once_for_each_request_id),
    cmocka_unit_test(places_are_in_the_order_of_the_queue_with_what_is_ahead),
    cmocka_unit_test(a_start_is_when_the_steps_that_are_left_are_done_and_else_unknown),
    cmocka_unit_test(an_attempt_is_foretold_for_when_its_pause_is_over),
    cmocka_unit_test(what_is_foretold_is_what_the_queue_does),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
