#include "schedule_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/check.h"
#include "dp/cleanup.h"

enum {
    KEY_SCHEDULES = 1,
    KEY_F,
    KEY_B,
    KEY_I,
    KEY_W,
    KEY_FB,
    KEY_HOP,
    KEY_TABLE,
    KEY_WIDTH,
    KEY_OUT,
    KEY_FORMAT
};

static const struct argp_option options[] = {
    {NULL, 'P', "RANKS", 0, "pipeline ranks", 0},
    {NULL, 'M', "COUNT", 0, "micro-batches per step", 0},
    {"schedules", KEY_SCHEDULES, "LIST", 0, "compare: families, comma separated (default all)", 0},
    {"f", KEY_F, "S", 0, "seconds of a forward chunk (1)", 1},
    {"b", KEY_B, "S", 0, "of a full backward (i + w)", 1},
    {"i", KEY_I, "S", 0, "of an input-gradient backward (1)", 1},
    {"w", KEY_W, "S", 0, "of a weight-gradient backward (1)", 1},
    {"fb", KEY_FB, "S", 0, "of an overlapped pair (f + b)", 1},
    {"hop", KEY_HOP, "S", 0, "latency between ranks (0)", 1},
    {"table", KEY_TABLE, NULL, 0, "show: one cell per time slot", 2},
    {"width", KEY_WIDTH, "COLUMNS", 0, "show: columns to fill", 2},
    {"format", KEY_FORMAT, "NAME", 0, "export: dp (default), torch or perfetto", 2},
    {"out", KEY_OUT, "FILE", 0, "export: write here instead of stdout", 2},
    {0},
};

static const struct {
    int key;
    schedule_options group;
} groups[] = {
    {'P', SCHEDULE_SIZES},
    {'M', SCHEDULE_SIZES},
    {KEY_F, SCHEDULE_COSTS},
    {KEY_B, SCHEDULE_COSTS},
    {KEY_I, SCHEDULE_COSTS},
    {KEY_W, SCHEDULE_COSTS},
    {KEY_FB, SCHEDULE_COSTS},
    {KEY_HOP, SCHEDULE_COSTS},
    {KEY_SCHEDULES, SCHEDULE_FAMILIES},
    {KEY_TABLE, SCHEDULE_DRAWING},
    {KEY_WIDTH, SCHEDULE_DRAWING},
    {KEY_FORMAT, SCHEDULE_FILES},
    {KEY_OUT, SCHEDULE_FILES},
};

static void take_argument(struct argp_state *state, struct schedule_request *request, char *arg)
{
    if (state->arg_num == 0) {
        request->verb = arg;
    } else {
        dpctl_take_argument(state, "schedule", arg, &request->subject);
    }
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct schedule_request *request = state->input;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(groups); i++) {
        request->given |= groups[i].key == key ? groups[i].group : 0;
    }
    switch (key) {
    case 'P':
        request->pipeline = (int32_t)dpctl_number(state, "-P", arg, 1, DP_PIPELINE_MAX);
        return 0;
    case 'M':
        request->microbatches = (int32_t)dpctl_number(state, "-M", arg, 1, DP_MICROBATCHES_MAX);
        return 0;
    case KEY_SCHEDULES:
        request->schedules = arg;
        return 0;
    case KEY_F:
        request->f = dpctl_real(state, "--f", arg, 0);
        return 0;
    case KEY_B:
        request->b = dpctl_real(state, "--b", arg, 0);
        return 0;
    case KEY_I:
        request->i = dpctl_real(state, "--i", arg, 0);
        return 0;
    case KEY_W:
        request->w = dpctl_real(state, "--w", arg, 0);
        return 0;
    case KEY_FB:
        request->fb = dpctl_real(state, "--fb", arg, 0);
        return 0;
    case KEY_HOP:
        request->hop = dpctl_real(state, "--hop", arg, 0);
        return 0;
    case KEY_TABLE:
        request->table = true;
        return 0;
    case KEY_WIDTH:
        request->width = (int32_t)dpctl_number(state, "--width", arg, 40, 10000);
        return 0;
    case KEY_FORMAT:
        request->format = arg;
        return 0;
    case KEY_OUT:
        request->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        take_argument(state, request, arg);
        return 0;
    case ARGP_KEY_END:
        if (request->verb == NULL) {
            argp_error(state, "say what to do: list, show, simulate, compare, check or export");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static dp_status load_file(const char *path, struct dp_schedule *ret_schedule, struct dp_error *err)
{
    DP_CLEANUP(dp_buf_deinit) struct dp_buf text = {0};
    dp_status status = dp_read_file(path, (size_t)DP_ACTIONS_MAX * 16, &text, err);
    if (status != DP_OK) {
        return status;
    }
    DP_AUTO_JSON json_t *json = NULL;
    status = dp_json_parse(text.bytes, text.length, text.length, path, &json, err);
    if (status != DP_OK) {
        return status;
    }
    status = dp_schedule_from_json(json, ret_schedule, err);
    return status == DP_OK ? DP_OK : dp_fail_in(err, "%s", path);
}

// Names of families have neither dots nor slashes.
static bool is_file(const char *subject)
{
    return strcmp(subject, "-") == 0 || strpbrk(subject, "./") != NULL ||
           (dp_schedule_family_find(subject) == NULL && access(subject, F_OK) == 0);
}

dp_status schedule_obtain(const struct schedule_request *request, const char *subject,
                          struct dp_schedule *ret_schedule, struct dp_error *err)
{
    if (is_file(subject) && (request->given & SCHEDULE_SIZES) != 0) {
        return dp_fail(err, DP_USAGE, "%s has its own sizes; leave out -P and -M", subject);
    }
    if (is_file(subject)) {
        return load_file(subject, ret_schedule, err);
    }
    if (request->pipeline == 0 || request->microbatches == 0) {
        return dp_fail(err, DP_USAGE, "say -P RANKS and -M MICROBATCHES for schedule %s", subject);
    }
    struct dp_schedule_params params = {.pipeline = request->pipeline,
                                        .microbatches = request->microbatches};
    return dp_schedule_generate(subject, &params, ret_schedule, err);
}

static struct dp_sim_uniform costs_of(const struct schedule_request *request)
{
    struct dp_sim_uniform costs = {.f = request->f,
                                   .i = request->i,
                                   .w = request->w,
                                   .b = request->b < 0 ? request->i + request->w : request->b,
                                   .hop = {.latency = request->hop}};
    costs.fb = request->fb < 0 ? costs.f + costs.b : request->fb;
    // A pair with an input-gradient part is shorter by what is left out.
    costs.fi = costs.fb - costs.b + costs.i > 0 ? costs.fb - costs.b + costs.i : costs.fb;
    return costs;
}

dp_status schedule_simulate(const struct schedule_request *request,
                            const struct dp_schedule *schedule, bool with_spans,
                            struct dp_sim_result *ret_result, struct dp_error *err)
{
    struct dp_sim_uniform uniform = costs_of(request);
    if (request->same_model) {
        // The same model in more stages: each chunk is that much shorter.
        double share = (double)schedule->pipeline / schedule->stages;
        double *const parts[] = {&uniform.f, &uniform.b,  &uniform.i,
                                 &uniform.w, &uniform.fb, &uniform.fi};
        for (size_t i = 0; i < DP_ARRAY_LENGTH(parts); i++) {
            *parts[i] *= share;
        }
    }
    DP_CLEANUP(dp_sim_costs_deinit) struct dp_sim_costs costs = {0};
    dp_sim_costs_init_uniform(&costs, schedule, &uniform);
    return dp_simulate(schedule, &costs, with_spans, ret_result, err);
}

static double bubble_max(const struct dp_sim_result *result)
{
    double worst = 0;
    for (int32_t r = 0; r < result->pipeline; r++) {
        worst = result->ranks[r].bubble > worst ? result->ranks[r].bubble : worst;
    }
    return worst;
}

static uint32_t peak_max(const struct dp_sim_result *result)
{
    uint32_t worst = 0;
    for (int32_t r = 0; r < result->pipeline; r++) {
        worst = result->ranks[r].peak_chunks > worst ? result->ranks[r].peak_chunks : worst;
    }
    return worst;
}

json_t *schedule_result_json(const struct dp_schedule *schedule, const struct dp_sim_result *result)
{
    json_t *ranks = json_array();
    for (int32_t r = 0; r < result->pipeline; r++) {
        const struct dp_sim_rank *rank = &result->ranks[r];
        json_array_append_new(
            ranks, json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "rank", (int)r,
                             "busy_s", dp_sim_rank_busy(rank), "bubble_s", rank->bubble, "warmup_s",
                             rank->warmup, "dependency_s", rank->dependency, "comm_s", rank->comm,
                             "cooldown_s", rank->cooldown, "span_bubble_s", rank->span_bubble,
                             "peak_chunks", (int)rank->peak_chunks));
    }
    return json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:i, s:o}", "name", schedule->name, "pipeline",
                     (int)schedule->pipeline, "microbatches", (int)schedule->microbatches, "stages",
                     (int)schedule->stages, "makespan_s", result->makespan, "bubble_max_s",
                     bubble_max(result), "peak_chunks_max", (int)peak_max(result), "ranks", ranks);
}

void schedule_request_parse(struct dpctl *ctl, int argc, char **argv,
                            struct schedule_request *ret_request)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "list\nshow|simulate|export NAME -P RANKS -M COUNT\n"
                     "show|simulate|export|check FILE.json\ncompare -P RANKS -M COUNT",
        .doc = "Pipeline schedules: which there are, what they cost, how they look.\v"
               "Seconds are of one chunk; `compare` takes them as of 1/P of the model, so that a "
               "family with 2P stages has chunks half as long.\n\n"
               "Examples:\n"
               "  dpctl schedule compare -P 8 -M 16 --schedules 1f1b,dualpipe,dualpipev\n"
               "  dpctl schedule show dualpipe -P 4 -M 8 --table\n"
               "  dpctl schedule simulate dualpipe -P 8 -M 20 --fb 2.5 -o json\n"
               "  dpctl schedule export dualpipev -P 4 -M 10 --format torch --out v.csv\n",
        .exits = "0 ok, 3 the file is wrong or the family cannot have these sizes, 4 no such "
                 "schedule or file",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    *ret_request = (struct schedule_request){.f = 1, .b = -1, .i = 1, .w = 1, .fb = -1};
    dpctl_parse(ctl, &syntax, ret_request, argc, argv);
}
