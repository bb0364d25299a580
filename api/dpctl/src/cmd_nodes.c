// dpctl nodes, drain and undrain.

#include <string.h>

#include "connect.h"
#include "dp/check.h"
#include "dp/cleanup.h"
#include "dp/clock.h"
#include "dp/method.h"

enum { KEY_REASON = 1, KEY_DEADLINE, KEY_FORCE };

static const struct argp_option drain_options[] = {
    {"reason", KEY_REASON, "TEXT", 0, "why; shown wherever the node is", 0},
    {"deadline", KEY_DEADLINE, "TIME", 0,
     "its jobs have to be gone by then (90s, 10m, 2h; 90 = 90s); without one they may end there",
     0},
    {"force", KEY_FORCE, NULL, 0, "its jobs go at once, after a checkpoint", 0},
    {0},
};
static const struct argp_option nodes_options[] = {
    {"reason", KEY_REASON, "TEXT", 0, "down, quarantine: why", 0},
    DPCTL_WIDE_OPTION,
    {0},
};

struct request {
    const char *words[2];
    int words_max;
    const char *reason;
    uint32_t deadline_s;
    bool force, wide;
};

// "90", "90s", "10m", "2h".
static uint32_t take_time(struct argp_state *state, const char *text)
{
    static const struct {
        char unit;
        uint32_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char digits[16];
    size_t length = strspn(text, "0123456789");
    uint32_t seconds = text[length] == '\0' ? 1 : 0;
    for (size_t i = 0; i < DP_ARRAY_LENGTH(units); i++) {
        if (text[length] == units[i].unit && text[length + 1] == '\0') {
            seconds = units[i].seconds;
        }
    }
    if (length == 0 || length >= sizeof(digits) || seconds == 0) {
        argp_error(state, "--deadline takes a time such as 90s, 10m or 2h, not \"%s\"", text);
        return 0;
    }
    snprintf(digits, sizeof(digits), "%.*s", (int)length, text);
    return (uint32_t)dpctl_number(state, "--deadline", digits, 1, 30 * 86400 / (long)seconds) *
           seconds;
}

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    int given = (request->words[0] != NULL) + (request->words[1] != NULL);
    switch (key) {
    case KEY_REASON:
        request->reason = arg;
        return 0;
    case KEY_DEADLINE:
        request->deadline_s = take_time(state, arg);
        return 0;
    case KEY_FORCE:
        request->force = true;
        return 0;
    case 'w':
        request->wide = true;
        return 0;
    case ARGP_KEY_ARG:
        if (given >= request->words_max) {
            argp_error(state, "unexpected argument \"%s\"", arg);
        }
        request->words[given] = arg;
        return 0;
    case ARGP_KEY_END:
        // dpctl nodes has a verb with a node, or neither.
        if (request->words_max == 2 && given == 1) {
            argp_error(
                state,
                "say what with which node: down NODE, quarantine NODE or forget NODE (alone, "
                "`dpctl nodes` lists them)");
        }
        if (request->words_max == 1 && given == 0) {
            argp_error(state, "say which node (`dpctl nodes` lists them)");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_node(struct dpctl *ctl, const Dp__V1__Node *node)
{
    if (ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&node->base), "dp.node/1");
        return;
    }
    printf("%s  %s%s%s\n", node->name, node->state, node->reason[0] == '\0' ? "" : "  ",
           node->reason);
    for (size_t i = 0; i < node->n_fates && i < node->n_jobs; i++) {
        printf("%s %s\n", node->jobs[i], node->fates[i]);
    }
    for (size_t i = 0; i < node->n_jobs && node->n_fates == 0; i++) {
        printf("%s%s%s", i == 0 ? "has ranks of " : ", ", node->jobs[i],
               i + 1 == node->n_jobs ? "\n" : "");
    }
}

dp_status dpctl_cmd_drain(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "NODE",
        .doc = "Gives a node no new work. Its jobs move to other nodes while they train, where "
               "that is possible; at the deadline those that are left begin again elsewhere from a "
               "checkpoint.",
        .exits = "0 ok, 4 no such node, 8 no controller",
        .options = drain_options,
        .handle = handle,
    };
    struct request request = {.words_max = 1, .reason = ""};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__DrainNodeRequest drain = DP__V1__DRAIN_NODE_REQUEST__INIT;
    drain.node = (char *)request.words[0];
    drain.reason = (char *)request.reason;
    drain.deadline_s = request.deadline_s;
    drain.force = request.force;
    Dp__V1__Node *node = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_drain_node(client, &drain, &arena, &node, err);
    }
    if (status == DP_OK) {
        print_node(ctl, node);
    }
    return status;
}

dp_status dpctl_cmd_undrain(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "NODE",
        .doc = "Takes back that a node was drained, set down or quarantined.",
        .exits = "0 ok, 4 no such node, 8 no controller",
        .handle = handle,
    };
    struct request request = {.words_max = 1};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__Node *node = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status == DP_OK) {
        status = dp_client_undrain_node(client, request.words[0], &arena, &node, err);
    }
    if (status == DP_OK) {
        print_node(ctl, node);
    }
    return status;
}

// "8 x NVIDIA H100 80GB HBM3"; nodes have one kind.
static void cell_accelerators(struct dpctl_table *table, const Dp__V1__Hardware *hardware)
{
    if (hardware == NULL || hardware->n_gpus == 0) {
        dpctl_cell(table, "%s", hardware == NULL ? "" : hardware->error);
    } else {
        dpctl_cell(table, "%zu x %s", hardware->n_gpus, hardware->gpus[0]->name);
    }
}

// "job-3", "3 jobs".
static void cell_jobs(struct dpctl_table *table, const Dp__V1__Node *node)
{
    if (node->n_jobs > 1) {
        dpctl_cell(table, "%zu jobs", node->n_jobs);
    } else {
        dpctl_cell(table, "%s", node->n_jobs == 0 ? "" : node->jobs[0]);
    }
}

static void print_nodes(const Dp__V1__ListNodesResponse *nodes, int fits)
{
    // First without CALIBRATED, ACCELERATORS, CORES, MEMORY, SEEN.
    DP_CLEANUP(dpctl_table_deinit)
    struct dpctl_table table = {.columns = 10, .right = 7u << 2, .fits = fits, .drops = "gfdeh"};
    const char *const heads[] = {"NAME",         "STATE",      "SLOTS", "CORES", "MEMORY",
                                 "ACCELERATORS", "CALIBRATED", "SEEN",  "JOBS",  "REASON"};
    dpctl_heads(&table, heads);
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const Dp__V1__Node *node = nodes->nodes[i];
        char bytes[32], seen[32] = "";
        dpctl_cell(&table, "%s", node->name);
        dpctl_cell(&table, "%s", node->state);
        dpctl_cell(&table, "%u/%u", node->slots_used, node->slots);
        dpctl_cell(&table, "%u", node->cores);
        dpctl_cell(&table, "%s", dpctl_bytes(bytes, (double)node->memory_bytes));
        cell_accelerators(&table, node->hardware);
        dpctl_cell(&table, "%s", node->calibrated ? "yes" : "no");
        if (node->last_seen_ns != 0) {
            dpctl_seconds(seen, (double)(dp_clock_realtime_ns() - node->last_seen_ns) / 1e9);
        }
        dpctl_cell(&table, "%s", seen);
        cell_jobs(&table, node);
        dpctl_cell(&table, "%s", node->reason);
    }
    dpctl_table_print(&table);
}

static dp_status list(struct dpctl *ctl, struct dp_client *client, bool wide, struct dp_error *err)
{
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__ListNodesResponse *nodes = NULL;
    dp_status status = dp_client_list_nodes(client, &arena, &nodes, err);
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, dp_message_to_json(&nodes->base), "dp.nodes/1");
    } else if (status == DP_OK) {
        print_nodes(nodes, dpctl_fits(ctl, wide));
    }
    return status;
}

dp_status dpctl_cmd_nodes(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "\ndown NODE\nquarantine NODE\nforget NODE",
        .doc = "Lists nodes and what they have. down: nothing may run there, whatever the node "
               "says, until `dpctl undrain`; quarantine: no new work until then; forget: takes a "
               "node that is gone for good off the list.",
        .exits = "0 ok, 3 no such verb, 4 no such node, 6 it cannot be forgotten, 8 no controller",
        .options = nodes_options,
        .handle = handle,
    };
    struct request request = {.words_max = 2, .reason = ""};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    AUTO_CLIENT struct dp_client *client = NULL;
    dp_status status = connect_controller(ctl, &client, err);
    if (status != DP_OK || request.words[0] == NULL) {
        return status == DP_OK ? list(ctl, client, request.wide, err) : status;
    }
    DP_CLEANUP(dp_arena_deinit) struct dp_arena arena = {0};
    Dp__V1__SetNodeRequest set = DP__V1__SET_NODE_REQUEST__INIT;
    set.action = (char *)request.words[0];
    set.node = (char *)request.words[1];
    set.reason = (char *)request.reason;
    Dp__V1__Node *node = NULL;
    status = dp_client_set_node(client, &set, &arena, &node, err);
    if (status == DP_OK) {
        print_node(ctl, node);
    }
    return status;
}
