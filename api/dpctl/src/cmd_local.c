// dpctl local: the cluster of one machine, alone.

#include <stdlib.h>
#include <string.h>

#include "dp/check.h"
#include "dp/cleanup.h"
#include "local.h"
#include "local_files.h"

enum { KEY_NODES = 1, KEY_SLOTS, KEY_RECALIBRATE };

static const struct argp_option options[] = {
    {"nodes", KEY_NODES, "COUNT", 0, "up: agents (as many as there were, else 2)", 0},
    {"slots", KEY_SLOTS, "COUNT", 0, "up: ranks per agent (as many as there were, else 2)", 0},
    {"recalibrate", KEY_RECALIBRATE, NULL, 0, "up: measure this machine again", 0},
    {0},
};

struct request {
    const char *verb;
    struct local_options local;
    bool shaped; // an option of `up` was given
};

static error_t handle(int key, char *arg, struct argp_state *state)
{
    struct request *request = state->input;
    switch (key) {
    case KEY_NODES:
        request->local.nodes = (int)dpctl_number(state, "--nodes", arg, 1, DP_LOCAL_NODES_MAX);
        request->shaped = true;
        return 0;
    case KEY_SLOTS:
        request->local.slots = (int)dpctl_number(state, "--slots", arg, 1, DP_NODE_SLOTS_MAX);
        request->shaped = true;
        return 0;
    case KEY_RECALIBRATE:
        request->local.recalibrate = true;
        request->shaped = true;
        return 0;
    case ARGP_KEY_ARG:
        dpctl_take_argument(state, "verb", arg, &request->verb);
        return 0;
    case ARGP_KEY_END:
        if (request->verb == NULL) {
            argp_error(state, "say what to do: up, down or status");
        }
        if (request->shaped && strcmp(request->verb, "up") != 0) {
            argp_error(state, "--nodes, --slots and --recalibrate belong to `dpctl local up`");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_parts(const struct local_part *parts, int count, const char *address,
                        const char *http_address)
{
    DP_CLEANUP(dpctl_table_deinit) struct dpctl_table table = {.columns = 3, .right = 1u << 1};
    const char *const heads[] = {"PART", "PID", "STATE"};
    dpctl_heads(&table, heads);
    for (int i = 0; i < count; i++) {
        dpctl_cell(&table, "%s", parts[i].name);
        dpctl_cell(&table, parts[i].pid != 0 ? "%d" : "", parts[i].pid);
        dpctl_cell(&table, "%s",
                   parts[i].pid == 0 ? "gone (dpctl local up restarts it)"
                   : i == 0          ? address
                                     : "running");
    }
    dpctl_table_print(&table);
    if (http_address[0] != '\0') {
        printf("http://%s serves the same as JSON; /metrics, /openapi.json\n", http_address);
    }
}

static void print_parts_json(struct dpctl *ctl, const struct local_part *parts, int count,
                             const char *address, const char *http_address)
{
    json_t *rows = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(rows, json_pack("{s:s, s:b, s:i}", "name", parts[i].name, "running",
                                              parts[i].pid != 0, "pid", parts[i].pid));
    }
    dpctl_print_json(ctl,
                     json_pack("{s:s, s:s, s:s, s:o}", "address", address, "http_address",
                               http_address, "state_directory", ctl->state_directory, "parts",
                               rows),
                     "dp.local/1");
}

static dp_status print_status(struct dpctl *ctl, struct dp_error *err)
{
    struct local_part parts[DP_LOCAL_NODES_MAX + 1];
    int count = local_parts(ctl, parts, (int)DP_ARRAY_LENGTH(parts));
    char address[DP_ADDRESS_MAX] = "", http_address[DP_ADDRESS_MAX];
    struct dp_error ignored = {0};
    ctl->controller = NULL; // the local one, whatever the environment names
    local_find_controller(ctl, address, &ignored);
    local_http_address(ctl, http_address);
    int running = 0;
    for (int i = 0; i < count; i++) {
        running += parts[i].pid != 0;
    }
    if (ctl->json) {
        print_parts_json(ctl, parts, count, address, http_address);
    } else if (running > 0) {
        print_parts(parts, count, address, http_address);
    }
    if (running == 0) {
        return dp_fail(err, DP_UNAVAILABLE, "no local cluster runs; `dpctl local up` starts one");
    }
    return running == count ? DP_OK
                            : dp_fail(err, DP_UNAVAILABLE,
                                      "%d of %d parts run; `dpctl local up` restarts what is gone",
                                      running, count);
}

static dp_status bring_up(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    dp_status status = local_up(ctl, &request->local, NULL, err);
    return status == DP_OK ? print_status(ctl, err) : status;
}

static dp_status take_down(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    (void)request;
    dp_status status = local_down(ctl, err);
    if (status == DP_OK && ctl->json) {
        dpctl_print_json(ctl, json_pack("{s:b}", "running", 0), "dp.local_down/1");
    }
    return status;
}

static dp_status show(struct dpctl *ctl, const struct request *request, struct dp_error *err)
{
    (void)request;
    return print_status(ctl, err);
}

static const struct {
    const char *name;
    dp_status (*run)(struct dpctl *ctl, const struct request *request, struct dp_error *err);
} verbs[] = {
    {"up", bring_up},
    {"down", take_down},
    {"status", show},
};

dp_status dpctl_cmd_local(struct dpctl *ctl, int argc, char **argv, struct dp_error *err)
{
    static const struct dpctl_syntax syntax = {
        .arguments = "up|down|status",
        .doc = "The local cluster: a controller and agents on loopback, for one user on one "
               "machine.\v"
               "`up` may be repeated: it restarts what died and touches nothing that runs. Another "
               "number of nodes or slots, and calibration, need a cluster without jobs. `down` "
               "cancels what runs. State and logs lie under $XDG_STATE_HOME/dp/local.\n",
        .exits = "0 it runs (down: it is gone), 6 jobs are in the way, 8 it does not run, 130 "
                 "Ctrl-C",
        .offline = true,
        .options = options,
        .handle = handle,
    };
    struct request request = {0};
    dpctl_parse(ctl, &syntax, &request, argc, argv);
    for (size_t i = 0; i < DP_ARRAY_LENGTH(verbs); i++) {
        if (strcmp(verbs[i].name, request.verb) == 0) {
            return verbs[i].run(ctl, &request, err);
        }
    }
    return dp_fail(err, DP_USAGE, "unknown verb \"%s\"; there are up, down and status",
                   request.verb);
}
