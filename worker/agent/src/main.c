#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp/alloc.h"
#include "dp/cleanup.h"
#include "dp/log.h"
#include "worker.h"

#define LEASE_MS_MIN 500 // several ticks of the agent
#define ORPHAN_MS_MIN 1000
#define MS_MAX (24u * 3600 * 1000)

enum option_key {
    OPTION_STATE_DIR = 'd',
    OPTION_NAME = 'n',
    OPTION_CONTROLLER = 'c',
    OPTION_SLOTS = 's',
    OPTION_DATA_HOST = 0x100,
    OPTION_LEASE_MS,
    OPTION_ORPHAN_MS,
    OPTION_UNKILLABLE_MS,
    OPTION_RANK_PROGRAM,
    OPTION_KEEPER_PROGRAM,
    OPTION_KILL_RANKS,
    OPTION_HARDWARE_ROOT,
    OPTION_NVML,
    OPTION_PLACE,
};

static const struct argp_option option_list[] = {
    {"state-dir", OPTION_STATE_DIR, "DIR", 0, "where this agent keeps what it runs", 0},
    {"name", OPTION_NAME, "NODE", 0, "the node's name (default: the host's)", 0},
    {"controller", OPTION_CONTROLLER, "ADDR|@FILE", 0,
     "host:port, or a file that holds it and is read at each connection", 0},
    {"slots", OPTION_SLOTS, "N", 0, "ranks this node takes (default: its cores)", 0},
    {"data-host", OPTION_DATA_HOST, "HOST", 0, "where ranks bind their ports (127.0.0.1)", 0},
    {"place", OPTION_PLACE, "OUTER/INNER", 0,
     "what the node hangs on, such as switch-2/rack-7: jobs get nodes that are close together", 0},
    {"lease-ms", OPTION_LEASE_MS, "N", 0,
     "ranks end after this long without an agent; the node counts as lost (10000)", 0},
    {"orphan-ms", OPTION_ORPHAN_MS, "N", 0,
     "the agent ends its ranks when the controller has acknowledged nothing for this long "
     "(600000)",
     0},
    {"unkillable-ms", OPTION_UNKILLABLE_MS, "N", 0,
     "a rank that has not ended so long after it was killed is told to be UNKILLABLE (30000)", 0},
    {"rank-program", OPTION_RANK_PROGRAM, "PATH", 0, "dp-rank (default: beside this program)", 0},
    {"keeper-program", OPTION_KEEPER_PROGRAM, "PATH", 0, "dp-keeper (default: beside this program)",
     0},
    {"kill-ranks-on-exit", OPTION_KILL_RANKS, NULL, 0,
     "end all ranks and keepers on SIGTERM (default: they go on)", 0},
    {"hardware-root", OPTION_HARDWARE_ROOT, "DIR", 0,
     "read DIR/sys instead of /sys for what this node has", 0},
    {"nvml", OPTION_NVML, "LIBRARY", 0,
     "ask this library about accelerators (default: libnvidia-ml.so.1 where it is)", 0},
    {0},
};

static uint32_t number_of(const char *text, uint32_t max, struct argp_state *state)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value < 1 || value > max) {
        argp_error(state, "\"%s\" is not a whole number from 1 to %u", text, max);
    }
    return (uint32_t)value;
}

static void check_name(const char *name, struct argp_state *state)
{
    if (*name == '\0' || strlen(name) >= DP_NAME_MAX) {
        argp_error(state, "--name has 1 to %d bytes: \"%s\"", DP_NAME_MAX - 1, name);
    }
}

// An outer part that is empty would make neighbours of strangers.
static void check_place(const char *place, struct argp_state *state)
{
    size_t length = strlen(place);
    bool good = length < DP_NAME_MAX;
    for (const char *at = place; good && *at != '\0'; at++) {
        good = *at > ' ' && *at < 0x7f;
    }
    if (!good) {
        argp_error(state, "--place has at most %d printable characters: \"%s\"", DP_NAME_MAX - 1,
                   place);
    }
    if (length > 0 &&
        (place[0] == '/' || place[length - 1] == '/' || strstr(place, "//") != NULL)) {
        argp_error(state, "--place has a part without a name: \"%s\"", place);
    }
}

static void check_all(const struct worker_options *options, struct argp_state *state)
{
    if (options->state_dir == NULL) {
        argp_error(state, "--state-dir is missing");
    }
    if (options->controller == NULL) {
        argp_error(state, "--controller is missing");
    }
    if (options->lease_ms < LEASE_MS_MIN) {
        argp_error(state, "--lease-ms is at least %d: %u", LEASE_MS_MIN, options->lease_ms);
    }
    if (options->orphan_ms < ORPHAN_MS_MIN) {
        argp_error(state, "--orphan-ms is at least %d: %u", ORPHAN_MS_MIN, options->orphan_ms);
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct worker_options *options = state->input;
    switch (key) {
    case OPTION_STATE_DIR:
        options->state_dir = argument;
        return 0;
    case OPTION_NAME:
        check_name(argument, state);
        options->name = argument;
        return 0;
    case OPTION_CONTROLLER:
        options->controller = argument;
        return 0;
    case OPTION_SLOTS:
        options->slots = number_of(argument, DP_NODE_SLOTS_MAX, state);
        return 0;
    case OPTION_PLACE:
        check_place(argument, state);
        options->place = argument;
        return 0;
    case OPTION_DATA_HOST:
        options->data_host = argument;
        return 0;
    case OPTION_LEASE_MS:
        options->lease_ms = number_of(argument, MS_MAX, state);
        return 0;
    case OPTION_ORPHAN_MS:
        options->orphan_ms = number_of(argument, MS_MAX, state);
        return 0;
    case OPTION_UNKILLABLE_MS:
        options->unkillable_ms = number_of(argument, MS_MAX, state);
        return 0;
    case OPTION_RANK_PROGRAM:
        options->rank_program = argument;
        return 0;
    case OPTION_KEEPER_PROGRAM:
        options->keeper_program = argument;
        return 0;
    case OPTION_KILL_RANKS:
        options->kill_ranks_on_exit = true;
        return 0;
    case OPTION_HARDWARE_ROOT:
        options->hardware_root = argument;
        return 0;
    case OPTION_NVML:
        options->nvml_library = argument;
        return 0;
    case ARGP_KEY_END:
        check_all(options, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// The caller owns the result.
static char *sibling(const char *name)
{
    DP_AUTO_FREE char *self = realpath("/proc/self/exe", NULL);
    char *slash = self == NULL ? NULL : strrchr(self, '/');
    if (slash == NULL) {
        return dp_strdup(name);
    }
    return dp_asprintf("%.*s/%s", (int)(slash - self), self, name);
}

// A path stays valid whatever directory a child works in.
static char *absolute(const char *path)
{
    char *resolved = realpath(path, NULL);
    return resolved == NULL ? dp_strdup(path) : resolved;
}

static int run(struct worker_options *options)
{
    DP_AUTO_FREE char *rank_default = sibling("dp-rank");
    DP_AUTO_FREE char *keeper_default = sibling("dp-keeper");
    DP_AUTO_FREE char *rank =
        absolute(options->rank_program == NULL ? rank_default : options->rank_program);
    DP_AUTO_FREE char *keeper =
        absolute(options->keeper_program == NULL ? keeper_default : options->keeper_program);
    options->rank_program = rank;
    options->keeper_program = keeper;
    struct worker worker;
    struct dp_error err = {0};
    dp_status status = dp_make_directories(options->state_dir, &err);
    DP_AUTO_FREE char *state_dir = absolute(options->state_dir);
    options->state_dir = state_dir;
    if (status == DP_OK) {
        status = worker_open(&worker, options, &err);
    }
    if (status != DP_OK) {
        dp_log_error("worker.not_started", "reason=\"%s\"", err.message);
        return dp_status_exit_code(status);
    }
    worker_run(&worker);
    worker_close(&worker);
    return 0;
}

int main(int argc, char **argv)
{
    char host[DP_NAME_MAX] = "node";
    (void)gethostname(host, sizeof host - 1);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct worker_options options = {
        .name = host,
        .data_host = "127.0.0.1",
        .place = "",
        .slots = cores < 1                   ? 1
                 : cores > DP_NODE_SLOTS_MAX ? DP_NODE_SLOTS_MAX
                                             : (uint32_t)cores,
        .lease_ms = 10000,
        .orphan_ms = 600000,
        .unkillable_ms = DP_AGENT_UNKILLABLE_MS,
    };
    static const struct argp parser = {
        .options = option_list,
        .parser = parse_option,
        .doc = "Agent of one node: starts and watches ranks for dp-controller.",
    };
    argp_program_version = "dp-worker " DP_VERSION;
    argp_err_exit_status = 2;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    dp_log_init("dp-worker", DP_LOG_INFO);
    return run(&options);
}
