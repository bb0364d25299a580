// Figures of nodes: what runs teach them, and calibrations that somebody asks for.
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon_support.h"
#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/json.h"
#include "dp/profile.h"

#define AUTO_CALIBRATION DP_CLEANUP(close_calibration)
#define POLL_MS 20

static void close_calibration(struct dp_client_calibration **calibration)
{
    dp_client_calibrate_close(*calibration);
}

static const char cpu_job[] =
    "name = \"little\"\n"
    "[model]\nlayers = 4\ndense_layers = 4\nhidden = 32\nheads = 2\nkv_heads = 1\nhead_dim = 16\n"
    "ffn = 64\nvocabulary = 256\n"
    "[data]\npath = \"/etc/passwd\"\n"
    "[train]\nsteps = 12\nglobal_batch = 8\nsequence = 32\n"
    "[parallel]\npipeline = 2\nexpert = 1\ndata = 1\nmicrobatches = 8\nmicro_batch_size = 1\n"
    "schedule = \"1f1b\"\n";

static void send_profile(struct fake_agent *agent, int64_t measured_at_s, double flops_per_s)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.measured_at_s = measured_at_s;
    profile.gemm_flops_per_s = flops_per_s;
    profile.cores = 4;
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_json_write(json, 0, &text);
    Dp__V1__Inventory inventory = DP__V1__INVENTORY__INIT;
    inventory.slots = inventory.cores = 4;
    inventory.memory_bytes = 1ull << 34;
    inventory.accelerator = (char *)"cpu";
    inventory.data_host = (char *)"127.0.0.1";
    inventory.profile_json.data = (uint8_t *)text.bytes;
    inventory.profile_json.len = text.length;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_INVENTORY;
    message.inventory = &inventory;
    agent_send(agent, &message);
}

static const char *node_state(struct dp_client *client, struct dp_arena *arena)
{
    Dp__V1__ListNodesResponse *nodes = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_nodes(client, arena, &nodes, &err), &err);
    assert_int_equal(nodes->n_nodes, 1);
    return nodes->nodes[0]->state;
}

// Until its profile has arrived.
static void connect_agent(struct fake_agent *agent, const struct daemon_process *process,
                          struct dp_client *client)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    agent_connect(agent, process, DP_PROTOCOL_VERSION, NULL);
    agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_WELCOME);
    send_profile(agent, 1000, 5e10);
    while (strcmp(node_state(client, &arena), "READY") != 0) {
        agent_pump(agent, POLL_MS);
    }
}

static void open_measured(struct scene *scene, void **state)
{
    scene_open(scene, state);
    connect_agent(&scene->agent, scene->process, scene->client);
}

static void send_report(struct fake_agent *agent, Dp__V1__Fence *fence, uint32_t rank,
                        Dp__V1__RankReport *report)
{
    report->fence = fence;
    report->rank = rank;
    Dp__V1__AgentMessage message = DP__V1__AGENT_MESSAGE__INIT;
    message.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_REPORT;
    message.report = report;
    agent_send(agent, &message);
}

// How a run goes: its compute takes `slow` times what was planned, on a core for `core` of it.
struct way {
    double slow, core;
    uint64_t steps;
    bool fails;
    const char *more; // of the job file
};

static void send_step(struct fake_agent *agent, const Dp__V1__Prepare *prepare, uint32_t rank,
                      uint64_t step, const struct way *way)
{
    const Dp__V1__PlanPosition *parts = prepare->plan->positions[rank];
    // The first one warms up.
    double compute_s = (step == 1 ? 20 : way->slow) * parts->compute_s;
    Dp__V1__StepDone done = DP__V1__STEP_DONE__INIT;
    done.step = step;
    done.tokens = 256;
    done.start_ns = dp_clock_realtime_ns();
    done.busy_ns = (int64_t)(1e9 * compute_s);
    done.bubble_ns = (int64_t)(1e9 * parts->bubble_s);
    done.optimizer_ns = (int64_t)(1e9 * parts->optimizer_s);
    done.step_ns = done.busy_ns + done.bubble_ns + done.optimizer_ns;
    done.loss_known_case = DP__V1__STEP_DONE__LOSS_KNOWN_LOSS;
    done.loss = 3;
    Dp__V1__RankReport report = DP__V1__RANK_REPORT__INIT;
    report.report_case = DP__V1__RANK_REPORT__REPORT_STEP;
    report.step = &done;
    send_report(agent, prepare->fence, rank, &report);
    Dp__V1__Utilisation usage = DP__V1__UTILISATION__INIT;
    usage.step = step;
    usage.forward_ns = done.busy_ns;
    usage.cpu_ns = (int64_t)((double)done.busy_ns * way->core);
    dp__v1__rank_report__init(&report);
    report.report_case = DP__V1__RANK_REPORT__REPORT_UTILISATION;
    report.utilisation = &usage;
    send_report(agent, prepare->fence, rank, &report);
}

static const Dp__V1__JobReport *report_of(struct dp_client *client, struct fake_agent *agent,
                                          const char *id, struct dp_arena *arena)
{
    for (;;) {
        Dp__V1__JobReport *report = NULL;
        struct dp_error err = {0};
        assert_ok(dp_client_get_report(client, id, arena, &report, &err), &err);
        if (report->lesson != NULL) {
            return report;
        }
        agent_pump(agent, POLL_MS);
    }
}

// Runs a job from submission to its lesson. The provenance of its plan stays in the agent's arena.
static const Dp__V1__Lesson *run(struct dp_client *client, struct fake_agent *agent,
                                 const struct way *way, struct dp_arena *arena,
                                 const char **ret_provenance)
{
    struct dp_error err = {0};
    DP_AUTO_FREE char *toml = dp_asprintf("%s%s", cpu_job, way->more == NULL ? "" : way->more);
    Dp__V1__Job *job = NULL;
    assert_ok(daemon_submit(client, toml, "", arena, &job, &err), &err);
    const Dp__V1__Prepare *prepare =
        agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE)->prepare;
    agent_start_ranks(agent, prepare->fence);
    for (uint64_t step = 1; step <= way->steps; step++) {
        send_step(agent, prepare, 0, step, way);
        send_step(agent, prepare, 1, step, way);
    }
    agent_level(agent, prepare->fence, 2,
                way->fails ? DP__V1__RANK_PHASE__RANK_DIED : DP__V1__RANK_PHASE__RANK_FINISHED);
    const Dp__V1__JobReport *report = report_of(client, agent, job->id, arena);
    *ret_provenance = prepare->plan->provenance;
    // The plan's own words may be followed by orders to stop and to forget.
    while (agent->taken < agent->got_count) {
        agent->taken++;
    }
    return report->lesson;
}

static const Dp__V1__LessonPart *part_of(const Dp__V1__Lesson *lesson, const char *name)
{
    for (size_t i = 0; i < lesson->n_parts; i++) {
        if (strcmp(lesson->parts[i]->part, name) == 0) {
            return lesson->parts[i];
        }
    }
    return NULL;
}

// Waits for what comes after a job's end, so that the next one's orders are not taken for it.
static void settle(struct dp_client *client, struct fake_agent *agent)
{
    for (;;) {
        DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
        Dp__V1__ListNodesResponse *nodes = NULL;
        struct dp_error err = {0};
        assert_ok(dp_client_list_nodes(client, &arena, &nodes, &err), &err);
        agent_pump(agent, POLL_MS);
        bool released = false;
        for (size_t i = 0; i < agent->got_count; i++) {
            released = released ||
                       agent->got[i]->message_case == DP__V1__CONTROLLER_MESSAGE__MESSAGE_RELEASE;
        }
        if (nodes->n_nodes == 1 && nodes->nodes[0]->slots_used == 0 && released) {
            agent->got_count = agent->taken = 0;
            return;
        }
    }
}

static void the_second_plan_cites_what_the_first_run_taught(void **state)
{
    const struct way slow = {.slow = 1.25, .core = 0.95, .steps = 12};
    const char *provenance = NULL;
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    const Dp__V1__Lesson *lesson =
        run(scene.client, &scene.agent, &slow, &scene.arena, &provenance);
    assert_null(strstr(provenance, "corrected by"));
    assert_true(lesson->learned);
    assert_true(fabs(part_of(lesson, "compute")->ratio - 1.25) < 0.01);
    assert_true(part_of(lesson, "compute")->learned);
    assert_non_null(strstr(lesson->correction, "compute x1.25"));
    settle(scene.client, &scene.agent);
    // What was learned holds, and is right: the same run now takes what is predicted for it.
    const struct way right = {.slow = 1, .core = 0.95, .steps = 12};
    lesson = run(scene.client, &scene.agent, &right, &scene.arena, &provenance);
    assert_non_null(strstr(provenance, "corrected by job-1: compute x1.25"));
    assert_true(fabs(part_of(lesson, "compute")->ratio - 1) < 0.01);
    assert_string_equal(lesson->source, "job-1");
}

static void what_was_learned_survives_kill_9_and_ends_with_a_new_measurement(void **state)
{
    struct daemon_process *process = *state;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    const struct way slow = {.slow = 1.2, .core = 1, .steps = 12};
    const char *provenance = NULL;
    daemon_start(process);
    {
        AUTO_CLIENT struct dp_client *client = daemon_client(process);
        AUTO_AGENT struct fake_agent agent;
        connect_agent(&agent, process, client);
        assert_true(run(client, &agent, &slow, &arena, &provenance)->learned);
        settle(client, &agent);
        assert_int_equal(daemon_end(process, SIGKILL), 128 + SIGKILL);
    }
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    AUTO_AGENT struct fake_agent agent;
    connect_agent(&agent, process, client);
    run(client, &agent, &slow, &arena, &provenance);
    assert_non_null(strstr(provenance, "corrected by job-1: compute x1.20"));
    settle(client, &agent);
    send_profile(&agent, 2000, 6e10);
    run(client, &agent, &slow, &arena, &provenance);
    assert_null(strstr(provenance, "corrected by"));
}

static void a_wrong_run_poisons_nothing(void **state)
{
    static const struct {
        struct way way;
        const char *reason;
    } cases[] = {
        {{.slow = 3, .core = 1, .steps = 12, .fails = true, .more = "[retry]\nmax = 0\n"},
         "did not complete"},
        {{.slow = 3, .core = 1, .steps = 5}, "4 steps were measured"},
        {{.slow = 3, .core = 0.4, .steps = 12}, "had a core for 40 %"},
        {{.slow = 30, .core = 1, .steps = 12}, "compute took 30 times"},
        {{.slow = 3, .core = 1, .steps = 12, .more = "[resources]\nlearn = 0\n"}, "switched off"},
    };
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    const char *provenance = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const Dp__V1__Lesson *lesson =
            run(scene.client, &scene.agent, &cases[i].way, &scene.arena, &provenance);
        assert_null(strstr(provenance, "corrected by"));
        assert_false(lesson->learned);
        assert_part(lesson->reason, cases[i].reason);
        settle(scene.client, &scene.agent);
    }
}

static struct dp_client_calibration *ask(struct dp_client *client, const char *node, bool wait)
{
    Dp__V1__CalibrateRequest request = DP__V1__CALIBRATE_REQUEST__INIT;
    struct dp_client_calibration *calibration = NULL;
    struct dp_error err = {0};
    request.node = (char **)&node;
    request.n_node = node == NULL ? 0 : 1;
    request.wait = wait;
    assert_ok(dp_client_calibrate(client, &request, &calibration, &err), &err);
    return calibration;
}

// The next event, or NULL at the end; the agent goes on meanwhile.
static const Dp__V1__CalibrateEvent *event_of(struct dp_client_calibration *calibration,
                                              struct fake_agent *agent, struct dp_arena *arena)
{
    bool end = false;
    Dp__V1__CalibrateEvent *event = NULL;
    struct dp_error err = {0};
    int64_t end_ns = dp_clock_monotonic_ns() + DEADLINE_MS * DP_NS_PER_MS;
    while (event == NULL && !end) {
        assert_true(dp_clock_monotonic_ns() < end_ns);
        if (agent->stream != NULL) {
            agent_pump(agent, 0);
        }
        assert_ok(dp_client_calibrate_next(calibration, POLL_MS, arena, &event, &end, &err), &err);
    }
    return event;
}

static const Dp__V1__CalibrateOrder *next_order(struct fake_agent *agent)
{
    return agent_expect(agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_CALIBRATE)->calibrate;
}

static void answer(struct fake_agent *agent, uint64_t request, Dp__V1__CalibrateOutcome outcome,
                   const char *message, const Dp__V1__CalibrateLevel *with)
{
    Dp__V1__CalibrateLevel level = DP__V1__CALIBRATE_LEVEL__INIT;
    if (with != NULL) {
        level = *with;
    }
    level.request = request;
    level.outcome = outcome;
    level.message = (char *)message;
    Dp__V1__AgentMessage out = DP__V1__AGENT_MESSAGE__INIT;
    out.message_case = DP__V1__AGENT_MESSAGE__MESSAGE_CALIBRATION;
    out.calibration = &level;
    agent_send(agent, &out);
}

// The bytes that send_profile sends.
static void fill_profile(Dp__V1__CalibrateLevel *level, struct dp_buf *text)
{
    struct dp_profile profile;
    dp_profile_default_cpu(&profile);
    profile.measured_at_s = 3000;
    profile.gemm_flops_per_s = 9e10;
    profile.cores = 4;
    DP_AUTO_JSON json_t *json = dp_profile_to_json(&profile);
    dp_json_write(json, 0, text);
    dp__v1__calibrate_level__init(level);
    level->profile_json.data = (uint8_t *)text->bytes;
    level->profile_json.len = text->length;
}

static void a_node_is_measured_and_both_profiles_are_told(void **state)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    AUTO_CALIBRATION struct dp_client_calibration *calibration = ask(scene.client, "node-x", false);
    const Dp__V1__CalibrateEvent *event = event_of(calibration, &scene.agent, &scene.arena);
    assert_string_equal(event->message, "measuring");
    // Meanwhile it gets no work, and nobody else may measure it.
    assert_string_equal(node_state(scene.client, &scene.arena), "REGISTERING");
    AUTO_CALIBRATION struct dp_client_calibration *second = ask(scene.client, NULL, false);
    event = event_of(second, &scene.agent, &scene.arena);
    assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED);
    assert_string_equal(event->message, "it is being calibrated for somebody else");
    assert_null(event_of(second, &scene.agent, &scene.arena));
    uint64_t request = next_order(&scene.agent)->request;
    answer(&scene.agent, request, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON, "products", NULL);
    assert_string_equal(event_of(calibration, &scene.agent, &scene.arena)->message, "products");
    Dp__V1__CalibrateLevel measured;
    fill_profile(&measured, &text);
    send_profile(&scene.agent, 3000, 9e10);
    answer(&scene.agent, request, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED, "", &measured);
    event = event_of(calibration, &scene.agent, &scene.arena);
    assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_MEASURED);
    assert_int_equal(event->profile_json.len, text.length);
    assert_true(event->before_json.len > 0);
    assert_null(event_of(calibration, &scene.agent, &scene.arena));
    assert_string_equal(node_state(scene.client, &scene.arena), "READY");
    Dp__V1__ListProfilesResponse *profiles = NULL;
    struct dp_error err = {0};
    assert_ok(dp_client_list_profiles(scene.client, "node-x", 0, &scene.arena, &profiles, &err),
              &err);
    assert_int_equal(profiles->n_profiles, 2);
    assert_memory_equal(profiles->profiles[0]->document_json.data, text.bytes, text.length);
    assert_refused(
        dp_client_list_profiles(scene.client, "node-y", 0, &scene.arena, &profiles, &err),
        DP_NOT_FOUND, &err, "no node \"node-y\"");
}

static void who_waits_is_served_when_the_one_before_is_done(void **state)
{
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    AUTO_CALIBRATION struct dp_client_calibration *first = ask(scene.client, "node-x", false);
    assert_string_equal(event_of(first, &scene.agent, &scene.arena)->message, "measuring");
    AUTO_CALIBRATION struct dp_client_calibration *second = ask(scene.client, "node-x", true);
    const Dp__V1__CalibrateEvent *event = event_of(second, &scene.agent, &scene.arena);
    assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON);
    assert_string_equal(event->message, "it is being calibrated for somebody else");
    uint64_t request = next_order(&scene.agent)->request;
    answer(&scene.agent, request, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED, "no clock", NULL);
    assert_string_equal(event_of(second, &scene.agent, &scene.arena)->message, "measuring");
    const Dp__V1__CalibrateOrder *order = next_order(&scene.agent);
    assert_false(order->cancel);
    assert_int_not_equal(order->request, request);
    assert_string_equal(node_state(scene.client, &scene.arena), "REGISTERING");
}

static void an_agent_that_fails_or_goes_away_is_said_so(void **state)
{
    struct daemon_process *process = *state;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    daemon_start(process);
    AUTO_CLIENT struct dp_client *client = daemon_client(process);
    for (int gone = 0; gone < 2; gone++) {
        AUTO_AGENT struct fake_agent agent;
        connect_agent(&agent, process, client);
        AUTO_CALIBRATION struct dp_client_calibration *calibration = ask(client, "node-x", false);
        assert_string_equal(event_of(calibration, &agent, &arena)->message, "measuring");
        uint64_t request = next_order(&agent)->request;
        if (gone) {
            agent_close(&agent);
        } else {
            answer(&agent, request, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED, "no clock", NULL);
        }
        const Dp__V1__CalibrateEvent *event = event_of(calibration, &agent, &arena);
        assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_FAILED);
        assert_string_equal(event->message,
                            gone ? "its agent went away while it measured" : "no clock");
        assert_null(event_of(calibration, &agent, &arena));
    }
}

static void a_caller_that_leaves_ends_the_measurement(void **state)
{
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    struct dp_client_calibration *calibration = ask(scene.client, "node-x", false);
    assert_string_equal(event_of(calibration, &scene.agent, &scene.arena)->message, "measuring");
    uint64_t request = next_order(&scene.agent)->request;
    dp_client_calibrate_close(calibration);
    const Dp__V1__CalibrateOrder *order = next_order(&scene.agent);
    assert_true(order->cancel);
    assert_int_equal(order->request, request);
    assert_string_equal(node_state(scene.client, &scene.arena), "READY");
}

static void a_node_with_ranks_is_refused_or_waited_for(void **state)
{
    AUTO_SCENE struct scene scene;
    open_measured(&scene, state);
    Dp__V1__Job *job = NULL;
    struct dp_error err = {0};
    assert_ok(daemon_submit(scene.client, cpu_job, "", &scene.arena, &job, &err), &err);
    const Dp__V1__Prepare *prepare =
        agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_PREPARE)->prepare;
    AUTO_CALIBRATION struct dp_client_calibration *refused = ask(scene.client, "node-x", false);
    const Dp__V1__CalibrateEvent *event = event_of(refused, &scene.agent, &scene.arena);
    assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_REFUSED);
    assert_non_null(strstr(event->message, "ranks of job-1 run on node-x"));
    AUTO_CALIBRATION struct dp_client_calibration *waits = ask(scene.client, "node-x", true);
    event = event_of(waits, &scene.agent, &scene.arena);
    assert_int_equal(event->outcome, DP__V1__CALIBRATE_OUTCOME__CALIBRATE_GOES_ON);
    assert_ok(dp_client_cancel_job(scene.client, "job-1", "", &scene.arena, &job, &err), &err);
    agent_expect(&scene.agent, DP__V1__CONTROLLER_MESSAGE__MESSAGE_STOP);
    agent_level(&scene.agent, prepare->fence, 2, DP__V1__RANK_PHASE__RANK_DIED);
    assert_string_equal(event_of(waits, &scene.agent, &scene.arena)->message, "measuring");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DAEMON_TEST(the_second_plan_cites_what_the_first_run_taught),
        DAEMON_TEST(what_was_learned_survives_kill_9_and_ends_with_a_new_measurement),
        DAEMON_TEST(a_wrong_run_poisons_nothing),
        DAEMON_TEST(a_node_is_measured_and_both_profiles_are_told),
        DAEMON_TEST(who_waits_is_served_when_the_one_before_is_done),
        DAEMON_TEST(an_agent_that_fails_or_goes_away_is_said_so),
        DAEMON_TEST(a_caller_that_leaves_ends_the_measurement),
        DAEMON_TEST(a_node_with_ranks_is_refused_or_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
