// dpctl whatif: what a slow or lost rank would cost a job, and what would be done about it.

#include <stdlib.h>
#include <string.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/plan_survival.h"
#include "dp/plan_text.h"
#include "whatif.h"

enum {
    KEY_SLOW = 1,
    KEY_LINK,
    KEY_LOSE,
    KEY_PLAN,
    KEY_STEPS,
    KEY_PAUSE,
    KEY_RESTART,
    KEY_CLUSTER,
    KEY_PROFILE,
    KEY_GPU,
    KEY_GPUS,
    KEY_SET
};

static const struct argp_option options[] = {
    {"slow", KEY_SLOW, "WHAT:FACTOR", 0, "rank=3:1.5 or node=NAME:2, comma separated (repeatable)",
     0},
    {"slow-link", KEY_LINK, "A-B:FACTOR", 0,
     "messages between ranks A and B take so many times as long (repeatable)", 0},
    {"lose", KEY_LOSE, "WHAT", 0, "rank=3 or node=NAME dies instead (repeatable)", 0},
    {"remaining", KEY_STEPS, "STEPS", 0, "steps that are left (as the job says)", 1},
    {"pause", KEY_PAUSE, "SECONDS", 0, "that a change takes without its state (2)", 1},
    {"restart", KEY_RESTART, "SECONDS", 0, "that a restart from a checkpoint takes (30)", 1},
    {"plan", KEY_PLAN, "FILE", 0, "of a job file: this dp.plan/1 instead of a new plan", 2},
    {"cluster", KEY_CLUSTER, "FILE|NAME", 0, "of a job file: as dpctl plan takes it", 2},
    {"profile", KEY_PROFILE, "NAME", 0, "of a job file: device figures", 2},
    {"gpu", KEY_GPU, "NAME", 0, "of a job file: accelerator preset, with --gpus", 2},
    {"gpus", KEY_GPUS, "COUNT", 0, "how many of them", 2},
    {"set", KEY_SET, "KEY=VALUE", 0, "of a job file: override a key (repeatable)", 2},
    {0},
};

static void add(struct argp_state *state, const char *option, char *arg, const char **items,
                int *count)
{
    if (*count == DP_SETS_MAX) {
        argp_error(state, "at most %d times %s", DP_SETS_MAX, option);
    }
    items[(*count)++] = arg;
}

static void check_request(struct argp_state *state, const struct whatif_request *request)
{
    bool is_slow = request->slow_count + request->links_count > 0;
    if (request->source == NULL) {
        argp_error(state, "say which job, or a job file");
    }
    if (is_slow == (request->lose_count > 0)) {
        argp_error(state, "say what is slow (--slow, --slow-link) or what is lost (--lose)");
    }
    if ((request->gpu == NULL) != (request->gpus == 0)) {
        argp_error(state, "--gpu and --gpus go together");
    }
}

static error_t handle_text(int key, char *arg, struct whatif_request *request)
{
    switch (key) {
    case KEY_PLAN:
        request->plan = arg;
        return 0;
    case KEY_CLUSTER:
        request->cluster = arg;
        return 0;
    case KEY_PROFILE:
        request->profile = arg;
        return 0;
    case KEY_GPU:
        request->gpu = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct whatif_request *request = state->input;
    switch (key) {
    case KEY_SLOW:
        add(state, "--slow", arg, request->slow, &request->slow_count);
        return 0;
    case KEY_LINK:
        add(state, "--slow-link", arg, request->links, &request->links_count);
        return 0;
    case KEY_LOSE:
        add(state, "--lose", arg, request->lose, &request->lose_count);
        return 0;
    case KEY_STEPS:
        request->steps = dpctl_number(state, "--remaining", arg, 1, DP_STEPS_MAX);
        return 0;
    case KEY_PAUSE:
        request->pause_s = dpctl_real(state, "--pause", arg, 0);
        return 0;
    case KEY_RESTART:
        request->restart_s = dpctl_real(state, "--restart", arg, 0);
        return 0;
    case KEY_GPUS:
        request->gpus = (int32_t)dpctl_number(state, "--gpus", arg, 1, DP_RANKS_MAX);
        return 0;
    case KEY_SET:
        dpctl_sets_take(state, arg, &request->sets);
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "job or job file", arg, &request->source);
        return 0;
    case ARGP_KEY_END:
        check_request(state, request);
        return 0;
    default:
        return handle_text(key, arg, request);
    }
}

static json_t *texts_json(const char *const *texts, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, dpctl_text_json(texts[i], strlen(texts[i])));
    }
    return list;
}

// What runs is measured without what is only supposed.
static dp_status scale_to_measured(const struct whatif_job *job, struct dp_adapt_input *input,
                                   struct dp_error *err)
{
    struct dp_adapt_input healthy = *input;
    double as_is = 0, supposed = 0;
    healthy.slow = NULL;
    healthy.links_count = 0;
    dp_status status = dp_adapt_step(&healthy, &job->plan, &as_is, err);
    status = status == DP_OK ? dp_adapt_step(input, &job->plan, &supposed, err) : status;
    if (status == DP_OK && job->measured_step_s > 0 && as_is > 0) {
        input->measured_step_s = job->measured_step_s * supposed / as_is;
    }
    return status;
}

static struct dp_adapt_input input_of(const struct whatif_request *request,
                                      const struct whatif_job *job,
                                      const struct dp_adapt_costs *costs)
{
    struct dp_adapt_input input = {
        .plan = &job->plan,
        .costs = costs,
        .spares = job->spares,
        .spares_count = job->spares_count,
        .spec = &job->spec,
        .resources = &job->resources,
        .remaining_steps = job->steps_left,
        .expected_steps = job->steps_left, // it is supposed to stay
        .trust = 1,
    };
    dp_adapt_limits_init(&input.limits);
    dp_adapt_acting_init(&input.acting, costs);
    input.acting.switch_s = request->pause_s >= 0 ? request->pause_s : input.acting.switch_s;
    input.acting.restart_s = request->restart_s >= 0 ? request->restart_s : input.acting.restart_s;
    return input;
}

static void show_answers(struct dpctl *ctl, const struct whatif_request *request,
                         const struct whatif_job *job, const struct dp_adapt_answers *answers)
{
    if (ctl->json) {
        json_t *json = dp_adapt_to_json(answers);
        json_object_del(json, "schema");
        json_object_set_new(json, "job", json_string(job->name));
        json_object_set_new(json, "slow", texts_json(request->slow, request->slow_count));
        json_object_set_new(json, "slow_links", texts_json(request->links, request->links_count));
        const struct dp_plan *plan = answers->answers[answers->best].plan;
        json_object_set_new(json, "plan", plan != NULL ? dp_plan_to_json(plan) : json_null());
        dpctl_print_json(ctl, json, "dp.whatif/1");
        return;
    }
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_adapt_render(answers, &text);
    dpctl_print(&text);
}

static dp_status ask_slow(struct dpctl *ctl, const struct whatif_request *request,
                          const struct whatif_job *job, struct dp_error *err)
{
    DP_CLEANUP(dp_adapt_costs_deinit) struct dp_adapt_costs costs = {0};
    DP_CLEANUP(dp_adapt_answers_deinit) struct dp_adapt_answers answers = {0};
    size_t world = (size_t)dp_plan_world(&job->plan);
    DP_AUTO_FREE double *slow = dp_new_array(double, world);
    DP_AUTO_FREE struct dp_adapt_link *links =
        dp_new_array(struct dp_adapt_link, 2 * (size_t)request->links_count);
    dp_status status = dp_adapt_costs_predict(&job->spec, &job->plan, &job->resources, &costs, err);
    struct dp_adapt_input input = input_of(request, job, &costs);
    for (size_t r = 0; r < world; r++) {
        slow[r] = 1;
    }
    for (int i = 0; i < request->slow_count && status == DP_OK; i++) {
        status = whatif_slow(request->slow[i], &job->plan, slow, err);
    }
    for (int i = 0; i < request->links_count && status == DP_OK; i++) {
        status =
            whatif_slow_link(request->links[i], &job->plan, &costs, links, &input.links_count, err);
    }
    input.slow = slow;
    input.links = links;
    status = status == DP_OK ? scale_to_measured(job, &input, err) : status;
    status = status == DP_OK ? dp_adapt_choose(&input, &answers, err) : status;
    if (status == DP_OK) {
        show_answers(ctl, request, job, &answers);
    }
    return status;
}

// Nodes and free slots without what is lost with its node.
static bool is_lost_node(const struct whatif_request *request, const char *name)
{
    for (int i = 0; i < request->lose_count; i++) {
        const char *text = request->lose[i];
        if (strncmp(text, "node=", 5) == 0 && strcmp(text + 5, name) == 0) {
            return true;
        }
    }
    return false;
}

static void leave_out_lost(const struct whatif_request *request, const struct whatif_job *job,
                           const bool *lost, struct whatif_job *ret_left)
{
    size_t nodes = job->resources.nodes_count, count = 0;
    ret_left->nodes = dp_new_array(struct dp_planner_node, nodes);
    ret_left->spares = dp_new_array(struct dp_adapt_spare, job->spares_count);
    for (size_t n = 0; n < nodes; n++) {
        struct dp_planner_node *to = &ret_left->nodes[count];
        *to = job->nodes[n];
        for (int32_t r = 0; r < dp_plan_world(&job->plan); r++) {
            to->slots -= lost[r] && strcmp(job->plan.ranks[r].node, to->name) == 0;
        }
        count += to->slots > 0 && !is_lost_node(request, to->name);
    }
    for (size_t i = 0; i < job->spares_count; i++) {
        if (!is_lost_node(request, job->spares[i].node)) {
            ret_left->spares[ret_left->spares_count++] = job->spares[i];
        }
    }
    ret_left->resources = (struct dp_planner_resources){
        .nodes = ret_left->nodes, .nodes_count = count, .profile = job->resources.profile};
}

static void show_recovery(struct dpctl *ctl, const struct whatif_request *request,
                          const struct whatif_job *job, const struct dp_adapt_recovery *recovery)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf survival = {0};
    struct dp_plan_survival of_plan;
    if (dp_plan_survival_of(&job->plan, &of_plan, NULL) == DP_OK) {
        dp_plan_survival_text(&job->plan, &of_plan, &survival);
    }
    double after = recovery->has_plan ? recovery->plan.step_s : 0;
    if (ctl->json) {
        json_t *json =
            json_pack("{s:s, s:o, s:s, s:b, s:s, s:s, s:s, s:f, s:o, s:o}", "job", job->name,
                      "lost", texts_json(request->lose, request->lose_count), "recovery",
                      dp_adapt_recovery_text(recovery->kind), "survives",
                      recovery->kind != DP_ADAPT_FROM_CHECKPOINT, "action", recovery->action,
                      "reason", recovery->reason, "plan_survival",
                      survival.length > 0 ? survival.bytes : "", "step_before_s", job->plan.step_s,
                      "step_after_s", recovery->has_plan ? json_real(after) : json_null(), "plan",
                      recovery->has_plan ? dp_plan_to_json(&recovery->plan) : json_null());
        dpctl_print_json(ctl, json, "dp.whatif/1");
        return;
    }
    char step[DP_PLAN_WORD_MAX], more[DP_PLAN_WORD_MAX];
    static const char *const words[] = {"goes on from the last step, on free slots",
                                        "goes on from the last step, on fewer ranks",
                                        "starts again from the last checkpoint"};
    printf("the plan    %s\n", survival.length > 0 ? survival.bytes : "cannot be expanded here");
    printf("then        the job %s\n", words[recovery->kind]);
    printf("how         %s\n", recovery->action);
    printf("why         %s\n", recovery->reason);
    if (recovery->has_plan) {
        printf("step        %s (%s)\n", dp_plan_text_seconds(step, after),
               dp_plan_text_more(more, after, job->plan.step_s));
    }
}

static dp_status ask_lost(struct dpctl *ctl, const struct whatif_request *request,
                          const struct whatif_job *job, struct dp_error *err)
{
    DP_AUTO_FREE bool *lost = dp_new_array(bool, (size_t)dp_plan_world(&job->plan));
    dp_status status = DP_OK;
    for (int i = 0; i < request->lose_count && status == DP_OK; i++) {
        status = whatif_lose(request->lose[i], &job->plan, lost, err);
    }
    if (status != DP_OK) {
        return status;
    }
    DP_CLEANUP(whatif_job_deinit) struct whatif_job left = {0};
    DP_CLEANUP(dp_adapt_recovery_deinit) struct dp_adapt_recovery recovery = {0};
    leave_out_lost(request, job, lost, &left);
    const struct dp_adapt_loss loss = {
        .plan = &job->plan,
        .lost = lost,
        .spares = left.spares,
        .spares_count = left.spares_count,
        .spec = &job->spec,
        .resources = &left.resources,
    };
    status = dp_adapt_recover(&loss, &recovery, err);
    if (status == DP_OK) {
        show_recovery(ctl, request, job, &recovery);
    }
    return status;
}

dp_status dpctl_cmd_whatif(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "JOB|JOB.toml",
        .doc = "Says what a slow rank, node or link would cost a job, every answer to it with its "
               "prediction, and the best one; or what becomes of the job when a rank or node dies. "
               "Of a job file: on the plan that dpctl plan makes. Changes nothing.\v"
               "docs/adapt.md explains the answers.\n\nExamples:\n"
               "  dpctl whatif job-17 --slow rank=3:1.5\n"
               "  dpctl whatif examples/tiny-moe.toml --lose node=node-1\n"
               "  dpctl whatif job-17 --slow-link 2-3:4x -o json\n",
        .exits = "0 an answer, 3 the job or what is supposed is wrong, 4 no such job or file, 6 "
                 "the job has no plan yet, 7 nothing fits, 8 no controller",
        .options = options,
        .handle = handle,
    };
    struct whatif_request request = {.pause_s = -1, .restart_s = -1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    DP_CLEANUP(whatif_job_deinit) struct whatif_job job = {0};
    dp_status status = whatif_job_load(ctl, &request, &job, err);
    if (status != DP_OK) {
        return status;
    }
    return request.lose_count > 0 ? ask_lost(ctl, &request, &job, err)
                                  : ask_slow(ctl, &request, &job, err);
}
